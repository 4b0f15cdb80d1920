#!/usr/bin/env bash
# Make the paper's runs, one after another or several side by side, and keep their records.
#
#   launch/reproduce.sh [options] RECIPE ... [-- fednnnn run options]
#   launch/reproduce.sh --jobs 4 --all                                 # 40 conditions: weeks of work
#   launch/reproduce.sh --seeds 1,2 'mnist_noniid_*' 'cifar10_noniid_*'
#   launch/reproduce.sh --table --precision tf32 --jobs 3 --results table  # on a GPU; on CPUs: months
#   launch/reproduce.sh --rounds 30 'mnist_iid_*' -- --set data_args.data_cache_dir=/data
#
#   --all           the 40 conditions of the paper, non-IID before IID
#   --table         the paper's table: the 40 with three seeds, and two single clients, the most
#                   informative parts first; --precision is of CIFAR-10 alone
#   --jobs N        runs side by side (1); a CPU is full with one, a GPU has room for several: with
#                   less than 20 GB for each also `-- --set train_args.client_batching=25`
#   --seeds LIST    seeds, by commas (0); the first seed of all recipes comes first
#   --rounds N      rounds of each run; each recipe's own by default
#   --precision P   fp32, tf32 or bf16; each recipe's own by default
#   --runs DIR      where the run folders are (runs/reproduce)
#   --results DIR   where the records go (results): DIR/<recipe>-seed<n>/ with metrics.jsonl.gz,
#                   summary.json and recipe.yaml, and metric_directions.json where a recipe names
#                   metrics; a round that accepted all its clients is kept without the line of each
#                   client, which is four fifths of a record
#
# RECIPE is a recipe's name, or a pattern of names; without one the names are listed. The same
# command goes on after any stop: what has the records of all rounds is skipped, what was begun
# resumes. A run that is stopped leaves the records of its rounds, unless there are more of it
# already. More --rounds than before extend a run. A run that fails is named, the others are made,
# and the exit status is 1. Settings after -- must be those of the records that are there.
set -euo pipefail

case "${1:-}" in
  -h | --help)
    sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0"
    exit 0
    ;;
esac
mistake() {
  echo "$0: $1" >&2
  exit 2
}

recipes=$(dirname "$0")/../recipes
paper=({mnist_noniid,cifar10_noniid,mnist_iid,cifar10_iid}_{b,ub}_{fedavg,fedprox,normnorm,momentum,fednnnn})
table='' jobs=1 rounds='' precision='' runs=runs/reproduce results=results patterns=() more=()
unset seeds
while [ $# -gt 0 ]; do
  case $1 in
    --jobs | --seeds | --rounds | --precision | --runs | --results)
      [ $# -gt 1 ] || mistake "$1: needs a value"
      printf -v "${1#--}" %s "$2"
      shift 2
      ;;
    --table)
      table=yes
      shift
      ;;
    --all)
      patterns+=("${paper[@]}")
      shift
      ;;
    --)
      shift
      more=("$@")
      break
      ;;
    -*) mistake "$1: no such option (--help lists them)" ;;
    *)
      patterns+=("$1")
      shift
      ;;
  esac
done
[[ $jobs =~ ^[1-9][0-9]*$ ]] || mistake "--jobs $jobs: must be a number of runs from 1"
[[ $rounds =~ ^([1-9][0-9]*)?$ ]] || mistake "--rounds $rounds: must be a number of rounds from 1"
[ -z "$table" ] || [ -z "${seeds+given}${patterns[*]}" ] || mistake "the table has its own seeds and recipes"
seeds=${seeds-0}
[[ $seeds =~ ^(0|[1-9][0-9]*)(,(0|[1-9][0-9]*))*$ ]] \
  || mistake "--seeds $seeds: must be whole numbers, by commas, without zeros before them"
if [ -z "$table" ] && [ ${#patterns[@]} -eq 0 ]; then
  printf '%s\n' "${paper[@]}" >&2
  mistake "give names or patterns of these recipes, such as 'mnist_noniid_b_*', or --all"
fi

names=() # of runs; patterns may overlap
add() { # SEEDS PATTERN ...
  local seed pattern file name
  for seed in ${1//,/ }; do
    for pattern in "${@:2}"; do
      for file in "$recipes"/$pattern.yaml; do
        [ -r "$file" ] || mistake "$pattern: no such recipe in $recipes"
        name=$(basename "$file" .yaml)-seed$seed
        [[ " ${names[*]} " == *" $name "* ]] || names+=("$name")
      done
    done
  done
}
if [ -n "$table" ]; then # in the order in which its parts tell most
  for part in 0 1,2; do
    for condition in noniid_b noniid_ub iid_b iid_ub; do add $part "cifar10_${condition}_*"; done
    add $part 'mnist_noniid_*' 'mnist_iid_*'
    [ $part != 0 ] || add 0 mnist_single_client cifar10_single_client
  done
else
  add "$seeds" "${patterns[@]}"
fi

precision_of() { # NAME: what --precision asks of it; in the table MNIST has the recipes' own
  [[ -n $table && $1 == mnist* ]] || echo "$precision"
}
value() { # KEY FILE: what follows the key, in a recipe or in summary.json
  sed -En "s/^ *\"?$1\"?: *\"?([^\",# ]*).*/\1/p" "$2" | head -n 1
}
rounds_in() { # FOLDER: of its summary; 0 where there is none
  [ -r "$1/summary.json" ] && value rounds "$1/summary.json" || echo 0
}
finished() { # NAME: whether its records have all the rounds
  [ "$(rounds_in "$results/$1")" -ge "${rounds:-$(value comm_round "$recipes/${1%-seed*}.yaml")}" ]
}
without_accepted_clients() { # FILE: its rounds, each without its clients if all were accepted
  sed -E 's/"by_client": \[(\{[^{}]*"outcome": "accepted"[^{}]*\}(, )?)+\], //' "$1"
}
keep() { # NAME: its records, whole or not at all, unless there are as many rounds already
  local new=$results/.$1.new made kept
  made=$(rounds_in "$runs/$1") kept=$(rounds_in "$results/$1")
  if [ "$made" -le "$kept" ]; then
    [ "$made" -eq "$kept" ] || echo "$results/$1 stays, of $kept rounds: the run has $made" >&2
    return 0
  fi
  # The folder of the data is this machine's own.
  rm -rf "$new" && mkdir "$new" \
    && without_accepted_clients "$runs/$1/metrics.jsonl" | gzip -9n >"$new/metrics.jsonl.gz" \
    && sed -E 's|^( *data_cache_dir:).*|\1 ~/fedml_data|' "$runs/$1/recipe.yaml" >"$new/recipe.yaml" \
    && cp "$runs/$1/summary.json" "$new/" \
    && { [ ! -e "$runs/$1/metric_directions.json" ] || cp "$runs/$1/metric_directions.json" "$new/"; } \
    && rm -rf "${results:?}/$1" \
    && mv "$new" "$results/$1"
}
run() { # NAME
  local settings=(--output "$runs/$1" --set "common_args.random_seed=${1##*-seed}")
  local begun=$runs/$1/recipe.yaml test_served=true # the paper says how poor it is
  if [ -e "$begun" ]; then
    settings+=(--resume)
    test_served=$(value test_served "$begun") # a run that was begun without it stays so
  fi
  settings+=(--set "validation_args.test_served=$test_served")
  [ -z "$rounds" ] || settings+=(--set "train_args.comm_round=$rounds")
  local asked
  asked=$(precision_of "$1")
  [ -z "$asked" ] || settings+=(--set "train_args.precision=$asked")
  # It replaces this process, which is then the one to signal.
  exec fednnnn run "$recipes/${1%-seed*}.yaml" "${settings[@]}" "${more[@]}" >>"$runs/$1.log" 2>&1
}

declare -A running=() # process -> the run that it makes
failed=0
signal_runs() { # SIGNAL
  local process
  for process in $(jobs -pr); do kill "-$1" "$process" 2>/dev/null || true; done
}
end_runs() { # each writes a checkpoint; a second signal does not wait for it
  trap '' HUP USR1 # a closed terminal or a batch system may send them twice
  trap 'signal_runs KILL' INT TERM
  signal_runs TERM
  while [ -n "$(jobs -pr)" ]; do wait || true; done
  local name
  for name in "${running[@]}"; do keep "$name" || true; done
}
stop() { # STATUS
  # Another signal would end what ends the runs.
  trap '' HUP INT TERM USR1
  echo "stopping when checkpoints are written, once more stops at once; the same command resumes" >&2 || true
  exit "$1"
}
trap end_runs EXIT # whatever it ends by
trap 'stop 130' INT
trap 'stop 143' HUP TERM USR1
reap() { # waits until a run ends, and keeps its records
  wait -n || true
  local process name status
  for process in "${!running[@]}"; do
    kill -0 "$process" 2>/dev/null && continue
    name=${running[$process]} status=0
    wait "$process" || status=$?
    unset "running[$process]"
    if [ $status -eq 0 ] && keep "$name"; then
      echo "finished: $name"
    else
      failed=1
      keep "$name" || true
      echo "failed: $name, status $status; the end of $runs/$name.log:" >&2
      tail -n 3 "$runs/$name.log" >&2 || true
    fi
  done
}

# What records do not depend on, or --rounds may change.
placement='(device|comm|tracking)_args|(.*\.)?(data_cache_dir|download|comm_round|checkpoint_every|client_threads|using_gpu|gpu_id)='
for name in "${names[@]}"; do
  [ -r "$results/$name/recipe.yaml" ] || continue
  asked=$(precision_of "$name")
  for word in ${asked:+"precision=$asked"} "${more[@]}"; do
    word=${word#--set=}
    [[ $word == [a-z]*=* && ! $word =~ ^($placement) ]] || continue
    key=${word%%=*}
    kept=$(value "${key##*.}" "$results/$name/recipe.yaml")
    # A list, and what a record does not have, are not compared; numbers are by their value.
    [ -z "$kept" ] || awk -v a="$kept" -v b="${word#*=}" 'BEGIN { exit a != b }' \
      || mistake "$word: $results/$name has $kept; --results names another folder"
  done
done
mkdir -p "$runs" "$results"
for name in "${names[@]}"; do
  if finished "$name"; then
    echo "there already: $name"
    continue
  fi
  while [ ${#running[@]} -ge "$jobs" ]; do reap; done
  echo "running: $name"
  run "$name" &
  running[$!]=$name
done
while [ ${#running[@]} -gt 0 ]; do reap; done
[ $failed -eq 0 ] || exit 1
