package main

import (
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// startRegistry returns its host and port.
func startRegistry(t *testing.T, opts ...registry.Option) string {
	t.Helper()
	s := httptest.NewServer(registry.New(append(opts, registry.Logger(slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo)))...))
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://")
}

func push(t *testing.T, ref string, img v1.Image) {
	t.Helper()
	tag, err := name.ParseReference(ref)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(tag, img); err != nil {
		t.Fatal(err)
	}
}

// TestIndexCopy copies an image between registries, with and without a
// Referrers API, and out of a layout folder, and its indexes after it.
func TestIndexCopy(t *testing.T) {
	img := testImage(t, "amd64", tarGzip(t, strings.Repeat("text", 1000), false), tarGzip(t, "", true))
	dir := t.TempDir()
	p, err := layout.Write(dir, empty.Index)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.AppendImage(img); err != nil {
		t.Fatal(err)
	}
	from := startRegistry(t) + "/build/image:1"
	push(t, from, img)
	made := mustIndex(t, "create", from)
	mustIndex(t, "create", "oci:"+dir)

	for title, source := range map[string]string{"from a registry": from, "from a layout": "oci:" + dir} {
		for where, host := range map[string]string{"fallback tag": startRegistry(t), "referrers API": startRegistry(t, registry.WithReferrersSupport(true))} {
			t.Run(title+" to one with "+where, func(t *testing.T) {
				to := host + "/prod/image:stable"
				if _, code, err := runIndex(t, "copy", source, to); code != exitNotFound {
					t.Errorf("before its image: code %d, %v", code, err)
				}
				push(t, to, img)
				for range 2 { // the second one has nothing to do
					copied := mustIndex(t, "copy", source, to)
					if len(copied) != 1 || copied[0].Artifact != made[0].Artifact || len(copied[0].Removed) > 0 || copied[0].Layers[1].Refused == "" {
						t.Errorf("copied %+v", copied)
					}
				}
				if ok := mustIndex(t, "verify", to); ok[0].Layers[0].Problem != "" || ok[0].Layers[0].Chunks == 0 {
					t.Errorf("verified %+v", ok)
				}
				if _, code, err := runIndex(t, "copy", "--check", source, to); code != exitFallback || !strings.Contains(err.Error(), "1 layer has no index") {
					t.Errorf("with --check: code %d, %v", code, err)
				}
			})
		}
	}

	other := startRegistry(t) + "/other/image:1"
	push(t, other, testImage(t, "amd64", tarGzip(t, "other", false)))
	if _, code, err := runIndex(t, "copy", from, other); code != exitNotFound {
		t.Errorf("to another image: code %d, %v", code, err)
	}
	if _, code, err := runIndex(t, "copy", from); code != exitUsage {
		t.Errorf("to nowhere: code %d, %v", code, err)
	}
}

// TestCheck fails a build whose image would not start lazily.
func TestCheck(t *testing.T) {
	host := startRegistry(t)
	good := tarGzip(t, strings.Repeat("text", 1000), false)
	push(t, host+"/good", testImage(t, "amd64", good))
	push(t, host+"/mixed", testImage(t, "amd64", good, tarGzip(t, "", true)))
	push(t, host+"/bad", testImage(t, "amd64", tarGzip(t, "", true)))
	for image, want := range map[string]int{"/good": 0, "/mixed": exitFallback, "/bad": exitFallback} {
		for _, verb := range []string{"create", "ls"} {
			if image == "/bad" && verb == "ls" {
				continue // has nothing to list
			}
			out, code, err := runIndex(t, verb, "--check", host+image)
			if code != want || !strings.Contains(out, "start lazily") {
				t.Errorf("%s %s: code %d, %v: %s", verb, image, code, err, out)
			}
		}
	}
}
