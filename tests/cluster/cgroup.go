package main

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A hierarchy is a mounted tree of cgroups. With cgroup v1 there are several, each with its own
// controllers; with v2 there is one. See cgroups(7).
type hierarchy struct {
	controllers string // in the form of mount(8), such as "cpu,cpuacct" or "name=systemd"; empty for v2
	mount       string // where it is mounted
	own         string // the folder of the caller's own cgroup
}

func (h hierarchy) isV2() bool { return h.controllers == "" }

// hierarchies returns those of v1 if one has a controller, or else that of v2. The arguments are
// the texts of /proc/self/mountinfo and /proc/self/cgroup.
func hierarchies(mountinfo, cgroup string) ([]hierarchy, error) {
	var v1, v2 []hierarchy
	for lines := bufio.NewScanner(strings.NewReader(cgroup)); lines.Scan(); {
		parts := strings.SplitN(lines.Text(), ":", 3)
		if len(parts) != 3 {
			return nil, fmt.Errorf("/proc/self/cgroup: %q, expected three parts between colons", lines.Text())
		}
		mount, root, found := findMount(mountinfo, parts[1])
		if !found {
			continue
		}
		// Both paths begin at the root of the cgroup namespace. In a container the mount may show only a
		// part of the tree.
		own := mount
		if rest, err := filepath.Rel(root, parts[2]); err == nil && !strings.HasPrefix(rest, "..") {
			own = filepath.Join(mount, rest)
		}
		h := hierarchy{parts[1], mount, own}
		if h.isV2() {
			v2 = append(v2, h)
		} else {
			v1 = append(v1, h)
		}
	}
	if slices.ContainsFunc(v1, func(h hierarchy) bool { return !strings.HasPrefix(h.controllers, "name=") }) {
		return v1, nil
	}
	if len(v2) == 1 {
		return v2, nil
	}
	return nil, errors.New("no cgroups are mounted: expected cgroup v2 at /sys/fs/cgroup, or v1 below it")
}

// findMount returns the mount point of the controllers, and the folder of the tree that is mounted
// there. See proc(5).
func findMount(mountinfo, controllers string) (mount, root string, found bool) {
	for lines := bufio.NewScanner(strings.NewReader(mountinfo)); lines.Scan(); {
		front, back, _ := strings.Cut(lines.Text(), " - ")
		fields, kind := strings.Fields(front), strings.Fields(back)
		if len(fields) < 5 || len(kind) < 3 {
			continue
		}
		options := strings.Split(kind[2], ",")
		switch {
		case controllers == "" && kind[0] == "cgroup2":
			return fields[4], fields[3], true
		case controllers != "" && kind[0] == "cgroup" &&
			!slices.ContainsFunc(strings.Split(controllers, ","), func(c string) bool { return !slices.Contains(options, c) }):
			return fields[4], fields[3], true
		}
	}
	return "", "", false
}

func ownHierarchies() ([]hierarchy, error) {
	mountinfo, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	cgroup, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	return hierarchies(string(mountinfo), string(cgroup))
}

// joinCgroups makes the node's cgroups, moves this process there, and makes them the roots that the
// node sees. Otherwise two kubelets would share one /kubepods. The cgroups lie below the caller's
// own, and inside its limits.
func (c *Cluster) joinCgroups(node string) error {
	trees, err := ownHierarchies()
	if err != nil {
		return err
	}
	for _, h := range trees {
		parent := h.own
		if h.isV2() {
			if parent, err = c.delegate(h); err != nil {
				return err
			}
		}
		folder := filepath.Join(parent, c.ID+"-"+node)
		if err := c.makeCgroup(folder); err != nil {
			return err
		}
		if slices.Contains(strings.Split(h.controllers, ","), "cpuset") {
			// A new cpuset is empty, and accepts no process.
			for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
				if err := copyText(filepath.Join(parent, file), filepath.Join(folder, file)); err != nil {
					return err
				}
			}
		}
		if err := weigh(folder); err != nil {
			return err
		}
		if err := move(folder, "0"); err != nil {
			return err
		}
	}
	if err := unix.Unshare(unix.CLONE_NEWCGROUP); err != nil {
		return fmt.Errorf("a cgroup namespace: %w", err)
	}
	if h := trees[0]; h.isV2() {
		return c.leaveRoot(h, node)
	}
	return nil
}

// weigh gives a node 16 times the processor time of a process outside it, if both need it. A node
// stands for a whole machine; the many tests and servers of the cluster do not. With equal weights
// a node of a busy test would wait longer for its turn than TCP waits before it retransmits (200
// ms).
func weigh(folder string) error {
	// The files of cgroup v1 and v2. Their defaults are 1024 and 100.
	for file, weight := range map[string]string{"cpu.shares": "16384", "cpu.weight": "1600"} {
		path := filepath.Join(folder, file)
		if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err := os.WriteFile(path, []byte(weight), 0); err != nil {
			return fmt.Errorf("the weight of a node: %w", err)
		}
	}
	return nil
}

// makeCgroup records the path before it makes the cgroup, so that `down` knows it after any crash.
func (c *Cluster) makeCgroup(folder string) error {
	list, err := os.OpenFile(c.path("cgroups"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer list.Close()
	if _, err := fmt.Fprintln(list, folder); err != nil {
		return err
	}
	// A cgroup may be left from before the node was restarted.
	removeTree(folder)
	if err := os.Mkdir(folder, 0o755); err != nil {
		return fmt.Errorf("a cgroup: %w (root in a container needs /sys/fs/cgroup mounted for writing)", err)
	}
	return nil
}

// move puts the process into the cgroup; "0" is the caller.
func move(folder, pid string) error {
	return os.WriteFile(filepath.Join(folder, "cgroup.procs"), []byte(pid), 0)
}

func copyText(from, to string) error {
	text, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, text, 0)
}

// removeTree removes the cgroup and those below it. It returns whether all are gone. A cgroup with
// a process stays.
func removeTree(folder string) bool {
	entries, err := os.ReadDir(folder)
	if errors.Is(err, os.ErrNotExist) {
		return true
	}
	for _, entry := range entries {
		if entry.IsDir() {
			removeTree(filepath.Join(folder, entry.Name()))
		}
	}
	err = unix.Rmdir(folder)
	return err == nil || errors.Is(err, unix.ENOENT)
}

// removeCgroups removes the cgroups in the list. The kernel needs a moment after the last process
// has ended.
func removeCgroups(list string) error {
	text, err := os.ReadFile(list)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	// The caller's processes are moved back when the nodes are gone.
	left := strings.Fields(string(text))
	isCallers := func(folder string) bool { return filepath.Base(folder) == callers }
	for end := time.Now().Add(20 * time.Second); len(left) > 0; time.Sleep(50 * time.Millisecond) {
		nodesLeft := slices.ContainsFunc(left, func(folder string) bool { return !isCallers(folder) })
		left = slices.DeleteFunc(left, func(folder string) bool {
			if isCallers(folder) {
				return !nodesLeft && restore(folder)
			}
			return removeTree(folder)
		})
		if time.Now().After(end) {
			return fmt.Errorf("cgroups that stay, as if processes were in them: %s", strings.Join(left, " "))
		}
	}
	return nil
}
