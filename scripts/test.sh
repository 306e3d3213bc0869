#!/usr/bin/env bash
# Runs all that CI runs: set-up, lint, types, and tests with real jobs of MXNet and PyTorch in real namespaces.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/setup.sh
need_debian_packages gcc libc6-dev python3-venv iproute2 util-linux openssh-server openssh-client dataset-fashion-mnist
install_nalb '[dev,mxnet]'
install_nalb '[torch-tests]' "$venv_torch"
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

# Tests of some rooms only compute, and tests of real jobs mostly wait. So they run side by side, the former at low priority. What
# needs no MXNet runs in PyTorch's environment, so with a current numpy; jobs of MXNet use the same rooms with its older one.
computing=(tests/feedback tests/measurement tests/planning tests/services tests/simulation tests/tokens)
exploring=tests/protocol # a run of its own, so that both cores have work once the jobs are over
batching=tests/batching # ARIMA is in MXNet's environment alone
without_mxnet=(tests/torch tests/launch/test_torch_*.py tests/plane tests/transport tests/reporting tests/checkpoints tests/netem tests/process)
commands=tests/cli # after those without MXNet, which take half as long as the longest chain
both=tests/compare/test_ring.py # MXNet's jobs beside PyTorch's gloo
output=$(mktemp -d)
beside=()
trap 'kill "${beside[@]}" 2>/dev/null || true; rm -r "$output"' EXIT
run() { # niceness environment tests...
  exec nice -n "$1" "$2/bin/python" -m pytest -p no:cacheprovider "${@:3}"
}
run_beside() { # name command...: in the background; what it prints comes at the end
  "${@:2}" >"$output/$1" 2>&1 &
  beside+=($!)
}
run_in_turn() {
  local code=0
  trap 'kill "$!"; exit 143' TERM
  run 0 "$venv_torch" "${without_mxnet[@]}" &
  wait "$!" || code=$?
  run 0 "$venv" "$commands" &
  wait "$!" || code=$?
  PYTHONPATH=$torch_beside run 0 "$venv" "$both" &
  wait "$!" || code=$?
  return "$code"
}
torch_beside=$venv/torch-beside # PyTorch with all that MXNet's environment lacks, whose numpy stays
mkdir -p "$torch_beside"
for path in "$venv_torch"/lib/python3.11/site-packages/*; do
  name=${path##*/}
  case $name in *.dist-info | *.pth | __*) continue ;; esac
  [ -e "$venv/lib/python3.11/site-packages/$name" ] || ln -sfn "$path" "$torch_beside/$name"
done
run_beside in_turn run_in_turn
run_beside batching run 19 "$venv" "$batching"
run_beside computing run 19 "$venv_torch" "${computing[@]}"
run_beside exploring run 19 "$venv_torch" "$exploring"
code=0
elsewhere=("${computing[@]}" "$exploring" "$batching" "${without_mxnet[@]}" "$commands" "$both")
"$venv/bin/python" -m pytest "${elsewhere[@]/#/--ignore=}" || code=$?
for one in "${beside[@]}"; do wait "$one" || code=$?; done
cat "$output"/*
exit "$code"
