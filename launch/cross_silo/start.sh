#!/usr/bin/env bash
# Start the server and the clients of a FedML cross-silo federation on this machine, over gRPC.
#
#   launch/cross_silo/start.sh [FOLDER]
#
# FOLDER holds server.py, client.py, fedml_config.yaml and grpc_ipconfig.csv, which has a line for each
# process; this script's own by default. What the processes say goes to FOLDER/output/*.log; the
# evaluation model and the server's state are written there too. To go on after a stop, set start_round
# (rounds done) and comm_round (rounds left) in fedml_config.yaml; to start anew, remove FOLDER/output.
# Needs: pip install '.[fedml,grpc]' in the clone. PYTHON names the interpreter, python by default.
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

python=$(type -P "${PYTHON:-python}") || mistake "PYTHON=${PYTHON:-python}: no such interpreter"
[[ $python == /* ]] || python=$PWD/$python
unset CDPATH # or cd might go elsewhere
cd "${1:-$(dirname "$0")}" || exit 2
IFS=, read -r _ _ host port _ < <(grep -s '^0,' grpc_ipconfig.csv) || true
[ -n "$port" ] || mistake "$PWD/grpc_ipconfig.csv: must have the server's line, 0,0,HOST,PORT,"
clients=$(grep -c '^[1-9][0-9]*,' grpc_ipconfig.csv) \
  || mistake "$PWD/grpc_ipconfig.csv: must have a line for each client, 1,1,HOST,PORT, and so on"
mkdir -p output

declare -A names=() # process -> its role and rank
trap 'kill "${!names[@]}" 2>/dev/null || true' EXIT
start() { # ROLE RANK
  "$python" "$1.py" --cf fedml_config.yaml --rank "$2" --role "$1" >"output/$1_$2.log" 2>&1 &
  names[$!]="$1 $2"
}
failed() { # PROCESS: the others, which would wait for it for ever, end with this script
  local name=${names[$1]}
  echo "$0: $name failed; the end of output/${name/ /_}.log:" >&2
  tail -n 5 "output/${name/ /_}.log" >&2
  exit 1
}

listening() {
  (exec 3<>"/dev/tcp/$host/$port") 2>/dev/null
}
if listening; then
  echo "$0: $host:$port is in use: is another federation running?" >&2
  exit 1
fi
start server 0
# A FedML client that finds no server ends, so the server has to listen before the clients start.
server=$!
until listening; do
  kill -0 "$server" 2>/dev/null || failed "$server"
  sleep 0.2
done
for rank in $(seq "$clients"); do
  start client "$rank"
done
while [ ${#names[@]} -gt 0 ]; do
  wait -n || true # whichever ends first; its status is asked for below
  for process in "${!names[@]}"; do
    kill -0 "$process" 2>/dev/null && continue
    wait "$process" || failed "$process"
    unset "names[$process]"
  done
done
echo "done: output/evaluation_model.safetensors"
