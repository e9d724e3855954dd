// Package store keeps what the launcher must not forget: spec revisions,
// environments with their keys and timelines, the events of each, and answers
// to requests that may be repeated.
//
// # Durability
//
// One SQLite file in WAL mode with synchronous=FULL: what a method has
// returned from survives a power cut. All writes go through one connection, so
// they are serial; readers do not wait for them.
//
// # Secrets
//
// Host keys, the launcher's own login keys and status tokens lie in a column of
// their own that no listing reads, sealed with a key from a file (see package
// seal) and bound to their environment. Open creates both files readable by
// their owner only and refuses ones that others can read.
package store

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"time"

	"github.com/pressly/goose/v3"
	_ "modernc.org/sqlite" // registers the driver

	"github.com/firstlight-dev/firstlight/launcher/seal"
)

// Errors of this package.
var (
	ErrNotFound = errors.New("not found")
	ErrConflict = errors.New("the name is taken")
)

const (
	// busyTimeout bounds the wait for another process's lock, such as a
	// backup's.
	busyTimeout = 5 * time.Second
	// readers bounds the reading connections; each holds a few MiB of cache.
	readers = 4
)

//go:embed migrations/*.sql
var migrations embed.FS

// Store is an open database. It is safe for concurrent use.
type Store struct {
	read, write *sql.DB
	keys        *seal.Keys
}

// Open opens or creates the database file and brings its schema up to date. A
// file written by a newer version is refused. It creates the key file if the
// database has no secrets yet, and seals with its first key what an older one
// had sealed.
func Open(ctx context.Context, path, keyFile string) (*Store, error) {
	if err := private(path); err != nil {
		return nil, fmt.Errorf("open database %s: %w", path, err)
	}
	s := &Store{}
	var err error
	if s.write, err = connect(path, 1); err != nil {
		return nil, fmt.Errorf("open database %s: %w", path, err)
	}
	if s.read, err = connect(path, readers); err != nil {
		return nil, errors.Join(fmt.Errorf("open database %s: %w", path, err), s.write.Close())
	}
	if err := s.migrate(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("migrate database %s: %w", path, err), s.Close())
	}
	if err := s.unlock(ctx, keyFile); err != nil {
		return nil, errors.Join(fmt.Errorf("open database %s: %w", path, err), s.Close())
	}
	return s, nil
}

// Close closes the database.
func (s *Store) Close() error { return errors.Join(s.read.Close(), s.write.Close()) }

// private makes sure that only the owner can read the file.
func private(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if info.Mode().Perm()&0o077 != 0 {
		return fmt.Errorf("mode is %v: it holds keys, so nobody but its owner may read it (chmod 600)", info.Mode().Perm())
	}
	return nil
}

func connect(path string, conns int) (*sql.DB, error) {
	pragmas := url.Values{"_pragma": {
		fmt.Sprintf("busy_timeout(%d)", busyTimeout.Milliseconds()),
		"journal_mode(WAL)", "synchronous(FULL)", "foreign_keys(ON)",
	}, "_txlock": {"immediate"}}
	db, err := sql.Open("sqlite", (&url.URL{Scheme: "file", Opaque: path, RawQuery: pragmas.Encode()}).String())
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(conns)
	return db, nil
}

func (s *Store) migrate(ctx context.Context) error {
	dir, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return err
	}
	provider, err := goose.NewProvider(goose.DialectSQLite3, s.write, dir, goose.WithLogger(goose.NopLogger()))
	if err != nil {
		return err
	}
	have, err := provider.GetDBVersion(ctx)
	if err != nil {
		return err
	}
	sources := provider.ListSources()
	if newest := sources[len(sources)-1].Version; have > newest {
		return fmt.Errorf("its schema is version %d, this program knows up to %d", have, newest)
	}
	_, err = provider.Up(ctx)
	return err
}

// transact runs fn in a transaction on the writing connection.
func (s *Store) transact(ctx context.Context, fn func(tx *sql.Tx) error) error {
	tx, err := s.write.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if err := fn(tx); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return tx.Commit()
}

func micros(t time.Time) int64 { return t.UnixMicro() }

func fromMicros(n int64) time.Time { return time.UnixMicro(n).UTC() }
