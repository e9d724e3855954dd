package monitor

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// byUID is the index of the watched pods.
const byUID = "uid"

// NodePods watches the pods of one node. Only their names are kept.
type NodePods struct {
	factory  informers.SharedInformerFactory
	informer cache.SharedIndexInformer
}

var _ PodNames = (*NodePods)(nil)

// WatchPods returns the pods of a node; Run starts the watch.
func WatchPods(client kubernetes.Interface, node string) (*NodePods, error) {
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0,
		informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", node).String()
		}),
		informers.WithTransform(func(obj any) (any, error) {
			if pod, ok := obj.(*corev1.Pod); ok {
				return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
					Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion,
				}}, nil
			}
			return obj, nil
		}))
	informer := factory.Core().V1().Pods().Informer()
	err := informer.AddIndexers(cache.Indexers{byUID: func(obj any) ([]string, error) {
		if pod, ok := obj.(*corev1.Pod); ok {
			return []string{string(pod.UID)}, nil
		}
		return nil, nil
	}})
	if err != nil {
		return nil, fmt.Errorf("watch pods of node %s: %w", node, err)
	}
	return &NodePods{factory: factory, informer: informer}, nil
}

// Run watches until ctx ends.
func (n *NodePods) Run(ctx context.Context) error {
	n.factory.Start(ctx.Done())
	<-ctx.Done()
	n.factory.Shutdown()
	return nil
}

// Synced implements PodNames.
func (n *NodePods) Synced() bool { return n.informer.HasSynced() }

// Name implements PodNames.
func (n *NodePods) Name(uid string) (namespace, name string, ok bool) {
	objs, err := n.informer.GetIndexer().ByIndex(byUID, uid)
	if err != nil || len(objs) == 0 {
		return "", "", false
	}
	pod, ok := objs[0].(*corev1.Pod)
	if !ok {
		return "", "", false
	}
	return pod.Namespace, pod.Name, true
}
