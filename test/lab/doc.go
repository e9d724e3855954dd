// Package lab is a registry and nodes, joined by shaped links, in a throw-away
// folder: the smallest place where a lazy start and a full pull can be told
// apart by clock and by bytes.
//
// # What it is
//
// The registry (distribution) lives in one sandbox; each node (containerd,
// firstlight-snapshotter, firstlight-launcher) lives in another. A veth pair
// with a token bucket at both ends joins them, so that each direction has the
// configured rate and no more. Inside, every address is a constant. The
// registry is RegistryAddress from everywhere inside the lab, plain HTTP.
//
// What runs in the registry's sandbox (Lab.Command) reaches the registry over
// loopback, unshaped: that is where images are built, pushed and indexed. What
// runs on a node (Node.Command) reaches it over the shaped link.
//
// # Comparing runs
//
// A node is cheap, so each run gets a fresh one: its folders are new, hence no
// content, no snapshot and no page cache of files from a run before. The
// machine's other caches are left alone. The registry's files are warm for every
// run alike. Link.Received counts the bytes that really crossed the link.
//
// # Invariants
//
// Everything ends with Close, or with the calling process, however that ends:
// see package sandbox. Nothing outside the folder changes. Logs are files in the
// folder, one per program, kept when Start fails.
package lab
