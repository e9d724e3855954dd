package deviceplugin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	kubelet "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/firstlight-dev/firstlight/sharing/wire"
)

const (
	socketName    = "firstlight-gpu.sock"
	kubeletSocket = "kubelet.sock"
	// watchEvery is how often the sockets are looked at. A restarted kubelet
	// removes every plugin's socket and makes its own anew, and counts no
	// devices until the plugin is back.
	watchEvery = time.Second
)

// keepRegistered serves and registers anew whenever the kubelet restarts.
func (p *Plugin) keepRegistered(ctx context.Context) {
	for ctx.Err() == nil {
		err := p.session(ctx)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			p.cfg.Log.WarnContext(ctx, "not registered with the kubelet", "error", err)
			sleep(ctx, watchEvery)
			continue
		}
		p.cfg.Log.InfoContext(ctx, "kubelet restarted, registering again")
	}
}

// session serves the plugin's socket and registers it, until the kubelet
// restarts or ctx ends.
func (p *Plugin) session(ctx context.Context) error {
	peer, err := identify(filepath.Join(p.cfg.KubeletDir, kubeletSocket))
	if err != nil {
		return fmt.Errorf("find the kubelet's socket: %w", err)
	}
	path := filepath.Join(p.cfg.KubeletDir, socketName)
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove old socket: %w", err)
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "unix", path)
	if err != nil {
		return fmt.Errorf("listen for the kubelet: %w", err)
	}
	stop := make(chan struct{})
	server := grpc.NewServer()
	kubelet.RegisterDevicePluginServer(server, &service{plugin: p, stop: stop})
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	defer func() {
		close(stop)
		server.Stop()
		if err := <-served; err != nil {
			p.cfg.Log.WarnContext(ctx, "plugin's socket failed", "error", err)
		}
	}()
	if err := p.register(ctx); err != nil {
		return err
	}
	p.cfg.Log.InfoContext(ctx, "registered with the kubelet", "resource", wire.ResourceCount, "cards", len(p.Cards()))
	own, err := identify(path)
	if err != nil {
		return nil // removed already: the kubelet restarted
	}
	for sleep(ctx, watchEvery) {
		if !same(filepath.Join(p.cfg.KubeletDir, kubeletSocket), peer) || !same(path, own) {
			return nil
		}
	}
	return nil
}

func (p *Plugin) register(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	conn, err := grpc.NewClient("unix://"+filepath.Join(p.cfg.KubeletDir, kubeletSocket), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return fmt.Errorf("reach the kubelet: %w", err)
	}
	defer conn.Close()
	_, err = kubelet.NewRegistrationClient(conn).Register(ctx, &kubelet.RegisterRequest{
		Version: kubelet.Version, Endpoint: socketName, ResourceName: wire.ResourceCount,
		Options: &kubelet.DevicePluginOptions{GetPreferredAllocationAvailable: true},
	})
	if err != nil {
		return fmt.Errorf("register with the kubelet: %w", err)
	}
	return nil
}

// identity tells a socket from its successor under the same name. An inode
// number alone may be used again at once.
type identity struct {
	inode uint64
	made  time.Time
}

func identify(path string) (identity, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return identity{}, err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return identity{}, fmt.Errorf("stat of %s has no inode", path)
	}
	return identity{inode: stat.Ino, made: info.ModTime()}, nil
}

func same(path string, as identity) bool {
	now, err := identify(path)
	return err == nil && now == as
}

// service is the plugin as the kubelet calls it, for one session.
type service struct {
	kubelet.UnimplementedDevicePluginServer
	plugin *Plugin
	stop   <-chan struct{}
}

var _ kubelet.DevicePluginServer = (*service)(nil)

// GetDevicePluginOptions implements the kubelet's API.
func (s *service) GetDevicePluginOptions(context.Context, *kubelet.Empty) (*kubelet.DevicePluginOptions, error) {
	return &kubelet.DevicePluginOptions{GetPreferredAllocationAvailable: true}, nil
}

// ListAndWatch sends the vGPUs now and whenever a card changes.
func (s *service) ListAndWatch(_ *kubelet.Empty, stream grpc.ServerStreamingServer[kubelet.ListAndWatchResponse]) error {
	for {
		cards, changed := s.plugin.state()
		if err := stream.Send(&kubelet.ListAndWatchResponse{Devices: replicas(cards)}); err != nil {
			return err
		}
		select {
		case <-changed:
		case <-s.stop:
			return nil
		case <-stream.Context().Done():
			return nil
		}
	}
}

// replicas lists every slot of every card as a device of its own.
func replicas(cards []wire.Device) []*kubelet.Device {
	var devices []*kubelet.Device
	for _, card := range cards {
		health := kubelet.Unhealthy
		if card.Healthy {
			health = kubelet.Healthy
		}
		for n := range card.Slots {
			devices = append(devices, &kubelet.Device{ID: wire.ReplicaID(card.UUID, n), Health: health})
		}
	}
	return devices
}
