// Package wire is the text that sharing components exchange through the
// Kubernetes API, byte for byte as HAMi 2.10 writes it: annotation keys,
// resource names, and the values behind them.
//
// # Vocabulary
//
// A card is a physical GPU, named by its UUID ("GPU-…"). A vGPU is a share of
// one card: some MiB of its memory, some percent of its cores, one of its
// slots. A node registers its cards in one annotation ([Device]); a pod carries
// its vGPUs in two ([PodDevices]): one permanent, the source of truth after a
// restart, and one that the device plugin empties as it serves containers. A
// node lock ([NodeLock]) names the one pod per node that is between bind and
// Allocate, because Allocate is not told which pod it serves.
//
// # Failure behaviour
//
// Annotations can be written by anybody who can edit a pod or a node, so
// decoders treat them as hostile: sizes and counts are bounded, numbers must be
// in range, names must not hold separators, and whatever does not decode is an
// error. A reader must fail closed on it: an allocation that can't be read is
// an allocation of unknown size, not of size zero.
package wire
