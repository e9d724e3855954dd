package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/firstlight-dev/firstlight/test/cluster"
)

const (
	// ready is what the server prints when the cluster is up.
	ready = "ready\n"
	// downTimeout bounds the wait for the end of a server.
	downTimeout = time.Minute
)

type upFlags struct {
	registry  bool
	scheduler string
	images    []string
}

func (f *upFlags) add(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&f.registry, "registry", true, "start a registry at "+cluster.RegistryAddress+" inside")
	cmd.Flags().StringVar(&f.scheduler, "scheduler-name", "", "a second scheduler profile of that name")
	cmd.Flags().StringSliceVar(&f.images, "image", nil, "archive to import (repeatable)")
}

// newUpCommand starts the server in the background and waits for it.
func newUpCommand(dir *string) *cobra.Command {
	var flags upFlags
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Start a cluster in the background",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			began := time.Now()
			if err := startServer(cmd.Context(), *dir, os.Args); err != nil {
				return err
			}
			c, err := cluster.Attach(*dir)
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "up in %.1f s; logs in %s\nexport KUBECONFIG=%s\n",
				time.Since(began).Seconds(), c.Logs(), c.Admin().Outside)
			return nil
		},
	}
	flags.add(cmd)
	return cmd
}

// startServer runs this program again with "serve" in the place of "up" and
// returns when the server says that it is ready.
func startServer(ctx context.Context, dir string, argv []string) error {
	args := make([]string, 0, len(argv))
	replaced := false
	for _, arg := range argv[1:] {
		if arg == "up" && !replaced {
			arg, replaced = "serve", true
		}
		args = append(args, arg)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make state folder: %w", err)
	}
	log, err := os.Create(filepath.Join(dir, "server.log"))
	if err != nil {
		return fmt.Errorf("start server: %w", err)
	}
	defer func() { _ = log.Close() }()
	server := exec.CommandContext(context.WithoutCancel(ctx), "/proc/self/exe", args...)
	server.Stderr = log
	server.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	stdout, err := server.StdoutPipe()
	if err != nil {
		return fmt.Errorf("start server: %w", err)
	}
	if err := server.Start(); err != nil {
		return fmt.Errorf("start server: %w", err)
	}
	said, err := io.ReadAll(io.LimitReader(stdout, int64(len(ready))))
	if err == nil && string(said) == ready {
		return server.Process.Release()
	}
	_ = server.Wait() // its log says more than its status
	reason, err := os.ReadFile(log.Name())
	return errors.Join(fmt.Errorf("start cluster: %s", strings.TrimPrefix(strings.TrimSpace(string(reason)), "cluster: ")), err)
}

// newServeCommand owns the cluster until it is told to stop.
func newServeCommand(dir *string) *cobra.Command {
	var flags upFlags
	cmd := &cobra.Command{
		Use:    "serve",
		Short:  "Start a cluster and keep it until SIGTERM",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			lock, err := lockDir(*dir)
			if err != nil {
				return err
			}
			defer func() { _ = lock.Close() }()
			c, err := cluster.Start(cmd.Context(), cluster.Config{
				Dir: *dir, Registry: flags.registry, SchedulerName: flags.scheduler, Images: flags.images,
			})
			if err != nil {
				return err
			}
			fmt.Fprint(cmd.OutOrStdout(), ready)
			<-cmd.Context().Done()
			return c.Close()
		},
	}
	flags.add(cmd)
	return cmd
}

// lockDir takes the folder for this process and notes who has it. The kernel
// drops the lock when the process ends, so a lock that is held means a server
// that runs.
func lockDir(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("make state folder: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(dir, "server.pid"), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, fmt.Errorf("lock state folder: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("a cluster is up in %s", dir), f.Close())
	}
	if err := errors.Join(f.Truncate(0), writePID(f)); err != nil {
		return nil, errors.Join(fmt.Errorf("lock state folder: %w", err), f.Close())
	}
	return f, nil
}

func writePID(f *os.File) error {
	_, err := fmt.Fprintln(f, os.Getpid())
	return err
}

// newDownCommand ends the server and removes the state folder.
func newDownCommand(dir *string) *cobra.Command {
	return &cobra.Command{
		Use:   "down",
		Short: "End the cluster and remove its state folder",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), downTimeout)
			defer cancel()
			if err := stopServer(ctx, *dir); err != nil {
				return err
			}
			if err := os.RemoveAll(*dir); err != nil {
				return fmt.Errorf("remove state folder: %w", err)
			}
			return nil
		},
	}
}

// stopServer ends the server of a folder, if one runs, and waits until it has
// let go of the lock.
func stopServer(ctx context.Context, dir string) error {
	f, err := os.Open(filepath.Join(dir, "server.pid"))
	if err != nil {
		return fmt.Errorf("find the server of %s: %w", dir, err)
	}
	defer func() { _ = f.Close() }()
	var pid int
	if _, err := fmt.Fscan(f, &pid); err != nil {
		return fmt.Errorf("find the server of %s: %w", dir, err)
	}
	signalled := false
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
		if !signalled {
			if err := unix.Kill(pid, unix.SIGTERM); err != nil {
				return fmt.Errorf("stop the server of %s: %w", dir, err)
			}
			signalled = true
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for the server of %s: %w", dir, ctx.Err())
		case <-tick.C:
		}
	}
	return nil
}
