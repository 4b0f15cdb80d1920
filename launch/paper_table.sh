#!/usr/bin/env bash
# Make the paper's whole table, with three seeds, in the order in which its parts tell most.
#
#   launch/paper_table.sh [--precision P] [options of reproduce.sh] [-- fednnnn run options]
#   launch/paper_table.sh --precision tf32 --jobs 3 --results table   # on a GPU; on CPUs: months
#   launch/paper_table.sh --rounds 2 --results /tmp/try               # a rehearsal
#
#   --precision P   of CIFAR-10 alone: fp32, tf32 or bf16; MNIST has the recipes' fp32
#
# It calls launch/reproduce.sh part by part: the same command continues after any stop. A run that
# fails is named, the others are made, and the exit status is 1.
set -euo pipefail

case "${1:-}" in
  -h | --help)
    sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0"
    exit 0
    ;;
esac
precision=() given=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
  case $1 in
    --precision)
      [ $# -gt 1 ] || { echo "$0: --precision: needs a value" >&2; exit 2; }
      precision=(--precision "$2")
      shift 2
      ;;
    --seeds) echo "$0: --seeds: each part has its own; use reproduce.sh" >&2; exit 2 ;;
    *) given+=("$1") && shift ;;
  esac
done

# A signal to this process alone does not reach reproduce.sh. It is passed on as SIGUSR1, which costs
# no checkpoint where reproduce.sh has had the signal too; a second one as SIGTERM, which does.
stopped='' reproduce='' passed_on=USR1
trap 'stopped=130; pass_on' INT
trap '[ -n "$stopped" ] || { stopped=143; pass_on; }' HUP # a closed terminal may say it twice
trap 'stopped=143; pass_on' TERM USR1
pass_on() {
  kill "-$passed_on" "$reproduce" 2>/dev/null || true
  passed_on=TERM
}

part() { # SEEDS RECIPE ...: the arguments of this script stay
  [ -z "$stopped" ] || exit "$stopped"
  local seeds=$1 of=() names=("${@:2}")
  [[ $2 != cifar10* ]] || of=("${precision[@]}")
  echo "part: ${names[*]}, seeds $seeds"
  "$(dirname "$0")/reproduce.sh" --seeds "$seeds" "${of[@]}" "${given[@]}" "${names[@]}" "${more[@]}" &
  reproduce=$! status=0
  [ -z "$stopped" ] || pass_on # it came between two parts
  # A signal ends a wait, not reproduce.sh.
  while wait "$reproduce" || status=$?; kill -0 "$reproduce" 2>/dev/null; do :; done
  [ -z "$stopped" ] || exit "$stopped"
  [ $status -eq 0 ] || failed=$status
  [ $failed -le 1 ] || exit $failed # 1 is of runs that failed, others of a mistake or a signal
}
more=("$@") # from -- on
failed=0
for seeds in 0 1,2; do
  for condition in noniid_b noniid_ub iid_b iid_ub; do part "$seeds" "cifar10_${condition}_*"; done
  part "$seeds" 'mnist_noniid_*' 'mnist_iid_*'
  [ "$seeds" != 0 ] || for data in mnist cifar10; do part 0 "${data}_single_client"; done
done
[ $failed -eq 0 ] || exit 1
