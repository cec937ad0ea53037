package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"time"
)

// authority signs the certificates of one cluster. It lives for a day, as they do.
type authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
	pem         []byte
	serial      int64
}

// makeKeys writes to pki/ the keys and certificates that the programs need, and all kubeconfigs.
func (c *Cluster) makeKeys() error {
	ca, err := newAuthority()
	if err != nil {
		return err
	}
	if err := writeFile(c.path("pki", "ca.crt"), string(ca.pem)); err != nil {
		return err
	}
	key, err := x509.MarshalECPrivateKey(ca.key)
	if err != nil {
		return err
	}
	if err := writeFile(c.path("pki", "ca.key"), encode("EC PRIVATE KEY", key)); err != nil {
		return err
	}
	inside := fmt.Sprintf("https://%s:%d", controlAddress, apiPort)
	outside := fmt.Sprintf("https://127.0.0.1:%d", c.Port)
	type holder struct {
		name, user, group string
		config, server    string // the path of the kubeconfig, and the server that it names
	}
	holders := []holder{
		{"apiserver", "kube-apiserver", "", "", ""},
		{"service-accounts", "service-accounts", "", "", ""},
		{"admin", "admin", "system:masters", c.path("pki", "admin.kubeconfig"), inside},
		{"outside", "admin", "system:masters", c.path("kubeconfig"), outside},
		{"kube-controller-manager", "system:kube-controller-manager", "", c.path("pki", "kube-controller-manager.kubeconfig"), inside},
		{"kube-scheduler", "system:kube-scheduler", "", c.path("pki", "kube-scheduler.kubeconfig"), inside},
		{"kube-proxy", "system:kube-proxy", "", c.path("pki", "kube-proxy.kubeconfig"), inside},
	}
	for _, node := range c.nodes() {
		holders = append(holders, holder{node, "system:node:" + node, "system:nodes", c.path("pki", node+".kubeconfig"), inside})
	}
	for _, h := range holders {
		certificate, key, err := ca.sign(h.user, h.group)
		if err != nil {
			return err
		}
		if err := writeFile(c.path("pki", h.name+".crt"), certificate); err != nil {
			return err
		}
		if err := writeFile(c.path("pki", h.name+".key"), key); err != nil {
			return err
		}
		if h.config == "" {
			continue
		}
		if err := writeFile(h.config, kubeconfig(h.server, string(ca.pem), certificate, key)); err != nil {
			return err
		}
	}
	return nil
}

func newAuthority() (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := template(1, "cluster", "")
	template.IsCA, template.BasicConstraintsValid = true, true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	certificate, err := x509.ParseCertificate(der)
	return &authority{certificate, key, []byte(encode("CERTIFICATE", der)), 1}, err
}

// sign makes a key and its certificate, for a client and for the API server, both in PEM.
func (a *authority) sign(user, group string) (certificate, private string, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return "", "", err
	}
	a.serial++
	template := template(a.serial, user, group)
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}
	template.IPAddresses = []net.IP{net.ParseIP(controlAddress), net.ParseIP(apiService), net.IPv4(127, 0, 0, 1)}
	template.DNSNames = []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"}
	if user != "kube-apiserver" {
		template.IPAddresses, template.DNSNames = nil, nil
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, &key.PublicKey, a.key)
	if err != nil {
		return "", "", err
	}
	private8, err := x509.MarshalPKCS8PrivateKey(key)
	return encode("CERTIFICATE", der), encode("PRIVATE KEY", private8), err
}

func template(serial int64, user, group string) *x509.Certificate {
	name := pkix.Name{CommonName: user}
	if group != "" {
		name.Organization = []string{group}
	}
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: big.NewInt(serial), Subject: name,
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(24 * time.Hour),
	}
}

func encode(kind string, der []byte) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
}

func kubeconfig(server, ca, certificate, key string) string {
	b := func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }
	return fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: cluster
contexts: [{name: cluster, context: {cluster: cluster, user: user}}]
clusters:
- name: cluster
  cluster: {server: %q, certificate-authority-data: %s}
users:
- name: user
  user: {client-certificate-data: %s, client-key-data: %s}
`, server, b(ca), b(certificate), b(key))
}
