#!/usr/bin/env bash
# Runs the audited app and attacks what was recorded; touches nothing outside of this computer.
#
#   examples/flower/run.sh simulation [folder]     # five clients in one simulation
#   examples/flower/run.sh deployment [folder]     # a SuperLink and two SuperNodes, on loopback
set -euo pipefail
way=${1:?simulation or deployment}
out=$(realpath -m "${2:-runs/flower-$way}")
app=$(dirname "$(realpath "$0")")/audited

# Settings and state of Flower of our own; no telemetry, no look for newer versions, and the
# packages that are installed here instead of new ones for every run.
export FLWR_HOME; FLWR_HOME=$(mktemp -d)
export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1 RAY_USAGE_STATS_ENABLED=0
export FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1 RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO=0
export OMP_NUM_THREADS=1

# Each process that is started leads a group of its own, so that its children end with it.
set -m
started=()
stop() {
    local pid
    for pid in "${started[@]}"; do kill -- "-$pid" 2>/dev/null || true; done
    # "flwr run" leaves a SuperLink behind, whose database is in the folder made above.
    for pid in $(pgrep -f -- "$FLWR_HOME/" || true); do kill "$pid" 2>/dev/null || true; done
    sleep 2
    rm -rf "$FLWR_HOME"
}
trap stop EXIT

config="recording='$out' num-server-rounds=${ROUNDS:-10}"
if [ "$way" = simulation ]; then
    flwr run "$app" --stream --run-config "$config num-clients=5" \
        --federation-config "num-supernodes=5 client-resources-num-cpus=1"
else
    printf '[superlink]\ndefault = "here"\n[superlink.here]\naddress = "127.0.0.1:8000"\ninsecure = true\n' \
        > "$FLWR_HOME/config.toml"
    flower-superlink --insecure --disable-runtime-dependency-installation \
        > "$FLWR_HOME/superlink.log" 2>&1 & started+=($!)
    for node in 0 1; do
        flower-supernode --insecure --superlink 127.0.0.1:8000 --port $((9094 + node)) \
            --node-config "partition-id=$node num-partitions=2" \
            > "$FLWR_HOME/supernode-$node.log" 2>&1 & started+=($!)
    done
    until curl -s -o /dev/null 127.0.0.1:8000; do sleep 0.5; done
    flwr run "$app" here --stream --run-config "$config num-clients=2"
fi
fedaudit attack "$out"
