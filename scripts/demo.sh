#!/usr/bin/env bash
# Shows nalb at work: trains on an emulated network of four unequal nodes, compares the schemes on that network, and trains there with
# PyTorch.
# Usage: bash scripts/demo.sh [RUN_DIRECTORY]
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/setup.sh
need_debian_packages gcc libc6-dev python3-venv iproute2 util-linux dataset-fashion-mnist
install_nalb '[mxnet]'
install_nalb '[torch-tests]' "$venv_torch"
export OMP_NUM_THREADS=1
[ -t 1 ] || export COLUMNS=${COLUMNS:-120} # a table is made to the width of a terminal
nalb=("$venv/bin/python" -m nalb.cli.main)
run=${1:-runs/demo-$(date +%Y%m%d-%H%M%S)}

echo "== 1. a Gluon script with one word changed (kvstore='nalb'), on four nodes of 200, 120, 160 and 50 Mbit/s"
if [ -d /usr/share/datasets/fashion-mnist ]; then
  "${nalb[@]}" launch --network wan4-static --out "$run/training" -- \
    "$venv/bin/python" examples/train_fashion_mnist.py --epochs 2 --max-batches 60 --test-images 2000
else
  echo "skipped: dataset-fashion-mnist is not installed, and installing it needs root"
fi

echo "== 2. the same network under four schemes: MobileNet's gradients, 12.9 MB an iteration"
"${nalb[@]}" compare --network wan4-static --replay mobilenet --schemes stock,average,aware,exact \
  --iterations 10 --out "$run/comparison"

echo "== 3. the report"
"${nalb[@]}" report "$run/comparison"

echo "== 4. PyTorch: a DDP script with one word changed (init_process_group(\"nalb\")), on the same network under gloo and under nalb"
TORCH_CPP_LOG_LEVEL=ERROR "${nalb[@]}" compare --framework torch --network wan4-static --schemes gloo,exact --iterations 8 \
  --out "$run/torch" -- "$venv_torch/bin/python" examples/train_torch.py --steps 11
