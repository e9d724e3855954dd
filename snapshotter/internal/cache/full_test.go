package cache

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

func run(t *testing.T, argv ...string) {
	t.Helper()
	if out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", argv, err, out)
	}
}

// fill leaves a file system neither a byte nor an inode.
func fill(t *testing.T, dir string) {
	t.Helper()
	f, err := os.Create(filepath.Join(dir, "filler"))
	if isFull(err) {
		return
	}
	must(t, err)
	for b := make([]byte, 1<<20); len(b) > 0; {
		if _, err := f.Write(b); err != nil {
			b = b[:len(b)/2]
		}
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil && !isFull(err) {
		t.Fatal(err)
	}
	for i := range 1 << 20 {
		f, err := os.Create(filepath.Join(dir, fmt.Sprint("inode", i)))
		if err != nil {
			return
		}
		must(t, f.Close())
	}
}
