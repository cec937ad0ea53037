package main

import (
	"errors"
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

// A suite is the part of Kubernetes' network specs that one command runs.
type suite struct {
	command string
	files   string // a pattern of the files that contain the specs
	always  string // a pattern of a spec that always runs, if there is one
	alone   string // a pattern of specs that run after the others and one by one, if there are any
	leftOut []leftOut
}

// leftOut are specs that cannot pass here, or do not yet: a pattern of their names, and the reason.
type leftOut struct{ pattern, why string }

const noSCTP = "their pods speak SCTP, which most kernels of containers and small machines do not have"

var suites = []suite{
	{
		command: "netpol", files: "/e2e/network/netpol/",
		// The suite treats every failed exec as a connection that policy denied. On a network that
		// enforces nothing but connects all pods, this spec passes; on a network that connects nothing,
		// it fails.
		always: "should support allow-all policy",
		// Two more specs have SCTP only in their policies.
		leftOut: []leftOut{{"SCTPConnectivity", noSCTP}},
	},
	{
		command: "network", files: `/e2e/(common/)?network/[^/]+\.go`,
		// The first spec treats any reset as the bug, and its own server causes one if a SYN and its ACK
		// are far apart. The others expect no answer at a node port that they have released, and another
		// spec may get that port.
		alone: "invalid conntrack state bug|should update nodePort",
		leftOut: []leftOut{
			{"SCTPConnectivity", noSCTP},
			{`Feature:LoadBalancer\]`, "no cloud gives load balancers here"},
			{"Feature:IPv6DualStack", "the cluster has IPv4 alone"},
			{`Feature:Networking-(IPv4|IPv6|DNS)`, "nothing of the Internet is reached from here"},
			{"Feature:Networking-Performance|Feature:PerformanceDNS", "they measure"},
			{"Provider:GCE", "they ask for names that Google's clusters have"},
			{"FeatureGate:RelaxedServiceNameValidation", "the API server's gate is off by default"},
			{`\[sig-network\] KubeProxy|kube-proxy|recreate its iptables rules`, "they ask kube-proxy itself, or its rules"},
			{"after restarting apiserver", "they reach the API server's machine by SSH"},
			{"DNS configMap nameserver|configurable pod resolv.conf", "they run the CoreDNS that agnhost's published image has"},
		},
	},
}

// suiteCommands returns the commands that run specs on the running cluster.
func suiteCommands() map[string]func([]string) error {
	found := map[string]func([]string) error{}
	for _, s := range suites {
		found[s.command] = s.run
	}
	return found
}

func (s suite) run(arguments []string) error {
	set, directory := flags(s.command)
	list := set.Bool("list", false, "only print the names of the specs, and which are left out")
	skip := set.String("skip", s.skip(), "the specs that are left out, as a pattern")
	atOnce := set.Int("at-once", 6, "how many specs run at a time: each has namespaces of its own, and mostly waits")
	if err := set.Parse(arguments); err != nil {
		return err
	}
	if err := build([]string{"specs.test", "ginkgo"}); err != nil {
		return err
	}
	cache, err := cache()
	if err != nil {
		return err
	}
	program := filepath.Join(cache, "bin/specs.test")
	names, err := s.names(program)
	if err != nil {
		return err
	}
	if *list {
		return s.list(names)
	}
	dir, err := directory()
	if err != nil {
		return err
	}
	c, err := readCluster(dir)
	if err != nil {
		return err
	}
	if err := everyImageIsMade(program); err != nil {
		return err
	}
	// Without any pattern ginkgo leaves out the specs of features, which are the majority.
	focus := strings.Join(set.Args(), " ")
	if focus == "" {
		focus = "sig-network"
	}
	if s.always != "" {
		focus = s.always + "|" + focus
	}
	if err := everyPartMatches(names, focus, *skip); err != nil {
		return err
	}
	together, alone, err := s.split(names, focus, *skip)
	if err != nil {
		return err
	}
	var failed []error
	if together {
		skip := strings.Trim(*skip+"|"+s.alone, "|")
		failed = append(failed, passThrough(s.specs(c, program, *atOnce, focus, skip)))
	}
	if len(alone) > 0 {
		failed = append(failed, passThrough(s.specs(c, program, 1, strings.Join(alone, "|"), *skip)))
	}
	if err := errors.Join(failed...); err != nil {
		return fmt.Errorf("the specs of %q: %w", focus, err)
	}
	return nil
}

// split returns whether some of the chosen specs run together, and a pattern for each spec that
// runs alone.
func (s suite) split(names []string, focus, skip string) (together bool, alone []string, err error) {
	wanted, err := regexp.Compile(focus)
	if err != nil {
		return false, nil, fmt.Errorf("the focus %q: %w", focus, err)
	}
	// An empty pattern matches everything.
	matches := func(pattern, name string) bool {
		found, failed := regexp.MatchString(pattern, name)
		err = errors.Join(err, failed)
		return pattern != "" && found
	}
	for _, name := range names {
		switch {
		case !wanted.MatchString(name) || matches(skip, name):
		case matches(s.alone, name):
			alone = append(alone, regexp.QuoteMeta(name))
		default:
			together = true
		}
	}
	return together, alone, err
}

// skip returns the pattern of all specs that are left out.
func (s suite) skip() string {
	var patterns []string
	for _, left := range s.leftOut {
		patterns = append(patterns, left.pattern)
	}
	return strings.Join(patterns, "|")
}

// names returns the names of all specs in the suite's files, left out or not.
func (s suite) names(program string) ([]string, error) {
	out, err := exec.Command(program, "--list-tests").Output()
	if err != nil {
		return nil, fmt.Errorf("%s --list-tests: %w", program, err)
	}
	return namesIn(string(out), regexp.MustCompile(s.files)), nil
}

func namesIn(listed string, files *regexp.Regexp) (names []string) {
	for line := range strings.Lines(listed) {
		// FILE:LINE: NAME
		file, name, isSpec := strings.Cut(strings.TrimSpace(line), ": ")
		if isSpec && files.MatchString("/"+file) {
			names = append(names, name)
		}
	}
	return names
}

func (s suite) list(names []string) error {
	for _, name := range names {
		why := ""
		for _, left := range s.leftOut {
			out, err := regexp.MatchString(left.pattern, name)
			if err != nil {
				return err
			}
			if out {
				why = "\t(left out: " + left.why + ")"
				break
			}
		}
		fmt.Println(name + why)
	}
	return nil
}

// everyImageIsMade checks that image.go makes every image that the specs run.
func everyImageIsMade(program string) error {
	wants, err := exec.Command(program, "--print-images").Output()
	if err != nil {
		return fmt.Errorf("%s --print-images: %w", program, err)
	}
	for _, name := range strings.Fields(string(wants)) {
		if !slices.ContainsFunc(images, func(i image) bool { return slices.Contains(i.names, name) }) {
			return fmt.Errorf("the specs run the image %s, which image.go does not make: name it there", name)
		}
	}
	return nil
}

// everyPartMatches returns an error that names a part of a focus, between two |, that matches none
// of the chosen specs. ginkgo's --fail-on-empty cannot do that: it sees the whole pattern, and a
// spec that always runs matches it.
func everyPartMatches(names []string, focus, skip string) error {
	left, err := regexp.Compile(skip)
	if err != nil {
		return fmt.Errorf("--skip: %w", err)
	}
	var specs []string
	for _, name := range names {
		if skip == "" || !left.MatchString(name) {
			specs = append(specs, name)
		}
	}
	for part := range strings.SplitSeq(focus, "|") {
		pattern, err := regexp.Compile(part)
		if err != nil {
			return fmt.Errorf("the focus %q: %w: expected that each part between two | is a pattern of its own", focus, err)
		}
		if !slices.ContainsFunc(specs, pattern.MatchString) {
			return fmt.Errorf("no spec matches %q, a part of the focus, among %d: --list prints their names", part, len(specs))
		}
	}
	return nil
}

func (s suite) specs(c *Cluster, program string, atOnce int, focus, skip string) *exec.Cmd {
	command := exec.Command(filepath.Join(filepath.Dir(program), "ginkgo"), fmt.Sprintf("--procs=%d", atOnce),
		"--focus-file="+s.files, "--focus="+focus, "--skip="+skip, "--no-color", "--v", "--fail-on-empty",
		"--timeout=3h", // by default ginkgo ends the suite after an hour, and all specs may take longer on two cores
		program, "--", "--kubeconfig="+c.path("kubeconfig"), "--provider=skeleton",
		"--report-dir="+c.path(s.command), "--dump-logs-on-failure=false")
	// Its processes end with it, at once. Otherwise they would run for minutes without a cluster.
	command.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID, Pdeathsig: syscall.SIGKILL}
	return command
}

// passThrough ends the program with this one, so that it also cleans up after an interrupt.
func passThrough(command *exec.Cmd) error {
	// The signal comes when the thread that started the program ends (prctl(2), PR_SET_PDEATHSIG).
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if command.SysProcAttr == nil {
		command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	}
	command.Stdin, command.Stdout, command.Stderr = os.Stdin, os.Stdout, os.Stderr
	return command.Run()
}
