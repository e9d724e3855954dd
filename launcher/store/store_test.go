package store_test

import (
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/firstlight-dev/firstlight/launcher/cluster"
	"github.com/firstlight-dev/firstlight/launcher/spec"
	"github.com/firstlight-dev/firstlight/launcher/store"
	"github.com/firstlight-dev/firstlight/launcher/timeline"
)

func open(t *testing.T) (*store.Store, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "launcher.db")
	s, err := store.Open(t.Context(), path, path+".key")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s, path
}

func now() time.Time { return time.Now().UTC().Truncate(time.Microsecond) }

func environment(id, name string) *store.Environment {
	return &store.Environment{
		ID: id, Name: name, Cluster: "here", Generation: 1, Spec: spec.Spec{Name: "s"},
		Status: store.Status{Phase: store.PhaseSubmitted, Accepted: now()},
		Record: timeline.Record{Accepted: now(), Spans: map[cluster.Stage]timeline.Span{cluster.StageAccept: {Begin: now()}}},
	}
}

func TestSpecRevisions(t *testing.T) {
	s, _ := open(t)
	push := func(image string, revision int, created bool) {
		t.Helper()
		rev, fresh, err := s.PushSpec(t.Context(), &spec.Spec{Name: "a", Image: image}, now())
		if err != nil || rev.Revision != revision || fresh != created || rev.Spec.Image != image {
			t.Errorf("%s became %+v (new: %t): %v", image, rev, fresh, err)
		}
	}
	push("one", 1, true)
	push("one", 1, false)
	push("two", 2, true)
	push("one", 3, true)
	for revision, image := range []string{"one", "one", "two", "one"} { // 0 is the newest
		rev, err := s.Spec(t.Context(), spec.Ref{Name: "a", Revision: revision})
		if err != nil || rev.Spec.Image != image {
			t.Errorf("revision %d is %+v: %v", revision, rev, err)
		}
	}
	for _, ref := range []spec.Ref{{Name: "b"}, {Name: "a", Revision: 4}} {
		if _, err := s.Spec(t.Context(), ref); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("%s: %v", ref, err)
		}
	}
	if all, err := s.Specs(t.Context()); err != nil || len(all) != 1 || all[0].Revision != 3 {
		t.Errorf("specs are %+v: %v", all, err)
	}
	if all, err := s.SpecRevisions(t.Context(), "a"); err != nil || len(all) != 3 {
		t.Errorf("revisions are %+v: %v", all, err)
	}
}

func TestEnvironments(t *testing.T) {
	s, _ := open(t)
	e := environment("env-1", "train")
	secrets := store.Secrets{HostKey: "h", LoginKey: "l", StatusToken: "t"}
	if err := s.CreateEnvironment(t.Context(), e, secrets); err != nil {
		t.Fatal(err)
	}
	if err := s.CreateEnvironment(t.Context(), environment("env-2", "train"), secrets); !errors.Is(err, store.ErrConflict) {
		t.Errorf("the same name again: %v", err)
	}
	for _, key := range []string{"env-1", "train"} {
		got, err := s.Environment(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(e, got); diff != "" {
			t.Error(diff)
		}
	}
	if got, err := s.Secrets(t.Context(), "env-1"); err != nil || got != secrets {
		t.Errorf("secrets: %v", err)
	}
	e.Status.Phase = store.PhaseUsable
	if err := s.SaveEnvironment(t.Context(), e); err != nil {
		t.Fatal(err)
	}
	if err := s.DeleteEnvironment(t.Context(), "env-1"); err != nil {
		t.Fatal(err)
	}
	if err := s.SaveEnvironment(t.Context(), e); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("saved although deleted: %v", err)
	}
	if _, err := s.Environment(t.Context(), "train"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("found although deleted: %v", err)
	}
}

func TestPages(t *testing.T) {
	s, _ := open(t)
	for i := range 5 {
		if err := s.CreateEnvironment(t.Context(), environment(fmt.Sprintf("env-%d", i), fmt.Sprintf("n%d", i)), store.Secrets{}); err != nil {
			t.Fatal(err)
		}
	}
	var seen []string
	for cursor := ""; ; {
		page, err := s.Environments(t.Context(), store.Page{Limit: 2, Cursor: cursor})
		if err != nil {
			t.Fatal(err)
		}
		if len(page) == 0 {
			break
		}
		for i := range page {
			seen = append(seen, page[i].ID)
		}
		cursor = page[len(page)-1].ID
	}
	if diff := cmp.Diff([]string{"env-0", "env-1", "env-2", "env-3", "env-4"}, seen); diff != "" {
		t.Error(diff)
	}
}

// TestEventsCountWithoutGaps adds events from several goroutines.
func TestEventsCountWithoutGaps(t *testing.T) {
	s, _ := open(t)
	if err := s.CreateEnvironment(t.Context(), environment("env-1", "a"), store.Secrets{}); err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	const writers, each = 4, 10
	for range writers {
		all.Go(func() {
			for range each {
				if err := s.AddEvent(t.Context(), "env-1", &store.Event{At: now(), Kind: "note", Data: json.RawMessage(`{}`)}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	events, err := s.Events(t.Context(), "env-1", 0)
	if err != nil || len(events) != writers*each {
		t.Fatalf("%d events: %v", len(events), err)
	}
	for i, e := range events {
		if e.Seq != int64(i+1) {
			t.Fatalf("event %d has number %d", i, e.Seq)
		}
	}
	if rest, err := s.Events(t.Context(), "env-1", 37); err != nil || len(rest) != 3 {
		t.Errorf("%d events after 37: %v", len(rest), err)
	}
}

func TestEventsExpire(t *testing.T) {
	s, path := open(t)
	if err := s.CreateEnvironment(t.Context(), environment("env-1", "a"), store.Secrets{}); err != nil {
		t.Fatal(err)
	}
	add := func() {
		if err := s.AddEvent(t.Context(), "env-1", &store.Event{At: now(), Kind: "note", Data: json.RawMessage(`{}`)}); err != nil {
			t.Fatal(err)
		}
	}
	add()
	db := raw(t, path)
	if _, err := db.ExecContext(t.Context(), "UPDATE events SET seq = 5000"); err != nil {
		t.Fatal(err)
	}
	add()
	if _, err := s.Events(t.Context(), "env-1", 10); !errors.Is(err, store.ErrExpired) {
		t.Errorf("events after a forgotten one: %v", err)
	}
}

func raw(t *testing.T, path string) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db
}

func TestAnswers(t *testing.T) {
	s, _ := open(t)
	claim := func(at time.Time) (store.Answer, bool) {
		t.Helper()
		old, claimed, err := s.BeginAnswer(t.Context(), "scope", "key", "hash", at)
		if err != nil {
			t.Fatal(err)
		}
		return old, claimed
	}
	if _, claimed := claim(now()); !claimed {
		t.Error("a new key is taken")
	}
	if old, claimed := claim(now()); claimed || old.Status != 0 || old.BodyHash != "hash" {
		t.Errorf("a claimed key: %+v, claimed %t", old, claimed)
	}
	if err := s.ReleaseAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, claimed := claim(now()); !claimed {
		t.Error("a released key is taken")
	}
	want := store.Answer{BodyHash: "hash", Status: 202, Header: "{}", Body: []byte("body")}
	if err := s.EndAnswer(t.Context(), "scope", "key", want); err != nil {
		t.Fatal(err)
	}
	if old, _ := claim(now()); !cmp.Equal(old, want) {
		t.Errorf("the answer is %+v", old)
	}
	if _, claimed := claim(now().Add(25 * time.Hour)); !claimed {
		t.Error("an answer is kept for more than a day")
	}
}

// TestSurvivesReopening checks that what was stored is there, and that opening
// again migrates nothing.
func TestSurvivesReopening(t *testing.T) {
	path := filepath.Join(t.TempDir(), "launcher.db")
	for i := range 2 {
		s, err := store.Open(t.Context(), path, path+".key")
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			err = s.CreateEnvironment(t.Context(), environment("env-1", "a"), store.Secrets{})
		} else {
			_, err = s.Environment(t.Context(), "a")
		}
		if err = errors.Join(err, s.Close()); err != nil {
			t.Fatal(err)
		}
	}
}

func TestRefusesNewerSchema(t *testing.T) {
	s, path := open(t)
	_ = s
	if _, err := raw(t, path).ExecContext(t.Context(), "INSERT INTO goose_db_version (version_id, is_applied) VALUES (9999, 1)"); err != nil {
		t.Fatal(err)
	}
	other, err := store.Open(t.Context(), path, path+".key")
	if err == nil || !strings.Contains(err.Error(), "9999") {
		t.Errorf("open: %v", err)
	}
	if other != nil {
		t.Error("a store of a newer schema is open")
	}
}

func TestRefusesReadableFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "launcher.db")
	if err := os.WriteFile(path, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Open(t.Context(), path, path+".key"); err == nil || !strings.Contains(err.Error(), "chmod 600") {
		t.Errorf("open: %v", err)
	}
}
