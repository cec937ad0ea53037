package main

import (
	"bufio"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// up starts the machine and waits until the cluster is ready. A socket connects the two. If `up`
// ends before that, in any way, the machine reads the end of the socket, and ends with all that it
// started.
func up(arguments []string) error {
	begin := time.Now()
	set, directory := flags("up")
	c := &Cluster{IsRoot: os.Getuid() == 0}
	set.IntVar(&c.Nodes, "nodes", 2, "how many nodes; 0 is etcd and the API server alone, and needs no root")
	set.StringVar(&c.CNI, "cni", "none", "none: nodes stay NotReady until a plugin is installed; ptp, bridge: Debian's plugin and static routes")
	set.StringVar(&c.Proxy, "proxy", "none", "how kube-proxy translates services: none (no kube-proxy), nftables, iptables")
	set.BoolVar(&c.DualStack, "dual-stack", false, "nodes, pods and services have IPv6 addresses, too; with --cni none")
	if err := set.Parse(arguments); err != nil {
		return err
	}
	if err := c.check(set.Args()); err != nil {
		return err
	}
	id := make([]byte, 4)
	if _, err := rand.Read(id); err != nil {
		return err
	}
	c.ID = "manx-" + hex.EncodeToString(id)
	var err error
	if c.Dir, err = directory(); err != nil {
		return err
	}
	if err := c.findPrograms(); err != nil {
		return err
	}
	// The machine has its own network, but a socket stays in the network in which it was made.
	listener, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return err
	}
	c.Port = listener.Addr().(*net.TCPAddr).Port
	if err := c.makeFolder(); err != nil {
		return err
	}
	if err := c.startMachine(listener); err != nil {
		return fmt.Errorf("%w\nthe logs are in %s; `cluster down --dir %s` removes them", err, c.path("log"), c.Dir)
	}
	fmt.Fprintf(os.Stderr, "up after %.1f s\n", time.Since(begin).Seconds())
	fmt.Println(c.path("kubeconfig"))
	return nil
}

func (c *Cluster) check(rest []string) error {
	if len(rest) > 0 {
		return fmt.Errorf("%q is not a flag of `up`", rest[0])
	}
	oneOf := func(name, value string, allowed ...string) error {
		if slices.Contains(allowed, value) {
			return nil
		}
		return fmt.Errorf("--%s is %q, expected one of: %s", name, value, strings.Join(allowed, ", "))
	}
	if c.Nodes < 0 || c.Nodes > 9 {
		return fmt.Errorf("--nodes is %d, expected 0 to 9", c.Nodes)
	}
	if c.Nodes > 0 && !c.IsRoot {
		return errors.New("nodes need root (containerd and kubelet do); --nodes 0 does not")
	}
	if c.DualStack && c.CNI != "none" {
		return fmt.Errorf("--dual-stack with --cni %s: expected --cni none, because the plugins' routes between nodes are IPv4's here", c.CNI)
	}
	return errors.Join(oneOf("cni", c.CNI, "none", "ptp", "bridge"), oneOf("proxy", c.Proxy, "none", "nftables", "iptables"))
}

// findPrograms checks, before anything is made, that all programs exist that the cluster will
// start.
func (c *Cluster) findPrograms() error {
	cache, err := cache()
	if err != nil {
		return err
	}
	c.Bin = filepath.Join(cache, "bin")
	names := []string{"etcd", "kube-apiserver", "kubectl"}
	needed := map[string]string{"ip": "iproute2"}
	if c.Nodes > 0 {
		names = append(names, "kube-controller-manager", "kube-scheduler", "kubelet")
		needed["containerd"], needed["ctr"], needed["runc"] = "containerd", "containerd", "runc"
		needed["mount"], needed["nsenter"] = "mount", "util-linux"
		for _, image := range images {
			if _, err := os.Stat(image.archive(cache)); err != nil {
				return fmt.Errorf("the image %s is not built: run `cluster build`", image.archive(cache))
			}
		}
	}
	if c.Proxy != "none" {
		names = append(names, "kube-proxy")
		needed["conntrack"] = "conntrack"
		needed[map[string]string{"nftables": "nft", "iptables": "iptables"}[c.Proxy]] = c.Proxy
	}
	for _, name := range names {
		if path := c.program(name).Path; !executable(path) {
			return fmt.Errorf("%s is not built (there is no program %s): run `cluster build`", name, path)
		}
	}
	var missing []string
	for command, debian := range needed {
		if _, err := exec.LookPath(command); err != nil {
			missing = append(missing, debian)
		}
	}
	if c.Nodes > 0 && !executable(filepath.Join(debianPlugins, "loopback")) {
		missing = append(missing, "containernetworking-plugins")
	}
	if len(missing) > 0 {
		slices.Sort(missing)
		return fmt.Errorf("programs are missing: apt-get install %s", strings.Join(slices.Compact(missing), " "))
	}
	return nil
}

// makeFolder refuses an existing folder, because it may hold a running cluster, or one whose
// cgroups must still be removed.
func (c *Cluster) makeFolder() error {
	if err := os.MkdirAll(filepath.Dir(c.Dir), 0o755); err != nil {
		return err
	}
	if err := os.Mkdir(c.Dir, 0o755); errors.Is(err, os.ErrExist) {
		return fmt.Errorf("%s exists: run `cluster down --dir %s` first, or name another folder by --dir", c.Dir, c.Dir)
	} else if err != nil {
		return err
	}
	if err := c.write(); err != nil {
		return err
	}
	folders := []string{"pki", "log", "state", "stopped"}
	for _, node := range c.nodes() {
		folders = append(folders, node+"/cni-conf", node+"/cni-bin")
	}
	for _, folder := range folders {
		if err := os.MkdirAll(c.path(folder), 0o755); err != nil {
			return err
		}
	}
	return nil
}

func (c *Cluster) startMachine(listener *net.TCPListener) error {
	ours, theirs, err := socketPair()
	if err != nil {
		return err
	}
	defer ours.Close()
	passed, err := listener.File()
	if err != nil {
		return err
	}
	log, err := os.Create(c.path("log", "machine"))
	if err != nil {
		return err
	}
	machine := exec.Command(self, "machine", c.Dir)
	machine.Stdout, machine.Stderr = log, log
	machine.ExtraFiles = []*os.File{theirs, passed} // descriptors 3 and 4
	machine.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNET}
	if c.IsRoot {
		machine.SysProcAttr.Cloneflags |= unix.CLONE_NEWNS
	} else {
		machine.SysProcAttr.Cloneflags |= unix.CLONE_NEWUSER
		machine.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}
		machine.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}
	}
	if err := machine.Start(); err != nil {
		return fmt.Errorf("the cluster's namespaces cannot be made: %w; an ordinary user needs user namespaces "+
			"(sysctl kernel.unprivileged_userns_clone=1, kernel.apparmor_restrict_unprivileged_userns=0)", err)
	}
	for _, file := range []*os.File{theirs, passed, log} {
		file.Close()
	}
	// The machine reports its progress, one line each, and "ready" at the end.
	for lines := bufio.NewScanner(ours); lines.Scan(); {
		if lines.Text() == "ready" {
			return nil
		}
		fmt.Fprintln(os.Stderr, lines.Text())
	}
	return errors.Join(errors.New("the cluster did not come up"), machine.Wait())
}

// socketPair returns two ends. If one is closed, however its process ends, the other reads
// end-of-file.
func socketPair() (ours, theirs *os.File, err error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	return os.NewFile(uintptr(pair[0]), "up"), os.NewFile(uintptr(pair[1]), "machine"), nil
}
