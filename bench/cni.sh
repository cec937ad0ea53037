#!/usr/bin/env bash
# Measures how long ADD takes for many pods at once, with manx-cni and with the plugin ptp with host-local (Debian's
# containernetworking-plugins). It prints milliseconds and judges nothing. It must run as root:
#
#   bench/cni.sh FOLDER [PODS] [ROUNDS]     FOLDER holds the programs manx and manx-cni of a release build
#
# Both plugins run in the same way: one process for each pod, all started at once, in namespaces that already exist. When
# ptp answers, its work is done. When manx-cni answers, policy is in force, too.
set -euo pipefail

programs=$(cd "$1" && pwd) pods=${2:-200} rounds=${3:-3}
folder=$(mktemp -d /tmp/manx-bench-cni.XXXXXX)
chmod 700 "$folder"
node=manx-bench-$$

finish() {
    kill "${agent:-}" 2>/dev/null || true
    wait 2>/dev/null || true
    for ((pod = 0; pod < pods; pod++)); do ip netns delete "$node-$pod" 2>/dev/null || true; done
    ip netns delete "$node" 2>/dev/null || true
    rm -rf "$folder"
}
trap finish EXIT

mkdir "$folder"/{manifests,run,leases,times}
cat >"$folder/manifests/node.json" <<'NODE'
{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-1"}, "spec": {"podCIDRs": ["10.244.0.0/20"]},
 "status": {"addresses": [{"type": "InternalIP", "address": "172.18.0.2"}]}}
NODE
cat >"$folder/manx-cni.json" <<CONFIG
{"cniVersion": "1.0.0", "name": "manx", "type": "manx-cni", "socket": "$folder/run/node.sock"}
CONFIG
cat >"$folder/ptp.json" <<CONFIG
{"cniVersion": "1.0.0", "name": "ptp", "type": "ptp",
 "ipam": {"type": "host-local", "dataDir": "$folder/leases", "subnet": "10.245.0.0/20"}}
CONFIG

ip netns add "$node"
ip -n "$node" link set lo up
ip -n "$node" link add eth0 type veth peer name far
ip -n "$node" address add 172.18.0.2/24 dev eth0
ip -n "$node" link set eth0 up
ip -n "$node" link set far up
for ((pod = 0; pod < pods; pod++)); do ip netns add "$node-$pod"; done
ip netns exec "$node" "$programs/manx" node --name node-1 --datastore "$folder/manifests" --uplink eth0 \
    --socket "$folder/run/node.sock" 2>"$folder/log" &
agent=$!
until "$programs/manx" status --socket "$folder/run/node.sock" >/dev/null 2>&1; do
    kill -0 "$agent" || { cat "$folder/log"; exit 1; }
    sleep 0.1
done

# call VERB PLUGIN POD: calls the plugin, and writes the time that it takes, in microseconds, to a file.
call() {
    local start=${EPOCHREALTIME/./}
    CNI_COMMAND=$1 CNI_CONTAINERID=pod-$3 CNI_NETNS=/run/netns/$node-$3 CNI_IFNAME=eth0 CNI_PATH=$programs:/usr/lib/cni \
        "$(PATH=$programs:/usr/lib/cni command -v "$2")" <"$folder/$2.json" >"$folder/times/$3.out" ||
        { cat "$folder/times/$3.out" >&2; echo failed >"$folder/times/$3"; return; }
    echo $((${EPOCHREALTIME/./} - start)) >"$folder/times/$3"
}
export -f call
export folder programs node

# all VERB PLUGIN: calls the plugin for all pods at once. Prints the total time, the median and the 99th percentile.
all() {
    local start=${EPOCHREALTIME/./} pids=() pod
    for ((pod = 0; pod < pods; pod++)); do
        ip netns exec "$node" bash -c "call $1 $2 $pod" &
        pids+=($!)
    done
    wait "${pids[@]}"
    local whole=$((${EPOCHREALTIME/./} - start))
    for ((pod = 0; pod < pods; pod++)); do cat "$folder/times/$pod"; done | sort -n | awk -v whole=$whole -v name="$2 $1" '
        /failed/ { failed++ } { times[NR] = $1 }
        END { printf "%-14s all %6.0f  median %6.0f  p99 %6.0f  failed %d\n", name, whole / 1e3, times[int((NR + 1) / 2)] / 1e3,
              times[int(NR * 0.99)] / 1e3, failed }'
}

echo "$pods pods at once, $(nproc) cores, milliseconds"
for ((round = 1; round <= rounds; round++)); do
    # The plugins take turns at being first.
    order=(manx-cni ptp)
    if ((round % 2 == 0)); then order=(ptp manx-cni); fi
    for plugin in "${order[@]}"; do
        all ADD "$plugin"
        all DEL "$plugin" | sed 's/^/  /'
    done
done
