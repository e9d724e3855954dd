package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/firstlight-dev/firstlight/launcher/agentapi"
	"github.com/firstlight-dev/firstlight/launcher/store"
	"github.com/firstlight-dev/firstlight/launcher/tunnel"
)

const (
	// heartbeat keeps proxies from closing a quiet stream.
	heartbeat = 15 * time.Second
	// dialTimeout bounds reaching an environment.
	dialTimeout = 20 * time.Second
)

// events streams what happens to an environment. With ?after= or
// Last-Event-ID it begins behind that event, otherwise with a snapshot.
func (s *Server) events(w http.ResponseWriter, r *http.Request) {
	after, resume, err := position(r)
	if err != nil {
		writeProblem(w, problem(http.StatusBadRequest, CodeInvalidRequest, err.Error()))
		return
	}
	e, err := s.manager.Get(r.Context(), r.PathValue("env"))
	if err != nil {
		writeProblem(w, problemOf(err))
		return
	}
	// Errors can be told by a status only before the stream begins.
	past, err := s.store.Events(r.Context(), e.ID, after)
	if err != nil {
		writeProblem(w, problemOf(err))
		return
	}
	out := &eventWriter{w: w, flush: http.NewResponseController(w).Flush}
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no")
	w.WriteHeader(http.StatusOK)
	if !resume {
		if len(past) > 0 {
			after = past[len(past)-1].Seq
		}
		if out.send(after, "snapshot", View(e)) != nil {
			return
		}
	}
	s.follow(r.Context(), out, e.ID, after)
}

// follow sends events until the client leaves or the environment is gone.
func (s *Server) follow(ctx context.Context, out *eventWriter, id string, after int64) {
	beat := time.NewTicker(heartbeat)
	defer beat.Stop()
	for {
		changed := s.manager.Changed(id)
		events, err := s.store.Events(ctx, id, after)
		if err != nil {
			return
		}
		for i := range events {
			if out.sendRaw(events[i].Seq, events[i].Kind, events[i].Data) != nil {
				return
			}
			after = events[i].Seq
		}
		if _, err := s.manager.Get(ctx, id); errors.Is(err, store.ErrNotFound) {
			_ = out.send(after, "end", struct{}{}) // the last word either way
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-beat.C:
			if out.comment() != nil {
				return
			}
		}
	}
}

func position(r *http.Request) (after int64, resume bool, err error) {
	text := r.URL.Query().Get("after")
	if text == "" {
		text = r.Header.Get("Last-Event-ID")
	}
	if text == "" {
		return 0, false, nil
	}
	after, err = strconv.ParseInt(text, 10, 64)
	if err != nil || after < 0 {
		return 0, false, errors.New("the position is not an event's number")
	}
	return after, true, nil
}

// eventWriter writes server-sent events.
type eventWriter struct {
	w     io.Writer
	flush func() error
}

func (o *eventWriter) send(id int64, kind string, data any) error {
	body, err := json.Marshal(data)
	if err != nil {
		return err
	}
	return o.sendRaw(id, kind, body)
}

// sendRaw sends JSON, which has no line feeds of its own.
func (o *eventWriter) sendRaw(id int64, kind string, body []byte) error {
	if _, err := fmt.Fprintf(o.w, "id: %d\nevent: %s\ndata: %s\n\n", id, kind, body); err != nil {
		return err
	}
	return o.flush()
}

func (o *eventWriter) comment() error {
	if _, err := io.WriteString(o.w, ": still here\n\n"); err != nil {
		return err
	}
	return o.flush()
}

// logs streams the container's output.
func (s *Server) logs(w http.ResponseWriter, r *http.Request) {
	follow := r.URL.Query().Get("follow") == "true"
	body, err := s.manager.Logs(r.Context(), r.PathValue("env"), follow)
	if err != nil {
		writeProblem(w, problemOf(err))
		return
	}
	defer body.Close()
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(http.StatusOK)
	rc := http.NewResponseController(w)
	buf := make([]byte, 32<<10)
	for {
		n, err := body.Read(buf)
		if n > 0 {
			if _, werr := w.Write(buf[:n]); werr != nil || rc.Flush() != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// tunnel joins a websocket to one of the environment's ports.
func (s *Server) tunnel(w http.ResponseWriter, r *http.Request) {
	port := agentapi.SSHPort
	if text := r.URL.Query().Get("port"); text != "" {
		n, err := strconv.ParseUint(text, 10, 16)
		if err != nil || n == 0 {
			writeProblem(w, problem(http.StatusBadRequest, CodeInvalidRequest, "the port is not a number between 1 and 65535"))
			return
		}
		port = int(n)
	}
	if port == 22 { // what people call it
		port = agentapi.SSHPort
	}
	ctx, cancel := context.WithTimeout(r.Context(), dialTimeout)
	defer cancel()
	conn, err := s.manager.Dial(ctx, r.PathValue("env"), port)
	if err != nil {
		writeProblem(w, problemOf(err))
		return
	}
	if err := tunnel.Serve(w, r, conn); err != nil {
		s.log.Debug("tunnel not opened", "environment", r.PathValue("env"), "error", err)
	}
}
