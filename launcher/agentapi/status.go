package agentapi

import "time"

// BootTime is a reading of the node's CLOCK_BOOTTIME in nanoseconds. Zero
// means "not yet".
type BootTime int64

// Sub returns b-a.
func (b BootTime) Sub(a BootTime) time.Duration { return time.Duration(b - a) }

// Status is the agent's answer to GET /v1/status.
type Status struct {
	Version     string `json:"version"`
	Environment string `json:"environment"`
	// Now is the agent's clock while it wrote this answer.
	Now   BootTime  `json:"now"`
	Start Start     `json:"start"`
	App   App       `json:"app"`
	SSH   SSH       `json:"ssh"`
	Lanes []Lane    `json:"lanes"`
	Round *Round    `json:"round,omitempty"`
	Reaps int64     `json:"reapedOrphans"`
	Wall  time.Time `json:"wall"` // the node's wall clock, as a sanity bound only
}

// Start says when the container came up.
type Start struct {
	// BootID changes when the node reboots, and with it the meaning of every
	// BootTime.
	BootID string `json:"bootId"`
	// Init is when PID 1 was started (runc's clone), in steps of InitStep.
	Init     BootTime      `json:"init"`
	InitStep time.Duration `json:"initStep"`
	// Agent is the agent's first instruction of its own, Ready the moment all
	// its listeners answered.
	Agent BootTime `json:"agent"`
	Ready BootTime `json:"ready"`
}

// AppState is the state of the image's own command.
type AppState string

// States of the app.
const (
	AppNone    AppState = "none"    // no command was given: tools only
	AppRunning AppState = "running" //
	AppExited  AppState = "exited"  // it ran, and ended
	AppFailed  AppState = "failed"  // it could not be started
)

// App is the image's own command.
type App struct {
	State   AppState `json:"state"`
	Policy  Policy   `json:"policy"`
	PID     int      `json:"pid,omitempty"`
	Started BootTime `json:"started,omitempty"`
	Ended   BootTime `json:"ended,omitempty"`
	// ExitCode is 128 plus the signal's number when a signal ended the app,
	// 127 or 126 when it could not be started, as a shell counts.
	ExitCode int    `json:"exitCode"`
	Signal   string `json:"signal,omitempty"`
	Error    string `json:"error,omitempty"`
}

// SSH counts what the SSH server did.
type SSH struct {
	Address      string   `json:"address"`
	HostKey      string   `json:"hostKey"` // SHA-256 fingerprint
	Connections  int64    `json:"connections"`
	Sessions     int64    `json:"sessions"` // open now
	Logins       int64    `json:"logins"`
	AuthFailures int64    `json:"authFailures"`
	Refused      int64    `json:"refused"` // connections over the limit
	LastActivity BootTime `json:"lastActivity,omitempty"`
}

// LaneState is the state of one probe.
type LaneState string

// States of a lane.
const (
	LanePending   LaneState = "pending" // no attempt succeeded yet
	LaneSucceeded LaneState = "succeeded"
	LaneGaveUp    LaneState = "gaveUp"
)

// Lane is the history of one probe.
type Lane struct {
	Probe string    `json:"probe"`
	State LaneState `json:"state"`
	// Eligible is when the first attempt could begin.
	Eligible     BootTime `json:"eligible"`
	FirstSuccess BootTime `json:"firstSuccess,omitempty"`
	// Uncertainty is FirstSuccess minus the start of the last failed attempt:
	// the success may have become possible at any moment in it. It is zero
	// when the first attempt succeeded.
	Uncertainty time.Duration `json:"uncertainty"`
	Attempts    int           `json:"attempts"`
	Timeouts    int           `json:"timeouts"`
	// LastError describes the last failed attempt, with the end of what the
	// command wrote to standard error.
	LastError string `json:"lastError,omitempty"`
	// Levels are those of the attempt that succeeded, in order.
	Levels []Level `json:"levels,omitempty"`
	// CPU is the user and system time of that attempt's processes.
	CPU time.Duration `json:"cpu,omitempty"`
}

// Level is one step of a probe.
type Level struct {
	ID    string   `json:"id"`
	Start BootTime `json:"start"`
	End   BootTime `json:"end"`
}

// Round is the answer to POST /v1/confirm: every probe once more, all begun
// after the request came in.
type Round struct {
	Started BootTime      `json:"started"`
	Ended   BootTime      `json:"ended"`
	OK      bool          `json:"ok"`
	Results []RoundResult `json:"results"`
}

// RoundResult is one probe's attempt in a confirming round.
type RoundResult struct {
	Probe    string        `json:"probe"`
	OK       bool          `json:"ok"`
	Duration time.Duration `json:"duration"`
	Error    string        `json:"error,omitempty"`
}

// Lane returns the lane of the given probe.
func (s *Status) Lane(probe string) (Lane, bool) {
	for _, l := range s.Lanes {
		if l.Probe == probe {
			return l, true
		}
	}
	return Lane{}, false
}
