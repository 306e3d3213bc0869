#!/usr/bin/env bash
# Shows nalb at work on an emulated network of four unequal nodes: simulates it, trains there with MXNet and with PyTorch, and compares
# schemes. It ends with the result and the page to open, after two to three minutes where all is installed.
# Usage: bash scripts/demo.sh [RUN_DIRECTORY]
set -euo pipefail
out=${1:+$(realpath -m "$1")}
cd "$(dirname "$0")/.."
. scripts/setup.sh
need_debian_packages gcc libc6-dev python3-venv iproute2 util-linux dataset-fashion-mnist
install_nalb '[mxnet]'
export OMP_NUM_THREADS=1
[ -t 1 ] || export COLUMNS=${COLUMNS:-120} # a table is made to the width of a terminal
nalb=("$venv/bin/python" -m nalb.cli.main)
run=${out:-runs/demo-$(date +%Y%m%d-%H%M%S)}

echo "== 1. what the network allows: four nodes of 200, 120, 160 and 50 Mbit/s, MobileNet's gradients, 12.9 MB an iteration"
"${nalb[@]}" simulate --network wan4-static --replay mobilenet --schemes stock,average,exact

echo "== 2. a Gluon script with one word changed (kvstore='nalb'), there"
if [ -d /usr/share/datasets/fashion-mnist ]; then
  "${nalb[@]}" launch --network wan4-static --out "$run/training" -- \
    "$venv/bin/python" examples/train_fashion_mnist.py --max-batches 20 --test-images 1000
else
  echo "skipped: dataset-fashion-mnist is not installed, and installing it needs root"
fi

echo "== 3. a PyTorch script with one word changed (init_process_group(\"nalb\")), there, under gloo and under nalb"
install_nalb '[torch-tests]' "$venv_torch"
TORCH_CPP_LOG_LEVEL=ERROR "${nalb[@]}" compare --network wan4-static --schemes gloo,exact --out "$run/torch" -- \
  "$venv_torch/bin/python" examples/train_torch.py --steps 8 --width 400

echo "== 4. MobileNet's gradients for real, on stock MXNet and on nalb: five rounds, and the report"
"${nalb[@]}" compare --network wan4-static --replay mobilenet --schemes stock,exact --iterations 5 --out "$run/comparison"
"${nalb[@]}" report "$run/comparison"
