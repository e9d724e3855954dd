package imageservice

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"errors"
	"log/slog"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/distribution/reference"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const (
	// keep is how long a credential is used after the last pull with it: longer
	// than it takes to fetch what was pulled, short of for ever.
	keep = 24 * time.Hour
	// maxRepositories and maxSecret bound what pulls make us remember.
	maxRepositories = 256
	maxSecret       = 16 << 10 // bytes; cloud providers' tokens have a few KiB
)

// secret is a credential for one repository.
type secret struct {
	User   string    `json:"user"` // "" with an identity token
	Secret string    `json:"secret"`
	Server string    `json:"server,omitempty"` // the only host it is for; "" is the repository's own
	Used   time.Time `json:"used"`             // by a pull
}

// Ring keeps the credential of each repository that kubelet pulled from. It is
// safe for concurrent use.
type Ring struct {
	memory Memory
	log    *slog.Logger
	now    func() time.Time

	mu  sync.Mutex
	all map[string]secret // by repository: host/name
}

// Memory outlives a worker, and nothing else.
type Memory interface {
	Load() ([]byte, error)
	Store(b []byte) error
}

// NewRing returns the ring that memory holds. A memory that cannot be read makes
// an empty one: the next pull brings what is missing.
func NewRing(memory Memory, log *slog.Logger) *Ring {
	r := &Ring{memory: memory, log: log, now: time.Now, all: map[string]secret{}}
	b, err := memory.Load()
	if err == nil && len(b) > 0 {
		err = json.Unmarshal(b, &r.all)
	}
	if err != nil {
		// The cause may quote a secret.
		log.Warn("the last worker's pull credentials are lost; the next pull of each image brings them again")
		r.all = map[string]secret{}
	}
	return r
}

// Learn takes the credential of a pull. One that is not usable is left out.
func (r *Ring) Learn(image string, auth *runtime.AuthConfig) {
	named, err := reference.ParseNormalizedNamed(image)
	s, ok := parse(auth)
	if err != nil || !ok {
		return
	}
	s.Used = r.now()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all[named.Name()] = s
	r.trim()
	b, err := json.Marshal(r.all)
	if err == nil {
		err = r.memory.Store(b)
	}
	if err != nil {
		r.log.Warn("pull credentials would not survive this worker", "error", err)
	}
}

// trim drops what is old, and the oldest of too many.
func (r *Ring) trim() {
	for name, s := range r.all {
		if r.now().Sub(s.Used) > keep {
			delete(r.all, name)
		}
	}
	for len(r.all) > maxRepositories {
		oldest := ""
		for name, s := range r.all {
			if oldest == "" || s.Used.Before(r.all[oldest].Used) {
				oldest = name
			}
		}
		delete(r.all, oldest)
	}
}

// Has says whether there is a credential for a repository (host/name).
func (r *Ring) Has(repository string) bool {
	_, ok := r.find(repository)
	return ok
}

func (r *Ring) find(repository string) (secret, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s, ok := r.all[repository]
	return s, ok && r.now().Sub(s.Used) <= keep
}

// Credentials returns what to log in with for a repository at a host, in the
// form that containerd's authorizer takes: an identity token has no user. A
// credential goes to the repository's own registry, or to the one host that
// kubelet named, never to a mirror.
func (r *Ring) Credentials(repository, host string) (user, password string, ok bool) {
	s, ok := r.find(repository)
	if !ok || canonical(host) != cmp.Or(s.Server, canonical(registryOf(repository))) {
		return "", "", false
	}
	return s.User, s.Secret, true
}

func registryOf(repository string) string {
	host, _, _ := strings.Cut(repository, "/")
	return host
}

// canonical gives Docker Hub's names one form.
func canonical(host string) string {
	if slices.Contains([]string{"docker.io", "index.docker.io", "registry-1.docker.io"}, host) {
		return "docker.io"
	}
	return host
}

// parse reads the forms in which kubelet passes a credential.
func parse(auth *runtime.AuthConfig) (secret, bool) {
	if auth == nil {
		return secret{}, false
	}
	s := secret{User: auth.GetUsername(), Secret: auth.GetPassword()}
	if s.User == "" && auth.GetAuth() != "" {
		text, err := base64.StdEncoding.DecodeString(auth.GetAuth())
		if err != nil {
			return secret{}, false
		}
		s.User, s.Secret, _ = strings.Cut(strings.TrimRight(string(text), "\x00"), ":")
	}
	if s.User == "" {
		s.Secret = auth.GetIdentityToken()
	}
	server, err := serverOf(auth.GetServerAddress())
	s.Server = server
	return s, err == nil && s.Secret != "" && len(s.User)+len(s.Secret) <= maxSecret
}

// serverOf returns the host of a server address, which may be a URL.
func serverOf(address string) (string, error) {
	if address == "" {
		return "", nil
	}
	if !strings.Contains(address, "://") {
		address = "https://" + address
	}
	u, err := url.Parse(address)
	if err != nil || u.Host == "" {
		return "", errors.New("no valid server address")
	}
	return canonical(u.Host), nil
}
