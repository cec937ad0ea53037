package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// A rig (docs/rig.md) is brought through the API server: its namespaces, service accounts and policies as they are, and its
// pods with a prober that answers at their ports. Nodes worker-1, worker-2, .. are the cluster's, in turn. Its Nodes and
// IPPools stay away: the cluster has its own.

// object is a Kubernetes object, as JSON has it.
type object = map[string]any

// A rigPod is what probes need of a Pod.
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
	Status struct{ PodIP, Phase string }
}

func (p rigPod) name() string { return p.Metadata.Namespace + "/" + p.Metadata.Name }

// A truthTable is what `manx policy matrix --output json` prints.
type truthTable struct {
	Parties []struct {
		Name string
		Pods []string
	}
	Services []struct{ TCP, UDP [][2]int }
	Cells    []struct {
		From, To []string
		IPv4     int
	}
}

// allows finds the cell of two pods, and says whether the port, such as 80/tcp, is open in it.
func (t truthTable) allows(from, to, port string) (bool, error) {
	party := func(pod string) string {
		for _, party := range t.Parties {
			if slices.Contains(party.Pods, pod) {
				return party.Name
			}
		}
		return ""
	}
	var number int
	var protocol string
	if _, err := fmt.Sscanf(port, "%d/%s", &number, &protocol); err != nil {
		return false, fmt.Errorf("the port %q: %w", port, err)
	}
	for _, cell := range t.Cells {
		if !slices.Contains(cell.From, party(from)) || !slices.Contains(cell.To, party(to)) {
			continue
		}
		open := t.Services[cell.IPv4].TCP
		if protocol == "udp" {
			open = t.Services[cell.IPv4].UDP
		}
		return slices.ContainsFunc(open, func(r [2]int) bool { return r[0] <= number && number <= r[1] }), nil
	}
	return false, fmt.Errorf("the truth table has no cell from %s to %s", from, to)
}

// rig applies a rig's objects, and compares what its pods reach with the truth table. It takes its objects away again.
func rig(arguments []string) (err error) {
	c, rest, err := opened("rig", arguments)
	if err != nil {
		return err
	}
	if len(rest) != 3 {
		return errors.New("expected a rig's folder, a truth table and an image: " +
			"cluster rig fixtures/rigs/three-tier matrix.json docker.io/library/prober:latest")
	}
	text, err := os.ReadFile(rest[1])
	if err != nil {
		return err
	}
	var table truthTable
	if err := json.Unmarshal(text, &table); err != nil {
		return fmt.Errorf("%s: %w", rest[1], err)
	}
	objects, err := c.rigObjects(rest[0], rest[2])
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.removeRig(objects)) }()
	if _, err := c.withInput(objects, "apply", "-f", "-"); err != nil {
		return err
	}
	pods, err := c.rigPods()
	if err != nil {
		return err
	}
	// What the API server has just taken counts on every node a moment later.
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(time.Second) {
		wrong, err := c.compare(pods, table)
		if err == nil && len(wrong) == 0 {
			return nil
		}
		if err != nil || time.Now().After(end) {
			return errors.Join(err, errors.New(strings.Join(wrong, "\n")))
		}
	}
}

// removeRig waits until the objects are gone: another rig may have namespaces of the same names.
func (c *Cluster) removeRig(objects []object) error {
	objects = slices.DeleteFunc(objects, func(it object) bool {
		return it["kind"] == "Namespace" && it["metadata"].(object)["name"] == "kube-system" // the server keeps it
	})
	_, err := c.withInput(objects, "delete", "--ignore-not-found", "--timeout=60s", "-f", "-")
	return err
}

// withInput runs kubectl with a List of the objects as its input.
func (c *Cluster) withInput(objects []object, arguments ...string) ([]byte, error) {
	input, err := json.Marshal(object{"apiVersion": "v1", "kind": "List", "items": objects})
	if err != nil {
		return nil, err
	}
	program := c.program("kubectl", arguments...)
	program.Env = append(os.Environ(), "KUBECONFIG="+c.path("kubeconfig"))
	program.Stdin = bytes.NewReader(input)
	out, err := program.Output()
	var ended *exec.ExitError
	if errors.As(err, &ended) {
		err = fmt.Errorf("kubectl %s: %w: %s", strings.Join(arguments, " "), err, ended.Stderr)
	}
	return out, err
}

// rigObjects reads the manifests of a rig. What others stand in comes first.
func (c *Cluster) rigObjects(folder, image string) ([]object, error) {
	files, err := filepath.Glob(filepath.Join(folder, "*.yaml"))
	if err != nil {
		return nil, err
	}
	arguments := []string{"create", "--dry-run=client", "--validate=false", "-o", "json"}
	for _, file := range files {
		if filepath.Base(file) != "rig.yaml" { // not an object: what the rig has outside of the cluster
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
			switch it["kind"] {
			case "Node", "IPPool":
			case "Namespace", "Tier", "ServiceAccount":
				first = append(first, it)
			case "Pod":
				pod, err := c.servedPod(it, image)
				if err != nil {
					return nil, err
				}
				then = append(then, pod)
			default:
				then = append(then, it)
			}
		}
	}
	return append(first, then...), nil
}

// otherPort is one that no container names.
const otherPort = "40000/tcp"

func (p rigPod) ports() []string {
	ports := []string{otherPort}
	for _, container := range p.Spec.Containers {
		for _, port := range container.Ports {
			protocol := "tcp"
			if port.Protocol != "" {
				protocol = strings.ToLower(port.Protocol)
			}
			ports = append(ports, fmt.Sprintf("%d/%s", port.ContainerPort, protocol))
		}
	}
	return ports
}

// servedPod is the pod with the same names, labels, account and ports, on a node of the cluster, with a prober in it.
func (c *Cluster) servedPod(pod object, image string) (object, error) {
	text, err := json.Marshal(pod)
	if err != nil {
		return nil, err
	}
	var read rigPod
	if err := json.Unmarshal(text, &read); err != nil {
		return nil, err
	}
	metadata, spec := pod["metadata"].(object), pod["spec"].(object)
	labels, _ := metadata["labels"].(object)
	if labels == nil {
		labels = object{}
	}
	var named []any
	for _, container := range spec["containers"].([]any) {
		ports, _ := container.(object)["ports"].([]any)
		named = append(named, ports...)
	}
	node, number := "n1", 0
	if _, err := fmt.Sscanf(fmt.Sprint(spec["nodeName"]), "worker-%d", &number); err == nil {
		node = c.nodes()[(number-1)%c.Nodes]
	}
	served := object{
		"nodeName": node, "terminationGracePeriodSeconds": 0,
		"containers": []any{object{
			"name": "prober", "image": image, "imagePullPolicy": "Never",
			"args": append([]string{"serve"}, read.ports()...), "ports": named,
		}},
	}
	if account, isNamed := spec["serviceAccountName"]; isNamed {
		served["serviceAccountName"] = account
	}
	return object{"apiVersion": "v1", "kind": "Pod", "spec": served, "metadata": object{
		"namespace": metadata["namespace"], "name": metadata["name"], "labels": labels,
		"annotations": object{rigMark: "true"},
	}}, nil
}

// rigMark is the annotation that finds the pods again. No selector sees it.
const rigMark = "manx.test/rig"

// rigPods waits for the rig's pods, and reads them with their addresses.
func (c *Cluster) rigPods() (pods []rigPod, err error) {
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
		if !slices.ContainsFunc(pods, func(p rigPod) bool { return p.Status.Phase != "Running" }) {
			return pods, nil
		}
	}
	return nil, fmt.Errorf("the pods do not run after 60 s: %+v", pods)
}

// compare has each pod ask every port of all others, and names what is not as the table says.
func (c *Cluster) compare(pods []rigPod, table truthTable) (wrong []string, err error) {
	allowed, denied := 0, 0
	for _, from := range pods {
		arguments := []string{"-n", from.Metadata.Namespace, "exec", from.Metadata.Name, "--", "/prober", "reach"}
		for _, to := range pods {
			for _, port := range to.ports() {
				if to.name() != from.name() {
					arguments = append(arguments, to.Status.PodIP+":"+port)
				}
			}
		}
		out, err := c.withInput(nil, arguments...)
		if err != nil {
			return nil, err
		}
		reached := strings.Fields(string(out))
		for _, to := range pods {
			for _, port := range to.ports() {
				if to.name() == from.name() {
					continue
				}
				expected, err := table.allows(from.name(), to.name(), port)
				if err != nil {
					return nil, err
				}
				if expected {
					allowed++
				} else {
					denied++
				}
				if found := slices.Contains(reached, to.Status.PodIP+":"+port); found != expected {
					wrong = append(wrong, fmt.Sprintf("%s -> %s %s: expected %t, found %t", from.name(), to.name(), port, expected, found))
				}
			}
		}
	}
	fmt.Printf("%d pods, %d connections allowed and %d denied, %d not as expected\n", len(pods), allowed, denied, len(wrong))
	if allowed == 0 {
		wrong = append(wrong, "the truth table allows nothing: expected something that a cluster where nothing passes fails")
	}
	if denied == 0 {
		wrong = append(wrong, "the truth table denies nothing: expected something that a cluster without policy fails")
	}
	return wrong, nil
}
