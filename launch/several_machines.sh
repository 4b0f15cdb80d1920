#!/usr/bin/env bash
# Run a recipe on several machines.
#
#   launch/several_machines.sh HOSTFILE RECIPE.yaml [fedml run options]
#   launch/several_machines.sh launch/hosts.example recipes/cifar10_noniid_b_fednnnn.yaml
#
# HOSTFILE is Open MPI's: a line a machine, its name and how many ranks it takes. Every machine needs
#   - this package in the same virtual environment (the same path), with the extra [mpi];
#   - the recipe at the same path, and ssh from this machine without a password;
#   - the data in data_cache_dir, or the means to download it: one rank of each machine does.
# The run folder is written by rank 0, on the first machine of HOSTFILE.
set -euo pipefail

case "${1:-}" in
  -h | --help)
    sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0"
    exit 0
    ;;
esac
if [ $# -lt 2 ] || [ -z "$1" ]; then
  echo "$0: give a hostfile and a recipe (--help says more)" >&2
  exit 2
fi
hostfile=$1
shift
if [ ! -r "$hostfile" ]; then
  echo "$0: $hostfile: no such hostfile" >&2
  exit 2
fi

if [ "$(id -u)" = 0 ]; then
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi
# At SIGINT or SIGTERM mpirun would kill the ranks half a second later. So it does not see them, in a
# process group of its own, and passes on SIGUSR1, at which rank 0 writes a checkpoint and ends all.
set -m
mpirun --hostfile "$hostfile" --bind-to none -x PATH fedml run "$@" </dev/null &
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
