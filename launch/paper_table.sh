#!/usr/bin/env bash
# Make the paper's whole table, with three seeds, the most informative parts first.
#
#   launch/paper_table.sh [--precision P] [options of reproduce.sh] [-- fednnnn run options]
#   launch/paper_table.sh --precision tf32 --jobs 3 --results table   # on a GPU; on CPUs: months
#   launch/paper_table.sh --rounds 2 --results /tmp/try               # a rehearsal
#
#   --precision P   of CIFAR-10 alone: fp32, tf32 or bf16; MNIST has the recipes' fp32
#
# The same command continues after any stop. A run that fails is named, the others are made, and the
# exit status is 1.
set -euo pipefail

case "${1:-}" in
  -h | --help)
    sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0"
    exit 0
    ;;
esac
exec "$(dirname "$0")/reproduce.sh" --table "$@"
