// Package tunnel carries a connection to an environment through the launcher's
// API, and speaks SSH over it.
//
// A tunnel is one TCP connection of the environment inside one websocket, as
// binary messages; message boundaries mean nothing. The launcher's side is
// [Serve], the client's is [Dial]. A tunnel has no half-close: when either
// side ends, both end. Both sides ping, so that a peer that vanished is
// noticed and idle connections survive the proxies between.
//
// Over the tunnel the environment's own SSH server is spoken to, end to end:
// the launcher sees ciphertext only. [Connect] insists on the environment's
// host key, which the launcher's API gives. [ProbeLogin] does what a user's
// login does and times each step.
package tunnel
