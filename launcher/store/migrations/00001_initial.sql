-- +goose Up
CREATE TABLE spec_revisions (
    name       TEXT    NOT NULL,
    revision   INTEGER NOT NULL,
    body       TEXT    NOT NULL, -- the complete spec, defaults written out, as JSON
    created_at INTEGER NOT NULL, -- microseconds since the epoch, like every time here
    PRIMARY KEY (name, revision)
) STRICT, WITHOUT ROWID;

CREATE TABLE environments (
    id          TEXT    NOT NULL PRIMARY KEY,
    name        TEXT    NOT NULL UNIQUE,
    cluster     TEXT    NOT NULL,
    spec_ref    TEXT    NOT NULL, -- name@revision, or empty for a spec given inline
    phase       TEXT    NOT NULL,
    accepted_at INTEGER NOT NULL,
    body        TEXT    NOT NULL, -- what is shown of it, as JSON
    secrets     BLOB    NOT NULL, -- keys and tokens, as JSON, sealed; never shown
    sealed_by   TEXT    NOT NULL  -- identifier of the key
) STRICT;
CREATE INDEX environments_by_time ON environments (accepted_at, id);

CREATE TABLE events (
    environment TEXT    NOT NULL REFERENCES environments (id) ON DELETE CASCADE,
    seq         INTEGER NOT NULL,
    at          INTEGER NOT NULL,
    kind        TEXT    NOT NULL,
    data        TEXT    NOT NULL,
    PRIMARY KEY (environment, seq)
) STRICT, WITHOUT ROWID;

CREATE TABLE idempotency (
    scope      TEXT    NOT NULL, -- principal, method and path
    key        TEXT    NOT NULL,
    body_hash  TEXT    NOT NULL,
    status     INTEGER NOT NULL, -- 0 while the request is still being served
    header     TEXT    NOT NULL,
    response   BLOB    NOT NULL,
    created_at INTEGER NOT NULL,
    PRIMARY KEY (scope, key)
) STRICT, WITHOUT ROWID;

-- +goose Down
DROP TABLE idempotency;
DROP TABLE events;
DROP TABLE environments;
DROP TABLE spec_revisions;
