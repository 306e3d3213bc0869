#!/usr/bin/env bash
# Runs all that CI runs: set-up, lint, types, and tests with real MXNet jobs of several processes in real namespaces.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/setup.sh
need_debian_packages gcc libc6-dev python3-venv iproute2 util-linux openssh-server openssh-client dataset-fashion-mnist
install_nalb '[dev,mxnet]'
export OMP_NUM_THREADS=1
"$venv/bin/ruff" check .
"$venv/bin/ruff" format --check .
"$venv/bin/mypy"
# What a Python without MXNet loads must run on 3.10. Pythons older than this machine's need not be here for that.
"$venv/bin/vermin" --quiet --no-tips --violations --target=3.10- \
  scripts/build_backend.py nalb netem kvstore_patch/keys kvstore_patch/shim kvstore_patch/bootstrap kvstore_patch/after_mxnet.py
if (($#)); then
  exec "$venv/bin/python" -m pytest "$@"
fi

# Tests of these rooms only compute, and tests of real jobs mostly wait. So both run at once, the former at low priority.
computing=(tests/batching tests/feedback tests/measurement tests/planning tests/protocol tests/services tests/simulation tests/tokens)
output=$(mktemp)
nice -n 19 "$venv/bin/python" -m pytest -p no:cacheprovider "${computing[@]}" >"$output" 2>&1 &
beside=$!
trap 'kill "$beside" 2>/dev/null || true; rm -f "$output"' EXIT
code=0
"$venv/bin/python" -m pytest "${computing[@]/#/--ignore=}" || code=$?
wait "$beside" || code=$?
cat "$output"
exit "$code"
