// Command cluster makes a real Kubernetes on this machine: etcd, the control plane and nodes with
// containerd and kubelet, each node in its own namespaces. README.md says how, and why it is made
// in this way.
//
// One process, the machine (machine.go), is process 1 of a pid namespace, and everything else runs
// below it. So one SIGKILL ends all of it, with its network and mounts. Then `down` only has to
// remove cgroups and the folder.
package main

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

const usage = `usage: cluster COMMAND [--dir DIR] ...
  build [NAME...]            builds what is out of date, or only these: any of k8s agnhost pause
                             regression-issue-74839 coredns specs.test ginkgo
  up [--nodes N] [--cni none|ptp|bridge] [--proxy none|nftables|iptables]
                             starts a cluster and prints the path of its kubeconfig
  down                       ends it and removes all that it left, after a crash too
  status                     prints each program and its state
  stop NAME, start NAME      ends and restarts a program or a node, as status names it
  kubectl ARGUMENT...        kubectl as the cluster's administrator
  image NAME PROGRAM...      makes an image of static programs, the first of which it runs, and gives it to every node
  exec NODE -- COMMAND...    runs a command in all namespaces of a node
  rig FOLDER TABLE IMAGE     compares what a rig's pods reach with a truth table of manx policy matrix
  netpol [--list] [FOCUS]    runs Kubernetes' NetworkPolicy specs whose name matches FOCUS
  network [--list] [FOCUS]   and its other network specs
DIR is the folder of the cluster: $MANX_CLUSTER_DIR, or run in the cache folder.
The cache folder is $MANX_CLUSTER_CACHE, or target/cluster.`

// self is this program, even if its file is gone, as after `go run`.
const self = "/proc/self/exe"

// The driver starts itself with the first four, inside namespaces.
var commands = map[string]func([]string) error{
	"machine": runMachine,
	"node":    enterNode,
	"init":    runInit,
	"daemons": runDaemons,
	"build":   build,
	"up":      up,
	"down":    down,
	"status":  status,
	"stop":    stop,
	"start":   start,
	"kubectl": kubectl,
	"exec":    execInNode,
	"image":   giveImage,
	"rig":     rig,
}

func main() {
	maps.Copy(commands, suiteCommands())
	if len(os.Args) < 2 || commands[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, usage)
		os.Exit(2)
	}
	err := commands[os.Args[1]](os.Args[2:])
	var ended *exec.ExitError
	switch {
	case err == nil:
	case errors.As(err, &ended) && ended.ExitCode() > 0:
		os.Exit(ended.ExitCode())
	default:
		fmt.Fprintf(os.Stderr, "cluster %s: %v\n", os.Args[1], err)
		os.Exit(1)
	}
}

// root returns the folder of this project. It goes upwards from the working folder and recognizes
// the project by its parts.
func root() (string, error) {
	folder, err := os.Getwd()
	for ; err == nil; folder = filepath.Dir(folder) {
		if _, err := os.Stat(filepath.Join(folder, "tests/cluster/go.mod")); err == nil {
			return folder, nil
		}
		if folder == "/" {
			return "", errors.New("no tests/cluster/go.mod in the working folder or above: run this inside the project, " +
				"or name MANX_CLUSTER_CACHE and build there first")
		}
	}
	return "", err
}

// cache returns the absolute path of the folder for built programs.
func cache() (string, error) {
	if folder := os.Getenv("MANX_CLUSTER_CACHE"); folder != "" {
		return filepath.Abs(folder)
	}
	root, err := root()
	return filepath.Join(root, "target/cluster"), err
}

// flags makes a flag set with --dir. After parsing, directory returns the absolute path.
func flags(command string) (*flag.FlagSet, func() (string, error)) {
	set := flag.NewFlagSet(command, flag.ExitOnError)
	dir := set.String("dir", os.Getenv("MANX_CLUSTER_DIR"), "the cluster's folder")
	return set, func() (string, error) {
		if *dir != "" {
			return filepath.Abs(*dir)
		}
		cache, err := cache()
		return filepath.Join(cache, "run"), err
	}
}

// opened parses --dir in front of other arguments, and reads the cluster in that folder.
func opened(command string, arguments []string) (*Cluster, []string, error) {
	set, directory := flags(command)
	rest := arguments
	// kubectl's own flags must not be parsed here.
	if len(arguments) > 0 && strings.HasPrefix(strings.TrimLeft(arguments[0], "-"), "dir") || command != "kubectl" {
		if err := set.Parse(arguments); err != nil {
			return nil, nil, err
		}
		rest = set.Args()
	}
	dir, err := directory()
	if err != nil {
		return nil, nil, err
	}
	cluster, err := readCluster(dir)
	return cluster, rest, err
}

func kubectl(arguments []string) error {
	c, arguments, err := opened("kubectl", arguments)
	if err != nil {
		return err
	}
	program := c.program("kubectl", arguments...)
	program.Env = append(os.Environ(), "KUBECONFIG="+c.path("kubeconfig"))
	program.Stdin, program.Stdout, program.Stderr = os.Stdin, os.Stdout, os.Stderr
	return program.Run()
}

// giveImage packs programs and makes every node import them, as if they were pulled from a
// registry.
func giveImage(arguments []string) error {
	c, arguments, err := opened("image", arguments)
	if err != nil {
		return err
	}
	if len(arguments) < 2 {
		return errors.New("expected a name and static programs: cluster image docker.io/library/manx:latest /tmp/manx")
	}
	entry := "/" + filepath.Base(arguments[1])
	given := image{names: arguments[:1], config: map[string]any{"Entrypoint": []string{entry}}}
	archive := c.path("given.tar")
	if err := given.pack(archive, arguments[1:]...); err != nil {
		return err
	}
	for _, node := range c.nodes() {
		load, err := c.inNode(node, "ctr", "-n", "k8s.io", "images", "import", archive)
		if err != nil {
			return err
		}
		if out, err := exec.Command(load[0], load[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("ctr images import on %s: %w: %s", node, err, out)
		}
	}
	return nil
}

// inNode returns the command that runs another one in all namespaces of a node.
func (c *Cluster) inNode(node string, command ...string) ([]string, error) {
	process, err := readProcess(c.path(node, "pid"))
	if err != nil || !process.alive() {
		return nil, fmt.Errorf("no node %q runs in %s: the nodes are %s", node, c.Dir, strings.Join(c.nodes(), " "))
	}
	nsenter, err := exec.LookPath("nsenter")
	if err != nil {
		return nil, errors.New("nsenter is missing: apt-get install util-linux")
	}
	return append([]string{nsenter, "--target", fmt.Sprint(process.Pid),
		"--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup", "--"}, command...), nil
}

// execInNode runs the command as a process of the node, with this process's standard input and
// output, and returns its exit status.
func execInNode(arguments []string) error {
	c, arguments, err := opened("exec", arguments)
	if err != nil {
		return err
	}
	if len(arguments) > 1 && arguments[1] == "--" {
		arguments = slices.Delete(arguments, 1, 2)
	}
	if len(arguments) < 2 {
		return errors.New("expected a node and a command: cluster exec n1 -- ip address")
	}
	command, err := c.inNode(arguments[0], arguments[1:]...)
	if err != nil {
		return err
	}
	return syscall.Exec(command[0], command, os.Environ())
}
