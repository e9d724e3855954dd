// Package agentapi is what the launcher and firstlight-agent say to each
// other: the configuration the agent is started with, the status it reports,
// and the client that reads it.
//
// # Vocabulary
//
// The agent is PID 1 of an environment's main container. It starts the image's
// own command (the app), serves SSH, and runs probes. A probe does something a
// user would do first; its results form one lane of the start's timeline, and
// a lane may have several levels, each with its own time.
//
// # Clocks
//
// Every stamp the agent reports is a [BootTime]: nanoseconds of the node's
// CLOCK_BOOTTIME, which all containers of a node share and which nobody can
// set. A status carries the agent's own reading of that clock, so a client
// that knows when it sent the request and when the answer came can place every
// stamp on its own clock, with an error of at most half the round trip: see
// [Sample].
//
// # Secrets
//
// A [Config] holds the SSH host key and the status token. It is written to a
// file that only the container's user can read, or to a Kubernetes Secret.
// A [Status] never holds either of them.
package agentapi
