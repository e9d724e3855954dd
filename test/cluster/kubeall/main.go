// Command kubeall is a whole Kubernetes in one program: etcd, kube-apiserver,
// kube-controller-manager, kube-scheduler, kubelet and kubectl. The name it is
// called by (a symbolic link) or its first argument chooses the part.
//
// One program means one link step, one file to copy, and text pages shared by
// every process of the test cluster. It is a module of its own because it
// needs the versions that Kubernetes is tested with, not ours.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	_ "time/tzdata" // as the upstream binaries: no zoneinfo needed on the machine

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	_ "k8s.io/client-go/plugin/pkg/client/auth"
	"k8s.io/component-base/cli"
	"k8s.io/component-base/logs"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	kubectlutil "k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

func main() {
	parts := map[string]func(){
		"etcd":                    func() { etcdmain.Main(os.Args) },
		"kube-apiserver":          func() { run(apiserver.NewAPIServerCommand()) },
		"kube-controller-manager": func() { run(controllers.NewControllerManagerCommand()) },
		"kube-scheduler":          func() { run(scheduler.NewSchedulerCommand()) },
		"kubelet":                 func() { run(kubelet.NewKubeletCommand(context.Background())) },
		"kubectl":                 runKubectl,
	}
	name := filepath.Base(os.Args[0])
	if parts[name] == nil && len(os.Args) > 1 {
		name = os.Args[1]
		os.Args = os.Args[1:]
	}
	part := parts[name]
	if part == nil {
		names := make([]string, 0, len(parts))
		for n := range parts {
			names = append(names, n)
		}
		slices.Sort(names)
		fmt.Fprintf(os.Stderr, "usage: kubeall %s [ARGUMENT...]\n", strings.Join(names, "|"))
		os.Exit(2)
	}
	part()
}

func run(c *cobra.Command) { os.Exit(cli.Run(c)) }

func runKubectl() {
	// kubectl has to know the verbosity before its flags are parsed.
	if _, err := logs.GlogSetter(kubectl.GetLogVerbosity(os.Args)); err != nil {
		kubectlutil.CheckErr(err)
	}
	if err := cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()); err != nil {
		kubectlutil.CheckErr(err)
	}
}
