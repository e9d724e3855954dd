// Package cluster starts a real single-node Kubernetes in seconds, for tests
// and for people who want to try something (command test/cluster/cmd/cluster).
//
// # What it is
//
// etcd, kube-apiserver, kube-controller-manager, kube-scheduler, kubelet,
// containerd, runc and, if asked, a registry: ordinary processes in mount,
// network, PID, UTS and IPC namespaces of their own. Nothing is shared with
// another cluster or with the machine's network, so several run side by side
// and every address and port inside is a constant.
//
//   - Package sandbox makes the namespaces and starts processes in them. The
//     kernel ends them all when the process that called [Start] ends, however
//     that ends. A test binary needs no file beside itself.
//   - The way in for Go clients is [Cluster.Dial]; for other processes
//     outside it is [Cluster.Forward], a relay on the machine's loopback, which
//     [Cluster.Kubeconfig] uses.
//
// # Invariants
//
// The machine is left as it was found. /run, /var/lib and /var/log are private
// inside. The machine-wide sysctls that kubelet insists on are covered by files
// holding the values it wants to see. The one thing that outlives a killed
// process is an empty cgroup, which the next Start removes.
//
// # Failure
//
// When a component ends early, Start fails with its name, the end of its log
// and the folder of all logs. That folder is kept whenever Start fails, and by
// [Cluster.Keep].
package cluster
