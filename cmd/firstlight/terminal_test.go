package main

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/firstlight-dev/firstlight/indexer/batch"
)

const escape = "\x1b]0;owned\a\x1b[2J"

// What an image or a registry says reaches the terminal without what would steer it, and JSON as it is.
func TestOutputCannotSteerTheTerminal(t *testing.T) {
	dir := t.TempDir()
	p, err := layout.Write(dir, mutate.IndexMediaType(empty.Index, types.OCIImageIndex))
	if err != nil {
		t.Fatal(err)
	}
	img := testImage(t, "amd64", tarGzip(t, "text", false))
	if err := p.AppendImage(img, layout.WithPlatform(v1.Platform{OS: "linux" + escape, Architecture: "amd64"})); err != nil {
		t.Fatal(err)
	}
	out, _, err := runIndex(t, "create", "oci:"+dir)
	if err != nil || strings.ContainsAny(out, "\x1b\a") || !strings.Contains(out, "linux") {
		t.Errorf("%v, %q", err, out)
	}
	if got := mustIndex(t, "ls", "oci:"+dir); len(got) != 1 || got[0].Platform != "linux"+escape+"/amd64" {
		t.Errorf("JSON: %+v", got)
	}
	var b bytes.Buffer
	f := indexFlags{output: "text"}
	err = f.print(&b, []batch.Image{{Warnings: []string{escape}, Layers: []batch.Layer{{Problem: escape}, {Refused: escape}}}}, indexRow)
	if err != nil || strings.ContainsAny(b.String(), "\x1b\a") {
		t.Errorf("%v, %q", err, b.String())
	}
	b.Reset()
	complain(&b, errors.Join(errors.New("one "+escape), errors.New("two")))
	if got, want := b.String(), "firstlight: one  ]0;owned  [2J\ntwo\n"; got != want {
		t.Errorf("error is %q, want %q", got, want)
	}
}
