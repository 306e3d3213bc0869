#!/usr/bin/env bash
# Makes the results of docs/results again: every script of scripts/figures, then tables and figures.
# Usage: bash scripts/figures/all.sh [NAME ...]   as root; NAME: only these
#
# A script that is done is not started again, and one that was ended goes on after its last finished run, so the same command goes on
# after an interruption. runs/all.tsv gets a line for each script that is done: its name, and the seconds that it took since its last start.
# Minutes stand beside each name, on two cores: 29 hours in all, 10 of them for the two large models of figure 4.
set -euo pipefail
cd "$(dirname "$0")/../.."
. scripts/setup.sh
need_debian_packages gcc libc6-dev python3-venv iproute2 util-linux dataset-fashion-mnist
install_nalb '[dev,mxnet]' # with statsmodels, which ARIMA's figures need
install_nalb '[torch-tests]' "$venv_torch"
export OMP_NUM_THREADS=1 COLUMNS=${COLUMNS:-140}
python=$venv/bin/python
only=" $* "
mkdir -p runs
touch runs/all.tsv

# make NAME MINUTES COMMAND...: runs a command unless runs/all.tsv says that it is done; its output is in runs/NAME.txt
make() {
  local name=$1 minutes=$2 begun=$SECONDS
  shift 2
  if [ "$only" != "  " ] && [[ "$only" != *" $name "* ]]; then return; fi
  if grep -q "^$name	" runs/all.tsv; then
    echo "$name: done before"
    return
  fi
  echo "$name: about $minutes min"
  "$@" | tee "runs/$name.txt"
  printf '%s\t%s\n' "$name" $((SECONDS - begun)) >> runs/all.tsv
}

# compared FILE NAME FLAG...: one `nalb compare`, whose FILE, run.json or batching.json, becomes docs/results/data/NAME.json
compared() {
  [ -e "runs/$2/$1" ] || rm -rf "runs/$2" # of a comparison that was ended
  [ -e "runs/$2/$1" ] || "$python" -m nalb.cli.main compare "${@:3}" --out "runs/$2"
  cp "runs/$2/$1" "docs/results/data/$2.json"
}

# emulated NAME NETWORK SCHEMES ITERATIONS MODEL FLAG...: a comparison of schemes
emulated() { compared run.json "$1" --network "$2" --replay "$5" --schemes "$3" --iterations "$4" "${@:6}"; }

# even NAME MBPS: writes runs/networks/NAME.toml, four equal nodes
even() {
  mkdir -p runs/networks
  {
    printf 'name = "%s"\n[defaults]\nup_mbps = %s\ndown_mbps = %s\n' "$1" "$2" "$2"
    printf '[[nodes]]\nname = "n%d"\n' 0 1 2 3
  } > "runs/networks/$1.toml"
}

# slice_sizes: sizes that are fixed, and sizes that follow from the rate, of docs/results/slice-sizes.md
slice_sizes() {
  local networks=runs/networks alpha=(--alpha-bytes 1000) large=average@112000,average@224000
  even even25 25
  even even500 500
  even fast4 4000
  emulated slices-mobilenet-25 $networks/even25.toml "stock,average@6000,average@28000,average,$large" 5 mobilenet "${alpha[@]}"
  large=$large,average@448000,average@900000
  emulated slices-mobilenet-500 $networks/even500.toml "stock,average@28000,average,$large" 10 mobilenet "${alpha[@]}"
  emulated slices-mobilenet-4000 $networks/fast4.toml "stock,average@28000,average,$large" 15 mobilenet "${alpha[@]}"
  large=average@600000,average@1200000,average@2400000
  emulated slices-resnet50-4000 $networks/fast4.toml "stock,average,average@152000,average@300000,$large" 10 resnet50 "${alpha[@]}"
  emulated follow-mobilenet $networks/fast4.toml stock,average,exact,average@56720,exact@56720 35 mobilenet
  emulated follow-resnet50 $networks/fast4.toml stock,average,exact,average@153500,exact@153500 35 resnet50
}

# joint NAME NETWORK SAMPLES ITERATIONS: a comparison of batchings, of docs/results/both-balances.md
joint() {
  local flags=(--network "$2" --train mobilenet --batch-total "$3" --batching "joint,lb-bsp@average,off@exact" --predictor ema)
  compared batching.json "joint-$1" "${flags[@]}" --iterations "$4"
}

# both_balances: two networks, and the same with halves of the CPU quotas
both_balances() {
  local name
  mkdir -p runs/networks
  for name in joint both; do
    awk -v name="$name" '/^name = "uneven4/ { $3 = "\"half-" name "\"" } /^cpu_quota/ { $3 /= 2 } { print }' \
      "netem/networks/uneven4-$name.toml" > "runs/networks/half-$name.toml"
  done
  joint uneven4-joint uneven4-joint 512 12
  joint uneven4-both uneven4-both 512 12
  joint half-joint runs/networks/half-joint.toml 256 14
  joint half-both runs/networks/half-both.toml 256 12
}

# families: one network of each family, rates of `near` times 0.6
families() {
  local family iterations scale
  mkdir -p runs/networks
  for family in adsl asymmetric capped even heavy roles near shared-cores changing; do
    iterations=8 scale=1
    [ "$family" = changing ] && iterations=14
    [ "$family" = near ] && scale=0.6
    "$python" -m nalb.cli.main net random --family "$family" --nodes 6 --seed 61126 --scale "$scale" > "runs/networks/$family.toml"
    emulated "family-$family" "runs/networks/$family.toml" oracle,average,exact "$iterations" mobilenet
  done
}

# simulate_families: from the start, as the script takes new files alone
simulate_families() {
  rm -f runs/families.jsonl
  "$python" scripts/figures/simulate_families.py --first 93001 --networks 50 --starts 3 --out runs/families.jsonl
}

# stored FILE COMMAND...: a command that writes runs/FILE, which then becomes docs/results/data/FILE
stored() {
  mkdir -p "$(dirname "runs/$1")"
  "${@:2}" --out "runs/$1"
  cp "runs/$1" "docs/results/data/$1"
}

# precision_accuracy [--out FILE]: all trainings of docs/precision.md in one process
precision_accuracy() {
  local train=("$venv_torch/bin/python" scripts/figures/precision_accuracy.py "$@")
  "${train[@]}" --steps 300 --models cnn,mobilenet
  "${train[@]}" --steps 200 --models transformer
  "${train[@]}" --steps 200 --models mobilenet-1.0 --variants "float32,int8,int4,PowerSGD rank 16,PowerSGD rank 4"
  "${train[@]}" --steps 200 --models mobilenet-1.0 --variants "float32,PowerSGD rank 16" --seeds 5,6,7,10,11,12
}

# take NAME: stores the results of a script's runs
take() { "$python" scripts/figures/results_tables.py --take "runs/$1"; }

make main-results 105 "$python" scripts/figures/main_results.py
make plane-results 65 "$venv_torch/bin/python" scripts/figures/plane_results.py
make cai-method 15 "$python" scripts/figures/cai_method.py
make fig4 650 "$python" scripts/figures/fig4_speed.py
make fig5 25 "$python" scripts/figures/fig5_recovery.py
make fig6 40 "$python" scripts/figures/fig6_slices.py
make fig7 25 "$python" scripts/figures/fig7_overhead.py
make judge 35 "$python" scripts/figures/judge_schemes.py
make families 20 families
make simulate-families 120 simulate_families
make slice-sizes 15 slice_sizes
make both-balances 25 both_balances
make lb-bsp 50 "$python" scripts/figures/lb_bsp_figures.py
make lb-bsp-prediction 20 "$python" scripts/figures/lb_bsp_prediction.py --seeds 10
make figure-11 2 "$python" scripts/figures/lb_bsp_prediction.py --seeds 1 --predictors ema,narx --out runs/lb-bsp-prediction/figure-11
make federated-accuracy 20 "$python" scripts/figures/federated_accuracy.py
make uneven-machines 30 "$python" scripts/figures/uneven_machines.py
make dynamic-batching 25 "$python" scripts/figures/dynamic_batching_figures.py
make dynamic-batching-levels 1 "$python" scripts/figures/dynamic_batching_levels.py
make batch-throughput 2 "$python" scripts/figures/batch_throughput.py
make pace-emulated 75 "$venv_torch/bin/python" scripts/figures/name_the_pace_emulated.py --first 41101 --networks 8 --out runs/pace-emulated.jsonl
make learning-cost 15 "$python" scripts/figures/learning_cost.py --first 70001 --networks 4
make precisions 45 "$venv_torch/bin/python" scripts/figures/precisions.py
if [ -x hivemind/bin/python ]; then
  fewer_bytes=(benchmarks/fewer_bytes.py --iterations 20 --rounds 2 --mxnet-python "$python" --hivemind-python hivemind/bin/python)
  make fewer-bytes 25 stored fewer-bytes/wan6-static.json "$venv_torch/bin/python" "${fewer_bytes[@]}"
else
  echo "fewer-bytes: no hivemind/bin/python: docs/results/fewer-bytes.md says how to make it"
fi
make precision-accuracy 112 stored precision-accuracy.jsonl precision_accuracy
make powersgd-accuracy 20 stored powersgd-accuracy.jsonl "$venv_torch/bin/python" scripts/figures/powersgd_accuracy.py
if "$venv_torch/bin/python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
  make gpu 2 "$venv_torch/bin/python" scripts/figures/gpu_figures.py
else
  echo "gpu: PyTorch finds no GPU here"
fi
make lbb 15 "$python" scripts/figures/lbb_figures.py
make fela 30 "$python" scripts/figures/fela_figures.py --simulated
make fela-trainings 120 "$python" scripts/figures/fela_trainings.py
for name in main-results plane-results cai-method fig4 fig6 judge precisions lb-bsp lb-bsp-prediction dynamic-batching lbb; do
  [ ! -d "runs/$name" ] || take "$name"
done
"$python" scripts/figures/results_tables.py
"$python" scripts/figures/results_figures.py
