package cluster

import (
	"context"
	"io"
	"net"
	"time"

	"github.com/firstlight-dev/firstlight/launcher/agentapi"
	"github.com/firstlight-dev/firstlight/launcher/spec"
)

// Cluster is a place where environments run. All methods are safe for
// concurrent use.
type Cluster interface {
	// Name is the name environments choose the cluster by.
	Name() string

	// Start makes everything one environment needs and returns when its
	// container runs: PID 1 has been started. Before that it waits, however
	// long, until ctx ends. It MUST be idempotent: for an environment that
	// exists already it adopts what is there, reports what can still be
	// known, and returns when the container runs. It MUST NOT remove anything
	// when it fails or ctx ends: Stop does that.
	Start(ctx context.Context, l Launch) error

	// Stop removes everything of an environment and returns when its name can
	// be used again. Stopping what does not exist is not an error.
	Stop(ctx context.Context, env string) error

	// Dial opens a TCP connection to the environment's port. agentapi.SSHPort
	// and agentapi.StatusPort name those services even where the adapter had
	// to choose other numbers. It returns ErrNotFound for an environment that
	// does not run.
	Dial(ctx context.Context, env string, port int) (net.Conn, error)

	// Logs returns the output of the environment's container. With follow it
	// ends when the container or ctx does; closing it ends it early.
	Logs(ctx context.Context, env string, follow bool) (io.ReadCloser, error)

	// Explain says for each node and device whether it could take the need
	// now, and what it lacks. It has no side effects.
	Explain(ctx context.Context, need Need) (Explanation, error)

	// Observe lists every environment of this launcher that exists in the
	// cluster, including those the launcher does not know.
	Observe(ctx context.Context) ([]Observed, error)

	// Capacity lists nodes and devices with what is used.
	Capacity(ctx context.Context) ([]Node, error)
}

// ImageReader is implemented by clusters that can see what an environment's
// image has read so far. It returns ErrNotFound if nothing is known, as for an
// image that was pulled in full.
type ImageReader interface {
	ImageUse(ctx context.Context, env string) (ImageUse, error)
}

// StartEnder is implemented by clusters whose nodes record what the start of an
// image reads. EndStart says that the environment's start has reached its goal;
// command is what it runs, nil for what the image says. Where nothing is
// recorded it does nothing.
type StartEnder interface {
	EndStart(ctx context.Context, env string, command []string) error
}

// ImageUse counts what was read of a lazily started image.
type ImageUse struct {
	BytesFetched int64         `json:"bytesFetched"` // from the registry, compressed
	Requests     int64         `json:"requests"`
	OnDemandWait time.Duration `json:"onDemandWaitNs"` // some thread waited for a read that was not local
	Lazy         bool          `json:"lazy"`           // false: pulled in full
	Complete     bool          `json:"complete"`       // the registry may vanish now
}

// Launch is one start of one environment.
type Launch struct {
	Env        string // identifier, a DNS label: the key of everything made
	Name       string // the user's name for it
	Generation int    // counts the starts of this environment

	Spec  spec.Spec // complete and valid
	Image Image     // what Spec.Image resolved to

	// Agent is complete but for the listening addresses, which are set to
	// agentapi's ports on all interfaces; an adapter whose environments share
	// a network changes them. It holds secrets: see agentapi.
	Agent agentapi.Config

	// Observer is told about progress. It is never nil.
	Observer Observer
}

// App returns the command the agent starts: what the image or the spec says.
// It is empty if neither says anything.
func (l *Launch) App() []string {
	if len(l.Spec.Command) > 0 {
		return l.Spec.Command
	}
	return append(append([]string(nil), l.Image.Entrypoint...), l.Image.Cmd...)
}

// Image is an image reference with what the registry said about it.
type Image struct {
	Reference  string   `json:"reference"` // as the spec has it
	Pinned     string   `json:"pinned"`    // repository@digest of the manifest, or of the index it was chosen from
	Entrypoint []string `json:"entrypoint,omitempty"`
	Cmd        []string `json:"cmd,omitempty"`
	Env        []string `json:"env,omitempty"` // KEY=value
	User       string   `json:"user,omitempty"`
	WorkingDir string   `json:"workingDir,omitempty"`
}

// Stage is one link of the chain from the request to the running agent.
type Stage string

// The stages, in order. StageAccept, StageResolve and StageAgent belong to the
// launcher; adapters report the others, each at most once, and leave out those
// they do not have. An adapter that cannot see PID 1 start to the millisecond
// leaves StageCreate open: the launcher closes it by the agent's word.
const (
	StageAccept   Stage = "accept"   // request read -> intent stored
	StageResolve  Stage = "resolve"  // image reference -> digest and configuration
	StageAdmit    Stage = "admit"    // objects sent -> accepted by the cluster
	StageQueue    Stage = "queue"    // accepted -> allowed to be scheduled
	StageSchedule Stage = "schedule" // allowed -> node and devices chosen
	StageSandbox  Stage = "sandbox"  // node chosen -> network, cgroup and volumes there
	StageTools    Stage = "tools"    // the launcher's own files delivered
	StageImage    Stage = "image"    // image asked for -> usable by the runtime
	StageCreate   Stage = "create"   // image there -> PID 1 started
	StageAgent    Stage = "agent"    // PID 1 started -> agent answers
)

// Chain returns the stages in order.
func Chain() []Stage {
	return []Stage{
		StageAccept, StageResolve, StageAdmit, StageQueue, StageSchedule,
		StageSandbox, StageTools, StageImage, StageCreate, StageAgent,
	}
}

// Observer is told about the progress of one Launch. Times are on the
// launcher's clock. Its methods do not block and may be called concurrently.
// What is reported first about a stage counts; repetitions are ignored, so an
// adapter that adopts may report all it knows again.
type Observer interface {
	// Begin says that a stage began.
	Begin(stage Stage, at time.Time)
	// End says that a stage ended. An adapter that learns of a stage only
	// afterwards calls Begin and End at once. attrs may hold figures such as
	// bytesFetched or pullOwnMs; they are shown and stored.
	End(stage Stage, at time.Time, attrs map[string]any)
	// Place says where the environment was put.
	Place(p Placement)
	// Note passes on one event a person may want to read, such as the
	// scheduler's reason for waiting.
	Note(n Note)
}

// Placement is where an environment was put.
type Placement struct {
	Node    string   `json:"node"`
	Devices []Device `json:"devices,omitempty"`
}

// Device is one card, or the part of it an environment was given.
type Device struct {
	UUID      string `json:"uuid"`
	Model     string `json:"model,omitempty"`
	MemoryMiB int    `json:"memoryMiB"`
	Cores     int    `json:"cores"`
}

// Note is one event from the cluster.
type Note struct {
	At      time.Time `json:"at"`
	Warning bool      `json:"warning"`
	Source  string    `json:"source,omitempty"` // who says so: a scheduler, the kubelet
	Reason  string    `json:"reason"`           // short word, such as FilteringFailed
	Message string    `json:"message"`
}

// State is what an environment is seen doing.
type State string

// States.
const (
	StatePending State = "pending" // made, container not started
	StateRunning State = "running"
	StateExited  State = "exited" // ended and not coming back
	StateUnknown State = "unknown"
)

// Observed is one environment that exists in the cluster.
type Observed struct {
	Env        string
	Name       string
	Generation int
	State      State
	StartedAt  time.Time // of the container; zero if it did not start
	Restarts   int       // a restart voids the probes' earlier successes
	ExitCode   int
	Reason     string // machine-readable word for an exit
	Message    string
	Placement  Placement
}

// Node is a machine with its devices.
type Node struct {
	Name    string         `json:"name"`
	Ready   bool           `json:"ready"`
	Devices []DeviceStatus `json:"devices"`
}

// DeviceStatus is a card with what is used of it.
type DeviceStatus struct {
	UUID          string `json:"uuid"`
	Index         int    `json:"index"`
	Model         string `json:"model"`
	Healthy       bool   `json:"healthy"`
	MemoryMiB     int    `json:"memoryMiB"`
	MemoryUsedMiB int    `json:"memoryUsedMiB"`
	Cores         int    `json:"cores"`
	CoresUsed     int    `json:"coresUsed"`
	Slots         int    `json:"slots"`
	SlotsUsed     int    `json:"slotsUsed"`
}
