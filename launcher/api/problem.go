package api

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/firstlight-dev/firstlight/launcher/cluster"
	"github.com/firstlight-dev/firstlight/launcher/environment"
	"github.com/firstlight-dev/firstlight/launcher/spec"
	"github.com/firstlight-dev/firstlight/launcher/store"
)

// Codes of problems, beside those of package cluster. They are stable.
const (
	CodeInvalidSpec           = "invalid_spec"
	CodeInvalidRequest        = "invalid_request"
	CodeNotFound              = "not_found"
	CodeSpecNotFound          = "spec_not_found"
	CodeClusterNotFound       = "cluster_not_found"
	CodeNameConflict          = "name_conflict"
	CodeNotReady              = "not_ready"
	CodeIdempotencyInProgress = "idempotency_in_progress"
	CodeIdempotencyKeyReused  = "idempotency_key_reused"
	CodeEventHistoryExpired   = "event_history_expired"
	CodeUnauthenticated       = "unauthenticated"
	CodeForbidden             = "forbidden"
	CodeTimeout               = "timeout"
	CodeStopping              = "stopping"
	CodeInternal              = "internal"
)

// problemMediaType is RFC 9457's.
const problemMediaType = "application/problem+json"

// Problem is a problem document of RFC 9457.
type Problem struct {
	Type      string       `json:"type" doc:"URI of the code's description"`
	Title     string       `json:"title"`
	Status    int          `json:"status"`
	Detail    string       `json:"detail,omitempty"`
	Code      string       `json:"code" doc:"stable word for programs"`
	Retryable bool         `json:"retryable" doc:"the same request may succeed later"`
	Errors    []FieldError `json:"errors,omitempty"`
}

// FieldError is one field that is wrong.
type FieldError struct {
	Location string `json:"location"`
	Message  string `json:"message"`
}

// Error implements error.
func (p *Problem) Error() string { return p.Code + ": " + cmp.Or(p.Detail, p.Title) }

// GetStatus implements huma.StatusError.
func (p *Problem) GetStatus() int { return p.Status }

// ContentType implements huma.ContentTypeFilter.
func (*Problem) ContentType(string) string { return problemMediaType }

var (
	_ huma.StatusError       = (*Problem)(nil)
	_ huma.ContentTypeFilter = (*Problem)(nil)
)

func problem(status int, code, detail string) *Problem {
	return &Problem{
		Type: "https://firstlight.dev/problems/" + code, Title: http.StatusText(status),
		Status: status, Code: code, Detail: detail,
	}
}

// problemOf is the one place where errors become answers.
func problemOf(err error) *Problem {
	var p *Problem
	var fields spec.Errors
	var failed *cluster.Error
	switch {
	case errors.As(err, &p):
		return p
	case errors.As(err, &fields):
		p = problem(http.StatusUnprocessableEntity, CodeInvalidSpec, "the request has wrong fields")
		for _, f := range fields {
			p.Errors = append(p.Errors, FieldError{Location: f.Path, Message: f.Message})
		}
		return p
	case errors.Is(err, spec.ErrInvalid):
		return problem(http.StatusUnprocessableEntity, CodeInvalidSpec, err.Error())
	case errors.Is(err, store.ErrConflict):
		return problem(http.StatusConflict, CodeNameConflict, "an environment of that name exists")
	case errors.Is(err, environment.ErrNoCluster):
		return problem(http.StatusUnprocessableEntity, CodeClusterNotFound, err.Error())
	case errors.Is(err, environment.ErrNotReady):
		p = problem(http.StatusConflict, CodeNotReady, err.Error())
		p.Retryable = true
		return p
	case errors.Is(err, store.ErrNotFound), errors.Is(err, cluster.ErrNotFound):
		return problem(http.StatusNotFound, CodeNotFound, err.Error())
	case errors.Is(err, store.ErrExpired):
		return problem(http.StatusGone, CodeEventHistoryExpired, err.Error())
	case errors.As(err, &failed):
		p = problem(http.StatusBadGateway, string(failed.Code), failed.Err.Error())
		p.Retryable = failed.Retryable
		return p
	case errors.Is(err, environment.ErrStopping):
		p = problem(http.StatusServiceUnavailable, CodeStopping, err.Error())
		p.Retryable = true
		return p
	case errors.Is(err, context.DeadlineExceeded):
		p = problem(http.StatusGatewayTimeout, CodeTimeout, err.Error())
		p.Retryable = true
		return p
	}
	return problem(http.StatusInternalServerError, CodeInternal, err.Error())
}

// asProblem gives huma's own errors, such as a body that does not match its
// schema, the same form as ours.
func asProblem(_ huma.Context, _ string, v any) (any, error) {
	m, ok := v.(*huma.ErrorModel)
	if !ok {
		return v, nil
	}
	code := CodeInvalidRequest
	if m.Status >= http.StatusInternalServerError {
		code = CodeInternal
	}
	p := problem(m.Status, code, m.Detail)
	for _, e := range m.Errors {
		p.Errors = append(p.Errors, FieldError{Location: strings.TrimPrefix(e.Location, "body."), Message: e.Message})
	}
	return p, nil
}

// writeProblem answers outside of huma.
func writeProblem(w http.ResponseWriter, p *Problem) {
	w.Header().Set("Content-Type", problemMediaType)
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(p.Status)
	body, err := json.Marshal(p)
	if err != nil {
		return // a struct of strings always encodes
	}
	_, _ = w.Write(body) // a client that left needs no answer
}
