// Package kube runs environments as pods of a Kubernetes cluster that is
// reached by a kubeconfig. It implements cluster.Cluster.
//
// # What is made
//
// One Secret and one Pod for each start of an environment, named after its
// identifier and generation, so that making them twice meets AlreadyExists and
// adopts. The pod's container runs the agent in front of the image's own
// command. The agent comes by an image volume, or by an init container that
// copies it where the cluster has none; its configuration, with the host key, is
// the Secret, mounted as a file.
//
// # How stages are seen
//
// By watching the pod and its events, on the launcher's clock at the moment of
// receipt: API times have steps of one second. The one exception is the
// container's start, which the agent tells to ten milliseconds; StageCreate is
// left open for it. The kubelet reports some conditions late, so a later sign
// closes an earlier stage.
//
// # How it is reached
//
// By port-forward through the API server, which works wherever the kubeconfig
// does; or by the pod's address where DirectDial says so.
//
// # A kubeconfig is code
//
// It may name programs to run and files to read. [LoadKubeconfig] refuses both,
// and switched-off TLS checks, unless told otherwise. Credentials stay in the
// client configuration; no error and no answer repeats them.
package kube
