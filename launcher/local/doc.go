// Package local runs environments with containerd on this machine: a cluster
// of one node, without Kubernetes.
//
// # Truth
//
// Everything the adapter must know again after a restart is in the labels of
// the containers, in a containerd namespace of its own: which environment, its
// ports, the shares of cards it holds. The ledger of cards in memory is built
// from them, so a crash can't leak or double a share. An environment's files
// (log, agent configuration) are in one folder named after it.
//
// # Network
//
// Environments use the launcher's own network namespace: no bridge, no address
// management, nothing to install. Each gets two free ports on one address, the
// loopback by default. The cost is that environments see each other's and the
// machine's loopback services; it is for one person's machine or for trusted
// users. SSH insists on keys and the status server on its token.
//
// # Sharing
//
// Cards come from the configuration, usually simulated. A share is chosen by
// the same code as on Kubernetes (sharing/fit) and handed over as the variables
// that HAMi-core reads. CPU and memory are limits, not reservations.
//
// # Locks
//
// Work on one environment is serialised by its key in keys. ledger.mu and
// Cluster.mu are leaves: nothing is locked, and nobody waited for, under them.
package local
