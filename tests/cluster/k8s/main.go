// Command k8s holds every program of Kubernetes that a small cluster needs, and etcd, in one static
// file. The first argument, or the name under which it is called, chooses the program. The other
// arguments go to that program.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"

	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

// A program runs to its end and returns its exit status. os.Args begins with the program's name.
type program func() int

var programs = map[string]program{
	"etcd":                    func() int { etcdmain.Main(os.Args); return 0 },
	"kube-apiserver":          daemon(apiserver.NewAPIServerCommand),
	"kube-controller-manager": daemon(controllers.NewControllerManagerCommand),
	"kube-scheduler":          daemon(func() *cobra.Command { return scheduler.NewSchedulerCommand() }),
	"kube-proxy":              daemon(proxy.NewProxyCommand),
	// With a context that can be cancelled, kubelet closes one channel twice.
	"kubelet": daemon(func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) }),
	"kubectl": func() int {
		if err := cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()); err != nil {
			fmt.Fprintln(os.Stderr, "error:", err)
			return 1
		}
		return 0
	},
}

// daemon makes the command only when its program is the chosen one, because each registers its own
// flags and metrics.
func daemon(command func() *cobra.Command) program {
	return func() int { return cli.Run(command()) }
}

func main() {
	os.Args[0] = filepath.Base(os.Args[0])
	if programs[os.Args[0]] == nil && len(os.Args) > 1 {
		os.Args = os.Args[1:]
	}
	run := programs[os.Args[0]]
	if run == nil {
		var names []string
		for name := range programs {
			names = append(names, name)
		}
		slices.Sort(names)
		fmt.Fprintf(os.Stderr, "k8s: there is no program %q; the first argument is one of: %s\n", os.Args[0], strings.Join(names, " "))
		os.Exit(2)
	}
	os.Exit(run())
}
