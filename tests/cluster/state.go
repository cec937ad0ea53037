package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Cluster holds the arguments of `up`. It is stored in the cluster's folder as cluster.json,
// beside:
//
//	pid, NODE/pid    the machine and the nodes, as Process
//	kubeconfig       the administrator's, which works outside of the cluster's namespaces
//	pki/, log/       keys and kubeconfigs; a log of each program
//	state/, stopped/ a file for each program: its state; that it is to be stopped
//	cgroups          the cgroups that were made, one path a line
//	NODE/cni-conf, NODE/cni-bin   /etc/cni/net.d and /opt/cni/bin of the node
type Cluster struct {
	Dir string
	// ID is part of the names of cgroups, because all clusters of the machine share those.
	ID    string
	Bin   string // the folder of the built programs
	Nodes int
	CNI   string
	Proxy string
	// DualStack means that nodes, pods and services also have IPv6 addresses.
	DualStack bool
	// Port of the API server on the loopback interface of the caller.
	Port int
	// IsRoot is false in a cluster without nodes that an ordinary user started.
	IsRoot bool
}

const record = "cluster.json"

func (c *Cluster) path(parts ...string) string {
	return filepath.Join(append([]string{c.Dir}, parts...)...)
}

func (c *Cluster) nodes() []string {
	names := make([]string, c.Nodes)
	for i := range names {
		names[i] = fmt.Sprintf("n%d", i+1)
	}
	return names
}

// program returns one of Kubernetes' programs or etcd: the published binary if KUBEBUILDER_ASSETS
// holds one, or our own.
func (c *Cluster) program(name string, arguments ...string) *exec.Cmd {
	if assets := os.Getenv("KUBEBUILDER_ASSETS"); assets != "" {
		if path := filepath.Join(assets, name); executable(path) {
			return exec.Command(path, arguments...)
		}
	}
	return exec.Command(filepath.Join(c.Bin, "k8s"), append([]string{name}, arguments...)...)
}

func executable(path string) bool { return unix.Access(path, unix.X_OK) == nil }

func (c *Cluster) write() error {
	text, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return err
	}
	return writeFile(c.path(record), string(text)+"\n")
}

func readCluster(dir string) (*Cluster, error) {
	text, err := os.ReadFile(filepath.Join(dir, record))
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("no cluster in %s (it has no %s): cluster up starts one, --dir or MANX_CLUSTER_DIR names another folder", dir, record)
	} else if err != nil {
		return nil, err
	}
	c := &Cluster{}
	if err := json.Unmarshal(text, c); err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(dir, record), err)
	}
	return c, nil
}

// writeFile replaces the file at once, so that a reader never sees half of it.
func writeFile(path, text string) error {
	if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// Process identifies a process for good: the kernel reuses pids, but not with the same start time
// (proc(5), stat, field 22).
type Process struct{ Pid, Start int }

func thisProcess() (Process, error) {
	// Inside a pid namespace this is still the pid that the owner of /proc sees.
	link, err := os.Readlink("/proc/self")
	if err != nil {
		return Process{}, err
	}
	pid, err := strconv.Atoi(link)
	if err != nil {
		return Process{}, err
	}
	start, err := startTime(pid)
	return Process{pid, start}, err
}

func startTime(pid int) (int, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	// The name, in parentheses, may hold spaces and parentheses.
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	if len(fields) < 20 {
		return 0, fmt.Errorf("/proc/%d/stat has %d fields after the name, expected 20 or more", pid, len(fields))
	}
	if fields[0] == "Z" || fields[0] == "X" {
		return 0, fmt.Errorf("process %d has ended, and its parent has not waited for it", pid)
	}
	return strconv.Atoi(fields[19])
}

func readProcess(path string) (p Process, err error) {
	text, err := os.ReadFile(path)
	if err == nil {
		_, err = fmt.Sscan(string(text), &p.Pid, &p.Start)
	}
	return p, err
}

func (p Process) write(path string) error { return writeFile(path, fmt.Sprintln(p.Pid, p.Start)) }

func (p Process) alive() bool {
	start, err := startTime(p.Pid)
	return err == nil && start == p.Start
}

// kill ends the process and waits until it is gone. Process 1 of a pid namespace is gone only when
// all processes in it are.
func (p Process) kill() error {
	fd, err := unix.PidfdOpen(p.Pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	} else if err != nil {
		return fmt.Errorf("process %d: %w", p.Pid, err)
	}
	defer unix.Close(fd)
	// The descriptor keeps the process's identity, so only now it is certain which process it is.
	if !p.alive() {
		return nil
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("process %d: %w", p.Pid, err)
	}
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 1000)
		if n == 1 || (err != nil && !errors.Is(err, unix.EINTR)) {
			return err
		}
	}
	return fmt.Errorf("process %d does not end within 30 s of SIGKILL: see /proc/%d/stack", p.Pid, p.Pid)
}

// down ends the cluster. It needs only the folder, and cleans up whatever is left, however far `up`
// came.
func down(arguments []string) error {
	set, directory := flags("down")
	if err := set.Parse(arguments); err != nil {
		return err
	}
	dir, err := directory()
	if err != nil {
		return err
	}
	if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	// Without the record the folder belongs to somebody else, or `up` died before it made anything
	// else.
	c, err := readCluster(dir)
	if err != nil {
		if os.Remove(dir) == nil {
			return nil
		}
		return err
	}
	c.Dir = dir
	if machine, err := readProcess(c.path("pid")); err == nil {
		if err := machine.kill(); err != nil {
			return err
		}
	} else if !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("%s: %w", c.path("pid"), err)
	}
	if err := removeCgroups(c.path("cgroups")); err != nil {
		return err
	}
	return os.RemoveAll(dir)
}
