package kube_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/firstlight-dev/firstlight/launcher/kube"
)

const canary = "canary-6f1e"

func kubeconfig(cluster, user string) string {
	return `
apiVersion: v1
kind: Config
current-context: a
contexts:
- {name: a, context: {cluster: c, user: u}}
- {name: other, context: {cluster: c, user: unsafe}}
clusters:
- {name: c, cluster: {server: "https://127.0.0.1:1", ` + cluster + `}}
users:
- {name: u, user: {` + user + `}}
- {name: unsafe, user: {tokenFile: /etc/passwd}}
`
}

func write(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestLoadKubeconfig(t *testing.T) {
	file := write(t, kubeconfig("tls-server-name: x", "token: "+canary))
	rc, err := kube.LoadKubeconfig(file, "", false)
	if err != nil {
		t.Fatal(err)
	}
	if rc.Host != "https://127.0.0.1:1" || rc.BearerToken != canary {
		t.Errorf("host is %s", rc.Host)
	}
	if _, err := kube.LoadKubeconfig(file, "nobody", false); err == nil || strings.Contains(err.Error(), canary) {
		t.Errorf("a context that does not exist: %v", err)
	}
}

// TestUnsafeKubeconfig checks that nothing in a kubeconfig runs a program,
// reads a file or trusts anyone.
func TestUnsafeKubeconfig(t *testing.T) {
	for name, tc := range map[string]struct{ cluster, user, context string }{
		"program":       {user: `exec: {apiVersion: client.authentication.k8s.io/v1, command: touch, args: [/tmp/x]}, token: ` + canary},
		"plugin":        {user: "auth-provider: {name: gcp}, token: " + canary},
		"token file":    {user: "tokenFile: /etc/passwd"},
		"certificate":   {user: "client-certificate: /etc/passwd, token: " + canary},
		"key":           {user: "client-key: /etc/passwd"},
		"authority":     {cluster: "certificate-authority: /etc/passwd"},
		"no checks":     {cluster: "insecure-skip-tls-verify: true", user: "token: " + canary},
		"proxy":         {cluster: "proxy-url: http://evil", user: "token: " + canary},
		"other context": {context: "other"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := kube.LoadKubeconfig(write(t, kubeconfig(tc.cluster, tc.user)), tc.context, false)
			if !errors.Is(err, kube.ErrUnsafeKubeconfig) {
				t.Fatalf("load: %v", err)
			}
			if strings.Contains(err.Error(), canary) {
				t.Errorf("the error quotes the kubeconfig: %v", err)
			}
		})
	}
}

func TestKubeconfigErrorsQuoteNothing(t *testing.T) {
	for name, text := range map[string]string{
		"not yaml":     "users: [" + canary,
		"not a config": "users: {token: " + canary + "}",
	} {
		t.Run(name, func(t *testing.T) {
			_, err := kube.LoadKubeconfig(write(t, text), "", false)
			if err == nil || strings.Contains(err.Error(), canary) {
				t.Errorf("load: %v", err)
			}
		})
	}
}
