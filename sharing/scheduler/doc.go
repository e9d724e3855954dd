// Package scheduler is the half of a vGPU scheduler that the stock kube-scheduler
// calls over HTTP: it filters nodes, reserves cards and binds pods.
//
// # How a pod is placed
//
// Filter fits the pod on every candidate node and reserves cards on the best
// one, in one critical section of the [Ledger]; so two pods are never promised
// the same memory, however many requests are in flight. Bind turns the
// reservation into a Binding that carries the allocation in its metadata: the
// API server applies node name and annotations together or not at all, so no
// crash leaves half an allocation.
//
// # What counts against a card
//
// A reservation, until it expires or its bind fails; a bound pod with an
// allocation, until its object is gone or its phase is final, which includes
// terminating pods because their processes still hold the memory. An unbound
// pod's annotations count nothing. Cards that vanish from a node keep their
// charges and have them again when they come back.
//
// # Failure behaviour
//
// Nothing is answered before pods and nodes have been read from the API server
// once. A bound pod whose allocation can't be read, or that uses the resource
// without one, closes its node to new work until it is gone. A failed bind gives
// the reservation back, except when the API server may have done it all the same:
// then the pod is looked up, or the reservation left to expire.
//
// Lock order: there is one lock, Ledger.mu. It is never held during I/O.
package scheduler
