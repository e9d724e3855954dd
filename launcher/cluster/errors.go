package cluster

import (
	"errors"
	"fmt"
)

// ErrNotFound means that the environment, or what was asked about it, does not
// exist in the cluster.
var ErrNotFound = errors.New("not found in the cluster")

// Code is a stable word for why a launch cannot succeed or a cluster cannot
// answer.
type Code string

// Codes.
const (
	CodeUnreachable       Code = "cluster_unreachable" // the only one worth a retry
	CodeMissingCapability Code = "cluster_missing_capability"
	CodeForbidden         Code = "cluster_forbidden"
	CodeAdmissionDenied   Code = "admission_denied"
	CodeAdmissionBypassed Code = "admission_bypassed" // the pod came back without the GPU scheduler's name
	CodeUnsupported       Code = "unsupported_spec"   // this cluster or backend cannot express it
	CodeImage             Code = "image_unresolvable"
	CodeStartFailed       Code = "start_failed"
)

// Error is a failure with a code. Unless Retryable, trying again without a
// change cannot succeed.
type Error struct {
	Code      Code
	Retryable bool
	Err       error
}

func (e *Error) Error() string { return fmt.Sprintf("%s: %v", e.Code, e.Err) }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Fail returns a permanent Error.
func Fail(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Err: fmt.Errorf(format, args...)}
}

// CodeOf returns the code of an error, or "" if it has none.
func CodeOf(err error) Code {
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}
