package wire

import (
	"fmt"
	"strings"
	"time"
)

// LockTimeout is the age at which a node lock counts as left behind. It is
// HAMi's default, so both sides agree on who may take a lock over.
const LockTimeout = 5 * time.Minute

// NodeLock is the value of NodeMutex: the pod that is between bind and the end
// of Allocate on a node.
type NodeLock struct {
	Since           time.Time
	Namespace, Name string // empty in the legacy form
}

// String returns the annotation value.
func (l NodeLock) String() string {
	s := l.Since.Format(time.RFC3339)
	if l.Name == "" {
		return s
	}
	return s + "," + l.Namespace + "," + l.Name
}

// HeldBy reports whether the lock is the named pod's.
func (l NodeLock) HeldBy(namespace, name string) bool {
	return l.Name != "" && l.Namespace == namespace && l.Name == name
}

// Expired reports whether the lock is too old to be honoured.
func (l NodeLock) Expired(now time.Time) bool { return now.Sub(l.Since) > LockTimeout }

// ParseNodeLock reads "RFC3339,namespace,name" or the legacy bare time.
func ParseNodeLock(s string) (NodeLock, error) {
	stamp, owner, owned := strings.Cut(s, ",")
	since, err := time.Parse(time.RFC3339, stamp)
	if err != nil {
		return NodeLock{}, fmt.Errorf("%w: node lock time %q", ErrFormat, stamp)
	}
	lock := NodeLock{Since: since}
	if !owned {
		return lock, nil
	}
	namespace, name, ok := strings.Cut(owner, ",")
	if !ok || namespace == "" || name == "" || strings.Contains(name, ",") {
		return NodeLock{}, fmt.Errorf("%w: node lock owner %q", ErrFormat, owner)
	}
	lock.Namespace, lock.Name = namespace, name
	return lock, nil
}

// HandshakeState is the first word of NodeHandshake.
type HandshakeState string

// The states. HAMi 2.10 only writes and reads HandshakeRequesting; 2.7 and
// earlier need the plugin's answer HandshakeReported.
const (
	HandshakeRequesting HandshakeState = "Requesting" // a scheduler waits for a sign of life
	HandshakeReported   HandshakeState = "Reported"   // a plugin answered
	HandshakeDeleted    HandshakeState = "Deleted"    // a scheduler gave the node up
)

// reportedLayout is the text of time.Time.String without the monotonic clock.
const reportedLayout = "2006-01-02 15:04:05.999999999 -0700 MST"

// Handshake is the value of NodeHandshake. HAMi writes local time without a
// zone, so At is only as good as the clocks and zones of both machines.
type Handshake struct {
	State HandshakeState
	At    time.Time
}

// String returns the annotation value.
func (h Handshake) String() string {
	if h.State == HandshakeReported {
		return string(h.State) + " " + h.At.Format(reportedLayout)
	}
	return string(h.State) + "_" + h.At.Format(time.DateTime)
}

// ParseHandshake reads a handshake; times without a zone are in loc.
func ParseHandshake(s string, loc *time.Location) (Handshake, error) {
	for _, state := range []HandshakeState{HandshakeRequesting, HandshakeReported, HandshakeDeleted} {
		rest, ok := strings.CutPrefix(s, string(state))
		if !ok || rest == "" {
			continue
		}
		layout := time.DateTime
		if state == HandshakeReported {
			layout = reportedLayout
			rest, _, _ = strings.Cut(rest, " m=") // the monotonic clock of time.Now
		}
		at, err := time.ParseInLocation(layout, rest[1:], loc)
		if err != nil {
			return Handshake{}, fmt.Errorf("%w: handshake time %q", ErrFormat, rest[1:])
		}
		return Handshake{State: state, At: at}, nil
	}
	return Handshake{}, fmt.Errorf("%w: handshake %q", ErrFormat, s)
}
