package cluster

import (
	"time"

	"github.com/firstlight-dev/firstlight/launcher/spec"
)

// Need is what Explain is asked about.
type Need struct {
	// Env is the environment asking, if it exists already: its own share is
	// not counted against it, and the cluster's events about it are included.
	Env  string
	Spec spec.Spec
}

// Verdict is the short answer.
type Verdict string

// Verdicts.
const (
	VerdictPlaced           Verdict = "placed"             // it has its devices
	VerdictFitsNow          Verdict = "fits_now"           //
	VerdictFitsAfterRelease Verdict = "fits_after_release" // others hold what it needs
	VerdictFitsNever        Verdict = "fits_never"         // larger than anything here
	VerdictUnknown          Verdict = "unknown"            // the facts could not be read
)

// Explanation says why an environment is where it is. It is a prediction from
// the facts at AsOf; the scheduler's own words, if there are any, are in Notes.
type Explanation struct {
	Verdict    Verdict       `json:"verdict"`
	AsOf       time.Time     `json:"asOf"`
	Summary    string        `json:"summary"` // one sentence for people
	Need       NeedFigures   `json:"need"`
	Nodes      []NodeVerdict `json:"nodes"`
	Blockers   []Blocker     `json:"blockers,omitempty"`
	WouldFitIf []string      `json:"wouldFitIf,omitempty"` // sentences for people
	Notes      []Note        `json:"notes,omitempty"`
}

// NeedFigures are the figures a Need comes down to.
type NeedFigures struct {
	Model     string `json:"model,omitempty"`
	Count     int    `json:"count"`
	MemoryMiB int    `json:"memoryMiB,omitempty"` // per card; 0 with Whole
	Cores     int    `json:"cores,omitempty"`
	Whole     bool   `json:"whole,omitempty"`
}

// NodeVerdict is the answer for one node.
type NodeVerdict struct {
	Name    string          `json:"name"`
	Verdict Verdict         `json:"verdict"`
	Reasons []Reason        `json:"reasons,omitempty"` // about the node as a whole
	Devices []DeviceVerdict `json:"devices"`
}

// DeviceVerdict is the answer for one card.
type DeviceVerdict struct {
	DeviceStatus
	Fits    bool     `json:"fits"`
	Reasons []Reason `json:"reasons,omitempty"`
}

// Reason is one thing that is lacking.
type Reason struct {
	Code    string `json:"code"`    // HAMi's word where it has one, such as CardInsufficientMemory
	Message string `json:"message"` // with the figures: needs 45000 MiB, free 25960 of 40960
}

// Blocker is something beside devices that holds an environment up.
type Blocker struct {
	Kind    string `json:"kind"` // quota, gate, taint, resource, volume, image, cluster
	Code    string `json:"code"`
	Message string `json:"message"`
}
