#!/usr/bin/env bash
# Run a recipe on several machines.
#
#   launch/several_machines.sh HOSTFILE RECIPE [fednnnn run options]
#   launch/several_machines.sh launch/hosts.example recipes/cifar10_noniid_b_fednnnn.yaml
#
# HOSTFILE is Open MPI's: a line a machine, its name and how many ranks it takes. Every machine needs
#   - this package in the same virtual environment (the same path), with the extra [mpi];
#   - RECIPE, a file at the same path or a recipe's name, and ssh from this machine without a password;
#   - the data in data_cache_dir, or the means to download it: one rank of each machine does.
# The run folder is written by rank 0, on the first machine of HOSTFILE. Ctrl-C writes a checkpoint
# first, a second one does not. With --set using_mlops=true it is `fedml run`.
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

# shellcheck source-path=SCRIPTDIR source=interruptible.sh
source "$(dirname "$0")/interruptible.sh"
run_ranks mpirun --hostfile "$hostfile" --bind-to none -x PATH fednnnn run "$@"
