package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/firstlight-dev/firstlight/launcher/cluster"
	"github.com/firstlight-dev/firstlight/launcher/spec"
	"github.com/firstlight-dev/firstlight/launcher/timeline"
)

// Phase is how far an environment is. The set is closed.
type Phase string

// Phases.
const (
	PhaseSubmitted  Phase = "Submitted"
	PhaseQueued     Phase = "Queued"
	PhaseScheduling Phase = "Scheduling"
	PhasePreparing  Phase = "Preparing"
	PhaseStarting   Phase = "Starting"
	PhaseProbing    Phase = "Probing"
	PhaseUsable     Phase = "Usable"
	PhaseDegraded   Phase = "Degraded" // it was usable, and a thing about it no longer holds
	PhaseUnknown    Phase = "Unknown"  // its cluster cannot be asked
	PhaseStopping   Phase = "Stopping"
	PhaseFailed     Phase = "Failed"
)

// Final reports whether the launcher does nothing more for the environment
// until someone asks.
func (p Phase) Final() bool { return p == PhaseFailed }

// Environment is one environment as the launcher knows it.
type Environment struct {
	ID         string    `json:"id"`
	Name       string    `json:"name"`
	Cluster    string    `json:"cluster"`
	SpecRef    string    `json:"specRef,omitempty"`
	Generation int       `json:"generation"`
	Spec       spec.Spec `json:"spec"`
	SSHKeys    []string  `json:"sshKeys,omitempty"`
	Status     Status    `json:"status"`

	// Image and Record are the launcher's own notes; the timeline shows them.
	Image  *cluster.Image  `json:"image,omitempty"`
	Record timeline.Record `json:"record"`
}

// Status is what is known about an environment now.
type Status struct {
	Phase     Phase              `json:"phase"`
	Stage     cluster.Stage      `json:"stage,omitempty"` // the stage under way
	Reason    string             `json:"reason,omitempty"`
	Message   string             `json:"message,omitempty"`
	Placement *cluster.Placement `json:"placement,omitempty"`
	Accepted  time.Time          `json:"acceptedAt"`
	UsableAt  *time.Time         `json:"usableAt"`
	HostKey   string             `json:"hostKey"` // SSH host key, public
}

// CreateEnvironment stores a new environment. It returns ErrConflict if one of
// that name exists.
func (s *Store) CreateEnvironment(ctx context.Context, e *Environment, secrets Secrets) error {
	body, err := json.Marshal(e)
	if err != nil {
		return fmt.Errorf("encode environment %s: %w", e.Name, err)
	}
	hidden, err := json.Marshal(secrets)
	if err != nil {
		return fmt.Errorf("encode secrets of %s: %w", e.Name, err)
	}
	_, err = s.write.ExecContext(ctx, `INSERT INTO environments (id, name, cluster, spec_ref, phase, accepted_at, body, secrets, sealed_by)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		e.ID, e.Name, e.Cluster, e.SpecRef, e.Status.Phase, micros(e.Status.Accepted), string(body),
		s.keys.Seal(hidden, place(e.ID)), s.keys.ID())
	if err != nil && strings.Contains(err.Error(), "UNIQUE constraint failed: environments.name") {
		err = ErrConflict
	}
	if err != nil {
		return fmt.Errorf("store environment %s: %w", e.Name, err)
	}
	return nil
}

// SaveEnvironment stores an environment's new state.
func (s *Store) SaveEnvironment(ctx context.Context, e *Environment) error {
	body, err := json.Marshal(e)
	if err != nil {
		return fmt.Errorf("encode environment %s: %w", e.ID, err)
	}
	res, err := s.write.ExecContext(ctx, `UPDATE environments SET phase = ?, body = ? WHERE id = ?`,
		e.Status.Phase, string(body), e.ID)
	if err == nil {
		var n int64
		if n, err = res.RowsAffected(); err == nil && n == 0 {
			err = ErrNotFound
		}
	}
	if err != nil {
		return fmt.Errorf("store environment %s: %w", e.ID, err)
	}
	return nil
}

// DeleteEnvironment forgets an environment and its events.
func (s *Store) DeleteEnvironment(ctx context.Context, id string) error {
	if _, err := s.write.ExecContext(ctx, `DELETE FROM environments WHERE id = ?`, id); err != nil {
		return fmt.Errorf("delete environment %s: %w", id, err)
	}
	return nil
}

// Environment finds an environment by its identifier or its name.
func (s *Store) Environment(ctx context.Context, idOrName string) (*Environment, error) {
	var body string
	err := s.read.QueryRowContext(ctx, `SELECT body FROM environments WHERE id = ?1 OR name = ?1 ORDER BY id = ?1 DESC LIMIT 1`, idOrName).Scan(&body)
	if errors.Is(err, sql.ErrNoRows) {
		err = ErrNotFound
	}
	var e Environment
	if err == nil {
		err = json.Unmarshal([]byte(body), &e)
	}
	if err != nil {
		return nil, fmt.Errorf("read environment %s: %w", idOrName, err)
	}
	return &e, nil
}

// Page selects environments: at most Limit, accepted after the cursor.
type Page struct {
	Limit  int
	Cursor string // identifier of the last one seen; identifiers sort by time
}

// Environments lists environments in the order they were accepted.
func (s *Store) Environments(ctx context.Context, p Page) ([]Environment, error) {
	rows, err := s.read.QueryContext(ctx, `SELECT body FROM environments WHERE id > ? ORDER BY id LIMIT ?`, p.Cursor, p.Limit)
	if err != nil {
		return nil, fmt.Errorf("list environments: %w", err)
	}
	defer rows.Close()
	all := []Environment{}
	for rows.Next() {
		var body string
		var e Environment
		if err := rows.Scan(&body); err != nil {
			return nil, fmt.Errorf("list environments: %w", err)
		}
		if err := json.Unmarshal([]byte(body), &e); err != nil {
			return nil, fmt.Errorf("list environments: %w", err)
		}
		all = append(all, e)
	}
	return all, rows.Err()
}
