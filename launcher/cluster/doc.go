// Package cluster is what the launcher asks of a place where environments run,
// and the words it uses with it. Adapters implement [Cluster]: package kube for
// Kubernetes, package local for containerd on this machine.
//
// # Vocabulary
//
// A [Launch] is one start of one environment, complete: an adapter needs
// nothing else. The environment's identifier is the key of everything an
// adapter makes, so that making it twice meets what is already there, and
// whatever a crash left behind can be found again. A stage is one link of the
// chain from the request to the running agent; an adapter tells an [Observer]
// when each begins and ends.
//
// # Truth
//
// The cluster, not the launcher's database, is the truth about what runs. After
// a restart the launcher calls Start again with the same Launch for every
// environment that should run: an adapter adopts what it finds.
//
// # Failure
//
// A request that the cluster cannot serve now is not an error: Start waits,
// telling the observer why, until its context ends. What can never succeed
// comes back as an [Error] with a stable code.
package cluster
