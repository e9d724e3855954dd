package cluster

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
)

const masters = "system:masters" // the group that may do everything

// issueAll writes every certificate and kubeconfig that the components need.
func issueAll(pki *authority, node string) error {
	apiHosts := []string{"127.0.0.1", nodeIP, "10.96.0.1", "localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"}
	errs := []error{
		pki.serviceAccountKeys(),
		pki.issueFiles("apiserver", subject{name: "kube-apiserver", hosts: apiHosts}),
		pki.issueFiles("apiserver-kubelet-client", subject{name: "kube-apiserver-kubelet-client", groups: []string{masters}}),
		pki.issueFiles("kubelet", subject{name: node, hosts: []string{node, nodeIP, "127.0.0.1"}}),
	}
	for file, user := range map[string]subject{
		"controller-manager": {name: "system:kube-controller-manager"},
		"scheduler":          {name: "system:kube-scheduler"},
		"kubelet":            {name: "system:node:" + node, groups: []string{"system:nodes"}},
	} {
		_, err := pki.kubeconfig(file, apiAddress, user)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// start starts one component with the further arguments of the configuration.
func (c *Cluster) start(ctx context.Context, name string, args ...string) error {
	argv := slices.Concat([]string{name}, args, c.cfg.Flags[name])
	// Components end with the namespaces, not with the context of Start.
	_, err := c.Spawn(name, c.Command(context.WithoutCancel(ctx), argv...))
	return err
}

func (c *Cluster) startStorage(ctx context.Context) error {
	errs := []error{
		c.start(ctx, "etcd", "--data-dir="+c.path("etcd"),
			"--listen-client-urls=http://"+etcdAddress, "--advertise-client-urls=http://"+etcdAddress,
			"--listen-peer-urls=http://"+etcdPeer, "--log-level=warn",
			"--unsafe-no-fsync"), // the data need not survive the machine
		c.start(ctx, "containerd", "--config="+c.path("containerd.toml")),
	}
	if c.cfg.Registry {
		errs = append(errs, c.start(ctx, "registry", "serve", c.path("registry.yml")))
	}
	return errors.Join(errs...)
}

func (c *Cluster) startAPIServer(ctx context.Context) error {
	return c.start(ctx, "kube-apiserver",
		"--etcd-servers=http://"+etcdAddress, "--secure-port=6443", "--bind-address=0.0.0.0", "--advertise-address="+nodeIP,
		"--service-cluster-ip-range="+serviceRange, "--authorization-mode=Node,RBAC",
		"--client-ca-file="+c.pki.path("ca.crt"),
		"--tls-cert-file="+c.pki.path("apiserver.crt"), "--tls-private-key-file="+c.pki.path("apiserver.key"),
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file="+c.pki.path("sa.pub"), "--service-account-signing-key-file="+c.pki.path("sa.key"),
		"--kubelet-client-certificate="+c.pki.path("apiserver-kubelet-client.crt"),
		"--kubelet-client-key="+c.pki.path("apiserver-kubelet-client.key"),
		"--kubelet-certificate-authority="+c.pki.path("ca.crt"), "--kubelet-preferred-address-types=InternalIP",
		"--allow-privileged=true", "--enable-admission-plugins=NodeRestriction", "--profiling=false",
		// Without these the other components keep complaining that they
		// cannot authenticate a front proxy.
		"--requestheader-client-ca-file="+c.pki.path("ca.crt"), "--requestheader-allowed-names=front-proxy-client",
		"--requestheader-username-headers=X-Remote-User", "--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-")
}

// startControllers starts what exits when the API server is not ready.
func (c *Cluster) startControllers(ctx context.Context) error {
	controllers, scheduler := c.pki.path("controller-manager.kubeconfig"), c.pki.path("scheduler.kubeconfig")
	return errors.Join(
		c.start(ctx, "kube-controller-manager", "--kubeconfig="+controllers,
			"--authentication-kubeconfig="+controllers, "--authorization-kubeconfig="+controllers,
			"--use-service-account-credentials", "--leader-elect=false",
			"--service-account-private-key-file="+c.pki.path("sa.key"), "--root-ca-file="+c.pki.path("ca.crt"),
			"--cluster-signing-cert-file="+c.pki.path("ca.crt"), "--cluster-signing-key-file="+c.pki.path("ca.key"),
			// The default limits delay the first service account by seconds.
			"--kube-api-qps=500", "--kube-api-burst=1000"),
		c.start(ctx, "kube-scheduler", "--config="+c.path("scheduler.yaml"),
			"--authentication-kubeconfig="+scheduler, "--authorization-kubeconfig="+scheduler),
		c.start(ctx, "kubelet", "--config="+c.path("kubelet.yaml"), "--kubeconfig="+c.pki.path("kubelet.kubeconfig"),
			"--hostname-override="+c.cfg.Node, "--node-ip="+nodeIP, "--root-dir=/var/lib/kubelet"),
	)
}

// importImages imports archives into containerd once it answers.
func (c *Cluster) importImages(ctx context.Context) error {
	if err := c.poll(ctx, "containerd", func(ctx context.Context) error {
		_, err := c.Exec(ctx, "ctr", "--address="+ContainerdSocket, "version")
		return err
	}); err != nil {
		return err
	}
	archives, err := writeImages(c.dir)
	if err != nil {
		return err
	}
	for _, archive := range append(archives, c.cfg.Images...) {
		path, err := filepath.Abs(archive)
		if err != nil {
			return fmt.Errorf("import image: %w", err)
		}
		if err := c.ImportImage(ctx, path); err != nil {
			return err
		}
	}
	return nil
}
