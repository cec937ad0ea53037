# To be sourced after manx.bash: pods in the namespace shop that probe each other, one of each name
# on each node (web-n1, web-n2); the checks of them wherever Manx judges; and what Manx leaves
# visible on a node.
readonly agnhost=registry.k8s.io/e2e-test-images/agnhost:2.59

make_shop() {
    kubectl create namespace shop
    eventually 30 kubectl -n shop get serviceaccount default >/dev/null
}

# make_pods NAME...: makes pods on both nodes. make_pods_on NODE NAME...: on one node. kubelet
# probes each of them, too.
make_pods() { for node in n1 n2; do make_pods_on "$node" "$@"; done; }
make_pods_on() {
    local node=$1 name
    shift
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
}

address() { kubectl -n shop get pod "$1" -o 'jsonpath={.status.podIP}'; }
service() { kubectl -n shop get service "$1" -o 'jsonpath={.spec.clusterIP}'; }
# connects POD ADDRESS:PORT: connects by TCP.
connects() { kubectl -n shop exec "$1" -- /agnhost connect --timeout=2s "$2"; }
# timed_out: checks that a connection times out. An error such as a wrong name or a missing cluster
# does not count as a denial.
timed_out() {
    local found
    if found=$(connects "$1" "$2" 2>&1); then
        echo "$1 reaches $2"
        return 1
    fi
    [[ $found == *TIMEOUT* ]] || { echo "$found"; return 1; }
}
# shell_reaches POD HOST PORT: connects by curl and by nc, as Kubernetes' specs do in pods.
shell_reaches() {
    kubectl -n shop exec "$1" -- sh -c "curl -sS --max-time 2 http://$2:$3/hostname | grep - && nc -vz -w 2 $2 $3"
}
# reaches FROM TO, denied FROM TO: checks a connection from pod to pod.
reaches() { connects "$1" "$(address "$2"):8080"; }
denied() { timed_out "$1" "$(address "$2"):8080"; }

# Both endpoints must answer within 12 tries, because kube-proxy chooses at random. The pod's own
# server connects, at an HTTP request of the pod's node.
both_answer() { both_answer_at "$1" "$2" 80; }
both_answer_at() {
    local found
    found=$(cluster exec "${1#*-}" -- curl -sS --max-time 20 \
        "http://$(address "$1"):8080/dial?host=$2&port=$3&protocol=http&request=hostname&tries=12")
    [[ $found == *db-n1* && $found == *db-n2* && $found != *errors* ]] || { echo "$found"; return 1; }
}

# check_reach: checks that all pods, on both nodes, reach each other.
check_reach() {
    local from to
    for from in web-n1 web-n2; do
        for to in web-n1 web-n2 db-n1 db-n2; do
            [ "$from" = "$to" ] || check "$from reaches $to" eventually 10 reaches "$from" "$to"
        done
    done
}

# check_policy: checks one policy, and a label. Afterwards web-n1 may reach the pods db, and web-n2
# may not.
check_policy() {
    local to
    kubectl create -f - <<'END'
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: db, namespace: shop}
spec:
  podSelector: {matchLabels: {app: db}}
  ingress: [{from: [{podSelector: {matchLabels: {access: db}}}]}]
END
    for to in db-n1 db-n2; do
        check "the policy denies web-n1 to $to" eventually 10 denied web-n1 "$to"
        check "the policy denies web-n2 to $to" denied web-n2 "$to"
    done
    check "and leaves web-n2 to web-n1" reaches web-n2 web-n1
    kubectl -n shop label pod web-n1 access=db
    for to in db-n1 db-n2; do check "the label lets web-n1 to $to" eventually 10 reaches web-n1 "$to"; done
    check "and not web-n2" denied web-n2 db-n1
}

# check_services, after check_policy: kube-proxy translates, and policy judges the pods behind
# services.
check_services() {
    local name from web_service db_service
    # This comes before CoreDNS, because a connection that CoreDNS opened unmasqueraded would be
    # tried for half a minute.
    masquerade
    kubectl apply -f - <"$here/dns.yaml" >/dev/null
    for name in web db; do kubectl -n shop create service clusterip "$name" --tcp=80:8080; done
    kubectl create -f - <<END
apiVersion: v1
kind: Service
metadata: {name: log, namespace: shop}
spec: {clusterIP: None, selector: {app: log}, ports: [{port: 8080}]}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: log, namespace: shop}
spec:
  serviceName: log
  selector: {matchLabels: {app: log}}
  template:
    metadata: {labels: {app: log}}
    spec:
      terminationGracePeriodSeconds: 0
      containers: [{name: c, image: "$agnhost", args: [netexec, --http-port=8080]}]
END
    web_service=$(service web) db_service=$(service db)
    check "CoreDNS is ready, so it reaches the API server at 10.96.0.1" \
        kubectl -n kube-system rollout status deployment/coredns --timeout=60s
    for from in web-n1 web-n2; do
        check "$from reaches the API server by its service" eventually 10 connects "$from" 10.96.0.1:443
    done
    # The endpoints themselves are left out: kube-proxy masquerades a pod that reaches itself, and
    # that is dropped.
    for from in db-n1 db-n2; do
        check "$from reaches service web by its address" eventually 10 connects "$from" "$web_service:80"
        check "$from reaches service web by its name" eventually 20 connects "$from" web.shop.svc.cluster.local:80
        check "$from reaches it by its short name" connects "$from" web:80
        check "and so do curl and nc of its shell" shell_reaches "$from" web 80
        check "$from reaches the pods of a headless service by its name" eventually 20 connects "$from" log.shop.svc.cluster.local:8080
        check "$from reaches a pod of a StatefulSet by its name" eventually 20 connects "$from" log-0.log:8080
    done
    check "the label lets web-n1 to service db" eventually 10 connects web-n1 "$db_service:80"
    check "both endpoints of service db answer web-n1" both_answer web-n1 "$db_service"
    check "the policy denies service db to web-n2" timed_out web-n2 "$db_service:80"
    kubectl create -f - <<'END'
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: only-dns, namespace: shop}
spec:
  podSelector: {matchLabels: {app: web}}
  policyTypes: [Egress]
  egress:
  - to: [{namespaceSelector: {}, podSelector: {matchLabels: {k8s-app: kube-dns}}}]
    ports: [{port: 53, protocol: UDP}, {port: 53}]
END
    check "egress policy denies service db to web-n1" eventually 10 timed_out web-n1 "$db_service:80"
    check "and the API server, which is no pod" timed_out web-n1 10.96.0.1:443
    check "and lets it resolve names: the connection times out, not the name" timed_out web-n1 db.shop.svc.cluster.local:80
    kubectl -n shop delete networkpolicy only-dns
    check "without that policy web-n1 reaches service db" eventually 10 connects web-n1 "$db_service:80"
}

# never_answered N COMMAND...: runs the command N times in parallel, and checks that none is
# answered.
never_answered() {
    local count=$1 i asked=() bad=0
    shift
    for ((i = 0; i < count; i++)); do "$@" & asked+=($!); done
    for i in "${asked[@]}"; do wait "$i" || bad=1; done
    return "$bad"
}
# node_times_out NODE ADDRESS:PORT: connects as a process of the node, which is an outside host for
# the other node.
node_times_out() {
    local found
    if found=$(cluster exec "$1" -- curl -sS --max-time 2 "http://$2/hostname" 2>&1); then
        echo "$1 is answered by $found"
        return 1
    fi
    [[ $found == *"timed out"* ]] || { echo "$found"; return 1; }
}
# curl_ends STATUS COMMAND...: checks that the command, which runs curl, ends with this status.
curl_ends() {
    local expected=$1 status=0
    shift
    "$@" || status=$?
    [ "$status" -eq "$expected" ] || { echo "curl ended with $status, expected $expected"; return 1; }
}
node_is_refused() { curl_ends 7 cluster exec "$1" -- curl -sS --max-time 5 "http://$2/"; }
node_is_answered() { cluster exec "$1" -- curl -sS --max-time 2 "http://$2/hostname"; }

# no_netfilter NODE: checks that no program has put a rule of nftables or iptables into the node's
# kernel, and that no connection is tracked. If nft cannot list the rules, the check fails, unless
# the kernel has no nftables.
no_netfilter() {
    local found
    found=$(cluster exec "$1" -- sh -c '
        rules=$(nft list ruleset 2>&1) || case $rules in *"not supported"*) rules= ;; esac
        echo "$rules"
        for file in ip_tables_names ip6_tables_names nf_conntrack; do
            [ ! -e "/proc/net/$file" ] || head -3 "/proc/net/$file"
        done')
    [ -z "$found" ] || { echo "$found"; return 1; }
}
# The nodes' own addresses.
declare -A nodes
find_nodes() {
    local node
    for node in n1 n2; do
        nodes[$node]=$(kubectl get node "$node" -o 'jsonpath={.status.addresses[?(@.type=="InternalIP")].address}')
    done
}
# check_without_netfilter, after check_services, if Manx translates: the nodes' own processes
# connect to services.
check_without_netfilter() {
    local node
    for node in n1 n2; do
        check "$node itself reaches service web by its address" node_is_answered "$node" "$(service web):80"
        check "$node itself reaches the API server by its service" \
            cluster exec "$node" -- curl -ksS --max-time 2 https://10.96.0.1/healthz
        check "a service's port that is none is refused on $node" node_is_refused "$node" "$(service web):81"
        check "nothing is in netfilter on $node" no_netfilter "$node"
    done
}
# check_way_out, after check_without_netfilter, if Manx connects the pods: the API server, behind
# the nodes, stands for the world.
check_way_out() {
    local node from
    find_nodes
    for from in web-n1 web-n2; do
        check "$from reaches the world" eventually 10 connects "$from" 10.99.0.1:6443
    done
    outside_answers
    for from in web-n1 web-n2; do
        node=${from#*-}
        check "the world sees $from as its node" sees "${nodes[$node]}" \
            kubectl -n shop exec "$from" -- curl -sS --max-time 3 "http://$outside:8090/clientip"
        check "$from reaches the world by ICMP" kubectl -n shop exec "$from" -- ping -c 1 -W 3 "$outside"
        check "a closed port of the world is refused to $from" \
            sh -c "'$work/driver' kubectl -n shop exec $from -- /agnhost connect --timeout=3s $outside:8091 2>&1 | grep REFUSED"
    done
}

# outside_answers: starts an HTTP server at port 8090 on the outside host, until the checks end.
outside_answers() {
    outside_runs "$MANX_CLUSTER_CACHE/bin/agnhost" netexec --http-port=8090 --udp-port=-1
    eventually 10 outside curl -sS --max-time 1 http://127.0.0.1:8090/hostname >/dev/null
}
# sees CLIENT COMMAND...: checks that the command prints this client's address and a port.
sees() {
    local client=$1 found
    shift
    found=$("$@") && [[ $found == "$client:"* ]] || { echo "$found"; return 1; }
}

# pods_answer_outside CLIENT ADDRESS: checks that two or more pods answer 16 connections of the
# outside host. If a client is given, the pods must see its address.
pods_answer_outside() {
    local at pods=()
    for at in {1..16}; do
        [ -z "$1" ] || sees "$1" outside curl -sS --max-time 2 "http://$2/clientip" || return 1
        pods+=("$(outside curl -sS --max-time 2 "http://$2/hostname")") || return 1
    done
    [[ $(printf '%s\n' "${pods[@]}" | sort -u | wc -l) -ge 2 ]] || { echo "answered: ${pods[*]}"; return 1; }
}

# Makes the services that both checks of node ports use.
create_node_port_services() {
    kubectl create -f - <<'END'
apiVersion: v1
kind: Service
metadata: {name: web-port, namespace: shop}
spec: {type: NodePort, selector: {app: web}, ports: [{port: 80, targetPort: 8080, nodePort: 30081}]}
---
apiVersion: v1
kind: Service
metadata: {name: db-local, namespace: shop}
spec: {type: NodePort, externalTrafficPolicy: Local, selector: {app: db}, ports: [{port: 80, targetPort: 8080, nodePort: 30082}]}
END
}

# check_ports_of_nodes, after check_services, if Manx translates, whatever connects the pods.
check_ports_of_nodes() {
    local node from
    find_nodes
    create_node_port_services
    for node in n1 n2; do
        for from in db-n1 db-n2; do
            check "$from reaches service web by a port of $node" eventually 10 connects "$from" "${nodes[$node]}:30081"
        done
        check "an outside host reaches service web by a port of $node" \
            eventually 10 outside curl -sS --max-time 2 "http://${nodes[$node]}:30081/hostname"
        check "and the pods of both nodes answer it" pods_answer_outside "" "${nodes[$node]}:30081"
        check "and $node itself" node_is_answered "$node" "${nodes[$node]}:30081"
        check "also at 127.0.0.1" node_is_answered "$node" 127.0.0.1:30081
        check "the policy denies an outside host the pods db by a port of $node" outside_times_out "${nodes[$node]}:30082"
        check "a port without a service is refused to an outside host by $node" outside_is_refused "${nodes[$node]}:30083"
    done
    check "n2 reaches service web by a port of n1" node_is_answered n2 "${nodes[n1]}:30081"
}
# check_clients_of_ports, after check_ports_of_nodes, if Manx connects the pods: they see the
# client, also at a port of another node.
check_clients_of_ports() {
    local node
    for node in n1 n2; do
        check "the pods of both nodes see who asks a port of $node" pods_answer_outside "$outside" "${nodes[$node]}:30081"
    done
    kubectl create -f - <<END
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: from-outside, namespace: shop}
spec:
  podSelector: {matchLabels: {app: db}}
  ingress: [{from: [{ipBlock: {cidr: $outside/32}}]}]
END
    for node in n1 n2; do
        check "a rule for the outside host's address lets it in by a port of $node" \
            eventually 10 outside curl -sS --max-time 2 "http://${nodes[$node]}:30082/hostname"
        check "the pod sees the outside host" sees "$outside" \
            outside curl -sS --max-time 2 "http://${nodes[$node]}:30082/clientip"
    done
    kubectl -n shop delete networkpolicy from-outside
}

# check_balancer, after check_clients_of_ports: a load balancer leads its own address to the nodes.
# The outside host's route stands for it here.
check_balancer() {
    local address=203.0.113.80
    kubectl create -f - <<END
apiVersion: v1
kind: Service
metadata: {name: web-balanced, namespace: shop}
spec: {type: LoadBalancer, selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}
END
    kubectl -n shop patch service web-balanced --subresource=status --type=merge \
        -p "{\"status\": {\"loadBalancer\": {\"ingress\": [{\"ip\": \"$address\"}]}}}"
    check_through_nodes "a load balancer's address" "$address"
    kubectl -n shop patch service web-balanced --type=merge -p '{"spec": {"externalTrafficPolicy": "Local"}}'
    check "with externalTrafficPolicy Local only the pod of n2 answers it there" \
        eventually 10 answered_by_one "$address:80" "web-n2"
    kubectl -n shop patch service web-balanced --type=merge -p '{"spec": {"loadBalancerSourceRanges": ["192.0.2.0/28"]}}'
    check "who is in none of its source ranges gets no answer" eventually 10 outside_times_out "$address:80"
    kubectl -n shop delete service web-balanced
    outside ip route del "$address/32"
    check "after the service no node has a route to its address" eventually 15 has_no_route n2 "$address"
}
# check_through_nodes WHAT ADDRESS: checks that the outside host reaches an address of service web's
# pods through either node, and that the nodes do, too. Afterwards the host's route leads to n2.
check_through_nodes() {
    local what=$1 address=$2 node
    for node in n1 n2; do
        outside ip route replace "$address/32" via "${nodes[$node]}"
        check "an outside host reaches $what through $node" \
            eventually 10 outside curl -sS --max-time 2 "http://$address/hostname"
        check "and is seen by the pods of both nodes" pods_answer_outside "$outside" "$address:80"
        check "so does $node itself" node_is_answered "$node" "$address:80"
    done
}
# answered_by_one ADDRESS NAME: checks that pods with this name prefix answer all of 16 connections
# of the outside host.
answered_by_one() {
    local at pod
    for at in {1..16}; do
        pod=$(outside curl -sS --max-time 2 "http://$1/hostname") && [[ $pod == "$2"* ]] || { echo "$pod"; return 1; }
    done
}
# check_external_ips, after check_ports_of_nodes: the author of a Service names two addresses, and
# one of them lies in a net of the agents' settings.
check_external_ips() {
    local allowed=203.0.113.241 other=203.0.113.81 node
    kubectl create -f - <<END
apiVersion: v1
kind: Service
metadata: {name: web-named, namespace: shop}
spec: {selector: {app: web}, externalIPs: [$allowed, $other], ports: [{port: 80, targetPort: 8080}]}
END
    check_through_nodes "an external IP" "$allowed"
    for node in n1 n2; do
        check "$node leads nobody to an address outside of the nets" has_no_route "$node" "$other"
        check "$node says so" status_has "$node" "its external IP $other is not translated"
    done
    check "a pod reaches the external IP" eventually 10 connects db-n1 "$allowed:80"
    kubectl -n shop patch service web-named --type=merge \
        -p '{"spec": {"type": "NodePort", "externalTrafficPolicy": "Local"}}'
    check "with externalTrafficPolicy Local only the pod of n2 answers it there" \
        eventually 10 answered_by_one "$allowed:80" "web-n2"
    kubectl -n shop delete service web-named
    outside ip route del "$allowed/32"
    check "after the service no node has a route to its address" eventually 15 has_no_route n2 "$allowed"
}
has_no_route() { local found; found=$(cluster exec "$1" -- ip route show "$2") && [ -z "$found" ] || { echo "$found"; return 1; }; }

# check_health_checks, after check_ports_of_nodes: the health checks that a load balancer sends to
# the nodes, for a service with a pod on n1 alone.
check_health_checks() {
    local port=30090 at from
    kubectl create -f - <<END
apiVersion: v1
kind: Service
metadata: {name: balanced, namespace: shop}
spec:
  type: LoadBalancer
  externalTrafficPolicy: Local
  healthCheckNodePort: $port
  selector: {balanced: "yes"}
  ports: [{port: 80, targetPort: 8080, nodePort: 30091}]
END
    kubectl -n shop label pod web-n1 balanced=yes
    for from in outside "cluster exec n1 --" "cluster exec n2 --" \
        "kubectl -n shop exec db-n1 --" "kubectl -n shop exec db-n2 --"; do
        check "$from: n1 has an endpoint of the service" eventually 10 status_is 200 "${nodes[n1]}:$port" $from
        check "$from: n2 has none" eventually 10 status_is 503 "${nodes[n2]}:$port" $from
    done
    check "n1 itself asks at 127.0.0.1, too" status_is 200 "127.0.0.1:$port" cluster exec n1 --
    check "what it is told names the service" names_service "${nodes[n1]}:$port"
    check "the service's own node port leads to the pod" \
        eventually 10 outside curl -sS --max-time 2 "http://${nodes[n1]}:30091/hostname"
    kubectl -n shop label pod web-n1 balanced-
    check "without the pod n1 has none, either" eventually 10 status_is 503 "${nodes[n1]}:$port" outside
    kubectl -n shop delete service balanced
    check "after the service its port is refused" eventually 10 outside_is_refused "${nodes[n1]}:$port"

    for at in "${nodes[n2]}:10256/healthz" "${nodes[n2]}:10256/livez"; do
        check "$at is well, as kube-proxy's" status_is 200 "$at" outside
    done
    kubectl taint node n2 ToBeDeletedByClusterAutoscaler=1:PreferNoSchedule
    check "a node that is about to go is not for balancers" \
        eventually 10 status_is 503 "${nodes[n2]}:10256/healthz" outside
    check "and lives" status_is 200 "${nodes[n2]}:10256/livez" outside
    kubectl taint node n2 ToBeDeletedByClusterAutoscaler-
    check "one that stays is for balancers again" eventually 10 status_is 200 "${nodes[n2]}:10256/healthz" outside
}
names_service() {
    outside curl -sS --max-time 2 "http://$1" |
        grep -F '"namespace":"shop","name":"balanced"},"localEndpoints":1,"serviceProxyHealthy":true'
}
# status_is STATUS URL CLIENT...: checks that curl, run by this client, gets this HTTP status.
status_is() {
    local expected=$1 url=$2 found
    shift 2
    found=$("$@" curl -sS --max-time 2 -o /dev/null -w '%{http_code}' "http://$url")
    [ "$found" = "$expected" ] || { echo "found $found, expected $expected"; return 1; }
}

# check_host_ports, after check_ports_of_nodes: a pod requests two ports of n1, one of which kubelet
# uses.
check_host_ports() {
    local name="the pod with a hostPort" address=${nodes[n1]}
    kubectl create -f - <<END
apiVersion: v1
kind: Pod
metadata: {name: host-port, namespace: shop, labels: {app: host-port}}
spec:
  nodeName: n1
  terminationGracePeriodSeconds: 0
  containers:
  - name: c
    image: "$agnhost"
    args: [netexec, --http-port=8080]
    ports: [{containerPort: 8080, hostPort: 8000}, {containerPort: 8081, hostPort: 10250}]
END
    check "an outside host reaches $name" eventually 30 outside curl -sS --max-time 2 "http://$address:8000/hostname"
    check "and is seen by it" sees "$outside" outside curl -sS --max-time 2 "http://$address:8000/clientip"
    check "a pod of the other node reaches it" eventually 10 connects db-n2 "$address:8000"
    check "so does n1 itself" node_is_answered n1 "$address:8000"
    check "also at 127.0.0.1" node_is_answered n1 127.0.0.1:8000
    check "so does n2" node_is_answered n2 "$address:8000"
    check "the kubelet keeps its port" kubectl -n shop exec host-port -- true
    check "also for pods of its node" connects web-n1 "$address:10250"
    check "and the agent says so" status_has n1 'hostPort 10250 leads nowhere'
    kubectl -n shop delete pod host-port
    check "after the pod its port is refused" eventually 10 outside_is_refused "$address:8000"
}
outside_times_out() { curl_ends 28 outside curl -sS --max-time 2 "http://$1/hostname"; }
outside_is_refused() { curl_ends 7 outside curl -sS --max-time 2 "http://$1/hostname"; }

# check_node_ports, after check_services, if Manx connects the pods: kube-proxy masquerades clients
# of a node port. So a rule for a label lets no client in. Only a rule for the address that stands
# for masqueraded clients does.
check_node_ports() {
    local node from first
    kubectl create -f - <<'END'
apiVersion: v1
kind: Service
metadata: {name: db-port, namespace: shop}
spec: {type: NodePort, selector: {app: db}, ports: [{port: 80, targetPort: 8080, nodePort: 30080}]}
END
    create_node_port_services
    for node in n1 n2; do
        nodes[$node]=$(kubectl get node "$node" -o 'jsonpath={.status.addresses[?(@.type=="InternalIP")].address}')
        for from in db-n1 db-n2; do
            check "$from reaches service web by a port of $node" eventually 10 connects "$from" "${nodes[$node]}:30081"
        done
        for from in web-n1 web-n2; do
            check "the policy denies $from the pods db by a port of $node, always" never_answered 8 timed_out "$from" "${nodes[$node]}:30080"
        done
    done
    check "n2 reaches service web by a port of n1" node_is_answered n2 "${nodes[n1]}:30081"
    check "the policy denies n2 the pods db by a port of n1, always" never_answered 8 node_times_out n2 "${nodes[n1]}:30080"
    check "and with its own address" node_times_out n2 "${nodes[n1]}:30082"
    check "their probes pass" kubectl -n shop wait --for=condition=Ready pod -l app=db --timeout=1s
    for node in n1 n2; do
        first=$(kubectl get node "$node" -o 'jsonpath={.spec.podCIDR}')
        kubectl create -f - <<END
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: masqueraded-by-$node, namespace: shop}
spec:
  podSelector: {matchLabels: {app: db}}
  ingress: [{from: [{ipBlock: {cidr: ${first%/*}/32}}]}]
END
    done
    for node in n1 n2; do
        check "a rule for the masqueraded lets web-n2 to both pods db by a port of $node" \
            eventually 10 both_answer_at web-n2 "${nodes[$node]}" 30080
    done
    check "and n2 by a port of n1" node_is_answered n2 "${nodes[n1]}:30080"
    check "and not web-n2 by their addresses" denied web-n2 db-n1
    kubectl create -f - <<END
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: from-n2, namespace: shop}
spec:
  podSelector: {matchLabels: {app: db}}
  ingress: [{from: [{ipBlock: {cidr: ${nodes[n2]}/32}}]}]
END
    check "a rule for the address of n2 lets it in where that is kept" eventually 10 node_is_answered n2 "${nodes[n1]}:30082"
    kubectl -n shop delete networkpolicy masqueraded-by-n1 masqueraded-by-n2 from-n2
    check "without these rules web-n2 is denied again" eventually 10 timed_out web-n2 "${nodes[n1]}:30080"
}

status_has() { cluster exec "$1" -- "$work/manx" status --socket /run/manx/node.sock | grep -e "$2"; }
# traces NODE: lists what Manx has on a node: files of the plugin, the holder, and changes of the
# node's network.
traces() {
    cluster exec "$1" -- sh -c 'ls /opt/cni/bin /etc/cni/net.d; pgrep -ax manx-cni; ip link; ip route show table all; ip rule
        echo all told' | grep -e manx -e 'proto 77' -e 'lookup 7[789]' -e 'all told'
}
no_traces() {
    local found
    found=$(traces "$1") && [ "$found" = "all told" ] || { echo "$found"; return 1; }
}
# has_traces NODE CONFLIST
has_traces() {
    local found trace
    found=$(traces "$1")
    local translation='lookup 77'
    [ "$proxy" != none ] || translation='lookup 79'
    for trace in "$2" 'manx-cni hold' manx0: manx2: "$translation" 'lookup 78'; do
        [[ $found == *$trace* ]] || { echo "no $trace in: $found"; return 1; }
    done
}
