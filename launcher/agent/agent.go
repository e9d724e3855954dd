package agent

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"github.com/firstlight-dev/firstlight/launcher/agentapi"
)

// shutdownGrace is how long open sessions have to end after SIGHUP. Container
// runtimes kill after ten seconds or more.
const shutdownGrace = 2 * time.Second

// Options are what the agent is started with.
type Options struct {
	Config  *agentapi.Config
	Command []string // the app; empty means tools only
	Environ []string // PID 1's environment
	Version string
	Log     *slog.Logger
}

// agent joins the parts.
type agent struct {
	config   *agentapi.Config
	version  string
	log      *slog.Logger
	env      *environment
	children *children
	app      *app
	ssh      *sshServer
	sshAddr  net.Addr
	prober   *prober
	start    agentapi.Start
	signals  <-chan os.Signal
}

// Run is the life of PID 1. It returns the exit code for the process; an error
// means that the agent could not start.
func Run(ctx context.Context, o Options) (int, error) {
	signals := catchSignals()
	a, err := newAgent(o)
	if err != nil {
		return 0, err
	}
	sshListener, err := net.Listen("tcp", o.Config.SSH.Address)
	if err != nil {
		return 0, fmt.Errorf("serve ssh: %w", err)
	}
	defer sshListener.Close()
	statusListener, err := net.Listen("tcp", o.Config.Status.Address)
	if err != nil {
		return 0, fmt.Errorf("serve status: %w", err)
	}
	defer statusListener.Close()
	a.sshAddr, a.start.Ready = sshListener.Addr(), bootNow()
	a.log.Info("agent ready", "environment", o.Config.Environment, "ssh", a.sshAddr.String(), "status", statusListener.Addr().String())
	a.signals = signals
	return a.run(ctx, o.Command, sshListener, statusListener), nil
}

func newAgent(o Options) (*agent, error) {
	started := bootNow()
	env := newEnvironment(o.Environ, readPasswd(), os.Getuid(), o.Config.SSH.AcceptEnv)
	c := newChildren()
	server, err := newSSHServer(o.Config, env, c, o.Version, o.Log)
	if err != nil {
		return nil, err
	}
	initStart, err := processStart("/proc/1/stat")
	if err != nil {
		// Hidden by the container's settings: the agent's own start is the
		// best there is, and a step of nothing would claim too much.
		o.Log.Warn("start of process 1 is not readable", "err", err)
		initStart = started
	}
	return &agent{
		config:   o.Config,
		version:  o.Version,
		log:      o.Log,
		env:      env,
		children: c,
		app:      newApp(c, o.Config.App.Policy, o.Log),
		ssh:      server,
		prober:   newProber(o.Config, env, c),
		start:    agentapi.Start{BootID: bootID(), Init: initStart, InitStep: initStep, Agent: started},
	}, nil
}

// run returns when the app's end or a signal ends the agent.
func (a *agent) run(ctx context.Context, command []string, sshListener, statusListener net.Listener) int {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var work sync.WaitGroup
	work.Go(func() { a.children.reap(ctx) })
	work.Go(func() { a.app.forward(ctx, a.signals, cancel) })
	work.Go(func() { a.serve("ssh", a.ssh.serve(ctx, sshListener)) })
	work.Go(func() { a.serve("status", a.serveStatus(ctx, statusListener)) })
	if len(command) > 0 {
		work.Go(func() { a.app.run(command, a.env.app()) })
	}
	work.Go(func() { a.prober.run(ctx) })

	select {
	case <-ctx.Done():
	case <-a.app.ended:
		if !a.app.endsAgent() {
			<-ctx.Done()
		}
	}
	cancel()
	a.await(&work)
	return a.app.snapshot().ExitCode
}

func (a *agent) serve(what string, err error) {
	if err != nil {
		a.log.Error("server ended", "server", what, "err", err)
	}
}

// await waits for the parts to end, but not for a process that ignores its
// hang-up: the kernel ends it with PID 1.
func (a *agent) await(work *sync.WaitGroup) {
	ended := make(chan struct{})
	go func() {
		work.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(shutdownGrace):
		a.log.Warn("not everything ended in time")
	}
}
