package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
)

// leftOut are specs that cannot hold here, as a pattern of ginkgo.
const leftOut = "SCTP" // most kernels of containers and small machines have no SCTP

// netpol runs specs on the cluster that is up. The suite takes every exec that failed for a connection that policy
// denied, so pods are first shown to reach each other: otherwise a broken network would pass.
func netpol(arguments []string) error {
	set, directory := flags("netpol")
	list := set.Bool("list", false, "only print the names of the specs")
	skip := set.String("skip", leftOut, "the specs that are left out, as a pattern")
	if err := set.Parse(arguments); err != nil {
		return err
	}
	if err := build([]string{"netpol"}); err != nil {
		return err
	}
	cache, err := cache()
	if err != nil {
		return err
	}
	suite := filepath.Join(cache, "bin/netpol")
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
	for _, pattern := range []string{reaches, focus} {
		if err := passThrough(c.specs(suite, pattern, *skip)); err != nil {
			return fmt.Errorf("the specs of %q: %w", pattern, err)
		}
	}
	return nil
}

func (c *Cluster) specs(suite, focus, skip string) *exec.Cmd {
	// Without a word ginkgo ends the suite after an hour, and all specs take longer on two cores.
	return exec.Command(suite, "--kubeconfig="+c.path("kubeconfig"), "--provider=skeleton", "--test.timeout=0", "--ginkgo.timeout=3h",
		"--ginkgo.focus="+focus, "--ginkgo.skip="+skip, "--ginkgo.no-color", "--ginkgo.v", "--ginkgo.fail-on-empty",
		"--report-dir="+c.path("netpol"), "--dump-logs-on-failure=false")
}

// passThrough ends the program with this one, so that it also cleans up when somebody gives up waiting.
func passThrough(command *exec.Cmd) error {
	// The signal comes when the thread ends that started the program (prctl(2), PR_SET_PDEATHSIG).
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	command.Stdin, command.Stdout, command.Stderr = os.Stdin, os.Stdout, os.Stderr
	return command.Run()
}
