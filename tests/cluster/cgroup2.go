package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// With cgroup v2, a cgroup that passes controllers on to its children holds no processes itself.
// Only the root of the machine may. See "No Internal Process Constraint" in
// Documentation/admin-guide/cgroup-v2.rst.

// callers is the cgroup to which processes of the caller's container are moved if they are in the
// way.
const callers = "manx-callers"

// wanted are the controllers that kubelet and runc set.
var wanted = []string{"cpuset", "cpu", "io", "memory", "hugetlb", "pids"}

// needed are the controllers without which kubelet does not start.
var needed = []string{"cpu", "memory", "pids"}

// delegate finds the nearest cgroup upwards that passes the controllers on. If none does, it makes
// the root do so.
func (c *Cluster) delegate(h hierarchy) (string, error) {
	for folder := h.own; ; folder = filepath.Dir(folder) {
		passed := words(filepath.Join(folder, "cgroup.subtree_control"))
		if !slices.ContainsFunc(needed, func(name string) bool { return !slices.Contains(passed, name) }) {
			return folder, c.recordCallers(folder)
		}
		if folder == h.mount || len(folder) <= len(h.mount) {
			break
		}
	}
	err := passOn(h.mount)
	if !errors.Is(err, unix.EBUSY) {
		return h.mount, err
	}
	if err := c.makeCgroup(filepath.Join(h.mount, callers)); err != nil {
		return "", err
	}
	if err := moveAll(h.mount, filepath.Join(h.mount, callers)); err != nil {
		return "", err
	}
	return h.mount, passOn(h.mount)
}

// recordCallers records that `down` must try to restore what another cluster moved. The last `down`
// succeeds.
func (c *Cluster) recordCallers(folder string) error {
	folder = filepath.Join(folder, callers)
	if _, err := os.Stat(folder); err != nil {
		return nil
	}
	list, err := os.OpenFile(c.path("cgroups"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer list.Close()
	_, err = fmt.Fprintln(list, folder)
	return err
}

// passOn lets the children of the cgroup use all controllers that the cgroup has.
func passOn(folder string) error {
	var add []string
	for _, name := range words(filepath.Join(folder, "cgroup.controllers")) {
		if slices.Contains(wanted, name) {
			add = append(add, "+"+name)
		}
	}
	if err := os.WriteFile(filepath.Join(folder, "cgroup.subtree_control"), []byte(strings.Join(add, " ")), 0); err != nil {
		return fmt.Errorf("passing on the controllers %v: %w", add, err)
	}
	return nil
}

// moveAll repeats until no process is left, because processes may fork meanwhile.
func moveAll(from, to string) error {
	for range 100 {
		pids := words(filepath.Join(from, "cgroup.procs"))
		if len(pids) == 0 {
			return nil
		}
		for _, pid := range pids {
			if err := move(to, pid); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("moving process %s to the cgroup %s: %w", pid, to, err)
			}
		}
	}
	return fmt.Errorf("the cgroup %s does not become empty", from)
}

// leaveRoot removes processes from the root that the node sees, and lets it pass controllers on,
// for kubelet and runc.
func (c *Cluster) leaveRoot(h hierarchy, node string) error {
	// This cgroup's path is still the machine's path, because the node's own mount comes later.
	list := words(c.path("cgroups"))
	folder := list[len(list)-1]
	if filepath.Base(folder) != c.ID+"-"+node {
		return fmt.Errorf("%s ends in %s, expected the cgroup of %s", c.path("cgroups"), folder, node)
	}
	if err := os.Mkdir(filepath.Join(folder, "daemons"), 0o755); err != nil {
		return err
	}
	if err := move(filepath.Join(folder, "daemons"), "0"); err != nil {
		return err
	}
	return passOn(folder)
}

// restore moves the caller's processes back. While another cluster uses the controllers, its `down`
// will do that instead.
func restore(folder string) bool {
	parent := filepath.Dir(folder)
	entries, err := os.ReadDir(parent)
	if err != nil {
		return false
	}
	for _, entry := range entries {
		if entry.IsDir() && entry.Name() != callers {
			return true
		}
	}
	var remove []string
	for _, name := range words(filepath.Join(parent, "cgroup.subtree_control")) {
		remove = append(remove, "-"+name)
	}
	if err := os.WriteFile(filepath.Join(parent, "cgroup.subtree_control"), []byte(strings.Join(remove, " ")), 0); err != nil {
		return false
	}
	return moveAll(folder, parent) == nil && removeTree(folder)
}

// words returns the words of the file, or none if it cannot be read.
func words(path string) []string {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	return strings.Fields(string(text))
}
