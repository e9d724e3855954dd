package api

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/firstlight-dev/firstlight/launcher/cluster"
	"github.com/firstlight-dev/firstlight/launcher/environment"
	"github.com/firstlight-dev/firstlight/launcher/spec"
	"github.com/firstlight-dev/firstlight/launcher/store"
	"github.com/firstlight-dev/firstlight/launcher/timeline"
)

// Server answers the API's requests.
type Server struct {
	manager *environment.Manager
	store   *store.Store
	auth    *Tokens
	log     *slog.Logger
	version string
}

// NewServer returns a server. Without tokens it answers this machine only.
func NewServer(m *environment.Manager, st *store.Store, auth *Tokens, version string, log *slog.Logger) *Server {
	return &Server{manager: m, store: st, auth: auth, version: version, log: log}
}

// Handler returns the whole API.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	s.register(s.open(mux))
	mux.HandleFunc("GET /v1/environments/{env}/events", s.events)
	mux.HandleFunc("GET /v1/environments/{env}/logs", s.logs)
	mux.HandleFunc("GET /v1/environments/{env}/tunnel", s.tunnel)
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	for _, path := range []string{"/{$}", "/page.css", "/page.js"} {
		mux.Handle("GET "+path, page())
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		writeProblem(w, problem(http.StatusNotFound, CodeNotFound, "no such path: "+r.URL.Path))
	})
	return s.auth.guard(s.idempotent(mux))
}

// open sets huma up: no schema links in bodies, no page that loads scripts
// from elsewhere.
func (s *Server) open(mux *http.ServeMux) huma.API {
	cfg := huma.DefaultConfig("firstlight launcher", s.version)
	cfg.CreateHooks = nil
	cfg.DocsPath, cfg.SchemasPath = "", ""
	cfg.Transformers = []huma.Transformer{asProblem}
	cfg.Info.Description = "GPU development environments, and the clock that says when they are usable."
	cfg.Components.SecuritySchemes = map[string]*huma.SecurityScheme{"token": {Type: "http", Scheme: "bearer"}}
	cfg.Security = []map[string][]string{{"token": {}}}
	return humago.New(mux, cfg)
}

type (
	named struct {
		Name string `path:"name"`
	}
	envPath struct {
		Env string `path:"env" doc:"identifier or name"`
	}
	answer[T any] struct {
		Body T
	}
	accepted[T any] struct {
		Location string `header:"Location"`
		Body     T
	}
	created[T any] struct {
		Status int
		Body   T
	}
)

func (s *Server) register(api huma.API) {
	op := func(method, path, id, summary string, status int, errs ...int) huma.Operation {
		return huma.Operation{Method: method, Path: path, OperationID: id, Summary: summary, DefaultStatus: status, Errors: errs}
	}
	huma.Register(api, op("POST", "/v1/specs", "push-spec", "Store a spec as a new revision", 201, 422), s.pushSpec)
	huma.Register(api, op("GET", "/v1/specs", "list-specs", "List the newest revision of every spec", 200), s.listSpecs)
	huma.Register(api, op("GET", "/v1/specs/{name}", "get-spec", "The newest revision of a spec", 200, 404), s.getSpec)
	huma.Register(api, op("GET", "/v1/specs/{name}/revisions", "list-revisions", "All revisions of a spec", 200), s.listRevisions)
	huma.Register(api, op("GET", "/v1/specs/{name}/revisions/{revision}", "get-revision", "One revision of a spec", 200, 404), s.getRevision)
	huma.Register(api, op("POST", "/v1/environments", "create-environment", "Ask for an environment", 202, 404, 409, 422), s.createEnvironment)
	huma.Register(api, op("GET", "/v1/environments", "list-environments", "List environments", 200), s.listEnvironments)
	huma.Register(api, op("GET", "/v1/environments/{env}", "get-environment", "One environment", 200, 404), s.getEnvironment)
	huma.Register(api, op("DELETE", "/v1/environments/{env}", "delete-environment", "Stop and forget an environment", 202, 404), s.deleteEnvironment)
	huma.Register(api, op("GET", "/v1/environments/{env}/timeline", "get-timeline", "The waterfall of the start", 200, 404), s.getTimeline)
	huma.Register(api, op("GET", "/v1/environments/{env}/explain", "explain", "Why it is where it is, for each node and device", 200, 404, 502), s.explain)
	huma.Register(api, op("GET", "/v1/environments/{env}/access", "get-access", "How to get in", 200, 404), s.getAccess)
	huma.Register(api, op("GET", "/v1/clusters", "list-clusters", "List clusters with their health", 200), s.listClusters)
	huma.Register(api, op("GET", "/v1/clusters/{name}/capacity", "get-capacity", "Nodes and devices of a cluster", 200, 422, 502), s.getCapacity)
	describeStreams(api.OpenAPI())
}

// describeStreams documents the paths that are served outside of huma.
func describeStreams(doc *huma.OpenAPI) {
	env := []*huma.Param{{Name: "env", In: "path", Required: true, Schema: &huma.Schema{Type: huma.TypeString}}}
	for path, d := range map[string]struct{ id, summary, status, media string }{
		"events": {"stream-events", "Events as they happen; resume with Last-Event-ID or ?after=", "200", "text/event-stream"},
		"logs":   {"get-logs", "Output of the container; ?follow=true goes on", "200", "text/plain"},
		"tunnel": {"open-tunnel", "A TCP connection to ?port= inside a websocket", "101", ""},
	} {
		res := &huma.Response{Description: d.summary}
		if d.media != "" {
			res.Content = map[string]*huma.MediaType{d.media: {Schema: &huma.Schema{Type: huma.TypeString}}}
		}
		doc.AddOperation(&huma.Operation{
			Method: http.MethodGet, Path: "/v1/environments/{env}/" + path, OperationID: d.id, Summary: d.summary,
			Parameters: env, Responses: map[string]*huma.Response{d.status: res},
		})
	}
}

func (s *Server) pushSpec(ctx context.Context, in *struct{ Body spec.Spec }) (*created[store.Revision], error) {
	full, err := spec.Complete(in.Body)
	if err != nil {
		return nil, problemOf(err)
	}
	rev, fresh, err := s.store.PushSpec(ctx, full, time.Now())
	if err != nil {
		return nil, problemOf(err)
	}
	out := &created[store.Revision]{Status: http.StatusOK, Body: *rev}
	if fresh {
		out.Status = http.StatusCreated
	}
	return out, nil
}

func (s *Server) listSpecs(ctx context.Context, _ *struct{}) (*answer[Specs], error) {
	all, err := s.store.Specs(ctx)
	if err != nil {
		return nil, problemOf(err)
	}
	return &answer[Specs]{Specs{Items: all}}, nil
}

func (s *Server) getSpec(ctx context.Context, in *named) (*answer[store.Revision], error) {
	return s.revision(ctx, spec.Ref{Name: in.Name})
}

func (s *Server) getRevision(ctx context.Context, in *struct {
	Name     string `path:"name"`
	Revision int    `path:"revision" minimum:"1"`
}) (*answer[store.Revision], error) {
	return s.revision(ctx, spec.Ref{Name: in.Name, Revision: in.Revision})
}

func (s *Server) revision(ctx context.Context, ref spec.Ref) (*answer[store.Revision], error) {
	rev, err := s.store.Spec(ctx, ref)
	if errors.Is(err, store.ErrNotFound) {
		return nil, problem(http.StatusNotFound, CodeSpecNotFound, "no spec "+ref.String())
	}
	if err != nil {
		return nil, problemOf(err)
	}
	return &answer[store.Revision]{*rev}, nil
}

func (s *Server) listRevisions(ctx context.Context, in *named) (*answer[Specs], error) {
	all, err := s.store.SpecRevisions(ctx, in.Name)
	if err != nil {
		return nil, problemOf(err)
	}
	return &answer[Specs]{Specs{Items: all}}, nil
}

func (s *Server) createEnvironment(ctx context.Context, in *struct{ Body CreateEnvironment }) (*accepted[*Environment], error) {
	req := environment.Request{Name: in.Body.Name, Cluster: in.Body.Cluster, SSHKeys: in.Body.SSHKeys, Accepted: time.Now()}
	switch {
	case (in.Body.Spec == nil) == (in.Body.SpecRef == ""):
		return nil, problemOf(spec.Errors{{Path: "spec", Message: "needs exactly one of spec and specRef"}})
	case in.Body.Spec != nil:
		full, err := spec.Complete(*in.Body.Spec)
		if err != nil {
			return nil, problemOf(err)
		}
		req.Spec = *full
	default:
		ref, err := spec.ParseRef(in.Body.SpecRef)
		if err != nil {
			return nil, problemOf(err)
		}
		rev, err := s.revision(ctx, ref)
		if err != nil {
			return nil, err
		}
		req.Spec, req.SpecRef = rev.Body.Spec, rev.Body.Ref().String()
	}
	e, err := s.manager.Create(ctx, req)
	if err != nil {
		return nil, problemOf(err)
	}
	return &accepted[*Environment]{Location: "/v1/environments/" + e.ID, Body: View(e)}, nil
}

func (s *Server) listEnvironments(ctx context.Context, in *struct {
	Limit  int    `query:"limit" default:"50" minimum:"1" maximum:"500"`
	Cursor string `query:"cursor"`
}) (*answer[Environments], error) {
	all, err := s.manager.List(ctx, store.Page{Limit: in.Limit, Cursor: in.Cursor})
	if err != nil {
		return nil, problemOf(err)
	}
	out := Environments{Items: make([]Environment, 0, len(all))}
	for i := range all {
		out.Items = append(out.Items, *View(&all[i]))
	}
	if len(all) == in.Limit {
		out.NextCursor = all[len(all)-1].ID
	}
	return &answer[Environments]{out}, nil
}

func (s *Server) getEnvironment(ctx context.Context, in *envPath) (*answer[*Environment], error) {
	e, err := s.manager.Get(ctx, in.Env)
	if err != nil {
		return nil, problemOf(err)
	}
	return &answer[*Environment]{View(e)}, nil
}

func (s *Server) deleteEnvironment(ctx context.Context, in *envPath) (*accepted[*Environment], error) {
	e, err := s.manager.Delete(ctx, in.Env)
	if err != nil {
		return nil, problemOf(err)
	}
	return &accepted[*Environment]{Location: "/v1/environments/" + e.ID, Body: View(e)}, nil
}

func (s *Server) getTimeline(ctx context.Context, in *envPath) (*answer[*timeline.Timeline], error) {
	t, err := s.manager.Timeline(ctx, in.Env)
	if err != nil {
		return nil, problemOf(err)
	}
	return &answer[*timeline.Timeline]{t}, nil
}

// explainTimeout bounds reading a cluster's facts for one answer.
const explainTimeout = 20 * time.Second

func (s *Server) explain(ctx context.Context, in *envPath) (*answer[cluster.Explanation], error) {
	ctx, cancel := context.WithTimeout(ctx, explainTimeout)
	defer cancel()
	x, err := s.manager.Explain(ctx, in.Env)
	if err != nil {
		return nil, problemOf(err)
	}
	return &answer[cluster.Explanation]{x}, nil
}

func (s *Server) getAccess(ctx context.Context, in *envPath) (*answer[Access], error) {
	e, err := s.manager.Get(ctx, in.Env)
	if err != nil {
		return nil, problemOf(err)
	}
	return &answer[Access]{Access{
		Environment: e.ID, TunnelPath: "/v1/environments/" + e.ID + "/tunnel", HostKey: e.Status.HostKey,
	}}, nil
}

func (s *Server) listClusters(context.Context, *struct{}) (*answer[Clusters], error) {
	return &answer[Clusters]{Clusters{Items: s.manager.Clusters()}}, nil
}

func (s *Server) getCapacity(ctx context.Context, in *named) (*answer[Capacity], error) {
	ctx, cancel := context.WithTimeout(ctx, explainTimeout)
	defer cancel()
	nodes, err := s.manager.Capacity(ctx, in.Name)
	if err != nil {
		return nil, problemOf(err)
	}
	return &answer[Capacity]{Capacity{Nodes: nodes}}, nil
}
