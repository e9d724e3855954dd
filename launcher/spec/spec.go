// Package spec defines the Instance Spec: what a user asks for when asking for
// a development environment, free of any cluster's or device plugin's terms.
//
// # Vocabulary
//
// A Spec is written as YAML or JSON. Pushed under its name it becomes a
// revision: a number and bytes that never change afterwards, so an environment
// pinned to name@3 means the same thing for ever. A backend (package backend)
// translates a Spec into a cluster's terms; a probe is one thing the
// environment must have been seen doing before it counts as usable.
//
// # Rules
//
// Decoding is strict: an unknown field is an error, never ignored, because an
// ignored field is a promise silently broken. Validation reports every problem
// at once, each with the path of its field. GPU memory is a plain number of
// MiB and GPU cores a plain number of percent; CPU and memory are Kubernetes
// quantities.
package spec

import (
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
)

// Spec is one Instance Spec.
type Spec struct {
	Name      string   `json:"name" doc:"DNS label; the name revisions are kept under" example:"a100-quarter"`
	Image     string   `json:"image" doc:"image reference, by tag or digest" example:"registry.local/torch:2.9"`
	Command   []string `json:"command,omitempty" doc:"replaces the image's own entrypoint and arguments"`
	OnExit    string   `json:"onExit,omitempty" enum:"keep,exit" doc:"what happens when the command ends; keep (default) leaves the environment up"`
	Env       []EnvVar `json:"env,omitempty"`
	CPU       string   `json:"cpu" doc:"Kubernetes quantity" example:"2"`
	Memory    string   `json:"memory" doc:"Kubernetes quantity" example:"8Gi"`
	Shm       string   `json:"shm,omitempty" doc:"size of /dev/shm, counted into memory" example:"1Gi"`
	GPU       *GPU     `json:"gpu,omitempty"`
	Tools     []string `json:"tools,omitempty" doc:"tools to bring along; ssh is the default"`
	Volumes   []Volume `json:"volumes,omitempty"`
	Readiness []Probe  `json:"readiness,omitempty" doc:"probes that must succeed, twice, before the environment is usable; ssh_login is the default"`
	Backend   string   `json:"backend,omitempty" enum:"hami,whole" doc:"how the GPU is asked for; hami is the default"`
}

// EnvVar is one environment variable.
type EnvVar struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// GPU asks for cards of one model: all of each (Whole), or a Share of each.
type GPU struct {
	Model string `json:"model,omitempty" doc:"part of the model's name, in any case; empty takes any" example:"A100"`
	Count int    `json:"count" doc:"number of cards, or of shares on different cards"`
	Whole bool   `json:"whole,omitempty"`
	Share *Share `json:"share,omitempty"`
}

// Share is a part of a card.
type Share struct {
	MemoryMiB int `json:"memoryMiB" doc:"plain number of MiB"`
	Cores     int `json:"cores,omitempty" doc:"percent of the card's compute; 0 sets no limit"`
}

// Volume mounts storage that outlives the environment. Exactly one source is
// given.
type Volume struct {
	Name      string `json:"name"`
	MountPath string `json:"mountPath"`
	ReadOnly  bool   `json:"readOnly,omitempty"`
	Claim     string `json:"claim,omitempty" doc:"name of a PersistentVolumeClaim"`
	HostPath  string `json:"hostPath,omitempty" doc:"folder on the node; clusters allow it only where configured"`
}

// Kinds of probes.
const (
	// ProbeSSHLogin logs in as the user would, from where the launcher runs.
	ProbeSSHLogin = "ssh_login"
	// ProbeExec runs a command inside the environment.
	ProbeExec = "exec"
)

// Probe is one required proof of readiness.
type Probe struct {
	Name    string   `json:"name"`
	Type    string   `json:"type" enum:"ssh_login,exec"`
	Command []string `json:"command,omitempty" doc:"exec: argument vector; no shell is involved"`
	Expect  string   `json:"expect,omitempty" doc:"exec: text that the output must contain"`
	Timeout string   `json:"timeout,omitempty" doc:"bound on one attempt" example:"2m"`
}

// Backends.
const (
	BackendHAMi  = "hami"
	BackendWhole = "whole"
)

// Tools.
const ToolSSH = "ssh"

// What happens when the command ends.
const (
	OnExitKeep = "keep"
	OnExitExit = "exit"
)

// withDefaults returns a copy with every default written out, so that a stored
// revision does not change its meaning when a default does.
func (s Spec) withDefaults() Spec {
	if s.OnExit == "" {
		s.OnExit = OnExitKeep
	}
	if len(s.Tools) == 0 {
		s.Tools = []string{ToolSSH}
	}
	if len(s.Readiness) == 0 {
		s.Readiness = []Probe{{Name: ProbeSSHLogin, Type: ProbeSSHLogin}}
	}
	if s.GPU != nil && s.Backend == "" {
		s.Backend = BackendHAMi
		if s.GPU.Whole {
			s.Backend = BackendWhole
		}
	}
	return s
}

// CPUMillis returns the CPU request in thousandths. The Spec must be valid.
func (s *Spec) CPUMillis() int64 { return quantity(s.CPU).MilliValue() }

// MemoryBytes returns the memory limit, /dev/shm included.
func (s *Spec) MemoryBytes() int64 { return quantity(s.Memory).Value() }

// ShmBytes returns the size of /dev/shm, or 0 for the runtime's default.
func (s *Spec) ShmBytes() int64 { return quantity(s.Shm).Value() }

func quantity(text string) *resource.Quantity {
	q, err := resource.ParseQuantity(text)
	if err != nil {
		return &resource.Quantity{}
	}
	return &q
}

// MatchesModel reports whether a card's model satisfies the request.
func (g *GPU) MatchesModel(model string) bool {
	return g.Model == "" || strings.Contains(strings.ToLower(model), strings.ToLower(g.Model))
}

// Attempt returns the bound on one attempt, or otherwise if none is set.
func (p *Probe) Attempt(otherwise time.Duration) time.Duration {
	d, err := time.ParseDuration(p.Timeout)
	if err != nil || d <= 0 {
		return otherwise
	}
	return d
}
