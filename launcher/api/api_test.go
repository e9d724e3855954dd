package api_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/firstlight-dev/firstlight/launcher/agentapi"
	"github.com/firstlight-dev/firstlight/launcher/api"
	"github.com/firstlight-dev/firstlight/launcher/client"
	"github.com/firstlight-dev/firstlight/launcher/cluster"
	"github.com/firstlight-dev/firstlight/launcher/cluster/clustertest"
	"github.com/firstlight-dev/firstlight/launcher/environment"
	"github.com/firstlight-dev/firstlight/launcher/spec"
	"github.com/firstlight-dev/firstlight/launcher/store"
	"github.com/firstlight-dev/firstlight/launcher/tunnel"
)

var update = flag.Bool("update", false, "write the golden files")

const token = "lnc_0123456789abcdef0123456789abcdef"

type resolver struct{}

func (resolver) Resolve(_ context.Context, ref string) (cluster.Image, error) {
	return cluster.Image{Reference: ref, Pinned: ref + "@sha256:1"}, nil
}

// fixture is a launcher behind HTTP.
type fixture struct {
	*client.Client
	url   string
	store *store.Store
	fake  *clustertest.Fake
	log   *syncBuffer
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func serve(t *testing.T, auth *api.Tokens) *fixture {
	t.Helper()
	st, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "launcher.db"), filepath.Join(t.TempDir(), "key"))
	if err != nil {
		t.Fatal(err)
	}
	f := &fixture{store: st, fake: clustertest.New("here"), log: &syncBuffer{}}
	log := slog.New(slog.NewTextHandler(f.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	m := environment.NewManager(t.Context(), st, []cluster.Cluster{f.fake}, resolver{}, log)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	srv := httptest.NewServer(api.NewServer(m, st, auth, "test", log).Handler())
	t.Cleanup(func() {
		srv.CloseClientConnections()
		srv.Close()
		cancel()
		if err := errors.Join(<-done, st.Close(), f.fake.Close()); err != nil {
			t.Error(err)
		}
	})
	f.url = srv.URL
	if f.Client, err = client.New(srv.URL, token); err != nil {
		t.Fatal(err)
	}
	return f
}

func withTokens(t *testing.T) *fixture {
	t.Helper()
	auth, err := api.NewTokens("lnc_ffffffffffffffffffffffffffffffff", token)
	if err != nil {
		t.Fatal(err)
	}
	return serve(t, auth)
}

func parsed(t *testing.T) *spec.Spec {
	t.Helper()
	s, err := spec.Parse([]byte("name: s\nimage: img:1\ncpu: \"1\"\nmemory: 1Gi\n"))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// send sends a request as given and returns status, headers and body.
func (f *fixture) send(t *testing.T, method, path, body string, header map[string]string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, f.url+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for k, v := range header {
		if req.Header.Set(k, v); k == "Host" {
			req.Host = v
		}
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res, string(text)
}

func code(t *testing.T, res *http.Response, body string) string {
	t.Helper()
	var p api.Problem
	if got := res.Header.Get("Content-Type"); got != "application/problem+json" {
		t.Errorf("content type is %q: %s", got, body)
	}
	if err := json.Unmarshal([]byte(body), &p); err != nil {
		t.Fatalf("%v: %s", err, body)
	}
	if p.Status != res.StatusCode || p.Type == "" || p.Title == "" {
		t.Errorf("problem with status %d is %+v", res.StatusCode, p)
	}
	return p.Code
}

func TestAuthentication(t *testing.T) {
	f := withTokens(t)
	for name, header := range map[string]string{
		"none": "", "wrong": "Bearer lnc_00000000000000000000000000000000", "basic": "Basic " + token, "empty": "Bearer ",
	} {
		t.Run(name, func(t *testing.T) {
			res, body := f.send(t, "GET", "/v1/environments", "", map[string]string{"Authorization": header})
			if res.StatusCode != http.StatusUnauthorized || code(t, res, body) != api.CodeUnauthenticated || res.Header.Get("WWW-Authenticate") == "" {
				t.Errorf("answer %d: %s", res.StatusCode, body)
			}
		})
	}
	for _, path := range []string{"/healthz", "/openapi.json", "/"} {
		if res, body := f.send(t, "GET", path, "", map[string]string{"Authorization": ""}); res.StatusCode >= 400 {
			t.Errorf("%s answers %d: %s", path, res.StatusCode, body)
		}
	}
	if res, body := f.send(t, "GET", "/v1/specs", "", nil); res.StatusCode != http.StatusOK {
		t.Errorf("a good token: %d %s", res.StatusCode, body)
	}
}

// TestPage checks that a browser gets the page without a token, that it loads
// nothing from elsewhere, and that everything it loads is there.
func TestPage(t *testing.T) {
	f := withTokens(t)
	res, body := f.send(t, "GET", "/", "", nil)
	if policy := res.Header.Get("Content-Security-Policy"); res.StatusCode != http.StatusOK || !strings.Contains(policy, "default-src 'none'") || strings.Contains(policy, "unsafe") {
		t.Errorf("answer %d with the policy %q", res.StatusCode, policy)
	}
	loads := regexp.MustCompile(`(?:src|href)="([^"]+)"`).FindAllStringSubmatch(body, -1)
	if len(loads) != 3 {
		t.Errorf("it loads %v", loads)
	}
	for _, load := range loads {
		if load[1] == "data:," {
			continue // no icon
		}
		if res, text := f.send(t, "GET", "/"+load[1], "", nil); res.StatusCode != http.StatusOK || text == "" || strings.Contains(text, "innerHTML =") {
			t.Errorf("%s: answer %d", load[1], res.StatusCode)
		}
	}
}

// TestBrowsersAreKeptOut checks that without tokens no page from elsewhere can
// use the API, not even by a name that points here.
func TestBrowsersAreKeptOut(t *testing.T) {
	f := serve(t, api.NoTokens())
	for name, tc := range map[string]struct {
		method string
		header map[string]string
		want   int
	}{
		"command line":        {"GET", nil, http.StatusOK},
		"another site's form": {"POST", map[string]string{"Sec-Fetch-Site": "cross-site"}, http.StatusForbidden},
		"another origin":      {"DELETE", map[string]string{"Origin": "https://evil.example"}, http.StatusForbidden},
		"a rebound name":      {"GET", map[string]string{"Host": "evil.example:7070"}, http.StatusForbidden},
	} {
		t.Run(name, func(t *testing.T) {
			res, body := f.send(t, tc.method, "/v1/specs", "", tc.header)
			if res.StatusCode != tc.want {
				t.Errorf("answer %d: %s", res.StatusCode, body)
			}
		})
	}
}

func TestListenWithoutTokens(t *testing.T) {
	for address, ok := range map[string]bool{
		"127.0.0.1:1": true, "[::1]:1": true, "localhost:1": true, "0.0.0.0:1": false, ":1": false, "10.0.0.1:1": false, "host": false,
	} {
		if err := api.NoTokens().CheckListen(address); (err == nil) != ok {
			t.Errorf("%s: %v", address, err)
		}
	}
}

func TestTokenFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tokens")
	for name, tc := range map[string]struct {
		text string
		mode os.FileMode
		ok   bool
	}{
		"good":     {"# people\n\n" + token + "\n", 0o600, true},
		"readable": {token, 0o644, false},
		"short":    {"abc", 0o600, false},
		"empty":    {"# nobody", 0o600, false},
	} {
		t.Run(name, func(t *testing.T) {
			if err := errors.Join(os.WriteFile(file, []byte(tc.text), 0o600), os.Chmod(file, tc.mode)); err != nil {
				t.Fatal(err)
			}
			_, err := api.ReadTokens(file)
			if (err == nil) != tc.ok || err != nil && strings.Contains(err.Error(), token) {
				t.Errorf("read: %v", err)
			}
		})
	}
}

func TestProblems(t *testing.T) {
	f := withTokens(t)
	good := `"name":"s","image":"img","cpu":"1","memory":"1Gi"`
	for name, tc := range map[string]struct {
		method, path, body string
		status             int
		code, location     string
	}{
		"no such path":        {"GET", "/v2", "", 404, api.CodeNotFound, ""},
		"no environment":      {"GET", "/v1/environments/x", "", 404, api.CodeNotFound, ""},
		"no timeline":         {"GET", "/v1/environments/x/timeline", "", 404, api.CodeNotFound, ""},
		"no events":           {"GET", "/v1/environments/x/events", "", 404, api.CodeNotFound, ""},
		"no logs":             {"GET", "/v1/environments/x/logs", "", 404, api.CodeNotFound, ""},
		"no tunnel":           {"GET", "/v1/environments/x/tunnel", "", 404, api.CodeNotFound, ""},
		"tunnel to no port":   {"GET", "/v1/environments/x/tunnel?port=0", "", 400, api.CodeInvalidRequest, ""},
		"no spec":             {"GET", "/v1/specs/x", "", 404, api.CodeSpecNotFound, ""},
		"not JSON":            {"POST", "/v1/specs", "{", 400, api.CodeInvalidRequest, ""},
		"unknown field":       {"POST", "/v1/specs", `{` + good + `,"gpus":1}`, 422, api.CodeInvalidRequest, "gpus"},
		"wrong spec":          {"POST", "/v1/specs", `{` + good + `,"shm":"2Gi"}`, 422, api.CodeInvalidSpec, "shm"},
		"unknown spec":        {"POST", "/v1/environments", `{"name":"e","specRef":"nobody@1"}`, 404, api.CodeSpecNotFound, ""},
		"neither spec nor":    {"POST", "/v1/environments", `{"name":"e"}`, 422, api.CodeInvalidSpec, "spec"},
		"no cluster":          {"POST", "/v1/environments", `{"name":"e","cluster":"x","spec":{` + good + `}}`, 422, api.CodeClusterNotFound, ""},
		"wrong name":          {"POST", "/v1/environments", `{"name":"E","spec":{` + good + `}}`, 422, api.CodeInvalidSpec, "name"},
		"key with options":    {"POST", "/v1/environments", `{"name":"e","sshKeys":["command=\"x\" ssh-ed25519 AAAA"],"spec":{` + good + `}}`, 422, api.CodeInvalidSpec, "sshKeys[0]"},
		"too long":            {"POST", "/v1/specs", `{"name":"` + strings.Repeat("a", 2<<20) + `"}`, 413, api.CodeInvalidRequest, ""},
		"position in words":   {"GET", "/v1/environments/x/events?after=now", "", 400, api.CodeInvalidRequest, ""},
		"capacity of nothing": {"GET", "/v1/clusters/x/capacity", "", 422, api.CodeClusterNotFound, ""},
	} {
		t.Run(name, func(t *testing.T) {
			res, body := f.send(t, tc.method, tc.path, tc.body, nil)
			if res.StatusCode != tc.status || code(t, res, body) != tc.code || !strings.Contains(body, `"location":"`+tc.location) && tc.location != "" {
				t.Errorf("answer %d: %s", res.StatusCode, body)
			}
		})
	}
}

func TestIdempotency(t *testing.T) {
	f := withTokens(t)
	create := `{"name":"train","spec":{"name":"s","image":"img","cpu":"1","memory":"1Gi"}}`
	key := map[string]string{"Idempotency-Key": "k-1"}
	first, body := f.send(t, "POST", "/v1/environments", create, key)
	if first.StatusCode != http.StatusAccepted {
		t.Fatalf("answer %d: %s", first.StatusCode, body)
	}
	again, replayed := f.send(t, "POST", "/v1/environments", create, key)
	if again.StatusCode != http.StatusAccepted || again.Header.Get("Idempotency-Replayed") != "true" || replayed != body ||
		again.Header.Get("Location") != first.Header.Get("Location") {
		t.Errorf("again: %d %v %s", again.StatusCode, again.Header, replayed)
	}
	other, body := f.send(t, "POST", "/v1/environments", strings.Replace(create, "train", "other", 1), key)
	if other.StatusCode != http.StatusUnprocessableEntity || code(t, other, body) != api.CodeIdempotencyKeyReused {
		t.Errorf("the key for another request: %d %s", other.StatusCode, body)
	}
	new, body := f.send(t, "POST", "/v1/environments", create, map[string]string{"Idempotency-Key": "k-2"})
	if new.StatusCode != http.StatusConflict || code(t, new, body) != api.CodeNameConflict {
		t.Errorf("another key: %d %s", new.StatusCode, body)
	}
	stranger := map[string]string{"Idempotency-Key": "k-1", "Authorization": "Bearer lnc_ffffffffffffffffffffffffffffffff"}
	if res, body := f.send(t, "POST", "/v1/environments", create, stranger); res.Header.Get("Idempotency-Replayed") != "" || code(t, res, body) != api.CodeNameConflict {
		t.Errorf("another's key: %d %s", res.StatusCode, body)
	}
	if _, claimed, err := f.store.BeginAnswer(t.Context(), "x", "k", "h", time.Now()); err != nil || !claimed {
		t.Fatal(err)
	}
}

// TestEnvironmentThroughTheAPI does everything a user does.
func TestEnvironmentThroughTheAPI(t *testing.T) {
	f := withTokens(t)
	rev, err := f.PushSpec(t.Context(), parsed(t))
	if err != nil || rev.Ref().String() != "s@1" {
		t.Fatalf("%+v: %v", rev, err)
	}
	key, err := tunnel.NewKey("me")
	if err != nil {
		t.Fatal(err)
	}
	e, err := f.Create(t.Context(), &api.CreateEnvironment{Name: "train", SpecRef: "s", SSHKeys: []string{key.Public}})
	if err != nil || e.SpecRef != "s@1" {
		t.Fatalf("%+v: %v", e, err)
	}
	usable(t, f, e.ID)
	e, err = f.Environment(t.Context(), "train")
	if err != nil || e.Status.Phase != store.PhaseUsable || e.Status.TimeToUsableMs == nil {
		t.Fatalf("%+v: %v", e, err)
	}
	if all, err := f.Environments(t.Context()); err != nil || len(all) != 1 {
		t.Errorf("%d environments: %v", len(all), err)
	}
	if tl, err := f.Timeline(t.Context(), "train"); err != nil || tl.TimeToUsableMs == nil || *tl.TimeToUsableMs != *e.Status.TimeToUsableMs {
		t.Errorf("timeline %+v: %v", tl, err)
	}
	if x, err := f.Explain(t.Context(), "train"); err != nil || x.Verdict != cluster.VerdictPlaced {
		t.Errorf("explanation %+v: %v", x, err)
	}
	logs, err := f.Logs(t.Context(), "train", true)
	if err != nil {
		t.Fatal(err)
	}
	if text, err := io.ReadAll(logs); err != nil || !strings.Contains(string(text), "hello from "+e.ID) {
		t.Errorf("logs are %q: %v", text, err)
	}
	login(t, f, e, key)
	if _, err := f.Delete(t.Context(), "train"); err != nil {
		t.Fatal(err)
	}
	err = f.Events(t.Context(), e.ID, 0, func(ev client.Event) error {
		if ev.Kind == "end" {
			return client.ErrStop
		}
		return nil
	})
	var p *api.Problem
	if err != nil && (!errors.As(err, &p) || p.Status != http.StatusNotFound) {
		t.Error(err)
	}
}

// usable follows the events, as the command line does, until the end.
func usable(t *testing.T, f *fixture, id string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	last := int64(0)
	err := f.Events(ctx, id, 0, func(ev client.Event) error {
		if ev.ID != last+1 {
			t.Errorf("event %d follows event %d", ev.ID, last)
		}
		last = ev.ID
		var s store.Status
		if ev.Kind == "phase" && json.Unmarshal(ev.Data, &s) == nil && s.Phase == store.PhaseUsable {
			return client.ErrStop
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func login(t *testing.T, f *fixture, e *api.Environment, key tunnel.Key) {
	t.Helper()
	conn, err := f.Tunnel(t.Context(), e.ID, agentapi.SSHPort)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := tunnel.ParsePrivateKey(key.Private)
	if err != nil {
		t.Fatal(err)
	}
	host, err := tunnel.ParsePublicKey(e.Status.HostKey)
	if err != nil {
		t.Fatal(err)
	}
	session, err := tunnel.Connect(t.Context(), conn, tunnel.Login{Signer: signer, HostKey: host})
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	var out bytes.Buffer
	if n, err := session.Run(t.Context(), "a command", tunnel.Streams{Out: &out}); err != nil || n != 0 || out.String() != "a command\n" {
		t.Errorf("the command ended with %d and %q: %v", n, out.String(), err)
	}
}

// TestSnapshotFirst checks that a stream without a position begins with the
// whole environment.
func TestSnapshotFirst(t *testing.T) {
	f := withTokens(t)
	f.fake.Hold = make(chan struct{})
	e, err := f.Create(t.Context(), &api.CreateEnvironment{Name: "train", Spec: parsed(t)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, f.url+"/v1/environments/train/events", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	buf := make([]byte, 64)
	if _, err := io.ReadFull(res.Body, buf); err != nil {
		t.Fatal(err)
	}
	if text := string(buf); !strings.Contains(text, "event: snapshot\ndata: {\"id\":\"") {
		t.Errorf("the stream of %s begins with %q", e.ID, text)
	}
}

// TestCanaries looks for everything secret in every answer and log line.
func TestCanaries(t *testing.T) {
	f := withTokens(t)
	e, err := f.Create(t.Context(), &api.CreateEnvironment{Name: "train", Spec: parsed(t)})
	if err != nil {
		t.Fatal(err)
	}
	usable(t, f, e.ID)
	secrets, err := f.store.Secrets(t.Context(), e.ID)
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for _, path := range []string{"", "/timeline", "/explain", "/access", "/logs"} {
		_, body := f.send(t, "GET", "/v1/environments/train"+path, "", nil)
		all.WriteString(body)
	}
	for _, path := range []string{"/v1/environments", "/v1/specs", "/v1/clusters", "/v1/clusters/here/capacity", "/openapi.json"} {
		_, body := f.send(t, "GET", path, "", nil)
		all.WriteString(body)
	}
	events, err := f.store.Events(t.Context(), e.ID, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, ev := range events {
		all.Write(ev.Data)
	}
	all.WriteString(f.log.String())
	for name, secret := range map[string]string{
		"host key": secrets.HostKey, "login key": secrets.LoginKey, "status token": secrets.StatusToken, "token": token,
	} {
		// Keys have several lines; the middle one is enough to know them by.
		lines := strings.Split(strings.TrimSpace(secret), "\n")
		if strings.Contains(all.String(), lines[len(lines)/2]) {
			t.Errorf("the %s shows", name)
		}
	}
}

// TestOpenAPI holds the contract: a change of the API shows in its file.
func TestOpenAPI(t *testing.T) {
	f := withTokens(t)
	_, body := f.send(t, "GET", "/openapi.json", "", nil)
	var doc map[string]any
	if err := json.Unmarshal([]byte(body), &doc); err != nil {
		t.Fatal(err)
	}
	if v, _ := doc["openapi"].(string); !strings.HasPrefix(v, "3.1") {
		t.Errorf("it is OpenAPI %q", v)
	}
	got, err := json.MarshalIndent(doc, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	got = append(got, '\n')
	const file = "testdata/openapi.json"
	if *update {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s differs; -update writes it anew\n%s", file, diff)
	}
}
