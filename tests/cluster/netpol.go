package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// leftOut are specs that cannot hold here, as a pattern of ginkgo: three whose pods speak SCTP, which most kernels of
// containers and small machines do not have. Two more have SCTP in their policies alone.
const leftOut = "SCTPConnectivity"

// netpol runs specs on the cluster that is up. The suite takes every exec that failed for a connection that policy
// denied, so the spec that allows all is always among them: otherwise a broken network would pass.
func netpol(arguments []string) error {
	set, directory := flags("netpol")
	list := set.Bool("list", false, "only print the names of the specs")
	skip := set.String("skip", leftOut, "the specs that are left out, as a pattern")
	atOnce := set.Int("at-once", 6, "how many specs run at a time: each has namespaces of its own, and mostly waits")
	if err := set.Parse(arguments); err != nil {
		return err
	}
	if err := build([]string{"netpol.test", "ginkgo"}); err != nil {
		return err
	}
	cache, err := cache()
	if err != nil {
		return err
	}
	suite := filepath.Join(cache, "bin/netpol.test")
	if *list {
		return passThrough(exec.Command(suite, "--list-tests"))
	}
	dir, err := directory()
	if err != nil {
		return err
	}
	c, err := readCluster(dir)
	if err != nil {
		return err
	}
	if c.Proxy == "none" {
		return fmt.Errorf("the cluster in %s has no kube-proxy, and the specs call service addresses: `cluster up --proxy nftables`", dir)
	}
	wants, err := exec.Command(suite, "--print-image").Output()
	if err != nil {
		return err
	}
	if strings.TrimSpace(string(wants)) != agnhostImage {
		return fmt.Errorf("the specs run the image %s, and image.go makes %s: name that one there", strings.TrimSpace(string(wants)), agnhostImage)
	}
	// Without any pattern ginkgo leaves out the specs of features, which are most.
	focus := "NetworkPolicy"
	if set.NArg() > 0 {
		focus = strings.Join(set.Args(), " ")
	}
	// Where nothing is enforced but all connects, this one passes; where nothing connects, it fails.
	const reaches = "should support allow-all policy"
	focus = reaches + "|" + focus
	names, err := exec.Command(suite, "--list-tests").Output()
	if err != nil {
		return err
	}
	if err := everyPartMatches(string(names), focus, *skip); err != nil {
		return err
	}
	if err := passThrough(c.specs(suite, *atOnce, focus, *skip)); err != nil {
		return fmt.Errorf("the specs of %q: %w", focus, err)
	}
	return nil
}

// everyPartMatches names the part of a focus, between two |, that matches none of the specs that run. ginkgo's
// --fail-on-empty cannot: it sees the whole pattern, and the allow-all spec always matches that.
func everyPartMatches(names, focus, skip string) error {
	left, err := regexp.Compile(skip)
	if err != nil {
		return fmt.Errorf("--skip: %w", err)
	}
	var specs []string
	for line := range strings.Lines(names) {
		// FILE:LINE: NAME. ginkgo compares patterns with the suite's name in front of it.
		if _, name, isSpec := strings.Cut(strings.TrimSpace(line), ": "); isSpec {
			name = "NetworkPolicy " + name
			if skip == "" || !left.MatchString(name) {
				specs = append(specs, name)
			}
		}
	}
	for part := range strings.SplitSeq(focus, "|") {
		pattern, err := regexp.Compile(part)
		if err != nil {
			return fmt.Errorf("the focus %q: %w: expected that each part between two | is a pattern of its own", focus, err)
		}
		if !slices.ContainsFunc(specs, pattern.MatchString) {
			return fmt.Errorf("no spec matches %q, a part of the focus, among %d: `cluster netpol --list` prints their names", part, len(specs))
		}
	}
	return nil
}

func (c *Cluster) specs(suite string, atOnce int, focus, skip string) *exec.Cmd {
	command := exec.Command(filepath.Join(filepath.Dir(suite), "ginkgo"), fmt.Sprintf("--procs=%d", atOnce),
		"--focus="+focus, "--skip="+skip, "--no-color", "--v", "--fail-on-empty",
		"--timeout=3h", // ginkgo ends the suite after an hour otherwise, and all specs may take longer on two cores
		suite, "--", "--kubeconfig="+c.path("kubeconfig"), "--provider=skeleton",
		"--report-dir="+c.path("netpol"), "--dump-logs-on-failure=false")
	// Its processes end with it, at once: they would go on for minutes without a cluster.
	command.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID, Pdeathsig: syscall.SIGKILL}
	return command
}

// passThrough ends the program with this one, so that it also cleans up when somebody gives up waiting.
func passThrough(command *exec.Cmd) error {
	// The signal comes when the thread ends that started the program (prctl(2), PR_SET_PDEATHSIG).
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if command.SysProcAttr == nil {
		command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	}
	command.Stdin, command.Stdout, command.Stderr = os.Stdin, os.Stdout, os.Stderr
	return command.Run()
}
