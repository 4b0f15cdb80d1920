#!/usr/bin/env bash
# Run a recipe on several processes of this machine.
#
#   launch/one_machine.sh RANKS RECIPE [fednnnn run options]
#   launch/one_machine.sh 4 recipes/mnist_noniid_ub_fednnnn.yaml --set train_args.comm_round=20
#
# RECIPE is a file or the name of a recipe of the package. Ctrl-C writes a checkpoint first, a second
# one does not. With --set using_mlops=true it is `fedml run`.
# Ranks share the machine's cores: each trains (cores / ranks) clients side by side, one thread
# each. The result has the same bits on any number of ranks. Needs: pip install '.[mpi]' in the clone.
set -euo pipefail

case "${1:-}" in
  -h | --help)
    sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0"
    exit 0
    ;;
esac
if [ $# -lt 2 ] || [[ ! $1 =~ ^[1-9][0-9]*$ ]]; then
  echo "$0 $*: give a number of ranks from 1 and a recipe (--help says more)" >&2
  exit 2
fi
ranks=$1
shift

# shellcheck source-path=SCRIPTDIR source=interruptible.sh
source "$(dirname "$0")/interruptible.sh"
# Binding would pin a rank, and all clients that it trains side by side, to one core.
run_ranks mpirun -np "$ranks" --oversubscribe --bind-to none fednnnn run "$@"
