package scheduler

import (
	"encoding/json"
	"io"
	"net/http"

	extender "k8s.io/kube-scheduler/extender/v1"
)

// maxBody bounds a call: a pod of at most 1.5 MiB, the API server's limit, and
// the names of tens of thousands of nodes.
const maxBody = 16 << 20

// Handler serves the extender calls /filter and /bind, and /healthz and /readyz.
func (s *Scheduler) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /filter", s.serveFilter)
	mux.HandleFunc("POST /bind", s.serveBind)
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok\n") })
	mux.HandleFunc("GET /readyz", s.serveReady)
	return mux
}

func (s *Scheduler) serveReady(w http.ResponseWriter, _ *http.Request) {
	if !s.Ready() {
		http.Error(w, ErrNotReady.Error(), http.StatusServiceUnavailable)
		return
	}
	_, _ = io.WriteString(w, "ok\n")
}

func (s *Scheduler) serveFilter(w http.ResponseWriter, r *http.Request) {
	var args extender.ExtenderArgs
	if !s.decode(w, r, &args) {
		return
	}
	result, err := s.Filter(r.Context(), args)
	if err != nil {
		result = &extender.ExtenderFilterResult{Error: err.Error()}
	}
	s.answer(w, r, result)
}

func (s *Scheduler) serveBind(w http.ResponseWriter, r *http.Request) {
	var args extender.ExtenderBindingArgs
	if !s.decode(w, r, &args) {
		return
	}
	var result extender.ExtenderBindingResult
	if err := s.Bind(r.Context(), args); err != nil {
		result.Error = err.Error()
	}
	s.answer(w, r, &result)
}

func (s *Scheduler) decode(w http.ResponseWriter, r *http.Request, to any) bool {
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody)).Decode(to); err != nil {
		http.Error(w, "read call: "+err.Error(), http.StatusBadRequest)
		return false
	}
	return true
}

func (s *Scheduler) answer(w http.ResponseWriter, r *http.Request, result any) {
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(result); err != nil {
		s.cfg.Log.DebugContext(r.Context(), "caller left before the answer", "error", err)
	}
}
