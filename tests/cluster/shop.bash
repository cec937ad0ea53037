# Sourced after manx.bash: pods in the namespace shop that ask each other, one of each name on each node (web-n1, web-n2), and
# what is to be seen of Manx on a node.
readonly agnhost=registry.k8s.io/e2e-test-images/agnhost:2.59

make_shop() {
    kubectl create namespace shop
    eventually 30 kubectl -n shop get serviceaccount default >/dev/null
}

# make_pods NAME...: on both nodes. kubelet asks each of them, too.
make_pods() {
    local node name
    for node in n1 n2; do
        for name; do
            kubectl create -f - <<END
apiVersion: v1
kind: Pod
metadata: {name: $name-$node, namespace: shop, labels: {app: $name}}
spec:
  nodeName: $node
  terminationGracePeriodSeconds: 0
  containers:
  - name: c
    image: "$agnhost"
    args: [netexec, --http-port=8080]
    readinessProbe: {httpGet: {port: 8080, path: /}}
END
        done
    done
}

# Nodes do it themselves, as docs/install.md says: natOutgoing is not implemented.
masquerade() {
    local node
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

address() { kubectl -n shop get pod "$1" -o 'jsonpath={.status.podIP}'; }
service() { kubectl -n shop get service "$1" -o 'jsonpath={.spec.clusterIP}'; }
# connects POD ADDRESS:PORT: by TCP.
connects() { kubectl -n shop exec "$1" -- /agnhost connect --timeout=2s "$2"; }
# A wrong name or a cluster that is gone is no denial: only a connection that times out is.
timed_out() {
    local found
    if found=$(connects "$1" "$2" 2>&1); then
        echo "$1 reaches $2"
        return 1
    fi
    [[ $found == *TIMEOUT* ]] || { echo "$found"; return 1; }
}
# reaches FROM TO, denied FROM TO: from pod to pod.
reaches() { connects "$1" "$(address "$2"):8080"; }
denied() { timed_out "$1" "$(address "$2"):8080"; }

status_has() { cluster exec "$1" -- "$work/manx" status --socket /run/manx/node.sock | grep -e "$2"; }
# What Manx has on a node: files of the plugin, the holder, and what it does to the node's network.
traces() {
    cluster exec "$1" -- sh -c 'ls /opt/cni/bin /etc/cni/net.d; pgrep -ax manx-cni; ip link; ip route show table all; ip rule
        echo all told' | grep -e manx -e 'lookup 77' -e 'all told'
}
no_traces() {
    local found
    found=$(traces "$1") && [ "$found" = "all told" ] || { echo "$found"; return 1; }
}
# has_traces NODE CONFLIST
has_traces() {
    local found trace
    found=$(traces "$1")
    for trace in "$2" 'manx-cni hold' manx0: 'lookup 77'; do
        [[ $found == *$trace* ]] || { echo "no $trace in: $found"; return 1; }
    done
}
