# To be sourced: a cluster of two nodes in which Manx is installed, and checks that are counted. $1
# and $2 are the static programs manx and manx-cni. MANX_CLUSTER_CACHE is the folder of the
# cluster's programs, which must be built. MANX_CLUSTER_PROXY is kube-proxy's mode, nftables or
# iptables, or none: then Manx translates services. MANX_CLUSTER_IPAM and MANX_CLUSTER_BGP are
# settings of Manx. If $cni is set, that plugin connects the pods. If $up is set, it is a further
# flag for the cluster. Failed checks are also written to the file MANX_WRONG, if that is set.
set -euo pipefail

[ $# -ge 2 ] || { echo "usage: $0 MANX MANX_CNI: expected two static programs" >&2; exit 2; }
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly here
work=$(mktemp -d /tmp/manx-cluster.XXXXXX)
export MANX_CLUSTER_DIR=$work/cluster
export MANX_CLUSTER_CACHE=${MANX_CLUSTER_CACHE:-$here/../../target/cluster}
readonly proxy=${MANX_CLUSTER_PROXY:-nftables}
services=kube-proxy
[ "$proxy" != none ] || services=manx
readonly services
readonly ipam=${MANX_CLUSTER_IPAM:-host-local} bgp=${MANX_CLUSTER_BGP:-false}
bad=0 checks=0 kept=

go -C "$here" build -o "$work/driver" .
cp "$1" "$work/manx"
cp "$2" "$work/manx-cni"

cluster() { "$work/driver" "$@"; }
kubectl() { cluster kubectl "$@"; }
say() { printf '%(%T)T %s\n' -1 "$*"; }

# check WHAT CMD...: counts the check, prints what was found, and continues. The first failed check
# keeps the logs, because a script may replace the agents later.
check() {
    local what=$1 found
    shift
    checks=$((checks + 1))
    if found=$("$@" 2>&1); then
        say "ok      $what"
    else
        bad=$((bad + 1))
        say "WRONG   $what: $found" | tee -a "${MANX_WRONG:-/dev/null}"
        [ -n "$kept" ] || keep_logs first-wrong || true
    fi
}

# eventually SECONDS CMD...
eventually() {
    local until=$((SECONDS + $1)) found
    shift
    until found=$("$@" 2>&1); do
        [ "$SECONDS" -lt "$until" ] || { echo "$found"; return 1; }
        sleep 0.3
    done
}

# verdict: returns exit status 1 if any check failed.
verdict() {
    if [ "$bad" -gt 0 ]; then
        say "$bad of $checks checks are wrong"
        exit 1
    fi
    say "$checks checks, none wrong"
}

# keep_logs WHEN: copies the logs of the cluster's programs and of existing pods, and the agents'
# status and drops, into a folder that stays. The nodes copy the logs of their pods, because the API
# server may be away.
keep_logs() {
    local node
    [ -d "$MANX_CLUSTER_DIR/log" ] || return 0
    kept=${kept:-$(mktemp -d "/tmp/manx-cluster-logs-$(basename "$0").XXXXXX")}
    mkdir -p "$kept/$1"
    cp -r "$MANX_CLUSTER_DIR/log/." "$kept/$1"
    for node in n1 n2; do
        cluster exec "$node" -- cp -r /var/log/pods "$kept/$1/pods-$node" || true
        cluster exec "$node" -- "$work/manx" status --socket /run/manx/node.sock >"$kept/$1/status-$node" 2>&1 || true
    done
    say "the logs of the cluster are in $kept/$1"
}

# The host on the other side of the nodes' network, which is not part of the cluster. outside
# COMMAND...: runs a command there.
readonly outside=10.99.0.1
outside() { nsenter --net --target "$(pgrep -of "machine $MANX_CLUSTER_DIR")" -- "$@"; }
# outside_runs PROGRAM...: runs a program there until the checks end. Its output is kept with the
# cluster's logs.
outside_runs() {
    # shellcheck disable=SC2016 # They are the inner shell's.
    outside sh -c 'echo $$ >>"$1" && shift && exec "$@"' sh "$work/outside.pid" "$@" >>"$MANX_CLUSTER_DIR/log/outside" 2>&1 &
}

# take_down: takes the cluster down, as a separate check.
take_down() {
    if [ "$bad" -gt 0 ]; then keep_logs end; fi
    cluster down
    check "nothing of the cluster stays" sh -c "! [ -e '$MANX_CLUSTER_DIR' ]"
}

end() {
    [ "$?" -eq 0 ] || keep_logs end || true
    cluster down
    # shellcheck disable=SC2046 # pids, in words
    if [ -e "$work/outside.pid" ]; then kill $(<"$work/outside.pid") || true; fi
    rm -rf "$work"
}

# install_manx [MANIFEST]: installs Manx as docs/install.md says, on the nodes with the label
# $node_selector if that is set. uninstall_manx removes it.
install_manx() {
    deploy=$here/../../deploy/${1:-manx.yaml}
    cluster image docker.io/library/manx:latest "$work/manx" "$work/manx-cni"
    if [ "$proxy" = none ]; then
        # The API server's cluster IP does not work before the agents run.
        kubectl -n kube-system get configmap kubernetes-services-endpoint >/dev/null 2>&1 ||
            kubectl -n kube-system create configmap kubernetes-services-endpoint \
                --from-literal=KUBERNETES_SERVICE_HOST=10.99.0.1 --from-literal=KUBERNETES_SERVICE_PORT=6443
    fi
    sed "s/MANX_SERVICES, value: [a-z-]*/MANX_SERVICES, value: $services/; s/MANX_IPAM, value: [a-z-]*/MANX_IPAM, value: $ipam/; s/MANX_BGP, value: .[a-z]*./MANX_BGP, value: \"$bgp\"/" \
        "$deploy" >"$work/deploy.yaml"
    grep -qF "MANX_IPAM, value: $ipam" "$work/deploy.yaml" || [ "$ipam" = host-local ]
    grep -qF "MANX_BGP, value: \"$bgp\"" "$work/deploy.yaml" || [ "$bgp" = false ]
    if [ -n "${external_ips:-}" ]; then
        local setting="- {name: MANX_EXTERNAL_IPS, value: $external_ips}"
        sed -i "s|^\( *\)- {name: MANX_STANDBY.*|&\n\1$setting|" "$work/deploy.yaml"
        grep -qF -- "$setting" "$work/deploy.yaml"
    fi
    if [ -n "${node_selector:-}" ]; then
        sed -i "s/nodeSelector: {kubernetes.io\/os: linux}/nodeSelector: {$node_selector}/" "$work/deploy.yaml"
        grep -qF "nodeSelector: {$node_selector}" "$work/deploy.yaml"
    fi
    deploy=$work/deploy.yaml
    kubectl apply --warnings-as-errors -f - <"$deploy"
    check "the DaemonSet is ready on its nodes" kubectl -n kube-system rollout status daemonset/manx-node --timeout=90s
    check "the nodes are ready" kubectl wait --for=condition=Ready node --all --timeout=60s
}

# If Manx does not translate, the nodes masquerade themselves, as docs/install.md says.
masquerade() {
    local node
    [ "$proxy" != none ] || return 0
    for node in n1 n2; do
        cluster exec "$node" -- nft -f - <<'END'
table ip outgoing {
    chain post {
        type nat hook postrouting priority srcnat;
        oifname eth0 ip saddr 10.244.0.0/16 ip daddr != 10.244.0.0/16 masquerade
    }
}
END
    done
}

# The Job that made the pool no longer exists.
uninstall_manx() { kubectl delete --ignore-not-found -f - <"$deploy" --timeout=60s; }

trap end EXIT
# Without these traps, `end` would not see the exit status of a signal.
trap 'exit 130' INT
trap 'exit 143' TERM
cluster up --nodes 2 --cni "${cni:-none}" --proxy "$proxy" ${up:+"$up"}
