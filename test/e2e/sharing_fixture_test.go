package e2e

import (
	"context"
	_ "embed"
	"encoding/base64"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
)

// sharingRoles is what the sharing programs may do in the cluster.
//
//go:embed testdata/sharing.yaml
var sharingRoles string

// webhookForm registers the pod webhook: its certificate authority goes in.
const webhookForm = `
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingWebhookConfiguration
metadata: {name: vgpu.firstlight.dev}
webhooks:
- name: vgpu.firstlight.dev
  admissionReviewVersions: [v1]
  sideEffects: None
  failurePolicy: Fail
  timeoutSeconds: 10
  clientConfig: {url: "https://` + webhookListen + `/webhook", caBundle: %s}
  rules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods]}]
  namespaceSelector: {matchExpressions: [{key: hami.io/webhook, operator: NotIn, values: [ignore]}]}
  objectSelector: {matchExpressions: [{key: hami.io/webhook, operator: NotIn, values: [ignore]}]}
`

var sharingOnce = sync.OnceValue(func() error { return sharedFixture.f.startSharing(context.Background()) })

// sharing returns the shared cluster with card sharing: two simulated
// A100-40GB, the device plugin, the scheduler and its webhook, each running
// with its own identity and no more rights than it needs.
func sharing(t *testing.T) *fixture {
	t.Helper()
	f := shared(t)
	if err := sharingOnce(); err != nil {
		t.Fatal(err)
	}
	return f
}

func (f *fixture) startSharing(ctx context.Context) error {
	if err := f.Apply(ctx, sharingRoles); err != nil {
		return err
	}
	if err := f.startScheduler(ctx); err != nil {
		return err
	}
	if err := f.startDevicePlugin(ctx); err != nil {
		return err
	}
	return f.Apply(ctx, fmt.Sprintf(webhookForm, base64.StdEncoding.EncodeToString(f.CA())))
}

func (f *fixture) startScheduler(ctx context.Context) error {
	kubeconfig, err := f.Kubeconfig("firstlight-scheduler")
	if err != nil {
		return err
	}
	cert, key, err := f.ServerCertificate("webhook", "127.0.0.1")
	if err != nil {
		return err
	}
	p, err := f.spawn(ctx, "firstlight-scheduler", "--kubeconfig="+kubeconfig.Inside, "--scheduler-name="+schedulerName,
		"--listen="+extenderListen, "--webhook-listen="+webhookListen, "--tls-cert="+cert, "--tls-key="+key)
	if err != nil {
		return err
	}
	if err := f.waitListening(ctx, p, "tcp", extenderListen); err != nil {
		return err
	}
	return f.waitListening(ctx, p, "tcp", webhookListen)
}

// startDevicePlugin starts the device plugin and waits until kubelet has
// taken its devices into the node's status.
func (f *fixture) startDevicePlugin(ctx context.Context) error {
	kubeconfig, err := f.Kubeconfig("firstlight-device-plugin")
	if err != nil {
		return err
	}
	cards, err := filepath.Abs("testdata/cards.yaml")
	if err != nil {
		return err
	}
	if _, err := f.spawn(ctx, "firstlight-device-plugin",
		"--kubeconfig="+kubeconfig.Inside, "--node-name="+f.Node(), "--simulate="+cards); err != nil {
		return err
	}
	_, err = f.Kubectl(ctx, "wait", "node/"+f.Node(), "--for=jsonpath={.status.allocatable.nvidia\\.com/gpu}=20", "--timeout=60s")
	return err
}
