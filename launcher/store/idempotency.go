package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"
)

// keepAnswers is how long the answer to a repeated request is kept: longer
// than any client goes on trying.
const keepAnswers = 24 * time.Hour

// Answer is a request's stored answer. Status 0 means that the request is
// still being served.
type Answer struct {
	BodyHash string
	Status   int
	Header   string // JSON
	Body     []byte
}

// BeginAnswer claims a key. If it is claimed already, it returns what is
// stored and false.
func (s *Store) BeginAnswer(ctx context.Context, scope, key, bodyHash string, now time.Time) (old Answer, claimed bool, err error) {
	err = s.transact(ctx, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, `DELETE FROM idempotency WHERE created_at < ?`, micros(now.Add(-keepAnswers))); err != nil {
			return err
		}
		row := tx.QueryRowContext(ctx, `SELECT body_hash, status, header, response FROM idempotency WHERE scope = ? AND key = ?`, scope, key)
		switch err := row.Scan(&old.BodyHash, &old.Status, &old.Header, &old.Body); {
		case err == nil:
			return nil
		case !errors.Is(err, sql.ErrNoRows):
			return err
		}
		claimed = true
		_, err := tx.ExecContext(ctx, `INSERT INTO idempotency (scope, key, body_hash, status, header, response, created_at)
			VALUES (?, ?, ?, 0, '', x'', ?)`, scope, key, bodyHash, micros(now))
		return err
	})
	if err != nil {
		return Answer{}, false, fmt.Errorf("claim idempotency key: %w", err)
	}
	return old, claimed, nil
}

// EndAnswer stores the answer to a claimed key.
func (s *Store) EndAnswer(ctx context.Context, scope, key string, a Answer) error {
	if _, err := s.write.ExecContext(ctx, `UPDATE idempotency SET status = ?, header = ?, response = ? WHERE scope = ? AND key = ?`,
		a.Status, a.Header, a.Body, scope, key); err != nil {
		return fmt.Errorf("store answer: %w", err)
	}
	return nil
}

// ReleaseAnswer gives a claimed key up, so that the request can be tried again.
func (s *Store) ReleaseAnswer(ctx context.Context, scope, key string) error {
	if _, err := s.write.ExecContext(ctx, `DELETE FROM idempotency WHERE scope = ? AND key = ? AND status = 0`, scope, key); err != nil {
		return fmt.Errorf("release idempotency key: %w", err)
	}
	return nil
}

// ReleaseAll gives up every claimed key: after a restart nobody serves them.
func (s *Store) ReleaseAll(ctx context.Context) error {
	if _, err := s.write.ExecContext(ctx, `DELETE FROM idempotency WHERE status = 0`); err != nil {
		return fmt.Errorf("release idempotency keys: %w", err)
	}
	return nil
}
