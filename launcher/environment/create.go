package environment

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/firstlight-dev/firstlight/launcher/cluster"
	"github.com/firstlight-dev/firstlight/launcher/spec"
	"github.com/firstlight-dev/firstlight/launcher/store"
	"github.com/firstlight-dev/firstlight/launcher/timeline"
	"github.com/firstlight-dev/firstlight/launcher/tunnel"
)

// Request asks for an environment.
type Request struct {
	Name    string
	Cluster string // "" is the default one
	Spec    spec.Spec
	SpecRef string   // where Spec came from, if it was stored
	SSHKeys []string // authorized_keys lines of those who may log in
	// Accepted is when the request had been read in full: the start of the
	// clock.
	Accepted time.Time
}

// maxKeys bounds the keys of one environment.
const maxKeys = 64

// Create stores the intent and sets it going. It returns as soon as the intent
// is stored.
func (m *Manager) Create(ctx context.Context, req Request) (*store.Environment, error) {
	if !spec.IsLabel(req.Name) {
		return nil, spec.Errors{{Path: "name", Message: "must be a DNS label"}}
	}
	c, err := m.cluster(req.Cluster)
	if err != nil {
		return nil, err
	}
	keys, err := checkKeys(req.SSHKeys)
	if err != nil {
		return nil, err
	}
	host, err := tunnel.NewKey("host of " + req.Name)
	if err != nil {
		return nil, err
	}
	login, err := tunnel.NewKey("firstlight-launcher")
	if err != nil {
		return nil, err
	}
	e := &store.Environment{
		ID:   "env-" + strings.ToLower(ulid.MustNew(ulid.Timestamp(req.Accepted), rand.Reader).String()),
		Name: req.Name, Cluster: c.Name(), Generation: 1,
		Spec: req.Spec, SpecRef: req.SpecRef, SSHKeys: keys,
		Status: store.Status{Phase: store.PhaseSubmitted, Stage: cluster.StageAccept, Accepted: req.Accepted.UTC(), HostKey: host.Public},
		Record: timeline.Record{
			Accepted: req.Accepted,
			Spans:    map[cluster.Stage]timeline.Span{cluster.StageAccept: {Begin: req.Accepted}},
		},
	}
	secrets := store.Secrets{HostKey: host.Private, LoginKey: login.Private, StatusToken: rand.Text()}
	if err := m.enter(ctx); err != nil {
		return nil, err
	}
	defer m.leave()
	if err := m.store.CreateEnvironment(ctx, e, secrets); err != nil {
		return nil, err
	}
	span := e.Record.Spans[cluster.StageAccept]
	span.End = time.Now()
	e.Record.Spans[cluster.StageAccept] = span
	answer := *e
	m.log.Info("environment accepted", "environment", e.ID, "name", e.Name, "cluster", e.Cluster)
	m.begin(e)
	return &answer, nil
}

// checkKeys accepts plain public keys only: options before a key, which the
// agent does not implement, would be a promise not kept.
func checkKeys(lines []string) ([]string, error) {
	if len(lines) > maxKeys {
		return nil, spec.Errors{{Path: "sshKeys", Message: fmt.Sprintf("has more than %d entries", maxKeys)}}
	}
	keys := make([]string, 0, len(lines))
	for i, line := range lines {
		line = strings.TrimSpace(line)
		key, err := tunnel.ParsePublicKey(line)
		if err != nil || !strings.HasPrefix(line, key.Type()+" ") {
			return nil, spec.Errors{{Path: fmt.Sprintf("sshKeys[%d]", i), Message: "is not a plain public key"}}
		}
		keys = append(keys, line)
	}
	return keys, nil
}

func newEvent(kind string, data any) (*store.Event, error) {
	body, err := json.Marshal(data)
	if err != nil {
		return nil, fmt.Errorf("encode event %s: %w", kind, err)
	}
	return &store.Event{At: time.Now(), Kind: kind, Data: body}, nil
}
