package agent

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/firstlight-dev/firstlight/launcher/agentapi"
)

// Limits of the status server. It has one client, the launcher.
const (
	maxStatusConnections = 32
	statusHeaderTimeout  = 10 * time.Second
	maxStatusHeader      = 16 << 10
	confirmTimeout       = 10 * time.Minute // one attempt of the slowest probe
)

// statusHandler serves the agent's status.
func (a *agent) statusHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+agentapi.StatusPath, func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, a.status())
	})
	mux.HandleFunc("POST "+agentapi.ConfirmPath, func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), confirmTimeout)
		defer cancel()
		round, err := a.prober.confirm(ctx)
		switch {
		case errors.Is(err, errRoundRunning):
			http.Error(w, err.Error(), http.StatusConflict)
		case err != nil:
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		default:
			writeJSON(w, round)
		}
	})
	return requireToken(a.config.Status.Token, mux)
}

// requireToken compares hashes, so that the time taken says nothing about the
// token, not even its length.
func requireToken(token string, next http.Handler) http.Handler {
	if token == "" {
		return next
	}
	want := sha256.Sum256([]byte(token))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		given, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		got := sha256.Sum256([]byte(given))
		if subtle.ConstantTimeCompare(want[:], got[:]) != 1 {
			http.Error(w, "wrong or missing token", http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // the client is gone
}

func (a *agent) status() agentapi.Status {
	lanes, round := a.prober.snapshot()
	return agentapi.Status{
		Version:     a.version,
		Environment: a.config.Environment,
		Now:         bootNow(),
		Wall:        time.Now(),
		Start:       a.start,
		App:         a.app.snapshot(),
		SSH:         a.ssh.snapshot(a.sshAddr),
		Lanes:       lanes,
		Round:       round,
		Reaps:       a.children.reaped.Load(),
	}
}

// serveStatus runs the status server until the context ends.
func (a *agent) serveStatus(ctx context.Context, l net.Listener) error {
	srv := &http.Server{
		Handler:           a.statusHandler(),
		ReadHeaderTimeout: statusHeaderTimeout,
		ReadTimeout:       statusHeaderTimeout,
		WriteTimeout:      confirmTimeout + statusHeaderTimeout,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    maxStatusHeader,
		BaseContext:       func(net.Listener) context.Context { return ctx },
	}
	stop := context.AfterFunc(ctx, func() { _ = srv.Close() })
	defer stop()
	err := srv.Serve(newLimitListener(l, maxStatusConnections, func() {}))
	if errors.Is(err, http.ErrServerClosed) || ctx.Err() != nil {
		return nil
	}
	return err
}
