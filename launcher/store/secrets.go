package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"

	"github.com/firstlight-dev/firstlight/launcher/seal"
)

// Secrets are what is needed to get into an environment.
type Secrets struct {
	HostKey     string `json:"hostKey"`     // private, PEM
	LoginKey    string `json:"loginKey"`    // the launcher's own, private, PEM
	StatusToken string `json:"statusToken"` // bearer token of the agent's status
}

// String keeps secrets out of logs and messages.
func (Secrets) String() string { return "[secrets]" }

// GoString keeps secrets out of %#v.
func (Secrets) GoString() string { return "[secrets]" }

// Secrets returns an environment's secrets.
func (s *Store) Secrets(ctx context.Context, id string) (Secrets, error) {
	var sealed []byte
	var by string
	var secrets Secrets
	err := s.read.QueryRowContext(ctx, `SELECT secrets, sealed_by FROM environments WHERE id = ?`, id).Scan(&sealed, &by)
	if errors.Is(err, sql.ErrNoRows) {
		err = ErrNotFound
	}
	var plain []byte
	if err == nil {
		plain, err = s.keys.Open(by, sealed, place(id))
	}
	if err == nil {
		err = json.Unmarshal(plain, &secrets)
	}
	if err != nil {
		return Secrets{}, fmt.Errorf("read secrets of %s: %w", id, err)
	}
	return secrets, nil
}

// place binds sealed secrets to their environment.
func place(id string) string { return "environments.secrets " + id }

// unlock reads the key file and checks that it opens what there is.
func (s *Store) unlock(ctx context.Context, keyFile string) error {
	stale, err := s.sealedBy(ctx)
	if err != nil {
		return err
	}
	s.keys, err = seal.Read(keyFile)
	if errors.Is(err, fs.ErrNotExist) {
		if len(stale) > 0 {
			return fmt.Errorf("its secrets are sealed, and the key file %s is missing: put it back, or set keyFile", keyFile)
		}
		if err := seal.Create(keyFile); err != nil {
			return err
		}
		s.keys, err = seal.Read(keyFile)
	}
	if err != nil {
		return err
	}
	delete(stale, s.keys.ID())
	for id, n := range stale {
		if !s.keys.Has(id) {
			return fmt.Errorf("secrets of %d environments are sealed with key %s, which is not in %s: add that key as a further line", n, id, keyFile)
		}
	}
	if len(stale) == 0 {
		return nil
	}
	return s.reseal(ctx)
}

// sealedBy counts environments by the key that sealed their secrets.
func (s *Store) sealedBy(ctx context.Context) (map[string]int, error) {
	rows, err := s.read.QueryContext(ctx, `SELECT sealed_by, count(*) FROM environments GROUP BY sealed_by`)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	by := map[string]int{}
	for rows.Next() {
		var id string
		var n int
		if err := rows.Scan(&id, &n); err != nil {
			return nil, err
		}
		by[id] = n
	}
	return by, rows.Err()
}

// sealedSecrets are one environment's, as they lie in the database.
type sealedSecrets struct {
	env, by string
	sealed  []byte
}

// reseal seals with the first key what an older one had sealed: all or nothing.
func (s *Store) reseal(ctx context.Context) error {
	return s.transact(ctx, func(tx *sql.Tx) error {
		stale, err := s.stale(ctx, tx)
		if err != nil {
			return err
		}
		for _, r := range stale {
			plain, err := s.keys.Open(r.by, r.sealed, place(r.env))
			if err != nil {
				return fmt.Errorf("seal secrets of %s anew: %w", r.env, err)
			}
			if _, err := tx.ExecContext(ctx, `UPDATE environments SET secrets = ?, sealed_by = ? WHERE id = ?`,
				s.keys.Seal(plain, place(r.env)), s.keys.ID(), r.env); err != nil {
				return err
			}
		}
		return nil
	})
}

// stale reads what another key than the first one has sealed.
func (s *Store) stale(ctx context.Context, tx *sql.Tx) ([]sealedSecrets, error) {
	rows, err := tx.QueryContext(ctx, `SELECT id, sealed_by, secrets FROM environments WHERE sealed_by != ?`, s.keys.ID())
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var all []sealedSecrets
	for rows.Next() {
		var one sealedSecrets
		if err := rows.Scan(&one.env, &one.by, &one.sealed); err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	return all, rows.Err()
}
