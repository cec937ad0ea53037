#!/usr/bin/env bash
# live.sh MANX MANX_CNI [CHANGES [PODS [POLICIES]]]: measures the time from the write of a NetworkPolicy or a label at a
# real API server until packets show it (bench/live). By default it makes 100 changes, in a cluster with 1,000 other pods
# and 500 other policies. Afterwards it measures the agent's memory. It runs as root in a cluster of two nodes
# (tests/cluster), prints the figures and judges nothing.
# shellcheck source=tests/cluster/manx.bash
. "$(dirname "${BASH_SOURCE[0]}")/../tests/cluster/manx.bash"
readonly agnhost=registry.k8s.io/e2e-test-images/agnhost:2.59

CGO_ENABLED=0 go -C "$here/../../bench/live" build -o "$work/live" .
install_manx
kubectl -n kube-system set env daemonset/manx-node FELIX_PROMETHEUSMETRICSENABLED=true >/dev/null
kubectl -n kube-system rollout status daemonset/manx-node --timeout=90s >/dev/null
kubectl create namespace live
eventually 30 kubectl -n live get serviceaccount default >/dev/null
for name in client server; do
    kubectl create -f - <<END
apiVersion: v1
kind: Pod
metadata: {name: $name, namespace: live}
spec:
  nodeName: n1
  terminationGracePeriodSeconds: 0
  containers: [{name: c, image: "$agnhost", args: [pause]}]
END
done
check "pods run" kubectl -n live wait --for=condition=Ready pod --all --timeout=60s
[ "$bad" -eq 0 ] || verdict
cluster exec n1 -- "$work/live" "$MANX_CLUSTER_DIR/pki/admin.kubeconfig" live client server \
    "${3:-100}" "${4:-1000}" "${5:-500}"
say "what the agent of n1 says"
cluster exec n1 -- curl -sS http://127.0.0.1:9091/metrics | grep -e '^manx_change_to_workers' -e '^manx_publish' \
    -e '^manx_cluster' -e '^manx_policy_rows'
# Process 1 of the container has the agent's name, too, because it starts the agent as /proc/self/exe.
cluster exec n1 -- sh -c \
    'grep -e VmRSS -e VmHWM "/proc/$(pgrep -n -f "^manx node .*--supervised-")/status"'
