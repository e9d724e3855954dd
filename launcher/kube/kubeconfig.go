package kube

import (
	"errors"
	"fmt"
	"os"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// ErrUnsafeKubeconfig means that a kubeconfig would run a program, read a file
// or trust anyone.
var ErrUnsafeKubeconfig = errors.New("unsafe kubeconfig")

// maxKubeconfig bounds a kubeconfig; those of hundreds of clusters are smaller.
const maxKubeconfig = 1 << 20

// LoadKubeconfig reads one context of a kubeconfig file; "" is its current
// one. Unless unsafe is allowed, everything in it must be given in line.
func LoadKubeconfig(path, contextName string, allowUnsafe bool) (*rest.Config, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig: %w", err)
	}
	if info.Size() > maxKubeconfig {
		return nil, fmt.Errorf("read kubeconfig: %s is larger than %d bytes", path, maxKubeconfig)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig: %w", err)
	}
	cfg, err := clientcmd.Load(text)
	if err != nil {
		// The parser's error may quote the text around the mistake.
		return nil, fmt.Errorf("read kubeconfig %s: it is not a kubeconfig", path)
	}
	if contextName == "" {
		contextName = cfg.CurrentContext
	}
	kctx, ok := cfg.Contexts[contextName]
	if !ok {
		return nil, fmt.Errorf("read kubeconfig %s: it has no context %q", path, contextName)
	}
	if !allowUnsafe {
		if err := checkSafe(cfg, kctx); err != nil {
			return nil, fmt.Errorf("read kubeconfig %s: context %q: %w", path, contextName, err)
		}
	}
	out, err := clientcmd.NewNonInteractiveClientConfig(*cfg, contextName, &clientcmd.ConfigOverrides{}, nil).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig %s: context %q: %w", path, contextName, err)
	}
	return out, nil
}

// checkSafe looks at the parts the context uses; others are never read.
func checkSafe(cfg *clientcmdapi.Config, kctx *clientcmdapi.Context) error {
	c, u := cfg.Clusters[kctx.Cluster], cfg.AuthInfos[kctx.AuthInfo]
	if c == nil || u == nil {
		return errors.New("its cluster or user is missing")
	}
	for _, bad := range []struct {
		is   bool
		what string
	}{
		{u.Exec != nil, "user.exec runs a program"},
		{u.AuthProvider != nil, "user.auth-provider runs a plugin"},
		{u.TokenFile != "", "user.tokenFile reads a file"},
		{u.ClientCertificate != "", "user.client-certificate reads a file; use client-certificate-data"},
		{u.ClientKey != "", "user.client-key reads a file; use client-key-data"},
		{c.CertificateAuthority != "", "cluster.certificate-authority reads a file; use certificate-authority-data"},
		{c.InsecureSkipTLSVerify, "cluster.insecure-skip-tls-verify trusts anyone"},
		{c.ProxyURL != "", "cluster.proxy-url sends credentials elsewhere"},
	} {
		if bad.is {
			return fmt.Errorf("%w: %s", ErrUnsafeKubeconfig, bad.what)
		}
	}
	return nil
}

// InCluster returns how a pod reaches the cluster that it runs on.
func InCluster() (*rest.Config, error) {
	config, err := rest.InClusterConfig()
	if err != nil {
		return nil, fmt.Errorf("no kubeconfig is set, and this is no pod: %w", err)
	}
	return config, nil
}
