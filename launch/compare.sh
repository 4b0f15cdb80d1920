#!/usr/bin/env bash
# Compare the methods on digits: each tuned by the same procedure, then run with other seeds.
#
#   launch/compare.sh [--work DIR] [--page DIR] [options of compare.py]
#   launch/compare.sh --work runs/compare --page results/comparison        # all of it: hours on a CPU
#   launch/compare.sh --methods FedAvg,FedNNNN --conditions two_classes    # a part
#
#   --work DIR     studies and runs (runs/compare); the same command continues after any stop
#   --page DIR     where the page and its records go (results/comparison), once all runs are there
#   --methods, --conditions   some of them, by commas; all by default
#
# Procedure, for each method in each condition: `fednnnn tune --no-paper` with 8 trials of 20 rounds,
# judged by the final accuracy on a sixth of the training images, held out, with a seed of its own;
# then five other seeds with the values found, tested on the test images.
set -euo pipefail

case "${1:-}" in
  -h | --help)
    sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0"
    exit 0
    ;;
esac
exec "${PYTHON:-python3}" "$(dirname "$0")/compare.py" "$@"
