// Package specs is the network part of Kubernetes' end-to-end suite as a separate program. It reads
// the flags of the published e2e.test. `cluster netpol` and `cluster network` call it, and choose
// the specs by the files that contain them: packages of other parts are linked in, too, because the
// network specs need them.
package specs

import (
	"context"
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"

	_ "k8s.io/component-base/logs/testinit"       // flags of logging
	_ "k8s.io/kubernetes/test/e2e/common/network" // specs that are shared with those of a single node
	"k8s.io/kubernetes/test/e2e/framework"
	"k8s.io/kubernetes/test/e2e/framework/config"
	_ "k8s.io/kubernetes/test/e2e/framework/debug/init" // prints the events of a failed spec
	e2enode "k8s.io/kubernetes/test/e2e/framework/node"
	_ "k8s.io/kubernetes/test/e2e/framework/node/init" // checks after a spec that the nodes are still ready
	"k8s.io/kubernetes/test/e2e/framework/testfiles"
	_ "k8s.io/kubernetes/test/e2e/network" // the specs; it also imports network/netpol
	manifests "k8s.io/kubernetes/test/e2e/testing-manifests"
	"k8s.io/kubernetes/test/utils/image"
)

func TestMain(m *testing.M) {
	printImages := flag.Bool("print-images", false, "print the images that the specs run, and end")
	config.CopyFlags(config.Flags, flag.CommandLine)
	framework.RegisterCommonFlags(flag.CommandLine)
	framework.RegisterClusterFlags(flag.CommandLine)
	flag.Parse()
	if *printImages {
		for _, id := range []image.ImageID{
			image.Agnhost, image.BusyBox, image.JessieDnsutils, image.Nginx, image.RegressionIssue74839,
		} {
			fmt.Println(image.GetE2EImage(id))
		}
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
}, func(ctx context.Context) {
	// Without the whole suite, nothing else sets these. The specs write address ranges of this family,
	// and some are skipped if they do not know of two nodes.
	framework.TestContext.IPFamily = "ipv4"
	client, err := framework.LoadClientset()
	framework.ExpectNoError(err, "no client for the cluster")
	nodes, err := e2enode.GetReadySchedulableNodes(ctx, client)
	framework.ExpectNoError(err, "no nodes that take pods")
	framework.TestContext.CloudConfig.NumNodes = len(nodes.Items)
})

func TestSpecs(t *testing.T) {
	gomega.RegisterFailHandler(framework.Fail)
	suite, reporter := framework.CreateGinkgoConfig()
	ginkgo.RunSpecs(t, "Kubernetes", suite, reporter)
}
