// Package netpol is the NetworkPolicy part of Kubernetes' end-to-end suite, and nothing else of it, as a program of its
// own. It reads the flags of the published e2e.test; `cluster netpol` calls it.
package netpol

import (
	"context"
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"

	_ "k8s.io/component-base/logs/testinit" // flags of logging
	"k8s.io/kubernetes/test/e2e/framework"
	"k8s.io/kubernetes/test/e2e/framework/config"
	_ "k8s.io/kubernetes/test/e2e/framework/debug/init" // events of a spec that failed
	e2enode "k8s.io/kubernetes/test/e2e/framework/node"
	_ "k8s.io/kubernetes/test/e2e/framework/node/init" // after a spec: are the nodes still ready?
	"k8s.io/kubernetes/test/e2e/framework/testfiles"
	_ "k8s.io/kubernetes/test/e2e/network/netpol" // the specs
	manifests "k8s.io/kubernetes/test/e2e/testing-manifests"
	"k8s.io/kubernetes/test/utils/image"
)

func TestMain(m *testing.M) {
	printImage := flag.Bool("print-image", false, "print the image that the specs run, and end")
	config.CopyFlags(config.Flags, flag.CommandLine)
	framework.RegisterCommonFlags(flag.CommandLine)
	framework.RegisterClusterFlags(flag.CommandLine)
	flag.Parse()
	if *printImage {
		fmt.Println(image.GetE2EImage(image.Agnhost))
		return
	}
	testfiles.AddFileSource(manifests.GetE2ETestingManifestsFS())
	framework.AfterReadingAllFlags(&framework.TestContext)
	os.Exit(m.Run())
}

var _ = ginkgo.SynchronizedBeforeSuite(func(ctx context.Context) {
	client, err := framework.LoadClientset()
	framework.ExpectNoError(err, "no client for the cluster")
	framework.ExpectNoError(e2enode.WaitForAllNodesSchedulable(ctx, client, 2*time.Minute))
}, func(context.Context) {
	// Nothing else sets it where the whole suite is not linked in, and the specs write address ranges of this family.
	framework.TestContext.IPFamily = "ipv4"
})

func TestNetworkPolicy(t *testing.T) {
	gomega.RegisterFailHandler(framework.Fail)
	suite, reporter := framework.CreateGinkgoConfig()
	ginkgo.RunSpecs(t, "NetworkPolicy", suite, reporter)
}
