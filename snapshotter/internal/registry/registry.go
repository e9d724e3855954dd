// Package registry reads images and ranges of their layers from registries, as
// containerd on the same node would.
//
// # Vocabulary
//
// A Client knows a node's registry configuration: containerd's hosts.toml files
// and a docker config file for credentials. A Repository is one image name on
// one registry, tried at its mirrors first. A Source is one blob of it.
//
// # Invariants
//
// No byte of a manifest or blob counts before its digest was checked; ranges
// are checked by the caller, against an index. A credential goes only to the
// host that it is for: redirects are followed without it, and never from https
// to http. Every request has a deadline to its response headers, and every
// body one for each pause in it.
//
// # Failure behaviour
//
// Every failure is an *Error that names the host, the repository and the layer
// or tag, what happened, and what to do about it; errors.Is tells the kinds
// apart. Nothing is remembered that a restart would be needed to forget: a
// refused token or a failed token server is asked again by the next request, a
// redirect that stopped working is followed anew, a host that did not answer is
// tried last for a while, not left out. URLs are not quoted in errors, for a
// redirect's may carry a signature.
package registry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/containerd/v2/core/remotes/docker/config"
	"github.com/containerd/containerd/v2/pkg/reference"
	"github.com/containerd/log"
	"github.com/docker/cli/cli/config/configfile"
	"github.com/sirupsen/logrus" //nolint:depguard // what containerd's code logs through
)

const (
	// defaultHeaderTimeout bounds a request up to its response headers, and a
	// token request before it. A registry that needs longer is down for a
	// program that waits for a page.
	defaultHeaderTimeout = 15 * time.Second
	// defaultStallTimeout bounds each pause of a response body.
	defaultStallTimeout = 15 * time.Second
	// penalty is how long a host that did not answer is tried last.
	penalty = 30 * time.Second
	// idleConns is how many connections per host are kept: as many requests as
	// a few layers make at a time.
	idleConns = 32
)

// Config says where a node's registry configuration is. The zero value has no
// mirrors and no credentials.
type Config struct {
	// HostsDir is containerd's certs.d folder.
	HostsDir string
	// DockerConfig is a docker config.json. It is read whenever credentials are
	// needed, so that changes count at once. A missing file means none.
	DockerConfig string
	// Pulls, if not nil, are the credentials of pulls; they come before the docker
	// config, for their repository alone.
	Pulls Pulls
	// Observe, if not nil, is told of every request when its headers came, or did
	// not: to which host, and the error.
	Observe func(host string, err error)
	// UserAgent is sent with every request.
	UserAgent string
	// Logger is told of damaged hosts.toml files.
	Logger *slog.Logger
	// HeaderTimeout and StallTimeout replace the defaults.
	HeaderTimeout, StallTimeout time.Duration
}

// Pulls knows with which credentials repositories were pulled.
type Pulls interface {
	// Has says whether it knows any for a repository, host/name.
	Has(repository string) bool
	// Credentials returns those for a repository at a host; an identity token
	// has no user.
	Credentials(repository, host string) (user, secret string, ok bool)
}

// Client reads from registries. It is safe for concurrent use.
type Client struct {
	cfg Config

	mu    sync.Mutex
	known map[string][]docker.RegistryHost // by registry, or by repository if it has its own credentials
	slow  map[string]time.Time             // hosts to try last, until when
}

// maxKnown bounds the registries remembered: the names come from images.
const maxKnown = 256

// New returns a client for a configuration.
func New(cfg Config) *Client {
	if cfg.HeaderTimeout == 0 {
		cfg.HeaderTimeout = defaultHeaderTimeout
	}
	if cfg.StallTimeout == 0 {
		cfg.StallTimeout = defaultStallTimeout
	}
	if cfg.Observe == nil {
		cfg.Observe = func(string, error) {}
	}
	if cfg.UserAgent == "" {
		cfg.UserAgent = "firstlight"
	}
	return &Client{cfg: cfg, known: map[string][]docker.RegistryHost{}, slow: map[string]time.Time{}}
}

// configure reads how a registry's hosts are reached. They share tokens, so
// those of a repository with credentials of its own are nobody else's.
func (c *Client) configure(registry string, credentials func(host string) (user, secret string, err error)) ([]docker.RegistryHost, error) {
	opts := config.HostOptions{
		Credentials:    credentials,
		UpdateClient:   tune,
		AuthorizerOpts: []docker.AuthorizerOpt{docker.WithAuthHeader(http.Header{"User-Agent": {c.cfg.UserAgent}})},
	}
	if c.cfg.HostsDir != "" {
		opts.HostDir = config.HostDirFromRoot(c.cfg.HostsDir)
	}
	// The context is only for the logger in it.
	hosts := config.ConfigureHosts(log.WithLogger(context.Background(), containerdLog(c.cfg.Logger)), opts)
	all, err := hosts(registry)
	if err != nil {
		return nil, fmt.Errorf("configure registry %s: %w", registry, err)
	}
	return all, nil
}

// containerdLog passes on what containerd's code calls an error; the rest of
// what it says is about how it is configured.
func containerdLog(l *slog.Logger) *log.Entry {
	out := logrus.New()
	out.SetLevel(logrus.ErrorLevel)
	out.SetFormatter(&logrus.TextFormatter{DisableTimestamp: true, DisableColors: true})
	out.SetOutput(io.Discard)
	if l != nil {
		out.SetOutput(logWriter{l})
	}
	return logrus.NewEntry(out)
}

type logWriter struct{ l *slog.Logger }

func (w logWriter) Write(p []byte) (int, error) {
	w.l.Error("read registry configuration", "message", strings.TrimSpace(string(p)))
	return len(p), nil
}

func tune(c *http.Client) error {
	if t, ok := c.Transport.(*http.Transport); ok {
		t.MaxIdleConns = 0
		t.MaxIdleConnsPerHost = idleConns
		t.IdleConnTimeout = 90 * time.Second
		c.Transport = tokenLimit{t}
	}
	return nil
}

// credentials looks a host up in the docker config.
func (c *Client) credentials(host string) (user, secret string, err error) {
	if c.cfg.DockerConfig == "" {
		return "", "", nil
	}
	f, err := os.Open(c.cfg.DockerConfig)
	if errors.Is(err, os.ErrNotExist) {
		return "", "", nil
	}
	if err != nil {
		return "", "", fmt.Errorf("open docker config: %w", err)
	}
	defer f.Close()
	file := configfile.New(c.cfg.DockerConfig)
	if err := file.LoadFromReader(f); err != nil {
		// The cause may quote the file.
		return "", "", fmt.Errorf("parse docker config %s: not a valid config.json", c.cfg.DockerConfig)
	}
	if host == "registry-1.docker.io" || host == "docker.io" {
		host = "https://index.docker.io/v1/"
	}
	auth, err := file.GetAuthConfig(host)
	if err != nil {
		return "", "", fmt.Errorf("look up %s in docker config: %w", host, err)
	}
	if auth.IdentityToken != "" {
		return "", auth.IdentityToken, nil
	}
	return auth.Username, auth.Password, nil
}

// endpoints returns the hosts that serve a repository, best first.
func (r *Repository) endpoints(need docker.HostCapabilities) ([]docker.RegistryHost, error) {
	c := r.client
	key, credentials := r.login()
	c.mu.Lock()
	defer c.mu.Unlock()
	all := c.known[key]
	if all == nil {
		var err error
		if all, err = c.configure(r.registry, credentials); err != nil {
			return nil, err
		}
		if len(c.known) >= maxKnown {
			clear(c.known)
			clear(c.slow)
		}
		c.known[key] = all
	}
	var fine, slow []docker.RegistryHost
	now := time.Now()
	for _, h := range all {
		switch {
		case !h.Capabilities.Has(need):
		case now.Before(c.slow[h.Host]):
			slow = append(slow, h)
		default:
			fine = append(fine, h)
		}
	}
	return append(fine, slow...), nil
}

// login says under which name the repository's hosts are known, and how they
// find credentials.
func (r *Repository) login() (key string, credentials func(host string) (user, secret string, err error)) {
	c := r.client
	if c.cfg.Pulls == nil || !c.cfg.Pulls.Has(r.String()) {
		return r.registry, c.credentials
	}
	return r.String(), func(host string) (string, string, error) {
		if user, secret, ok := c.cfg.Pulls.Credentials(r.String(), host); ok {
			return user, secret, nil
		}
		return c.credentials(host)
	}
}

// forget drops what is known about the repository's hosts, tokens and their
// failures included: containerd's authorizer keeps a failure as it keeps a token.
func (r *Repository) forget() {
	key, _ := r.login()
	r.client.mu.Lock()
	defer r.client.mu.Unlock()
	delete(r.client.known, key)
}

func (c *Client) penalize(host string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.slow[host] = time.Now().Add(penalty)
}

func (c *Client) pardon(host string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.slow, host)
}

// Repository is one image name. It is safe for concurrent use.
type Repository struct {
	client   *Client
	registry string
	name     string
}

// Repository returns the repository of an image reference in full form, as
// containerd has it: host/name, with or without tag and digest.
func (c *Client) Repository(ref string) (*Repository, error) {
	spec, err := reference.Parse(ref)
	if err != nil {
		return nil, fmt.Errorf("parse image reference %q: %w", ref, err)
	}
	host := spec.Hostname()
	name := strings.TrimPrefix(strings.TrimPrefix(spec.Locator, host), "/")
	if name == "" || strings.ContainsAny(ref, "?#% ") || slices.Contains(strings.Split(name, "/"), "..") {
		return nil, fmt.Errorf("parse image reference %q: no valid repository name", ref)
	}
	return &Repository{client: c, registry: host, name: name}, nil
}

// String is the repository's name with its registry.
func (r *Repository) String() string { return r.registry + "/" + r.name }
