package main

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// launcherAnswers is a launcher that knows nothing but what a test needs.
func launcherAnswers(t *testing.T) string {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/environments", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusAccepted)
		_, _ = io.WriteString(w, `{"id":"env-1","name":"a","status":{"phase":"Queued","acceptedAt":"2026-12-01T09:00:00Z"}}`)
	})
	mux.HandleFunc("GET /v1/environments/env-1/events", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "id: 1\nevent: note\ndata: {\"warning\":true,\"reason\":\"NoCard\",\"message\":\"bad \\u001b[31m\"}\n\n")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(http.StatusNotFound)
		_, _ = io.WriteString(w, `{"status":404,"code":"not_found","title":"Not Found","detail":"no such thing","errors":[{"location":"x","message":"y"}]}`)
	})
	srv := httptest.NewServer(mux)
	t.Cleanup(func() {
		srv.CloseClientConnections()
		srv.Close()
	})
	return srv.URL
}

func TestEnvExitCodes(t *testing.T) {
	url := launcherAnswers(t)
	dir := t.TempDir()
	t.Setenv("XDG_CONFIG_HOME", dir)
	good := filepath.Join(dir, "good.yaml")
	if err := os.WriteFile(good, []byte("name: s\nimage: img\ncpu: \"1\"\nmemory: 1Gi\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		args string
		code int
		text string
	}{
		"not found":        {"env get x", exitNotFound, "x: y"},
		"no explanation":   {"env explain x", exitNotFound, "no such thing"},
		"no spec":          {"spec get x", exitNotFound, "no such thing"},
		"unknown flag":     {"env ls --nope", exitUsage, "nope"},
		"unknown below":    {"env creat", exitUsage, `did you mean "create"`},
		"no name":          {"env create", exitUsage, "firstlight env create --help"},
		"unknown output":   {"env ls -o xml", exitUsage, "xml"},
		"wrong reference":  {"spec get x@0", exitUsage, "x@0"},
		"no file":          {"env create a --file /nonexistent", exitError, "/nonexistent"},
		"wait runs out":    {"env create a --file " + good + " --wait --timeout 300ms", exitTimeout, "NoCard"},
		"without a server": {"env ls --server http://127.0.0.1:1", exitError, "connection"},
	} {
		t.Run(name, func(t *testing.T) {
			args := strings.Fields(tc.args)
			if !strings.Contains(tc.args, "--server") {
				args = append(args, "--server", url)
			}
			root := newRootCommand()
			var out bytes.Buffer
			root.SetOut(&out)
			root.SetErr(&out)
			root.SetArgs(args)
			err := root.ExecuteContext(t.Context())
			if err == nil {
				t.Fatal("no error")
			}
			text := out.String() + err.Error()
			if got := exitCode(err); got != tc.code || !strings.Contains(text, tc.text) {
				t.Errorf("exit code %d, want %d: %s", got, tc.code, text)
			}
			if strings.ContainsRune(text, '\x1b') {
				t.Error("a message steers the terminal")
			}
		})
	}
}

func TestShellWords(t *testing.T) {
	for want, args := range map[string][]string{
		"":                    nil,
		"echo $HOME":          {"echo $HOME"},
		`'echo' 'it'\''s' ''`: {"echo", "it's", ""},
	} {
		if got := shellWords(args); got != want {
			t.Errorf("%q became %s, want %s", args, got, want)
		}
	}
}
