package tunnel

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"
)

// Levels of a login, in order. Each includes those before.
const (
	LevelBanner = "banner" // TCP, and the server's version line
	LevelAuth   = "auth"   // the right host key, and the key accepted
	LevelPing   = "ping"   // a session that touches nothing in the image
	LevelShell  = "shell"  // the image's shell on a terminal answered
	LevelEnv    = "env"    // the session has PID 1's GPU limits and PATH
)

// ErrEnvironment means that a login doesn't carry what PID 1 was given.
var ErrEnvironment = errors.New("session environment differs from process 1")

// maxProbeOutput bounds what a shell may answer. Start-up files print banners.
const maxProbeOutput = 256 << 10

// Level is one step of a login that succeeded.
type Level struct {
	ID         string
	Start, End time.Time
}

// ProbeLogin does what a user's first login does, through the level named by
// last, and returns the levels that succeeded. want are variables that the
// session must have, such as the granted GPU limits; they and PATH are looked
// at by LevelEnv. The context must have a deadline.
func ProbeLogin(ctx context.Context, dial func(context.Context) (net.Conn, error), login Login, last string, want map[string]string) ([]Level, error) {
	p := &loginProbe{last: last, from: time.Now()}
	raw, err := dial(ctx)
	if err != nil {
		return nil, fmt.Errorf("dial: %w", err)
	}
	banner := &firstRead{Conn: raw}
	stop := context.AfterFunc(ctx, func() { _ = raw.Close() })
	defer stop()
	client, err := Connect(ctx, banner, login)
	if at := banner.time(); !at.IsZero() {
		p.pass(LevelBanner, at)
	}
	if err != nil {
		return p.levels, err
	}
	defer client.Close()
	p.pass(LevelAuth, time.Now())
	steps := []struct {
		id string
		do func() error
	}{
		{LevelPing, func() error { return client.Ping(ctx) }},
		{LevelShell, func() error { return probeShell(ctx, client) }},
		{LevelEnv, func() error { return probeEnv(ctx, client, want) }},
	}
	for _, s := range steps {
		if p.finished() {
			break
		}
		if err := s.do(); err != nil {
			return p.levels, fmt.Errorf("%s: %w", s.id, err)
		}
		p.pass(s.id, time.Now())
	}
	return p.levels, nil
}

type loginProbe struct {
	last   string
	from   time.Time
	levels []Level
}

func (p *loginProbe) pass(id string, at time.Time) {
	p.levels = append(p.levels, Level{ID: id, Start: p.from, End: at})
	p.from = at
}

func (p *loginProbe) finished() bool {
	return slices.ContainsFunc(p.levels, func(l Level) bool { return l.ID == p.last })
}

// probeShell logs in as a person does: a terminal, the image's shell and its
// start-up files. What must come back is not what is typed, since a terminal
// echoes.
func probeShell(ctx context.Context, c *Client) error {
	s, err := c.ssh.NewSession()
	if err != nil {
		return fmt.Errorf("open session: %w", err)
	}
	defer s.Close()
	stop := context.AfterFunc(ctx, func() { _ = s.Close() })
	defer stop()
	if err := s.RequestPty("xterm", 24, 80, ssh.TerminalModes{}); err != nil {
		return fmt.Errorf("request terminal: %w", err)
	}
	left, right := rand.Text(), rand.Text()
	out := &bounded{}
	s.Stdin = strings.NewReader(fmt.Sprintf("printf '%%s%%s\\n' %s %s; id -u; exit\n", left, right))
	s.Stdout, s.Stderr = out, out
	if err := s.Shell(); err != nil {
		return contextual(ctx, fmt.Errorf("start shell: %w", err))
	}
	code, err := wait(ctx, s)
	switch {
	case err != nil:
		return err
	case code != 0:
		return fmt.Errorf("shell ended with %d: %s", code, out.tail())
	case !strings.Contains(out.String(), left+right):
		return fmt.Errorf("shell did not answer: %s", out.tail())
	}
	return nil
}

// probeEnv compares a session's environment with PID 1's.
func probeEnv(ctx context.Context, c *Client, want map[string]string) error {
	nonce := rand.Text()
	out := &bounded{}
	script := "cat /proc/1/environ && printf %s " + nonce + " && cat /proc/self/environ"
	code, err := c.Run(ctx, script, Streams{Out: out})
	if err != nil {
		return err
	}
	init, session, ok := strings.Cut(out.String(), nonce)
	if code != 0 || !ok {
		return fmt.Errorf("read environment: command ended with %d", code)
	}
	return compareEnv(parseEnviron(init), parseEnviron(session), want)
}

// compareEnv names variables, never their values: those may be secret. A
// start-up file of the image may add to PATH, but nothing of it may be lost.
func compareEnv(init, session, want map[string]string) error {
	for name, value := range want {
		if got, ok := session[name]; !ok || got != value {
			return fmt.Errorf("%w: %s is not what was granted", ErrEnvironment, name)
		}
	}
	for _, dir := range filepath.SplitList(init["PATH"]) {
		if !slices.Contains(filepath.SplitList(session["PATH"]), dir) {
			return fmt.Errorf("%w: PATH lacks %s", ErrEnvironment, dir)
		}
	}
	for name, value := range init {
		limit := strings.HasPrefix(name, "CUDA_") || strings.HasPrefix(name, "NVIDIA_") || name == "LD_PRELOAD"
		if got, ok := session[name]; limit && (!ok || got != value) {
			return fmt.Errorf("%w: %s", ErrEnvironment, name)
		}
	}
	return nil
}

func parseEnviron(text string) map[string]string {
	vars := make(map[string]string)
	for v := range strings.SplitSeq(text, "\x00") {
		if name, value, ok := strings.Cut(v, "="); ok {
			vars[name] = value
		}
	}
	return vars
}

// bounded keeps the beginning of what is written to it.
type bounded struct {
	mu  sync.Mutex
	buf bytes.Buffer // guarded by mu
}

// Write implements io.Writer.
func (b *bounded) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if room := maxProbeOutput - b.buf.Len(); room > 0 {
		b.buf.Write(p[:min(room, len(p))])
	}
	return len(p), nil
}

func (b *bounded) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// tail returns the end of the text for a message.
func (b *bounded) tail() string {
	const enough = 200
	s := strings.TrimSpace(b.String())
	return strings.ToValidUTF8(s[max(0, len(s)-enough):], "?")
}

// firstRead notes when the first byte arrived, which is the server's banner.
type firstRead struct {
	net.Conn
	mu sync.Mutex
	at time.Time // guarded by mu
}

// Read implements io.Reader.
func (f *firstRead) Read(p []byte) (int, error) {
	n, err := f.Conn.Read(p)
	if n > 0 {
		f.mu.Lock()
		if f.at.IsZero() {
			f.at = time.Now()
		}
		f.mu.Unlock()
	}
	return n, err
}

func (f *firstRead) time() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.at
}
