package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A Deployment on each node, with a service in front.
const workload = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: on-%[1]s}
spec:
  replicas: 2
  selector: {matchLabels: {app: on-%[1]s}}
  template:
    metadata: {labels: {app: on-%[1]s}}
    spec:
      terminationGracePeriodSeconds: 0
      nodeSelector: {kubernetes.io/hostname: %[1]s}
      containers:
      - name: server
        image: %[2]s
        args: [netexec, --http-port=8080]
        readinessProbe: {httpGet: {port: 8080, path: /hostname}, periodSeconds: 1}
---
apiVersion: v1
kind: Service
metadata: {name: on-%[1]s}
spec: {selector: {app: on-%[1]s}, ports: [{port: 80, targetPort: 8080}]}
---
`

func TestTwoNodesRunPodsAndServices(t *testing.T) {
	c := newCluster(t)
	c.run("up", "--nodes", "2", "--cni", "ptp", "--proxy", "nftables")
	nodes := []string{"n1", "n2"}
	for _, node := range nodes {
		c.apply(fmt.Sprintf(workload, node, agnhostImage))
	}
	c.reachEachOther(nodes)
	c.isSeenWhileItRuns()

	// Programs come back as before, and so does a node whose namespaces are made again.
	for _, name := range []string{"n1.kubelet", "n1.containerd", "n2"} {
		c.run("stop", name)
		c.run("start", name)
	}
	c.run("kubectl", "delete", "pods", "--all", "--force", "--grace-period=0")
	c.reachEachOther(nodes)
}

// isSeenWhileItRuns checks that the search for remains finds a running cluster. Otherwise finding
// nothing would mean nothing.
func (c testCluster) isSeenWhileItRuns() {
	c.Helper()
	cluster, err := readCluster(c.dir)
	if err != nil {
		c.Fatal(err)
	}
	found := strings.Join(remains(cluster), "\n")
	for _, kind := range []string{"the folder ", "process ", "cgroup ", "kubelet", "containerd-shim", "agnhost"} {
		if !strings.Contains(found, kind) {
			c.Errorf("the search for remains of a cluster that runs does not find %q:\n%s", kind, found)
		}
	}
}

// reachEachOther waits for the Deployments, and lets a pod of each node call all pods and services.
func (c testCluster) reachEachOther(nodes []string) {
	c.Helper()
	for _, node := range nodes {
		c.eventually(90*time.Second, "kubectl", "rollout", "status", "--timeout=5s", "deployment/on-"+node)
		c.eventually(90*time.Second, "kubectl", "wait", "--timeout=5s", "--for=condition=Ready", "node/"+node)
	}
	for _, node := range nodes {
		names := strings.Fields(c.run("kubectl", "get", "pods", "-l", "app=on-"+node, "-o", "jsonpath={.items[*].metadata.name}"))
		if len(names) != 2 {
			c.Fatalf("pods on %s: %q, expected two", node, names)
		}
		connect := func(target string) (string, error) {
			return c.try("kubectl", "exec", names[0], "--", "/agnhost", "connect", "--timeout=2s", target)
		}
		addresses := strings.Fields(c.run("kubectl", "get", "pods", "-o", "jsonpath={.items[*].status.podIP}"))
		if len(addresses) != 4 {
			c.Fatalf("pods have the addresses %q, expected four", addresses)
		}
		targets := []string{apiService + ":443"}
		for _, address := range addresses {
			targets = append(targets, address+":8080")
		}
		for _, other := range nodes {
			targets = append(targets, c.run("kubectl", "get", "service", "on-"+other, "-o", "jsonpath={.spec.clusterIP}")+":80")
		}
		for _, target := range targets {
			c.eventually(10*time.Second, "kubectl", "exec", names[0], "--", "/agnhost", "connect", "--timeout=2s", target)
		}
		// These are commands that Kubernetes' specs execute in pods.
		shell := "set -e; curl -sS --max-time 2 http://%[1]s:8080/hostname | grep on-; nc -vz -w 2 %[1]s 8080; ls /tmp | wc -l"
		c.run("kubectl", "exec", names[0], "--", "/bin/sh", "-c", fmt.Sprintf(shell, addresses[0]))
		// This checks that the probe can fail.
		if _, err := connect(addresses[0] + ":8081"); err == nil || !strings.Contains(err.Error(), "REFUSED") {
			c.Errorf("a port without a server, from %s: %v, expected REFUSED", node, err)
		}
		if log := c.run("kubectl", "logs", names[0]); !strings.Contains(log, "Started HTTP server on port 8080") {
			c.Errorf("the log of %s says %q", names[0], log)
		}
		if name := c.run("exec", node, "--", "hostname"); name != node {
			c.Errorf("`exec %s -- hostname` printed %q", node, name)
		}
	}
}

func TestNodesWithoutAPluginWaitForOne(t *testing.T) {
	c := newCluster(t)
	c.run("up", "--nodes", "1")
	reason := c.run("kubectl", "get", "node", "n1", "-o", `jsonpath={.status.conditions[?(@.type=="Ready")].message}`)
	if !strings.Contains(reason, "cni plugin not initialized") {
		t.Fatalf("the node's reason for not being Ready: %q", reason)
	}
	// The node has these folders as /opt/cni/bin and /etc/cni/net.d.
	plugin, err := os.ReadFile(filepath.Join(debianPlugins, "ptp"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(c.dir, "n1/cni-bin/ptp"), plugin, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := writeFile(filepath.Join(c.dir, "n1/cni-conf/10-ptp.conflist"),
		`{"cniVersion": "1.0.0", "name": "ptp", "plugins": [{"type": "ptp", "ipam": {"type": "host-local", "subnet": "10.244.0.0/24"}}]}`); err != nil {
		t.Fatal(err)
	}
	c.eventually(60*time.Second, "kubectl", "wait", "--timeout=5s", "--for=condition=Ready", "node/n1")

	// The process below which everything else runs crashes. The cleanup is the same as in every test.
	machine, err := readProcess(filepath.Join(c.dir, "pid"))
	if err != nil {
		t.Fatal(err)
	}
	if err := machine.kill(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.try("status"); err == nil || !strings.Contains(err.Error(), "does not run") {
		t.Errorf("the status of a cluster that crashed: %v, expected that it does not run", err)
	}
}

func TestNothingRunsOnWhenUpIsKilledWithNodes(t *testing.T) {
	c := newCluster(t)
	up := c.command("up", "--nodes", "2")
	if err := up.Start(); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(60 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if _, err := os.Stat(filepath.Join(c.dir, "state/n1.containerd")); err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatal("no containerd after 60 s")
		}
	}
	if err := up.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = up.Wait() // "signal: killed"
	machine, err := readProcess(filepath.Join(c.dir, "pid"))
	if err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(10 * time.Second); machine.alive(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the machine still runs 10 s after `up` was killed")
		}
	}
}
