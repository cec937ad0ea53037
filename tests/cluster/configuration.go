package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// configurations returns the files of the node's programs, by path. Two settings are for containers
// without CAP_SYS_RESOURCE: no oom_score_adj is lowered, and no limit of open files is raised.
func (n node) configurations() map[string]string {
	const cri = `plugins."io.containerd.grpc.v1.cri"`
	return map[string]string{
		"/etc/containerd.toml": lines(
			`version = 2`,
			`root = "/var/lib/containerd"`,
			`state = "/run/containerd"`,
			`disabled_plugins = ["io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs",`,
			`  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs", "io.containerd.internal.v1.opt"]`,
			`[grpc]`,
			`address = "/run/containerd/containerd.sock"`,
			`[`+cri+`]`,
			`sandbox_image = "`+pauseImage+`"`,
			`restrict_oom_score_adj = true`,
			`disable_apparmor = true`,
			`[`+cri+`.cni]`,
			`bin_dir = "/opt/cni/bin"`,
			`conf_dir = "/etc/cni/net.d"`,
			`[`+cri+`.containerd]`,
			`snapshotter = "overlayfs"`,
			`default_runtime_name = "runc"`,
			`[`+cri+`.containerd.runtimes.runc]`,
			`runtime_type = "io.containerd.runc.v2"`,
			`[`+cri+`.containerd.runtimes.runc.options]`,
			`SystemdCgroup = false`,
		),
		"/etc/kubernetes/resolv.conf": "",
		"/etc/kubernetes/kubelet.yaml": lines(
			`apiVersion: kubelet.config.k8s.io/v1beta1`,
			`kind: KubeletConfiguration`,
			`authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: `+n.path("pki", "ca.crt")+`}}`,
			`authorization: {mode: Webhook}`,
			`cgroupDriver: cgroupfs`, // containerd 1.6 cannot report it
			`failCgroupV1: false`,
			`failSwapOn: false`,
			`containerRuntimeEndpoint: unix:///run/containerd/containerd.sock`,
			`clusterDomain: cluster.local`,
			`clusterDNS: [10.96.0.10]`,
			`resolvConf: /etc/kubernetes/resolv.conf`,
			`oomScoreAdj: 0`,
			`maxOpenFiles: 20000`,
			`makeIPTablesUtilChains: false`,
			`imageGCHighThresholdPercent: 100`, // there is no registry to pull an image from again
			`imageMaximumGCAge: 0s`,
			`evictionHard: {memory.available: 100Mi, nodefs.available: 1%, nodefs.inodesFree: 1%, imagefs.available: 1%}`,
			`nodeStatusUpdateFrequency: 5s`,
			`serializeImagePulls: false`,
		),
		"/etc/kubernetes/kube-proxy.yaml": lines(
			`apiVersion: kubeproxy.config.k8s.io/v1alpha1`,
			`kind: KubeProxyConfiguration`,
			`clientConnection: {kubeconfig: `+n.path("pki", "kube-proxy.kubeconfig")+`}`,
			`hostnameOverride: `+n.name,
			`mode: `+n.Proxy,
			`clusterCIDR: `+n.podRanges(),
			// These settings belong to the whole machine: zero leaves them as they are.
			`conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}`,
			`nftables: {minSyncPeriod: 200ms}`,
			`iptables: {minSyncPeriod: 200ms}`,
		),
	}
}

func lines(lines ...string) string { return strings.Join(lines, "\n") + "\n" }

// debianPlugins is the folder in which the package containernetworking-plugins has its programs.
const debianPlugins = "/usr/lib/cni"

// installNetwork gives the node Debian's plugins, a configuration of the wanted plugin with the
// node's pod CIDR, and routes to the pods of the other nodes. It waits for the CIDRs, which the
// machine writes to files when the controller manager has set them.
func (n node) installNetwork() error {
	for _, other := range n.nodes() {
		var cidr, address string
		if err := n.waitFor(5*time.Minute, "the pod CIDR of "+other, []string{n.name + ".kubelet"}, func() error {
			text, err := os.ReadFile(n.path(other, "pod-cidr"))
			if err == nil {
				_, err = fmt.Sscan(string(text), &cidr, &address)
			}
			return err
		}); err != nil {
			return err
		}
		if other != n.name {
			if err := ip(fmt.Sprintf("route replace %s via %s", cidr, address)); err != nil {
				return err
			}
			continue
		}
		if err := installPlugins(n.CNI, "host-local", "portmap"); err != nil {
			return err
		}
		if err := writeFile("/etc/cni/net.d/10-"+n.CNI+".conflist", fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "pods", "plugins": [
  {"type": %q, "isGateway": true, "hairpinMode": true, "ipMasq": false, "ipam": {"type": "host-local", "dataDir": "/run/cni", "subnet": %q, "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}
`, n.CNI, cidr)); err != nil {
			return err
		}
	}
	return nil
}

func installPlugins(names ...string) error {
	for _, name := range names {
		program, err := os.ReadFile(filepath.Join(debianPlugins, name))
		if err != nil {
			return err
		}
		if err := os.WriteFile("/opt/cni/bin/"+name, program, 0o755); err != nil {
			return err
		}
	}
	return nil
}
