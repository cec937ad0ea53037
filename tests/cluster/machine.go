package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// The addresses are the same in every cluster, because each cluster has its own network.
const (
	controlAddress = "10.99.0.1" // the control plane, on a bridge to which each node has a veth
	apiPort        = 6443
	apiService     = "10.96.0.1"
)

// A family of addresses of the cluster. In a node's address, %d stands for the node's number.
type family struct{ nodeAddress, nodeRange, podRange, serviceRange string }

// families returns IPv4 first, which the control plane uses.
func (c *Cluster) families() []family {
	all := []family{{"10.99.0.%d", "/24", "10.244.0.0/16", "10.96.0.0/16"}}
	if c.DualStack {
		all = append(all, family{"fd00:10:99::%d", "/64", "fd00:10:244::/48", "fd00:10:96::/112"})
	}
	return all
}

// ranges joins one field of all families, in the form of Kubernetes' flags.
func (c *Cluster) ranges(of func(family) string) string {
	var all []string
	for _, family := range c.families() {
		all = append(all, of(family))
	}
	return strings.Join(all, ",")
}

func (c *Cluster) podRanges() string { return c.ranges(func(f family) string { return f.podRange }) }
func (c *Cluster) serviceRanges() string {
	return c.ranges(func(f family) string { return f.serviceRange })
}

// nodeAddresses returns the addresses of the node with this index, IPv4 first.
func (c *Cluster) nodeAddresses(index int) string {
	return c.ranges(func(f family) string { return fmt.Sprintf(f.nodeAddress, 11+index) })
}

// runMachine is process 1 of the cluster. It starts the control plane and the nodes, and supervises
// them for ever.
func runMachine(arguments []string) error {
	for _, passed := range []int{3, 4} {
		unix.CloseOnExec(passed)
	}
	up, listening := os.NewFile(3, "up"), os.NewFile(4, "listener")
	c, err := readCluster(arguments[0])
	if err != nil {
		return err
	}
	process, err := thisProcess()
	if err != nil {
		return err
	}
	// The pid is written before anything is made, so that `down` finds the machine from here on.
	if err := process.write(c.path("pid")); err != nil {
		return err
	}
	ready := make(chan struct{})
	go func() {
		_, _ = up.Read(make([]byte, 1)) // nothing is ever sent, so this returns when `up` has ended
		select {
		case <-ready:
		default:
			os.Exit(1)
		}
	}()
	listener, err := net.FileListener(listening)
	if err != nil {
		return err
	}
	go forward(listener)
	if err := c.bringUp(up); err != nil {
		fmt.Fprintln(up, err)
		return err
	}
	close(ready)
	fmt.Fprintln(up, "ready")
	up.Close()
	select {}
}

// forward connects clients of the listener, on the caller's loopback interface, to the API server
// in this network.
func forward(listener net.Listener) {
	for {
		from, err := listener.Accept()
		if err != nil {
			fmt.Fprintln(os.Stderr, "accept:", err)
			return
		}
		go func() {
			defer from.Close()
			to, err := net.Dial("tcp4", net.JoinHostPort(controlAddress, fmt.Sprint(apiPort)))
			if err != nil {
				return // the API server is down, and the client sees a closed connection
			}
			defer to.Close()
			go func() {
				_, _ = io.Copy(to, from)
				_ = to.(*net.TCPConn).CloseWrite()
			}()
			_, _ = io.Copy(from, to)
		}()
	}
}

func (c *Cluster) bringUp(progress io.Writer) error {
	if err := c.makeNetwork(); err != nil {
		return err
	}
	if err := c.makeKeys(); err != nil {
		return err
	}
	begin := time.Now()
	c.supervise("etcd", c.etcd)
	c.supervise("kube-apiserver", c.apiServer)
	if err := c.waitFor(2*time.Minute, "the API server", []string{"etcd"}, func() error {
		_, err := c.admin("get", "--raw=/readyz")
		return err
	}); err != nil {
		return fmt.Errorf("%w; the end of the API server's log:\n%s", err, c.lastLines("kube-apiserver"))
	}
	fmt.Fprintf(progress, "API server ready after %.1f s\n", time.Since(begin).Seconds())
	if c.Nodes == 0 {
		return nil
	}
	if err := c.makeDisks(); err != nil {
		return err
	}
	c.supervise("kube-controller-manager", c.controllerManager)
	c.supervise("kube-scheduler", c.scheduler)
	for i, node := range c.nodes() {
		c.supervise(node, func() (*exec.Cmd, error) { return c.startNode(node, i) })
	}
	return c.waitForNodes(progress)
}

func (c *Cluster) waitForNodes(progress io.Writer) error {
	begin := time.Now()
	programs := append([]string{"kube-controller-manager", "kube-scheduler"}, c.nodes()...)
	for i, node := range c.nodes() {
		var cidr string
		err := c.waitFor(2*time.Minute, node+" to register", programs, func() (err error) {
			cidr, err = c.admin("get", "node", node, "-o", "jsonpath={.spec.podCIDR}")
			if err == nil && cidr == "" {
				err = errors.New("it has no pod CIDR yet")
			}
			return err
		})
		if err != nil {
			return fmt.Errorf("%w; the logs of its programs are %s", err, c.path("log", node+".*"))
		}
		address, _, _ := strings.Cut(c.nodeAddresses(i), ",")
		// The API server connects to pods for its clients. The address and the CIDR are IPv4's, also with
		// --dual-stack.
		if err := ip("route replace " + cidr + " via " + address); err != nil {
			return err
		}
		if c.CNI == "none" {
			continue
		}
		// The nodes read this file, and make the configuration of ptp from it.
		if err := writeFile(c.path(node, "pod-cidr"), cidr+" "+address+"\n"); err != nil {
			return err
		}
	}
	fmt.Fprintf(progress, "nodes registered after %.1f s\n", time.Since(begin).Seconds())
	if err := c.waitFor(time.Minute, "the service account `default`", programs, func() error {
		_, err := c.admin("get", "serviceaccount", "default")
		return err
	}); err != nil || c.CNI == "none" {
		return err
	}
	return c.waitFor(2*time.Minute, "the nodes to be Ready", programs, func() error {
		_, err := c.admin("wait", "--for=condition=Ready", "node", "--all", "--timeout=1s")
		return err
	})
}

// admin runs kubectl beside the API server.
func (c *Cluster) admin(arguments ...string) (string, error) {
	kubectl := c.program("kubectl", append([]string{"--kubeconfig=" + c.path("pki", "admin.kubeconfig")}, arguments...)...)
	var out, wrong bytes.Buffer
	kubectl.Stdout, kubectl.Stderr = &out, &wrong
	if err := kubectl.Run(); err != nil {
		return "", fmt.Errorf("kubectl %s: %w: %s", strings.Join(arguments, " "), err, strings.TrimSpace(wrong.String()))
	}
	return out.String(), nil
}

func (c *Cluster) makeNetwork() error {
	if c.Nodes == 0 {
		return ip("link set lo up", "address add "+controlAddress+"/32 dev lo")
	}
	return ip("link set lo up", "link add br0 type bridge", "address add "+controlAddress+"/24 dev br0", "link set br0 up")
}

// makeDisks mounts the file systems to which the nodes write. They are in memory, because the
// folder may be on an overlay, and overlays cannot be made on an overlay. Only the machine and its
// nodes see them; they outlive a node and end with the machine.
func (c *Cluster) makeDisks() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("making mounts private: %w", err)
	}
	if err := os.Mkdir(c.path("disks"), 0o755); err != nil {
		return err
	}
	if err := unix.Mount("disks", c.path("disks"), "tmpfs", 0, "mode=755"); err != nil {
		return fmt.Errorf("mounting a tmpfs: %w", err)
	}
	return nil
}

// startNode starts process 1 of the node and gives it its network interface. Then the node
// continues.
func (c *Cluster) startNode(node string, index int) (*exec.Cmd, error) {
	log, err := os.OpenFile(c.path("log", node), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	wait, proceed, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer wait.Close()
	defer proceed.Close()
	command := exec.Command(self, "node", c.Dir, node, c.nodeAddresses(index))
	command.Stdin, command.Stdout, command.Stderr = wait, log, log
	command.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWNS | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC,
	}
	if err := command.Start(); err != nil {
		return nil, err
	}
	port := "to-" + node
	_ = ip("link delete " + port) // from before the node was restarted
	err = ip(fmt.Sprintf("link add %s type veth peer name eth0 netns %d", port, command.Process.Pid),
		fmt.Sprintf("link set %s master br0 up", port))
	if err != nil {
		_ = command.Process.Kill()
		_ = command.Wait()
		return nil, err
	}
	return command, nil
}

// ip runs commands of ip(8) until one fails.
func ip(lines ...string) error {
	batch := exec.Command("ip", "-batch", "-")
	batch.Stdin = strings.NewReader(strings.Join(lines, "\n") + "\n")
	if out, err := batch.CombinedOutput(); err != nil {
		return fmt.Errorf("ip %s: %w: %s", strings.Join(lines, "; "), err, bytes.TrimSpace(out))
	}
	return nil
}
