package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestMain lets this program also be the driver, because the driver starts itself by its own name.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && commands[os.Args[1]] != nil {
		main()
		return
	}
	if err := build(nil); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// A testCluster is taken down with its test. Then nothing of it may be left.
type testCluster struct {
	*testing.T
	dir string
}

func newCluster(t *testing.T) testCluster {
	t.Helper()
	c := testCluster{t, filepath.Join(t.TempDir(), "cluster")}
	t.Cleanup(func() {
		if t.Failed() {
			c.printLogs()
		}
		c.downLeavesNothing()
	})
	return c
}

// command returns a call of the driver with the cluster's folder.
func (c testCluster) command(name string, arguments ...string) *exec.Cmd {
	return exec.Command(self, append([]string{name, "--dir", c.dir}, arguments...)...)
}

// try runs the driver and returns its output.
func (c testCluster) try(name string, arguments ...string) (string, error) {
	command := c.command(name, arguments...)
	var out, wrong bytes.Buffer
	command.Stdout, command.Stderr = &out, &wrong
	err := command.Run()
	if err != nil {
		err = fmt.Errorf("cluster %s %s: %w: %s%s", name, strings.Join(arguments, " "), err, out.String(), wrong.String())
	}
	return strings.TrimSpace(out.String()), err
}

func (c testCluster) run(name string, arguments ...string) string {
	c.Helper()
	out, err := c.try(name, arguments...)
	if err != nil {
		c.Fatal(err)
	}
	return out
}

// eventually runs the driver again and again, until it succeeds or the time is over.
func (c testCluster) eventually(limit time.Duration, name string, arguments ...string) string {
	c.Helper()
	for end := time.Now().Add(limit); ; time.Sleep(200 * time.Millisecond) {
		out, err := c.try(name, arguments...)
		if err == nil {
			return out
		}
		if time.Now().After(end) {
			c.Fatalf("for %s: %v", limit, err)
		}
	}
}

func (c testCluster) apply(manifest string) {
	c.Helper()
	command := c.command("kubectl", "apply", "-f", "-")
	command.Stdin = strings.NewReader(manifest)
	if out, err := command.CombinedOutput(); err != nil {
		c.Fatalf("kubectl apply: %v: %s", err, out)
	}
}

func (c testCluster) printLogs() {
	logs, _ := filepath.Glob(filepath.Join(c.dir, "log", "*"))
	for _, path := range logs {
		c.Logf("the end of %s:\n%s", filepath.Base(path), (&Cluster{Dir: c.dir}).lastLines(filepath.Base(path)))
	}
}

func (c testCluster) downLeavesNothing() {
	c.Helper()
	cluster, err := readCluster(c.dir)
	if err != nil {
		c.Errorf("the record of the cluster: %v", err)
		return
	}
	c.run("down")
	for _, left := range remains(cluster) {
		c.Errorf("left after `down`: %s", left)
	}
}

// remains returns what is left of a cluster: its folder, processes, mounts and cgroups.
func remains(c *Cluster) (found []string) {
	if _, err := os.Lstat(c.Dir); err == nil {
		found = append(found, "the folder "+c.Dir)
	}
	processes, _ := filepath.Glob("/proc/[0-9]*")
	for _, process := range processes {
		commandLine, _ := os.ReadFile(filepath.Join(process, "cmdline"))
		cgroup, _ := os.ReadFile(filepath.Join(process, "cgroup"))
		// The test itself and others may just look into the folder. A process of the cluster has the
		// folder among its arguments.
		if bytes.Contains(commandLine, []byte(c.Dir+"/")) || bytes.HasSuffix(commandLine, []byte(c.Dir+"\x00")) ||
			bytes.Contains(cgroup, []byte(c.ID)) {
			found = append(found, fmt.Sprintf("process %s: %q", process, commandLine))
		}
	}
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	for _, line := range strings.Split(string(mounts), "\n") {
		if strings.Contains(line, c.Dir+"/") {
			found = append(found, "mount "+line)
		}
	}
	_ = filepath.WalkDir("/sys/fs/cgroup", func(path string, entry os.DirEntry, _ error) error {
		if entry != nil && strings.HasPrefix(entry.Name(), c.ID) {
			found = append(found, "cgroup "+path)
			return filepath.SkipDir
		}
		return nil
	})
	return found
}
