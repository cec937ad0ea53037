package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// A rig (docs/rig.md) is applied to the API server. Its namespaces, service accounts, policies and
// services stay as they are. Its pods, and the pods of its workloads, get a prober that answers at
// their ports. The cluster's nodes take the place of the nodes worker-1, worker-2, .. in turn. The
// rig's Nodes and IPPools are left out, because the cluster has its own, and so is its outside
// host.

// object is a Kubernetes object, as JSON has it.
type object = map[string]any

// A rigPod holds the fields of a Pod that probes need.
type rigPod struct {
	Metadata struct {
		Namespace, Name string
		Annotations     map[string]string
	}
	Spec struct {
		Containers []struct {
			Ports []struct {
				ContainerPort int
				Protocol      string
			}
		}
	}
	Status struct {
		Phase  string
		PodIPs []struct{ IP netip.Addr }
	}
}

func (p rigPod) name() string { return p.Metadata.Namespace + "/" + p.Metadata.Name }

// rig applies a rig's objects, and compares what its pods reach with the oracle's verdicts on the
// cluster's objects at that time. Then it deletes its objects.
func rig(arguments []string) (err error) {
	c, rest, err := opened("rig", arguments)
	if err != nil {
		return err
	}
	if len(rest) != 3 {
		return errors.New("expected a rig's folder, the program manx and an image: " +
			"cluster rig fixtures/rigs/three-tier target/programs/manx docker.io/library/prober:latest")
	}
	objects, err := c.rigObjects(rest[0], rest[2])
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.removeRig(objects)) }()
	if _, err := c.withInput(objects, "apply", "-f", "-"); err != nil {
		return err
	}
	pods, err := c.rigPods(objects)
	if err != nil {
		return err
	}
	// New objects of the API server take effect on every node a moment later, and endpoints of
	// services come later.
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(time.Second) {
		probes, err := c.probes(rest[1], pods)
		if err != nil {
			return err
		}
		wrong, err := c.compare(pods, probes)
		if err == nil && len(wrong) == 0 {
			return nil
		}
		if err != nil || time.Now().After(end) {
			return errors.Join(err, errors.New(strings.Join(wrong, "\n")))
		}
	}
}

// removeRig waits until the objects are gone, and the pods that controllers made from them, because
// another rig may have the same names. Namespaces stay, empty, because Kubernetes takes at least 5
// s to delete one. A later rig with the same namespaces sets its own labels, and `kubectl apply`
// removes the labels of the rig before. The rigs depend on that.
func (c *Cluster) removeRig(objects []object) error {
	objects = slices.DeleteFunc(objects, func(it object) bool { return it["kind"] == "Namespace" })
	if _, err := c.withInput(objects, "delete", "--ignore-not-found", "--timeout=60s", "-f", "-"); err != nil {
		return err
	}
	_, err := c.waitForPods("to be gone", func(pods []rigPod) bool { return len(pods) == 0 })
	return err
}

// withInput runs kubectl with a List of the objects as its standard input.
func (c *Cluster) withInput(objects []object, arguments ...string) ([]byte, error) {
	input, err := json.Marshal(object{"apiVersion": "v1", "kind": "List", "items": objects})
	if err != nil {
		return nil, err
	}
	program := c.program("kubectl", arguments...)
	program.Env = append(os.Environ(), "KUBECONFIG="+c.path("kubeconfig"))
	program.Stdin = bytes.NewReader(input)
	return output(program)
}

// output returns what a program prints. Its error contains the program's error output.
func output(program *exec.Cmd) ([]byte, error) {
	out, err := program.Output()
	var ended *exec.ExitError
	if errors.As(err, &ended) {
		err = fmt.Errorf("%s: %w: %s", strings.Join(program.Args, " "), err, ended.Stderr)
	}
	return out, err
}

// rigObjects reads the manifests of a rig. Namespaces come before the objects in them.
func (c *Cluster) rigObjects(folder, image string) ([]object, error) {
	files, err := filepath.Glob(filepath.Join(folder, "*.yaml"))
	if err != nil {
		return nil, err
	}
	arguments := []string{"create", "--dry-run=client", "--validate=false", "-o", "json"}
	for _, file := range files {
		if filepath.Base(file) != "rig.yaml" { // this is not an object, but settings of the rig
			arguments = append(arguments, "-f", file)
		}
	}
	out, err := c.withInput(nil, arguments...)
	if err != nil {
		return nil, err
	}
	var first, then []object
	for objects := json.NewDecoder(bytes.NewReader(out)); objects.More(); {
		var read object
		if err := objects.Decode(&read); err != nil {
			return nil, err
		}
		items, isList := read["items"].([]any)
		if !isList {
			items = []any{read}
		}
		for _, item := range items {
			it := item.(object)
			spec, _ := it["spec"].(object)
			switch it["kind"] {
			case "Node", "IPPool":
				continue
			case "Namespace", "Tier", "ServiceAccount":
				first = append(first, it)
				continue
			case "HostEndpoint":
				spec["node"] = c.place(spec["node"])
				delete(spec, "expectedIPs") // the address belongs to the rig's node
			case "Pod":
				err = c.serve(it, image)
			case "Deployment", "StatefulSet", "DaemonSet":
				err = c.serve(spec["template"].(object), image)
			}
			if err != nil {
				return nil, err
			}
			then = append(then, it)
		}
	}
	return slices.Concat(leftOutNamespaces(first, then), first, then), nil
}

// leftOutNamespaces returns the namespaces that objects lie in but that the rig does not define.
func leftOutNamespaces(first, then []object) (missing []object) {
	known := []any{nil, "default", "kube-system"}
	for _, it := range first {
		if it["kind"] == "Namespace" {
			known = append(known, it["metadata"].(object)["name"])
		}
	}
	for _, it := range slices.Concat(first, then) {
		if namespace := it["metadata"].(object)["namespace"]; !slices.Contains(known, namespace) {
			known = append(known, namespace)
			missing = append(missing, object{"apiVersion": "v1", "kind": "Namespace", "metadata": object{"name": namespace}})
		}
	}
	return missing
}

// otherPort is a port that no container names.
const otherPort = "40000/tcp"

// ports returns the ports that can be probed. SCTP's are left out, because most kernels of
// containers and small machines lack SCTP.
func (p rigPod) ports() []string {
	ports := []string{otherPort}
	for _, container := range p.Spec.Containers {
		for _, port := range container.Ports {
			protocol := "tcp"
			if port.Protocol != "" {
				protocol = strings.ToLower(port.Protocol)
			}
			if protocol != "sctp" {
				ports = append(ports, fmt.Sprintf("%d/%s", port.ContainerPort, protocol))
			}
		}
	}
	return ports
}

// place returns the cluster's node for one of the rig's nodes.
func (c *Cluster) place(node any) string {
	number := 1
	_, _ = fmt.Sscanf(fmt.Sprint(node), "worker-%d", &number)
	return c.nodes()[(number-1)%c.Nodes]
}

// serve puts a prober into a pod, or into a workload's template. Names, labels, account and ports
// stay.
func (c *Cluster) serve(pod object, image string) error {
	text, err := json.Marshal(pod)
	if err != nil {
		return err
	}
	var read rigPod
	if err := json.Unmarshal(text, &read); err != nil {
		return err
	}
	metadata, spec := pod["metadata"].(object), pod["spec"].(object)
	var named []any
	for _, container := range spec["containers"].([]any) {
		ports, _ := container.(object)["ports"].([]any)
		named = append(named, ports...)
	}
	served := object{
		"terminationGracePeriodSeconds": 0,
		"containers": []any{object{
			"name": "prober", "image": image, "imagePullPolicy": "Never",
			"args": append([]string{"serve"}, read.ports()...), "ports": named,
		}},
	}
	if node, isNamed := spec["nodeName"]; isNamed {
		served["nodeName"] = c.place(node)
	}
	if account, isNamed := spec["serviceAccountName"]; isNamed {
		served["serviceAccountName"] = account
	}
	metadata["annotations"] = object{rigMark: "true"}
	delete(pod, "status")
	pod["spec"] = served
	return nil
}

// rigMark is the annotation by which the pods are found again. No selector sees it.
const rigMark = "manx.test/rig"

// rigPods waits for the pods of the objects, and reads them with their addresses.
func (c *Cluster) rigPods(objects []object) ([]rigPod, error) {
	wanted := 0
	for _, it := range objects {
		switch it["kind"] {
		case "Pod":
			wanted++
		case "Deployment", "StatefulSet":
			replicas, isSaid := it["spec"].(object)["replicas"].(float64)
			if !isSaid {
				replicas = 1
			}
			wanted += int(replicas)
		case "DaemonSet":
			wanted += c.Nodes
		}
	}
	expected := fmt.Sprintf("to be %d that run, each with an address of every family", wanted)
	return c.waitForPods(expected, func(pods []rigPod) bool {
		return len(pods) == wanted && !slices.ContainsFunc(pods, func(p rigPod) bool {
			return p.Status.Phase != "Running" || len(p.Status.PodIPs) != len(c.families())
		})
	})
}

// waitForPods reads the rig's pods until they fulfil the condition.
func (c *Cluster) waitForPods(expected string, isSo func([]rigPod) bool) (pods []rigPod, err error) {
	for end := time.Now().Add(60 * time.Second); time.Now().Before(end); time.Sleep(300 * time.Millisecond) {
		out, err := c.withInput(nil, "get", "pods", "-A", "-o", "json")
		if err != nil {
			return nil, err
		}
		var all struct{ Items []rigPod }
		if err := json.Unmarshal(out, &all); err != nil {
			return nil, err
		}
		pods = slices.DeleteFunc(all.Items, func(p rigPod) bool { return p.Metadata.Annotations[rigMark] == "" })
		if isSo(pods) {
			return pods, nil
		}
	}
	return nil, fmt.Errorf("the rig's pods were expected %s within 60 s, and are: %+v", expected, pods)
}

// A probe connects to a port of a pod at one of its addresses.
type probe struct {
	from, to string
	address  netip.Addr
	port     string
	expected bool // whether the oracle expects an answer
}

func (p probe) target() string {
	number, protocol, _ := strings.Cut(p.port, "/")
	return net.JoinHostPort(p.address.String(), number) + "/" + protocol
}

// probes returns the probes from each pod to all ports of all other pods, at all of their
// addresses.
func (c *Cluster) probes(manx string, pods []rigPod) (all []probe, err error) {
	answers := map[string]map[string]bool{}
	for _, to := range pods {
		for _, asked := range to.questions() {
			question := fmt.Sprint(asked.port, asked.address.Is6())
			if answers[question] == nil {
				if answers[question], err = c.explain(manx, asked.port, asked.address.Is6()); err != nil {
					return nil, err
				}
			}
			toAll, err := asked.fromAll(pods, answers[question])
			if err != nil {
				return nil, err
			}
			all = append(all, toAll...)
		}
	}
	return all, nil
}

// questions returns probes without a source.
func (p rigPod) questions() (all []probe) {
	for _, address := range p.Status.PodIPs {
		for _, port := range p.ports() {
			all = append(all, probe{to: p.name(), address: address.IP, port: port})
		}
	}
	return all
}

// fromAll returns the probe from each other pod, with the oracle's answer.
func (p probe) fromAll(pods []rigPod, answers map[string]bool) (all []probe, err error) {
	for _, pod := range pods {
		p.from = pod.name()
		if p.from == p.to {
			continue
		}
		pair := fmt.Sprintf("%s -> %s (%s)", p.from, p.to, p.address)
		isThere := false
		if p.expected, isThere = answers[pair]; !isThere {
			return nil, fmt.Errorf("manx policy explain of %s says nothing about %s", p.port, pair)
		}
		all = append(all, p)
	}
	return all, nil
}

// explain makes the oracle judge a port of all pods, by the objects of the cluster: FROM -> TO
// (ADDRESS), and whether it passes.
func (c *Cluster) explain(manx, port string, byIPv6 bool) (map[string]bool, error) {
	number, protocol, _ := strings.Cut(port, "/")
	arguments := []string{"policy", "explain", "--kubeconfig", c.path("kubeconfig"), "--output", "json",
		"--from", "*/*", "--to", "*/*", "--port", protocol + "/" + number}
	if byIPv6 {
		arguments = append(arguments, "-6")
	}
	out, err := output(exec.Command(manx, arguments...))
	var ended *exec.ExitError
	// Exit status 1 means that not every connection passes.
	if err != nil && (!errors.As(err, &ended) || ended.ExitCode() != 1) {
		return nil, err
	}
	var all struct {
		Explanations []struct {
			From, To string
			Allowed  bool
		}
	}
	if err := json.Unmarshal(out, &all); err != nil {
		return nil, err
	}
	passes := map[string]bool{}
	for _, one := range all.Explanations {
		from, _, _ := strings.Cut(one.From, " ")
		passes[from+" -> "+one.To] = one.Allowed
	}
	return passes, nil
}

// tally counts probes by their expected result.
type tally struct{ allowed, denied int }

func (t *tally) add(expected bool) {
	if expected {
		t.allowed++
	} else {
		t.denied++
	}
}

// atOnce is the number of pods that send probes at the same time. Denied probes make each of them
// wait.
const atOnce = 4

// compare lets each pod send its probes, and returns the unexpected results.
func (c *Cluster) compare(pods []rigPod, probes []probe) (wrong []string, err error) {
	reached := make([][]string, len(pods))
	failures := make([]error, len(pods))
	slots := make(chan struct{}, atOnce)
	var all sync.WaitGroup
	for i, from := range pods {
		all.Go(func() {
			slots <- struct{}{}
			reached[i], failures[i] = c.reached(from, probes)
			<-slots
		})
	}
	all.Wait()
	if err := errors.Join(failures...); err != nil {
		return nil, err
	}
	var v4, v6 tally
	for i, from := range pods {
		for _, probe := range probes {
			if probe.from != from.name() {
				continue
			}
			if probe.address.Is6() {
				v6.add(probe.expected)
			} else {
				v4.add(probe.expected)
			}
			if found := slices.Contains(reached[i], probe.target()); found != probe.expected {
				wrong = append(wrong, fmt.Sprintf("%s -> %s %s: expected %t, found %t", probe.from, probe.to, probe.target(), probe.expected, found))
			}
		}
	}
	fmt.Printf("%d pods, connections by IPv4: %d allowed, %d denied; by IPv6: %d allowed, %d denied; %d not as expected\n",
		len(pods), v4.allowed, v4.denied, v6.allowed, v6.denied, len(wrong))
	if v4.allowed == 0 || v6.allowed == 0 {
		wrong = append(wrong, "the oracle allows nothing by one family: expected something that a cluster where nothing passes fails")
	}
	return wrong, nil
}

// reached lets one pod send its probes, and returns the targets that answered.
func (c *Cluster) reached(from rigPod, probes []probe) ([]string, error) {
	arguments := []string{"-n", from.Metadata.Namespace, "exec", from.Metadata.Name, "--", "/prober", "reach"}
	for _, probe := range probes {
		if probe.from == from.name() {
			arguments = append(arguments, probe.target())
		}
	}
	out, err := c.withInput(nil, arguments...)
	return strings.Fields(string(out)), err
}
