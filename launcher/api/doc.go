// Package api is the launcher's REST API: resources under /v1, described by
// OpenAPI 3.1 at /openapi.json, errors as RFC 9457 problem documents, and
// events as server-sent events.
//
// # Habits
//
// Everything that takes long answers 202 with the resource itself, whose status
// then tells the rest. Every problem has a stable code for programs beside the
// text for people. A POST with an Idempotency-Key may be repeated: the stored
// answer comes again. Absent means unknown; nothing is reported as 0 that was
// not counted.
//
// # Who may
//
// Requests carry a bearer token. Without a token file the API serves this
// machine only: the listener must be on a loopback address, and a browser page
// from elsewhere is refused by Origin and Host. The health and OpenAPI paths and
// the page itself, which holds no data, are open.
//
// # Secrets
//
// No answer holds a private key, a token or a cluster's credentials. The types
// of this package have no field for them.
package api
