package seal_test

import (
	"bytes"
	"encoding/base64"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/firstlight-dev/firstlight/launcher/seal"
)

func create(t *testing.T) (path string, keys *seal.Keys) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "key")
	if err := seal.Create(path); err != nil {
		t.Fatal(err)
	}
	keys, err := seal.Read(path)
	if err != nil {
		t.Fatal(err)
	}
	return path, keys
}

func TestSeal(t *testing.T) {
	_, keys := create(t)
	_, others := create(t)
	plain := []byte("canary")
	sealed := keys.Seal(plain, "here")
	if bytes.Contains(sealed, plain) || bytes.Equal(sealed, keys.Seal(plain, "here")) {
		t.Error("it is not sealed, or twice with one nonce")
	}
	if got, err := keys.Open(keys.ID(), sealed, "here"); err != nil || !bytes.Equal(got, plain) {
		t.Errorf("got %q: %v", got, err)
	}
	if _, err := keys.Open(keys.ID(), sealed, "there"); !errors.Is(err, seal.ErrChanged) {
		t.Errorf("elsewhere: %v", err)
	}
	if _, err := others.Open(keys.ID(), sealed, "here"); !errors.Is(err, seal.ErrNoKey) {
		t.Errorf("without its key: %v", err)
	}
	for i := range sealed {
		sealed[i] ^= 1
		if _, err := keys.Open(keys.ID(), sealed, "here"); !errors.Is(err, seal.ErrChanged) {
			t.Errorf("with byte %d changed: %v", i, err)
		}
		sealed[i] ^= 1
		if _, err := keys.Open(keys.ID(), sealed[:i], "here"); !errors.Is(err, seal.ErrChanged) {
			t.Errorf("cut to %d bytes: %v", i, err)
		}
	}
}

// TestRotate puts a new key on top of the old one.
func TestRotate(t *testing.T) {
	path, old := create(t)
	sealed := old.Seal([]byte("canary"), "here")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	added := base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{7}, 32))
	if err := os.WriteFile(path, append([]byte(added+"\n"), text...), 0o600); err != nil {
		t.Fatal(err)
	}
	both, err := seal.Read(path)
	if err != nil {
		t.Fatal(err)
	}
	if both.ID() == old.ID() || !both.Has(both.ID()) || !both.Has(old.ID()) || old.Has(both.ID()) {
		t.Errorf("keys are %s and %s", both.ID(), old.ID())
	}
	if got, err := both.Open(old.ID(), sealed, "here"); err != nil || string(got) != "canary" {
		t.Errorf("got %q: %v", got, err)
	}
}

func TestBadKeyFiles(t *testing.T) {
	good := base64.StdEncoding.EncodeToString(make([]byte, 32))
	for name, c := range map[string]struct {
		text string
		mode fs.FileMode
		want string
	}{
		"empty":         {"", 0o600, "no key"},
		"only comments": {"# key\n\n", 0o600, "no key"},
		"short":         {good + "\n" + good[4:] + "\n", 0o600, "line 2 is not 32 bytes"},
		"not base64":    {"#\ncanary\n", 0o600, "line 2 is not 32 bytes"},
		"readable":      {good, 0o640, "chmod 600"},
		"huge":          {strings.Repeat("#\n", 40000), 0o600, "larger than"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "key")
			if err := os.WriteFile(path, []byte(c.text), c.mode); err != nil {
				t.Fatal(err)
			}
			_, err := seal.Read(path)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("want %q: %v", c.want, err)
			}
			if strings.Contains(err.Error(), "canary") {
				t.Errorf("it shows the file: %v", err)
			}
		})
	}
	if _, err := seal.Read(filepath.Join(t.TempDir(), "key")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing file: %v", err)
	}
	path, _ := create(t)
	if err := seal.Create(path); !errors.Is(err, fs.ErrExist) {
		t.Errorf("created twice: %v", err)
	}
}
