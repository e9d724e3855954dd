package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/firstlight-dev/firstlight/launcher/spec"
)

// Revision is one immutable revision of a spec.
type Revision struct {
	Name      string    `json:"name"`
	Revision  int       `json:"revision"`
	CreatedAt time.Time `json:"createdAt"`
	Spec      spec.Spec `json:"spec"`
}

// Ref returns name@revision.
func (r *Revision) Ref() spec.Ref { return spec.Ref{Name: r.Name, Revision: r.Revision} }

// PushSpec stores a spec as the next revision of its name. Pushing what the
// newest revision already says returns that revision, with created false.
func (s *Store) PushSpec(ctx context.Context, sp *spec.Spec, now time.Time) (rev *Revision, created bool, err error) {
	body, err := json.Marshal(sp)
	if err != nil {
		return nil, false, fmt.Errorf("encode spec %s: %w", sp.Name, err)
	}
	err = s.transact(ctx, func(tx *sql.Tx) error {
		newest := 0
		var old string
		row := tx.QueryRowContext(ctx, `SELECT revision, body FROM spec_revisions WHERE name = ? ORDER BY revision DESC LIMIT 1`, sp.Name)
		if err := row.Scan(&newest, &old); err != nil && !errors.Is(err, sql.ErrNoRows) {
			return err
		}
		if old == string(body) {
			rev = &Revision{Name: sp.Name, Revision: newest}
			return nil
		}
		rev, created = &Revision{Name: sp.Name, Revision: newest + 1, CreatedAt: now, Spec: *sp}, true
		_, err := tx.ExecContext(ctx, `INSERT INTO spec_revisions (name, revision, body, created_at) VALUES (?, ?, ?, ?)`,
			rev.Name, rev.Revision, string(body), micros(now))
		return err
	})
	if err != nil {
		return nil, false, fmt.Errorf("store spec %s: %w", sp.Name, err)
	}
	if !created {
		rev, err = s.Spec(ctx, rev.Ref())
	}
	return rev, created, err
}

// Spec returns one revision; revision 0 means the newest.
func (s *Store) Spec(ctx context.Context, ref spec.Ref) (*Revision, error) {
	row := s.read.QueryRowContext(ctx, `SELECT name, revision, body, created_at FROM spec_revisions
		WHERE name = ?1 AND (?2 = 0 OR revision = ?2) ORDER BY revision DESC LIMIT 1`, ref.Name, ref.Revision)
	rev, err := scanRevision(row.Scan)
	if errors.Is(err, sql.ErrNoRows) {
		err = ErrNotFound
	}
	if err != nil {
		return nil, fmt.Errorf("read spec %s: %w", ref, err)
	}
	return rev, nil
}

// Specs returns the newest revision of every name, in order of names.
func (s *Store) Specs(ctx context.Context) ([]Revision, error) {
	return s.revisions(ctx, `SELECT name, revision, body, created_at FROM spec_revisions AS r
		WHERE revision = (SELECT max(revision) FROM spec_revisions WHERE name = r.name) ORDER BY name`)
}

// SpecRevisions returns every revision of one name, oldest first.
func (s *Store) SpecRevisions(ctx context.Context, name string) ([]Revision, error) {
	return s.revisions(ctx, `SELECT name, revision, body, created_at FROM spec_revisions WHERE name = ? ORDER BY revision`, name)
}

func (s *Store) revisions(ctx context.Context, query string, args ...any) ([]Revision, error) {
	rows, err := s.read.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, fmt.Errorf("list specs: %w", err)
	}
	defer rows.Close()
	all := []Revision{}
	for rows.Next() {
		rev, err := scanRevision(rows.Scan)
		if err != nil {
			return nil, fmt.Errorf("list specs: %w", err)
		}
		all = append(all, *rev)
	}
	return all, rows.Err()
}

func scanRevision(scan func(...any) error) (*Revision, error) {
	var rev Revision
	var body string
	var at int64
	if err := scan(&rev.Name, &rev.Revision, &body, &at); err != nil {
		return nil, err
	}
	rev.CreatedAt = fromMicros(at)
	return &rev, json.Unmarshal([]byte(body), &rev.Spec)
}
