package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/firstlight-dev/firstlight/launcher/api"
	"github.com/firstlight-dev/firstlight/launcher/store"
	"github.com/firstlight-dev/firstlight/test/cluster"
)

const (
	releaseImage = "ghcr.io/firstlight-dev/firstlight:latest"
	// launcherPort is beside that of the launcher which is a process.
	launcherPort = "7071"
	launcherHome = "/var/lib/firstlight-launcher"
	token        = "0123456789abcdef0123456789abcdef"
)

// importRelease packs our programs into the image that the manifests name.
func importRelease(t *testing.T, f *fixture) {
	t.Helper()
	archive := filepath.Join(t.TempDir(), "image.tar")
	pack := exec.CommandContext(t.Context(), "go", "run", "../../deploy/image", "--bin", f.bin, "--archive", archive, "--tag", releaseImage)
	if out, err := pack.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := f.ImportImage(t.Context(), archive); err != nil {
		t.Fatal(err)
	}
}

// launcherManifests are those of deploy/launcher, for a cluster whose pods reach
// the API server, and are reached, only by the node's own network.
func launcherManifests(t *testing.T, f *fixture) string {
	t.Helper()
	text, err := os.ReadFile("../../deploy/launcher/launcher.yaml")
	if err != nil {
		t.Fatal(err)
	}
	inside, err := clientcmd.LoadFromFile(f.Root(f.Admin().Inside))
	if err != nil {
		t.Fatal(err)
	}
	server := inside.Clusters[inside.Contexts[inside.CurrentContext].Cluster].Server
	host, port, ok := strings.Cut(strings.TrimPrefix(server, "https://"), ":")
	if !ok {
		t.Fatalf("the API server is at %s", server)
	}
	for _, change := range [][2]string{
		{"7070", launcherPort},
		{"    spec:\n      serviceAccountName:", "    spec:\n      hostNetwork: true\n      serviceAccountName:"},
		{"        command: [firstlight-launcher,", fmt.Sprintf("        env: [{name: KUBERNETES_SERVICE_HOST, value: %q}, {name: KUBERNETES_SERVICE_PORT, value: %q}]\n        command: [firstlight-launcher,", host, port)},
		{"    tokenFile:", fmt.Sprintf("    plainHTTP: [%q]\n    tokenFile:", cluster.RegistryAddress)},
		{"enforce: baseline", "enforce: privileged"}, // for the host's network
	} {
		changed := strings.ReplaceAll(string(text), change[0], change[1])
		if changed == string(text) {
			t.Fatalf("the manifests have no %q", change[0])
		}
		text = []byte(changed)
	}
	return string(text) + fmt.Sprintf(`---
apiVersion: v1
kind: PersistentVolume
metadata: {name: launcher}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteOnce]
  persistentVolumeReclaimPolicy: Retain
  hostPath: {path: %s, type: DirectoryOrCreate}
---
apiVersion: v1
kind: Secret
metadata: {name: firstlight-launcher-tokens, namespace: firstlight-launcher}
stringData: {tokens: %q}
`, launcherHome, token)
}

// TestLauncherManifests deploys the launcher as its manifests say, from the
// image that deploy/image packs, and starts an environment with the tools that
// are in the same image.
func TestLauncherManifests(t *testing.T) {
	f := sharing(t)
	importRelease(t, f)
	f.apply(t, launcherManifests(t, f))
	f.kubectl(t, "rollout", "status", "-n", "firstlight-launcher", "deployment/firstlight-launcher", "--timeout=90s")
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(f.Kubectl(context.Background(), "logs", "-n", "firstlight-launcher", "deployment/firstlight-launcher"))
		}
	})

	u := newUser(t, f)
	u.server, u.token = "http://127.0.0.1:"+launcherPort, token
	image := newDataImage(t, 22)
	ref := image.push(t, f, "manifests")
	t.Cleanup(func() { u.clean("deployed") })
	u.run("env", "create", "deployed", "--file", u.spec("deployed", ref, 1024, 10), "--wait", "--timeout", "90s")
	if e := ask[api.Environment](u, "env", "get", "deployed"); e.Status.Phase != store.PhaseUsable || e.Cluster != "here" {
		t.Errorf("environment is %+v", e.Status)
	}
	if got := u.run("env", "ssh", "deployed", "--", "echo $CUDA_DEVICE_MEMORY_LIMIT_0"); strings.TrimSpace(got) != "1024m" {
		t.Errorf("a session has the limit %q", got)
	}
	u.run("env", "rm", "deployed")
	u.token = strings.Repeat("0", 32)
	if _, err := u.try("env", "ls"); err == nil || !strings.Contains(err.Error(), "token") {
		t.Errorf("with another token: %v", err)
	}
}
