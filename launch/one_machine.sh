#!/usr/bin/env bash
# Run a recipe on several processes of this machine.
#
#   launch/one_machine.sh RANKS RECIPE.yaml [fedml run options]
#   launch/one_machine.sh 4 recipes/mnist_noniid_ub_fednnnn.yaml --set train_args.comm_round=20
#
# Ranks share the machine's cores: each trains (cores / ranks) clients side by side, one thread
# each. The result has the same bits on any number of ranks. Needs: pip install 'fednnnn-plugin[mpi]'.
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

if [ "$(id -u)" = 0 ]; then # Open MPI wants to be asked twice, as in a container
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi
# At SIGINT or SIGTERM mpirun would kill the ranks half a second later. So it does not see them, in a
# process group of its own, and passes on SIGUSR1, at which rank 0 writes a checkpoint and ends all.
set -m
# Binding would pin a rank, and all clients that it trains side by side, to one core.
mpirun -np "$ranks" --oversubscribe --bind-to none fedml run "$@" </dev/null &
job=$!
stop() { # STATUS
  trap '' HUP INT TERM
  kill -USR1 "$job" 2>/dev/null || true
  wait "$job" || true
  exit "$1"
}
trap 'stop 130' INT
trap 'stop 143' HUP TERM
wait "$job"
