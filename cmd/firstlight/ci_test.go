package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/firstlight-dev/firstlight/indexer/batch"
)

// asProgram makes the test binary the program, for scripts that call it.
const asProgram = "FIRSTLIGHT_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

const examples = "../../deploy/ci"

// document reads an example, in which a key may not be there twice.
func document(t *testing.T, file string) (doc map[string]any) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(examples, file))
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.UnmarshalStrict(text, &doc); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	return doc
}

// at follows keys and list numbers into a document.
func at(t *testing.T, doc any, path ...any) any {
	t.Helper()
	for i, step := range path {
		switch key := step.(type) {
		case string:
			m, _ := doc.(map[string]any)
			doc = m[key]
		case int:
			l, _ := doc.([]any)
			if key >= len(l) {
				t.Fatalf("there is no %v", path[:i+1])
			}
			doc = l[key]
		}
		if doc == nil {
			t.Fatalf("there is no %v", path[:i+1])
		}
	}
	return doc
}

func lines(t *testing.T, list any) string {
	t.Helper()
	all, ok := list.([]any)
	if !ok {
		t.Fatalf("%v is no list of commands", list)
	}
	var b strings.Builder
	for _, line := range all {
		b.WriteString(line.(string) + "\n")
	}
	return b.String()
}

// TestContinuousIntegration runs the index step of every example in deploy/ci
// with this program, on an image in a registry.
func TestContinuousIntegration(t *testing.T) {
	gitlab := document(t, "gitlab-ci.yml")
	argo := at(t, document(t, "argo-workflow.yaml"), "spec", "templates", 0, "script")
	tekton := at(t, document(t, "tekton-task.yaml"), "spec", "steps", 0)
	github, _ := at(t, document(t, "github-actions.yml"), "jobs", "image", "steps").([]any)
	slices.Reverse(github) // the last two are ours
	for name, script := range map[string]string{
		"GitHub":     at(t, github[1], "run").(string) + "\n" + at(t, github[0], "run").(string),
		"GitLab":     lines(t, at(t, gitlab, "index", "before_script")) + lines(t, at(t, gitlab, "index", "script")),
		"Tekton":     at(t, tekton, "script").(string),
		"Argo":       at(t, argo, "source").(string),
		"a Makefile": `make -s -f "$EXAMPLES/Makefile" index IMAGE="$IMAGE"`,
	} {
		t.Run(name, func(t *testing.T) {
			good, bad := startRegistry(t)+"/app@", startRegistry(t)+"/app:1"
			img := testImage(t, "amd64", tarGzip(t, strings.Repeat("text", 1000), false))
			digest, err := img.Digest()
			if err != nil {
				t.Fatal(err)
			}
			good += digest.String()
			push(t, good, img)
			push(t, bad, testImage(t, "amd64", tarGzip(t, "", true)))
			env := newStepEnvironment(t)
			if out, err := env.run(t, script, good); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			mustIndex(t, "ls", "--check", good)
			if report := env.read(t, "report"); report != "" {
				var r struct{ Images []batch.Image }
				if err := json.Unmarshal([]byte(report), &r); err != nil || len(r.Images) != 1 {
					t.Errorf("the report is %s: %v", report, err)
				}
			}
			if out, err := env.run(t, script, bad); err == nil || !strings.Contains(out, "no layer can be indexed") && !strings.Contains(out, "has no index") {
				t.Errorf("an image that would not start lazily: %v: %s", err, out)
			}
		})
	}
}

// stepEnvironment is what a step finds: this program, once it has installed it,
// and a home.
type stepEnvironment struct{ dir string }

func newStepEnvironment(t *testing.T) stepEnvironment {
	t.Helper()
	e := stepEnvironment{t.TempDir()}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	// In place of a download: it knows one package, and puts this program there.
	install := "#!/bin/sh\n[ \"$*\" = 'install github.com/firstlight-dev/firstlight/cmd/firstlight@main' ] && ln -sf " + self + " " + e.dir + "/firstlight\n"
	if err := os.WriteFile(filepath.Join(e.dir, "go"), []byte(install), 0o755); err != nil {
		t.Fatal(err)
	}
	return e
}

func (e stepEnvironment) run(t *testing.T, script, image string) (string, error) {
	t.Helper()
	if !strings.Contains(script, "go install") { // make, where it is installed already
		script = "go install github.com/firstlight-dev/firstlight/cmd/firstlight@main\n" + script
	}
	folder, err := filepath.Abs(examples)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "sh", "-euc", script)
	cmd.Env = []string{
		"PATH=" + e.dir + ":/usr/bin:/bin", "HOME=" + e.dir, asProgram + "=1", "EXAMPLES=" + folder, "IMAGE=" + image,
		"REPORT=" + filepath.Join(e.dir, "report"), "CI_REGISTRY=registry.example.com", "CI_REGISTRY_USER=u", "CI_REGISTRY_PASSWORD=p",
	}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (e stepEnvironment) read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(e.dir, name))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return string(text)
}
