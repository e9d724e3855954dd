package store_test

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/firstlight-dev/firstlight/launcher/seal"
	"github.com/firstlight-dev/firstlight/launcher/store"
)

func TestSecretsDoNotPrint(t *testing.T) {
	s := store.Secrets{HostKey: "canary", LoginKey: "canary", StatusToken: "canary"}
	for _, text := range []string{fmt.Sprint(s), fmt.Sprintf("%+v", s), fmt.Sprintf("%#v", s), fmt.Sprintf("%v", &s)} {
		if strings.Contains(text, "canary") {
			t.Errorf("secrets print as %s", text)
		}
	}
}

// TestSecretsAreSealed looks for secrets in every file the store has written.
func TestSecretsAreSealed(t *testing.T) {
	s, path := open(t)
	secrets := store.Secrets{HostKey: "canary-host", LoginKey: "canary-login", StatusToken: "canary-token"}
	if err := s.CreateEnvironment(t.Context(), environment("env-1", "a"), secrets); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(path + "*")
	if err != nil || len(files) < 2 {
		t.Fatalf("files are %v: %v", files, err)
	}
	written := false
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		written = written || bytes.Contains(text, []byte("env-1"))
		if bytes.Contains(text, []byte("canary")) {
			t.Errorf("%s shows secrets", file)
		}
	}
	if !written {
		t.Error("no file has the environment")
	}
}

// TestSecretsStayInPlace moves one environment's sealed secrets to another.
func TestSecretsStayInPlace(t *testing.T) {
	s, path := open(t)
	for _, id := range []string{"env-1", "env-2"} {
		if err := s.CreateEnvironment(t.Context(), environment(id, id), store.Secrets{StatusToken: id}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := raw(t, path).ExecContext(t.Context(),
		`UPDATE environments SET secrets = (SELECT secrets FROM environments WHERE id = 'env-1') WHERE id = 'env-2'`); err != nil {
		t.Fatal(err)
	}
	if got, err := s.Secrets(t.Context(), "env-1"); err != nil || got.StatusToken != "env-1" {
		t.Errorf("env-1 has other secrets: %v", err)
	}
	if _, err := s.Secrets(t.Context(), "env-2"); err == nil || !strings.Contains(err.Error(), "changed") {
		t.Errorf("env-2 has env-1's secrets: %v", err)
	}
}

// TestKeys opens one database with a key file that was lost, replaced, and
// given a new first key.
func TestKeys(t *testing.T) {
	dir := t.TempDir()
	path, first, second := filepath.Join(dir, "launcher.db"), filepath.Join(dir, "first"), filepath.Join(dir, "second")
	use := func(keyFile string, do func(s *store.Store) error) error {
		s, err := store.Open(t.Context(), path, keyFile)
		if err != nil {
			return err
		}
		if err := do(s); err != nil {
			t.Error(err)
		}
		return s.Close()
	}
	secrets := store.Secrets{StatusToken: "t"}
	check := func(s *store.Store) error {
		got, err := s.Secrets(t.Context(), "env-1")
		if err == nil && got != secrets {
			err = fmt.Errorf("the secrets are others")
		}
		return err
	}
	if err := use(first, func(s *store.Store) error {
		return s.CreateEnvironment(t.Context(), environment("env-1", "a"), secrets)
	}); err != nil {
		t.Fatal(err)
	}

	if err := use(second, check); err == nil || !strings.Contains(err.Error(), second+" is missing") {
		t.Errorf("with its key file lost: %v", err)
	}
	if _, err := os.Stat(second); err == nil {
		t.Error("a key was made that opens nothing")
	}
	if err := seal.Create(second); err != nil {
		t.Fatal(err)
	}
	if err := use(second, check); err == nil || !strings.Contains(err.Error(), "not in "+second) {
		t.Errorf("with another key: %v", err)
	}

	old, err := os.ReadFile(first)
	if err != nil {
		t.Fatal(err)
	}
	added := base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{7}, 32)) + "\n"
	for _, text := range []string{added + string(old), added} {
		if err := os.WriteFile(first, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := use(first, check); err != nil {
			t.Errorf("with a new key on top, and then alone: %v", err)
		}
	}
}
