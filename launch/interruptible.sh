# shellcheck shell=bash
# Sourced by the scripts here that start ranks: run_ranks MPIRUN-COMMAND ...
#
# At SIGINT or SIGTERM mpirun would kill the ranks half a second later. So it does not see them, in a
# process group of its own, and passes on SIGUSR1, at which rank 0 writes a checkpoint and ends all. A
# batch system may send SIGUSR1 itself, before a time limit. A second signal ends mpirun at once.
run_ranks() {
  if [ "$(id -u)" = 0 ]; then # Open MPI wants to be asked twice, as in a container
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
  fi
  set -m
  "$@" </dev/null &
  job=$! stopped='' status=0
  trap 'stop 130' INT
  trap 'stop 143' HUP TERM USR1
  # A signal ends a wait, not the job.
  while wait "$job" || status=$?; kill -0 "$job" 2>/dev/null; do :; done
  exit "${stopped:-$status}"
}

stop() { # STATUS
  if [ -z "$stopped" ]; then
    stopped=$1
    echo "stopping when a checkpoint is written; once more stops at once" >&2
    kill -USR1 "$job" 2>/dev/null || true
  else
    kill -TERM "$job" 2>/dev/null || true
  fi
}
