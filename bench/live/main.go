// Command live measures the time from the write of a policy change at the API server until packets show the change. It
// runs on a node of tests/cluster (bench/live.sh), where Manx has attached two pods. It has three parts in one process,
// so that they share one clock: the writer, and in the pods' network namespaces a sender, which sends a numbered datagram
// every 50 us, and a receiver.
//
//	live KUBECONFIG NAMESPACE CLIENT SERVER CHANGES PODS POLICIES
//
// A change begins when the writer calls the API server. A change that opens the way ends with the first datagram that
// passes. A change that shuts the way ends with the first datagram after the last one that passed.
package main

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	port = 9999
	// every is the time between two datagrams.
	every = 50 * time.Microsecond
	// settled is the time after a change in which nothing may change. It is longer than any change is expected to take.
	settled = 300 * time.Millisecond
	// patience is the longest time to wait for a change.
	patience = 10 * time.Second

	// farSpaces is the number of namespaces of the other pods and policies, and onNode is the number of pods on a node.
	farSpaces, onNode = 20, 250
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "live:", err)
		os.Exit(1)
	}
}

func run(arguments []string) error {
	names := []string{"KUBECONFIG", "NAMESPACE", "CLIENT", "SERVER", "CHANGES", "PODS", "POLICIES"}
	if len(arguments) != len(names) {
		return fmt.Errorf("expected %s", strings.Join(names, " "))
	}
	var numbers [3]int
	for at := range numbers {
		number, err := strconv.Atoi(arguments[4+at])
		if err != nil || number < 1 {
			return fmt.Errorf("%s: found %q, expected a number from 1", names[4+at], arguments[4+at])
		}
		numbers[at] = number
	}
	config, err := clientcmd.BuildConfigFromFlags("", arguments[0])
	if err != nil {
		return err
	}
	config.QPS = -1
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	b := bench{client: client, namespace: arguments[1], pod: arguments[2]}
	if err := b.fill(numbers[1], numbers[2]); err != nil {
		return fmt.Errorf("objects of the cluster: %w", err)
	}
	from, err := b.address(arguments[2])
	if err != nil {
		return err
	}
	to, err := b.address(arguments[3])
	if err != nil {
		return err
	}
	if b.packets, err = send(from, to); err != nil {
		return err
	}
	return b.measure(numbers[0])
}

type bench struct {
	client    *kubernetes.Clientset
	namespace string
	// pod is the client, whose label changes.
	pod     string
	packets *packets
}

func (b *bench) address(pod string) (netip.Addr, error) {
	found, err := b.client.CoreV1().Pods(b.namespace).Get(context.Background(), pod, meta.GetOptions{})
	if err != nil {
		return netip.Addr{}, err
	}
	return netip.ParseAddr(found.Status.PodIP)
}

// fill creates nodes, their pods with addresses, and policies for these pods. The nodes have no kubelets, so that nothing
// writes to their pods.
func (b *bench) fill(pods, policies int) error {
	ctx := context.Background()
	if err := inParallel((pods+onNode-1)/onNode, func(n int) error { return b.makeNode(n) }); err != nil {
		return err
	}
	for n := range farSpaces {
		space := &core.Namespace{ObjectMeta: meta.ObjectMeta{Name: farSpace(n)}}
		if _, err := b.client.CoreV1().Namespaces().Create(ctx, space, meta.CreateOptions{}); err != nil {
			return err
		}
	}
	if err := inParallel(policies, func(n int) error { return b.makePolicy(n) }); err != nil {
		return err
	}
	return inParallel(pods, func(n int) error { return b.makePod(n) })
}

func farSpace(n int) string { return fmt.Sprintf("far-%d", n%farSpaces) }

// block is the first three bytes of the addresses of a node's pods.
func block(node int) string { return fmt.Sprintf("10.%d.%d", 64+node/256, node%256) }

func app(n int) map[string]string { return map[string]string{"app": fmt.Sprintf("app-%d", n%25)} }

func (b *bench) makeNode(n int) error {
	ctx, cidr := context.Background(), block(n)+".0/24"
	node := &core.Node{ObjectMeta: meta.ObjectMeta{Name: fmt.Sprintf("far-%d", n)},
		Spec: core.NodeSpec{PodCIDR: cidr, PodCIDRs: []string{cidr}}}
	if _, err := b.client.CoreV1().Nodes().Create(ctx, node, meta.CreateOptions{}); err != nil {
		return err
	}
	status := fmt.Sprintf(`{"status": {"addresses": [{"type": "InternalIP", "address": "192.168.%d.%d"}]}}`, 64+n/250, n%250+1)
	_, err := b.client.CoreV1().Nodes().PatchStatus(ctx, node.Name, []byte(status))
	return err
}

func (b *bench) makePolicy(n int) error {
	peer := networking.NetworkPolicyPeer{PodSelector: &meta.LabelSelector{MatchLabels: app(n/farSpaces + 1)}}
	policy := &networking.NetworkPolicy{ObjectMeta: meta.ObjectMeta{Name: fmt.Sprintf("policy-%d", n)},
		Spec: networking.NetworkPolicySpec{
			PodSelector: meta.LabelSelector{MatchLabels: app(n / farSpaces)},
			Ingress:     []networking.NetworkPolicyIngressRule{{From: []networking.NetworkPolicyPeer{peer}}},
		}}
	_, err := b.client.NetworkingV1().NetworkPolicies(farSpace(n)).Create(context.Background(), policy, meta.CreateOptions{})
	return err
}

// makePod creates a pod that has its address from the start, by Calico's annotation.
func (b *bench) makePod(n int) error {
	never, ip := false, fmt.Sprintf("%s.%d/32", block(n/onNode), n%onNode+2)
	pod := &core.Pod{ObjectMeta: meta.ObjectMeta{Name: fmt.Sprintf("pod-%d", n), Labels: app(n / farSpaces),
		Annotations: map[string]string{"cni.projectcalico.org/podIP": ip, "cni.projectcalico.org/podIPs": ip}},
		Spec: core.PodSpec{NodeName: fmt.Sprintf("far-%d", n/onNode), AutomountServiceAccountToken: &never,
			Tolerations: []core.Toleration{{Operator: core.TolerationOpExists}},
			Containers:  []core.Container{{Name: "c", Image: "none"}}}}
	var err error
	// A namespace gets its service account a moment after it was created.
	for begin := time.Now(); time.Since(begin) < patience; time.Sleep(100 * time.Millisecond) {
		if _, err = b.client.CoreV1().Pods(farSpace(n)).Create(context.Background(), pod, meta.CreateOptions{}); err == nil {
			break
		}
	}
	return err
}

func inParallel(count int, work func(n int) error) error {
	var workers sync.WaitGroup
	found := make([]error, 16)
	for worker := range found {
		workers.Go(func() {
			for n := worker; n < count && found[worker] == nil; n += len(found) {
				found[worker] = work(n)
			}
		})
	}
	workers.Wait()
	return errors.Join(found...)
}

// measure prints a line for each kind of change.
func (b *bench) measure(changes int) error {
	ctx := context.Background()
	spaced := b.client.NetworkingV1().NetworkPolicies(b.namespace)
	policy := func(name string, from ...networking.NetworkPolicyPeer) *networking.NetworkPolicy {
		return &networking.NetworkPolicy{ObjectMeta: meta.ObjectMeta{Name: name}, Spec: networking.NetworkPolicySpec{
			PolicyTypes: []networking.PolicyType{networking.PolicyTypeIngress},
			Ingress:     []networking.NetworkPolicyIngressRule{{From: from}}}}
	}
	labelled := policy("live", networking.NetworkPolicyPeer{PodSelector: &meta.LabelSelector{MatchLabels: map[string]string{"live": "yes"}}})
	deny := policy("live")
	deny.Spec.Ingress = nil
	create := func(it *networking.NetworkPolicy) error {
		_, err := spaced.Create(ctx, it, meta.CreateOptions{})
		return err
	}
	remove := func() error { return spaced.Delete(ctx, "live", meta.DeleteOptions{}) }
	label := func(value string) error {
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": map[string]any{"live": value}}})
		if err == nil {
			_, err = b.client.CoreV1().Pods(b.namespace).Patch(ctx, b.pod, types.MergePatchType, patch, meta.PatchOptions{})
		}
		return err
	}
	if err := b.toggle(changes, "a NetworkPolicy is made that denies", func() error { return create(deny) }, "it is deleted", remove); err != nil {
		return err
	}
	if err := errors.Join(label("yes"), create(labelled)); err != nil {
		return err
	}
	return b.toggle(changes, "a pod loses the label that allows", func() error { return label("no") }, "it gets the label back", func() error { return label("yes") })
}

// toggle repeatedly shuts and opens the way, which is open at the start, and prints how long each change took.
func (b *bench) toggle(changes int, closing string, shut func() error, opening string, open func() error) error {
	var times, answers [2][]time.Duration
	if _, ok := b.packets.wait(true, time.Time{}); !ok {
		return errors.New("no datagram passes at the start")
	}
	for range changes {
		for at, step := range []func() error{shut, open} {
			time.Sleep(settled)
			begin := b.packets.begin()
			if err := step(); err != nil {
				return err
			}
			answers[at] = append(answers[at], time.Since(begin))
			took, ok := b.packets.wait(at == 1, begin)
			if !ok {
				return fmt.Errorf("%q has changed nothing within %s, after %d changes", []string{closing, opening}[at], patience, len(times[at]))
			}
			times[at] = append(times[at], took)
		}
	}
	for at, what := range []string{closing, opening} {
		fmt.Printf("%-36s  %d times: %s; the server's answer: %s\n", what, changes, distribution(times[at]), distribution(answers[at]))
	}
	return nil
}

func distribution(of []time.Duration) string {
	slices.Sort(of)
	rank := func(share float64) float64 {
		return float64(of[int(math.Ceil(share*float64(len(of))))-1].Microseconds()) / 1000
	}
	return fmt.Sprintf("median %.1f ms, p90 %.1f, p99 %.1f, most %.1f", rank(0.5), rank(0.9), rank(0.99), rank(1))
}

// packets is the state that the sender and the receiver share.
type packets struct {
	mutex sync.Mutex
	// last is the time when the last datagram that passed was sent. opened is that time for the first one after a pause.
	last, opened time.Time
	// next is the time when the first datagram after the beginning of a change was sent, because the sender may have had
	// to wait for the processor.
	next time.Time
}

// begin records that a change begins, and returns the time.
func (p *packets) begin() time.Time {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.next = time.Time{}
	return time.Now()
}

// wait returns the time from begin until the way opened or shut.
func (p *packets) wait(open bool, begin time.Time) (time.Duration, bool) {
	for end := time.Now().Add(patience); time.Now().Before(end); {
		time.Sleep(settled / 3)
		p.mutex.Lock()
		last, opened, next := p.last, p.opened, p.next
		p.mutex.Unlock()
		passes := time.Since(last) < settled/6
		if open && passes && opened.After(begin) {
			return opened.Sub(begin), true
		}
		if !open && !passes && !next.IsZero() {
			if shut := last.Add(every); shut.After(next) {
				next = shut
			}
			return next.Sub(begin), true
		}
	}
	return 0, false
}

// send starts the sender and the receiver.
func send(from, to netip.Addr) (*packets, error) {
	receiver, err := listen(to, port)
	if err != nil {
		return nil, err
	}
	sender, err := listen(from, 0)
	if err != nil {
		return nil, err
	}
	start, p := time.Now(), &packets{}
	go func() {
		target, next := netip.AddrPortFrom(to, port), start
		for {
			var sent [8]byte
			at := time.Now()
			binary.BigEndian.PutUint64(sent[:], uint64(at.Sub(start)))
			p.mutex.Lock()
			if p.next.IsZero() {
				p.next = at
			}
			p.mutex.Unlock()
			sender.WriteToUDPAddrPort(sent[:], target)
			if next = next.Add(every); time.Until(next) > 0 {
				time.Sleep(time.Until(next))
			} else if time.Since(next) > time.Millisecond {
				next = time.Now()
			}
		}
	}()
	go func() {
		var sent [8]byte
		for {
			if n, _, err := receiver.ReadFromUDPAddrPort(sent[:]); err != nil || n != len(sent) {
				continue
			}
			at := start.Add(time.Duration(binary.BigEndian.Uint64(sent[:])))
			p.mutex.Lock()
			if at.Sub(p.last) > settled/6 {
				p.opened = at
			}
			p.last = at
			p.mutex.Unlock()
		}
	}()
	return p, nil
}

// listen opens a socket in the network namespace that has the address.
func listen(address netip.Addr, port int) (*net.UDPConn, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	own, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return nil, err
	}
	defer own.Close()
	namespaces, err := filepath.Glob("/var/run/netns/*")
	if err != nil {
		return nil, err
	}
	for _, path := range namespaces {
		conn, err := listenIn(path, address, port)
		if back := unix.Setns(int(own.Fd()), unix.CLONE_NEWNET); back != nil {
			return nil, back
		}
		if err == nil {
			return conn, nil
		}
	}
	return nil, fmt.Errorf("no namespace of %s has the address %s", strings.Join(namespaces, ", "), address)
}

func listenIn(path string, address netip.Addr, port int) (*net.UDPConn, error) {
	namespace, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer namespace.Close()
	if err := unix.Setns(int(namespace.Fd()), unix.CLONE_NEWNET); err != nil {
		return nil, err
	}
	return net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(address, uint16(port))))
}
