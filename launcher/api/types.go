package api

import (
	"time"

	"github.com/firstlight-dev/firstlight/launcher/cluster"
	"github.com/firstlight-dev/firstlight/launcher/environment"
	"github.com/firstlight-dev/firstlight/launcher/spec"
	"github.com/firstlight-dev/firstlight/launcher/store"
)

// CreateEnvironment asks for an environment: by a stored spec or by one given
// with the request, never both.
type CreateEnvironment struct {
	Name    string     `json:"name" doc:"DNS label, unique" example:"train-a"`
	Cluster string     `json:"cluster,omitempty" doc:"default: the first configured one"`
	SpecRef string     `json:"specRef,omitempty" doc:"name or name@revision of a stored spec" example:"a100-quarter@3"`
	Spec    *spec.Spec `json:"spec,omitempty"`
	SSHKeys []string   `json:"sshKeys,omitempty" doc:"public keys that may log in, as in authorized_keys"`
}

// Environment is one environment.
type Environment struct {
	ID         string            `json:"id"`
	Name       string            `json:"name"`
	Cluster    string            `json:"cluster"`
	SpecRef    string            `json:"specRef,omitempty"`
	Generation int               `json:"generation"`
	Spec       spec.Spec         `json:"spec"`
	SSHKeys    []string          `json:"sshKeys,omitempty"`
	Image      *cluster.Image    `json:"image,omitempty"`
	Status     EnvironmentStatus `json:"status"`
}

// EnvironmentStatus is what is known about an environment now.
type EnvironmentStatus struct {
	Phase          store.Phase        `json:"phase"`
	Stage          cluster.Stage      `json:"stage,omitempty" doc:"the stage under way"`
	Reason         string             `json:"reason,omitempty" doc:"for programs"`
	Message        string             `json:"message,omitempty" doc:"for people"`
	Placement      *cluster.Placement `json:"placement,omitempty"`
	AcceptedAt     time.Time          `json:"acceptedAt"`
	UsableAt       *time.Time         `json:"usableAt"`
	TimeToUsableMs *int64             `json:"timeToUsableMs"`
	HostKey        string             `json:"hostKey" doc:"the environment's SSH host key, public"`
}

// View returns what the API shows of an environment.
func View(e *store.Environment) *Environment {
	v := &Environment{
		ID: e.ID, Name: e.Name, Cluster: e.Cluster, SpecRef: e.SpecRef, Generation: e.Generation,
		Spec: e.Spec, SSHKeys: e.SSHKeys, Image: e.Image,
		Status: EnvironmentStatus{
			Phase: e.Status.Phase, Stage: e.Status.Stage, Reason: e.Status.Reason, Message: e.Status.Message,
			Placement: e.Status.Placement, AcceptedAt: e.Status.Accepted, UsableAt: e.Status.UsableAt, HostKey: e.Status.HostKey,
		},
	}
	if at := e.Status.UsableAt; at != nil {
		ms := at.Sub(e.Status.Accepted).Round(time.Millisecond).Milliseconds()
		v.Status.TimeToUsableMs = &ms
	}
	return v
}

// Environments is one page of environments.
type Environments struct {
	Items      []Environment `json:"items"`
	NextCursor string        `json:"nextCursor,omitempty" doc:"absent on the last page"`
}

// Specs lists spec revisions.
type Specs struct {
	Items []store.Revision `json:"items"`
}

// Clusters lists clusters.
type Clusters struct {
	Items []environment.ClusterHealth `json:"items"`
}

// Capacity lists a cluster's nodes with their devices.
type Capacity struct {
	Nodes []cluster.Node `json:"nodes"`
}

// Access says how to get in. It holds no secrets: the caller has the private
// key that belongs to one of the environment's sshKeys.
type Access struct {
	Environment string `json:"environment"`
	TunnelPath  string `json:"tunnelPath" doc:"websocket endpoint of the SSH connection"`
	HostKey     string `json:"hostKey"`
}
