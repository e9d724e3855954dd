// Package agent is PID 1 of an environment: it starts the image's own command,
// serves SSH, and runs the probes that tell when the environment is usable.
//
// # Vocabulary
//
// The app is the image's ENTRYPOINT and CMD. A child is any process the agent
// itself started: the app, a session's command, a probe. An orphan is a process
// whose parent ended, so that the kernel gave it to PID 1.
//
// # Invariants
//
//   - Orphans are always reaped, and a child's exit status is never taken from
//     the goroutine that waits for it: see [children].
//   - A session's environment is PID 1's own, minus the agent's variables: the
//     GPU limits that a device plugin set hold in every login. A client can't
//     set or replace them.
//   - The agent needs nothing of the image: no passwd entry, no shell, no /tmp,
//     no writable path. What is missing is named in the error that a user sees.
//   - Nothing a client does ends PID 1. The SFTP server is a process of its
//     own, connections and unauthenticated time are limited, and everything
//     that a client's input steers is bounded by a named constant.
//
// # Failure behaviour
//
// A configuration that can't be used, or a port that is taken, ends the agent
// with an error before the app starts: the container fails visibly. Once the
// app runs, a failing SSH or status server is logged and the app goes on.
//
// # Ending
//
// SIGTERM, SIGINT and SIGQUIT go to the app if it runs; when it ends after
// that, the agent ends too, whatever the policy. With no app running they end
// the agent. The exit code is the app's.
package agent
