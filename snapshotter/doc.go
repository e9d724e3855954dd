// Package snapshotter is a containerd snapshotter whose layers may come lazily:
// a layer is there as soon as its index is, and its bytes are read when somebody
// reads them.
//
// # Vocabulary
//
// A snapshot is containerd's: active (writable), view, or committed. Each has a
// number that is never used again and the directory snapshots/<number>, with the
// layer's tree in fs and, for an active one, overlayfs's work. An ordinary
// snapshot's tree is a plain directory that containerd filled. A supplied
// snapshot's tree was put there by the [Supplier]: a mount of a lazy layer, or a
// directory the supplier unpacked itself.
//
// # Protocol
//
// containerd announces a layer by Prepare with the label
// containerd.io/snapshot.ref. If the supplier has the layer, a snapshot is
// committed under the same parent with the same labels and Prepare answers
// ErrAlreadyExists: containerd then neither downloads nor unpacks it. Any other
// outcome, whatever the reason, is an ordinary writable snapshot, which makes
// containerd pull the layer itself. So no failure of the supplier fails a pull
// that would have worked without it.
//
// # Invariants
//
// Every directory in snapshots belongs to a record of the database, or is
// garbage that Cleanup removes. A supplied tree is in place before its snapshot
// is committed. An active snapshot's mounts are never read-only: containerd 2.4
// would take that for a layer that is already there.
//
// # Locks
//
// The database's write transaction is the only lock. Nothing under it waits for
// the network.
package snapshotter
