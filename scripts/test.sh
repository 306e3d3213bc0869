#!/usr/bin/env bash
# Everything that CI runs: set-up, lint, types, tests with real multi-process MXNet jobs over real namespaces.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/setup.sh
need_debian_packages gcc libc6-dev python3-venv iproute2 util-linux openssh-server openssh-client dataset-fashion-mnist
install_nalb '[dev]'
export OMP_NUM_THREADS=1
"$venv/bin/ruff" check .
"$venv/bin/ruff" format --check .
"$venv/bin/mypy"
exec "$venv/bin/python" -m pytest "$@"
