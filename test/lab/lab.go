package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/firstlight-dev/firstlight/test/sandbox"
)

const (
	// RegistryIP is the registry's machine, for all of the lab.
	RegistryIP = "10.77.0.1"
	// RegistryAddress is where the registry listens, for all of the lab. Being
	// a private address, clients that know the convention speak HTTP to it.
	RegistryAddress = RegistryIP + ":5000"

	// closeTimeout bounds the end of a sandbox after it was killed.
	closeTimeout = 30 * time.Second
)

// Config says what to start.
type Config struct {
	Dir   string // state and logs; must not lie under /run, /var/lib or /var/log
	Tools string // containerd, ctr, the shim, registry; "" means sandbox.Tools
	Bin   string // the commands of this project
	Mbits int    // rate of each link and direction, in Mbit/s

	// Mirrors are further addresses that speak plain HTTP for the registry, such
	// as a proxy that listens with Lab.Listen.
	Mirrors []string
}

// Lab is a running registry with the nodes around it.
type Lab struct {
	cfg      Config
	registry *sandbox.Namespaces
	links    atomic.Int64 // ever made; names and subnets follow from it

	mu    sync.Mutex
	nodes []*Node // ever made
}

// Start starts the registry.
func Start(ctx context.Context, cfg Config) (_ *Lab, err error) {
	if cfg.Tools == "" {
		if cfg.Tools, err = sandbox.Tools(); err != nil {
			return nil, err
		}
	}
	for _, tool := range []string{"registry", "containerd", "containerd-shim-runc-v2", "ctr"} {
		if _, err := os.Stat(filepath.Join(cfg.Tools, tool)); err != nil {
			return nil, fmt.Errorf("%s is not in %s: run make tools-containerd", tool, cfg.Tools)
		}
	}
	l := &Lab{cfg: cfg}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("%w (logs in %s)", err, cfg.Dir), l.Close())
		}
	}()
	dir := filepath.Join(cfg.Dir, "registry")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("make registry folder: %w", err)
	}
	if l.registry, err = sandbox.New(ctx); err != nil {
		return nil, err
	}
	if err := l.registry.CoverMounts(ctx, filepath.Join(dir, "varlib")); err != nil {
		return nil, err
	}
	if err := l.registry.Enter(func() error { return addLoopback(RegistryIP) }); err != nil {
		return nil, err
	}
	return l, l.startRegistry(ctx, dir)
}

func (l *Lab) startRegistry(ctx context.Context, dir string) error {
	config := filepath.Join(dir, "config.yml")
	text := fmt.Sprintf(registryConfig, filepath.Join(dir, "data"), RegistryAddress)
	if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
		return fmt.Errorf("write registry configuration: %w", err)
	}
	cmd := l.Command(context.WithoutCancel(ctx), "registry", "serve", config)
	process, err := l.registry.Spawn(dir, "registry", cmd)
	if err != nil {
		return err
	}
	return process.WaitListening(ctx, l.registry, "tcp", RegistryAddress)
}

// Delete is on so that `firstlight index rm` can be tried.
const registryConfig = `version: 0.1
log: {level: warn}
storage:
  filesystem: {rootdirectory: %s}
  delete: {enabled: true}
http: {addr: "%s"}
`

// Transport reaches the registry from the calling process, unshaped.
func (l *Lab) Transport() *http.Transport {
	return &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return l.registry.Dial(ctx, "tcp", RegistryAddress)
		},
	}
}

// Listen listens beside the registry, for a server in the calling process. Nodes
// reach it at port of the registry's address, over their links.
func (l *Lab) Listen(port string) (listener net.Listener, err error) {
	err = l.registry.Enter(func() (err error) {
		listener, err = net.Listen("tcp", net.JoinHostPort(RegistryIP, port))
		return err
	})
	return listener, err
}

// Command makes a command beside the registry. A program without a path is
// looked for among the project's commands and the tools first.
func (l *Lab) Command(ctx context.Context, argv ...string) *exec.Cmd {
	return l.cfg.command(ctx, argv)
}

// Run runs a command of Command to its end.
func (l *Lab) Run(cmd *exec.Cmd) error { return l.registry.Run(cmd) }

// Close ends every process of the lab. The folder is the caller's to remove.
func (l *Lab) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	l.mu.Lock()
	defer l.mu.Unlock()
	var errs []error
	for _, n := range l.nodes {
		errs = append(errs, n.Close())
	}
	if l.registry != nil {
		errs = append(errs, l.registry.Kill(ctx))
	}
	return errors.Join(errs...)
}

func (cfg Config) command(ctx context.Context, argv []string) *exec.Cmd {
	program := argv[0]
	if !strings.Contains(program, "/") {
		for _, dir := range []string{cfg.Bin, cfg.Tools} {
			path := filepath.Join(dir, program)
			if _, err := os.Stat(path); dir != "" && err == nil {
				program = path
				break
			}
		}
	}
	cmd := exec.CommandContext(ctx, program, argv[1:]...)
	cmd.Env = append(os.Environ(), "PATH="+cfg.Bin+":"+cfg.Tools+":"+os.Getenv("PATH"))
	cmd.Dir = cfg.Dir // a borrowed thread stands in the root folder
	return cmd
}
