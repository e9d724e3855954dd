// Package environment takes environments from the request to the moment they
// are usable, and watches over them afterwards.
//
// # Vocabulary
//
// A [Manager] owns all environments of one launcher. A run is the goroutine
// that brings one environment up: it resolves the image, has the cluster start
// it, waits for the agent, and probes until every probe has succeeded and then
// succeeded once more. The latest first success is the moment the environment
// became usable; the confirming round only validates it.
//
// # Invariants
//
//   - The intent is stored before the request is answered, and before anything
//     is made in a cluster. Whatever stops the launcher, a restart finds the row
//     and goes on: clusters adopt what exists.
//   - Waiting is not failing. A run fails only by an error that no retry can
//     change; an environment that does not fit stays where it is, with reasons.
//   - A restart of the container voids what the probes saw before.
//   - What is stored is also what is told: an event is shown to nobody before it
//     is in the store, so sequence numbers have no gaps and no repetitions.
//
// # Locks
//
// Manager.mu guards the map of runs; run.mu guards one environment's state. A
// run's lock may be taken while the manager's is held, never the reverse. No
// lock is held during a call to a cluster or the store.
package environment
