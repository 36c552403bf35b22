#!/usr/bin/env bash
# Runs an example on this machine, without connections to other machines.
#
#   examples/flower/run.sh simulation [folder]     # five clients in one simulation, then an attack
#   examples/flower/run.sh deployment [folder]     # a SuperLink and two SuperNodes on localhost
#
#   TEXTS=file.npz examples/flower/run.sh lora simulation [folder]    # ten clients adapt MiniLM
set -euo pipefail
kind=audited
case ${1:-} in lora) kind=$1; shift ;; esac
mode=${1:?simulation or deployment}
case $mode in simulation | deployment) ;; *) echo "give simulation or deployment, not $mode" >&2; exit 2 ;; esac
out=$(realpath -m "${2:-runs/flower-$kind-$mode}")
app=$(dirname "$(realpath "$0")")/$kind
if [ "$kind" = lora ]; then app=$app-audited texts=$(realpath "${TEXTS:?a file of texts x and subjects y}"); fi

# Use a separate folder for Flower's settings and state, no telemetry, no update check, and the
# installed packages instead of new ones for every run.
export FLWR_HOME; FLWR_HOME=$(mktemp -d)
export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1 RAY_USAGE_STATS_ENABLED=0
export FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1 RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO=0
export OMP_NUM_THREADS=1

# List all processes that this script started, directly or indirectly. "flwr run" does not end its
# SuperLink, which starts further processes. All of them have this FLWR_HOME in their environment.
started_pids() (
    home=$FLWR_HOME
    unset FLWR_HOME  # otherwise, this search would find itself
    if [ -d /proc/self ]; then
        grep -lzsx "FLWR_HOME=$home" /proc/[0-9]*/environ | cut -d/ -f3
    else
        pgrep -f -- "$home/"
    fi
)
stop() {
    trap '' INT TERM HUP
    local pid try
    for try in {1..20}; do
        [ -n "$(started_pids || true)" ] || break
        # Terminate the processes, and kill them after five seconds.
        for pid in $(started_pids || true); do
            kill "-$([ "$try" -lt 10 ] && echo TERM || echo KILL)" "$pid" 2>/dev/null || true
        done
        sleep 0.5
    done
    rm -rf "$FLWR_HOME"
}
trap stop EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
trap 'exit 129' HUP

# Run in the background, because a shell gets no signal while it waits for a foreground command.
run() { "$@" & wait $!; }

clients=5
if [ "$kind" = lora ]; then clients=10; fi
if [ "$mode" = deployment ]; then clients=2; fi
config="recording='$out' num-server-rounds=${ROUNDS:-10} num-clients=$clients${texts:+ texts='$texts'}"
if curl -s -o /dev/null 127.0.0.1:8000; then echo "another program uses port 8000; stop it first" >&2; exit 1; fi
printf '[superlink]\ndefault = "here"\n[superlink.here]\naddress = "127.0.0.1:8000"\ninsecure = true\n' \
    > "$FLWR_HOME/config.toml"
# "flwr run" would start a SuperLink for a simulation itself, but it waits only 15 seconds for it, which
# can be too short on a busy machine.
if [ "$mode" = simulation ]; then
    superlink=(--simulation)
    nodes=(--federation-config "num-supernodes=$clients client-resources-num-cpus=1")
else
    superlink=() nodes=()
fi
flower-superlink --insecure --disable-runtime-dependency-installation "${superlink[@]}" \
    > "$FLWR_HOME/superlink.log" 2>&1 &
superlink=$!
if [ "$mode" = deployment ]; then
    for node in 0 1; do
        flower-supernode --insecure --superlink 127.0.0.1:8000 --port $((9094 + node)) \
            --node-config "partition-id=$node num-partitions=2" \
            > "$FLWR_HOME/supernode-$node.log" 2>&1 &
    done
fi
until curl -s -o /dev/null 127.0.0.1:8000; do
    kill -0 "$superlink" || { cat "$FLWR_HOME/superlink.log" >&2; exit 1; }
    sleep 0.5
done
run flwr run "$app" here --stream --run-config "$config" "${nodes[@]}"
run fedaudit attack "$out"
