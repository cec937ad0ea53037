package main

import (
	"fmt"
	"os/exec"
)

// The control plane's programs and their arguments. All listen inside the cluster's network.

func (c *Cluster) etcd() (*exec.Cmd, error) {
	return c.program("etcd",
		"--data-dir="+c.path("etcd"),
		"--listen-client-urls=http://127.0.0.1:2379", "--advertise-client-urls=http://127.0.0.1:2379",
		"--listen-peer-urls=http://127.0.0.1:2380", "--initial-advertise-peer-urls=http://127.0.0.1:2380",
		"--initial-cluster=default=http://127.0.0.1:2380",
		"--log-level=warn", "--unsafe-no-fsync"), nil // its data is not needed after a crash of the machine
}

func (c *Cluster) apiServer() (*exec.Cmd, error) {
	arguments := []string{
		"--etcd-servers=http://127.0.0.1:2379",
		"--bind-address=" + controlAddress, "--advertise-address=" + controlAddress, fmt.Sprintf("--secure-port=%d", apiPort),
		"--service-cluster-ip-range=" + c.serviceRanges(),
		"--allow-privileged", "--anonymous-auth=false", "--authorization-mode=Node,RBAC",
		"--enable-admission-plugins=NodeRestriction",
		"--client-ca-file=" + c.path("pki", "ca.crt"),
		"--tls-cert-file=" + c.path("pki", "apiserver.crt"), "--tls-private-key-file=" + c.path("pki", "apiserver.key"),
		"--kubelet-client-certificate=" + c.path("pki", "admin.crt"), "--kubelet-client-key=" + c.path("pki", "admin.key"),
		"--kubelet-preferred-address-types=InternalIP", // nothing resolves the nodes' names
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file=" + c.path("pki", "service-accounts.crt"),
		"--service-account-signing-key-file=" + c.path("pki", "service-accounts.key"),
	}
	if c.Nodes == 0 {
		// No controller makes the service accounts for which this plugin would wait.
		arguments = append(arguments, "--disable-admission-plugins=ServiceAccount")
	}
	return c.program("kube-apiserver", arguments...), nil
}

func (c *Cluster) controllerManager() (*exec.Cmd, error) {
	return c.program("kube-controller-manager",
		"--kubeconfig="+c.path("pki", "kube-controller-manager.kubeconfig"),
		"--bind-address=127.0.0.1", "--leader-elect=false", "--use-service-account-credentials",
		"--root-ca-file="+c.path("pki", "ca.crt"),
		"--service-account-private-key-file="+c.path("pki", "service-accounts.key"),
		"--cluster-signing-cert-file="+c.path("pki", "ca.crt"), "--cluster-signing-key-file="+c.path("pki", "ca.key"),
		"--allocate-node-cidrs", "--cluster-cidr="+c.podRanges(), "--service-cluster-ip-range="+c.serviceRanges()), nil
}

func (c *Cluster) scheduler() (*exec.Cmd, error) {
	return c.program("kube-scheduler",
		"--kubeconfig="+c.path("pki", "kube-scheduler.kubeconfig"), "--bind-address=127.0.0.1", "--leader-elect=false"), nil
}
