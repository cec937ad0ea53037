// Command k8s is a cluster's programs in one: its first argument says which one it is.
//
// kube-apiserver brings its etcd along: with MANX_ETCD naming a folder, a member of one runs in the same process, on
// loopback, and ends with it.
package main

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"slices"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/embed"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	kubectl "k8s.io/kubectl/pkg/cmd"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

// Made on demand: to make a command registers its flags, and some names collide.
var commands = map[string]func() *cobra.Command{
	"kube-apiserver":          apiserver.NewAPIServerCommand,
	"kube-controller-manager": controllers.NewControllerManagerCommand,
	"kube-proxy":              proxy.NewProxyCommand,
	"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
	// It panics with any other context.
	"kubelet": func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) },
	"kubectl": kubectl.NewDefaultKubectlCommand,
}

func main() {
	if len(os.Args) < 2 || commands[os.Args[1]] == nil {
		var known []string
		for name := range commands {
			known = append(known, name)
		}
		slices.Sort(known)
		fmt.Fprintf(os.Stderr, "k8s: found no program's name, expected one of %v\n", known)
		os.Exit(2)
	}
	name := os.Args[1]
	os.Args = os.Args[1:]
	if folder := os.Getenv("MANX_ETCD"); folder != "" && name == "kube-apiserver" {
		member, err := etcd(folder)
		if err != nil {
			fmt.Fprintln(os.Stderr, "k8s: etcd does not start:", err)
			os.Exit(1)
		}
		defer member.Close()
	}
	if name == "kubectl" {
		if err := cli.RunNoErrOutput(commands[name]()); err != nil {
			fmt.Fprintln(os.Stderr, "error:", err)
			os.Exit(1)
		}
		return
	}
	os.Exit(cli.Run(commands[name]()))
}

func etcd(folder string) (*embed.Etcd, error) {
	at := func(port string) []url.URL { return []url.URL{{Scheme: "http", Host: "127.0.0.1:" + port}} }
	config := embed.NewConfig()
	config.Dir = folder
	config.LogLevel = "error"
	config.UnsafeNoFsync = true // a test's cluster need not survive a crash of the machine
	config.ListenClientUrls, config.AdvertiseClientUrls = at("2379"), at("2379")
	config.ListenPeerUrls, config.AdvertisePeerUrls = at("2380"), at("2380")
	config.InitialCluster = config.InitialClusterFromName(config.Name)
	member, err := embed.StartEtcd(config)
	if err == nil {
		<-member.Server.ReadyNotify()
	}
	return member, err
}
