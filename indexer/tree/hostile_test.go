package tree_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/firstlight-dev/firstlight/indexer/index"
	"github.com/firstlight-dev/firstlight/indexer/tree"
)

// A few kilobytes of header can name two thousand directories: their number is bounded, or a layer of
// some megabytes takes all memory of whoever builds its tree.
func TestImpliedDirectoriesAreBounded(t *testing.T) {
	b := tree.NewBuilder()
	for i := range 200 {
		h := reg(fmt.Sprintf("%d/%sf", i, strings.Repeat("d/", 1900)), "")
		if err := b.Add(index.Entry{Header: &h}); errors.Is(err, index.ErrUnsupported) {
			if i < 100 {
				t.Errorf("refused after %d entries: %v", i, err)
			}
			return
		} else if err != nil {
			t.Fatal(err)
		}
	}
	t.Error("380,000 directories of 200 entries")
}

// The attributes of one file, set over and over, count as look-ups do.
func TestManyXattrsAreBounded(t *testing.T) {
	b := tree.NewBuilder()
	kv := make([]string, 0, 20_000)
	for i := range 10_000 {
		kv = append(kv, fmt.Sprintf("user.%d", i), "")
	}
	for range 10 {
		h := xattr(dir("d"), kv...)
		if err := b.Add(index.Entry{Header: &h}); err != nil {
			if !errors.Is(err, index.ErrUnsupported) {
				t.Error(err)
			}
			return
		}
	}
	t.Error("ten entries with 10,000 attributes each")
}

// A tree keeps names, not the header records that they were cut from.
func TestTreeDoesNotKeepHeaders(t *testing.T) {
	const entries, record = 64, 1<<20 - 1<<10
	var stream bytes.Buffer
	w := tar.NewWriter(&stream)
	for i := range entries {
		h := dir(fmt.Sprintf("ä%d", i)) // a name that needs a record
		if i%2 > 0 {
			h = sym(fmt.Sprintf("ä%d", i), fmt.Sprintf("ö%d", i))
		}
		h.PAXRecords = map[string]string{"comment": strings.Repeat("c", record), "SCHILY.xattr.user.ä": "v"}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	b, r := tree.NewBuilder(), tar.NewReader(bytes.NewReader(stream.Bytes()))
	for range entries {
		h, err := r.Next()
		if err != nil {
			t.Fatal(err)
		}
		if err := b.Add(index.Entry{Header: h}); err != nil {
			t.Fatal(err)
		}
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > entries*record/8 {
		t.Errorf("%d entries keep %d MiB", entries, grown>>20)
	}
	if _, err := b.Finish(); err != nil {
		t.Fatal(err)
	}
	runtime.KeepAlive(&stream)
}
