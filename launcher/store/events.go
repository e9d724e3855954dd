package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// maxEvents bounds the history kept of one environment. A pod that waits for
// weeks is told the same reason every few minutes; older events are dropped.
const maxEvents = 2000

// Event is one thing that happened to an environment. Seq counts from 1
// without gaps.
type Event struct {
	Seq  int64           `json:"seq"`
	At   time.Time       `json:"at"`
	Kind string          `json:"kind"`
	Data json.RawMessage `json:"data"`
}

// AddEvent appends an event and sets its Seq.
func (s *Store) AddEvent(ctx context.Context, env string, e *Event) error {
	err := s.transact(ctx, func(tx *sql.Tx) error {
		row := tx.QueryRowContext(ctx, `INSERT INTO events (environment, seq, at, kind, data)
			VALUES (?1, (SELECT coalesce(max(seq), 0) + 1 FROM events WHERE environment = ?1), ?2, ?3, ?4) RETURNING seq`,
			env, micros(e.At), e.Kind, string(e.Data))
		if err := row.Scan(&e.Seq); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, `DELETE FROM events WHERE environment = ? AND seq <= ?`, env, e.Seq-maxEvents)
		return err
	})
	if err != nil {
		return fmt.Errorf("store event of %s: %w", env, err)
	}
	return nil
}

// ErrExpired means that events asked for are no longer kept.
var ErrExpired = errors.New("events that old are no longer kept")

// Events returns the events of an environment after seq, oldest first.
func (s *Store) Events(ctx context.Context, env string, after int64) ([]Event, error) {
	rows, err := s.read.QueryContext(ctx, `SELECT seq, at, kind, data FROM events WHERE environment = ? AND seq > ? ORDER BY seq`, env, after)
	if err != nil {
		return nil, fmt.Errorf("list events of %s: %w", env, err)
	}
	defer rows.Close()
	all := []Event{}
	for rows.Next() {
		var e Event
		var at int64
		var data string
		if err := rows.Scan(&e.Seq, &at, &e.Kind, &data); err != nil {
			return nil, fmt.Errorf("list events of %s: %w", env, err)
		}
		e.At, e.Data = fromMicros(at), json.RawMessage(data)
		all = append(all, e)
	}
	if len(all) > 0 && after > 0 && all[0].Seq != after+1 {
		return nil, fmt.Errorf("list events of %s after %d: %w", env, after, ErrExpired)
	}
	return all, rows.Err()
}
