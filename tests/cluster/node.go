package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A node's first process has three stages: `node` joins the node's cgroups, `init` is process 1 and
// reaps orphans (such as the shims of containers), and its child `daemons` mounts, configures and
// supervises.

// enterNode begins a node: arguments are the cluster's folder, the node's name and its addresses.
func enterNode(arguments []string) error {
	c, err := readCluster(arguments[0])
	if err != nil {
		return err
	}
	process, err := thisProcess()
	if err != nil {
		return err
	}
	if err := process.write(c.path(arguments[1], "pid")); err != nil {
		return err
	}
	// A cgroup namespace belongs to a thread, and exec keeps the namespace of the calling thread.
	runtime.LockOSThread()
	if err := c.joinCgroups(arguments[1]); err != nil {
		return err
	}
	return unix.Exec(self, append([]string{"cluster", "init"}, arguments...), os.Environ())
}

// runInit ends with its child. Then the kernel ends the rest of the node.
func runInit(arguments []string) error {
	child, err := os.StartProcess(self, append([]string{"cluster", "daemons"}, arguments...),
		&os.ProcAttr{Files: []*os.File{os.Stdin, os.Stdout, os.Stderr}})
	if err != nil {
		return err
	}
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return err
		case pid == child.Pid:
			os.Exit(max(1, status.ExitStatus()))
		}
	}
}

// node is one node, seen from inside.
type node struct {
	*Cluster
	name      string
	addresses string // separated by commas, IPv4 first
}

func runDaemons(arguments []string) error {
	c, err := readCluster(arguments[0])
	if err != nil {
		return err
	}
	n := node{c, arguments[1], arguments[2]}
	// The machine closes its end when the network interface exists.
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		return err
	}
	if err := unix.Sethostname([]byte(n.name)); err != nil {
		return err
	}
	if err := n.mount(); err != nil {
		return err
	}
	lines := []string{"link set lo up", "link set eth0 up"}
	for i, address := range strings.Split(n.addresses, ",") {
		lines = append(lines, "address add "+address+n.families()[i].nodeRange+" dev eth0 nodad")
	}
	if err := ip(append(lines, "route add default via "+controlAddress)...); err != nil {
		return err
	}
	for _, setting := range []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"} {
		if err := os.WriteFile("/proc/sys/"+setting, []byte("1"), 0); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	if err := n.startDaemons(); err != nil {
		return err
	}
	select {}
}

func (n node) startDaemons() error {
	for path, text := range n.configurations() {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			return err
		}
	}
	// containerd itself calls this plugin for each pod, whatever the network is.
	if err := installPlugins("loopback"); err != nil {
		return err
	}
	n.supervise(n.name+".containerd", func() (*exec.Cmd, error) {
		return exec.Command("containerd", "--config", "/etc/containerd.toml"), nil
	})
	if err := n.waitFor(time.Minute, "containerd to answer", []string{n.name + ".containerd"}, func() error {
		return exec.Command("ctr", "version").Run()
	}); err != nil {
		return err
	}
	if err := n.importImages(); err != nil {
		return err
	}
	n.supervise(n.name+".kubelet", func() (*exec.Cmd, error) {
		return n.program("kubelet", "--config=/etc/kubernetes/kubelet.yaml",
			"--kubeconfig="+n.path("pki", n.name+".kubeconfig"), "--hostname-override="+n.name, "--node-ip="+n.addresses), nil
	})
	if n.Proxy != "none" {
		n.supervise(n.name+".kube-proxy", func() (*exec.Cmd, error) {
			return n.program("kube-proxy", "--config=/etc/kubernetes/kube-proxy.yaml"), nil
		})
	}
	if n.CNI != "none" {
		return n.installNetwork()
	}
	return nil
}

// importImages runs at each start of the node. It is fast if the images exist already.
func (n node) importImages() error {
	archives, err := filepath.Glob(filepath.Join(filepath.Dir(n.Bin), "images", "*.tar"))
	if err != nil {
		return err
	}
	for _, archive := range archives {
		if out, err := exec.Command("ctr", "-n", "k8s.io", "images", "import", archive).CombinedOutput(); err != nil {
			return fmt.Errorf("ctr images import %s: %w: %s", archive, err, strings.TrimSpace(string(out)))
		}
	}
	return nil
}
