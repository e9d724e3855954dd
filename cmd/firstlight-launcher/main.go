// Command firstlight-launcher serves the launcher's API: it keeps Instance
// Specs, brings environments up on its clusters, and measures when they are
// usable.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/firstlight-dev/firstlight/launcher/api"
	"github.com/firstlight-dev/firstlight/launcher/config"
	"github.com/firstlight-dev/firstlight/launcher/environment"
	"github.com/firstlight-dev/firstlight/launcher/image"
	"github.com/firstlight-dev/firstlight/launcher/store"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := newCommand().ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "firstlight-launcher:", err)
		os.Exit(1)
	}
}

func newCommand() *cobra.Command {
	var path string
	cmd := &cobra.Command{
		Use:   "firstlight-launcher",
		Short: "Serve the launcher: specs, environments and their timelines",
		Long: `Serves the launcher's API and page: it keeps Instance Specs, brings environments
up on its clusters, and measures when they are usable. The API describes itself
at /openapi.yaml.`,
		Example: `  firstlight-launcher config > /etc/firstlight/launcher.yaml   # then edit it
  firstlight-launcher --config /etc/firstlight/launcher.yaml`,
		Version:       version(),
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE:          func(cmd *cobra.Command, _ []string) error { return run(cmd.Context(), path) },
	}
	cmd.Flags().StringVar(&path, "config", "/etc/firstlight/launcher.yaml", "configuration `file`")
	cmd.AddCommand(&cobra.Command{
		Use:   "config",
		Short: "Print an example of the configuration file",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := io.WriteString(cmd.OutOrStdout(), config.Example)
			return err
		},
	})
	return cmd
}

// shutdownTimeout bounds the end of open requests. Streams and tunnels are
// cut; clients resume the former.
const shutdownTimeout = 5 * time.Second

func run(ctx context.Context, path string) error {
	cfg, err := config.Read(path)
	if err != nil {
		return err
	}
	log, err := newLogger(cfg.LogLevel)
	if err != nil {
		return err
	}
	auth := api.NoTokens()
	if cfg.TokenFile != "" {
		if auth, err = api.ReadTokens(cfg.TokenFile); err != nil {
			return err
		}
	}
	if err := auth.CheckListen(cfg.Listen); err != nil {
		return err
	}
	st, err := store.Open(ctx, cfg.Database, cfg.KeyFile)
	if err != nil {
		return err
	}
	err = serve(ctx, cfg, auth, st, log)
	return errors.Join(err, st.Close())
}

func newLogger(level string) (*slog.Logger, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, fmt.Errorf("log level %q: %w", level, err)
	}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: l})), nil
}

func serve(ctx context.Context, cfg *config.Config, auth *api.Tokens, st *store.Store, log *slog.Logger) error {
	if err := st.ReleaseAll(ctx); err != nil {
		return err
	}
	clusters, closeAll, err := openClusters(ctx, cfg, log)
	if err != nil {
		return err
	}
	defer closeAll()
	manager := environment.NewManager(ctx, st, clusters, &image.Registry{PlainHTTP: cfg.PlainHTTP}, log)
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", cfg.Listen)
	if err != nil {
		return err
	}
	server := &http.Server{
		Handler:           api.NewServer(manager, st, auth, version(), log).Handler(),
		ReadHeaderTimeout: 10 * time.Second,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		BaseContext:       func(net.Listener) context.Context { return ctx },
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return manager.Run(ctx) })
	group.Go(func() error {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve api: %w", err)
		}
		return nil
	})
	group.Go(func() error {
		<-ctx.Done()
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
		defer cancel()
		if err := server.Shutdown(last); err != nil {
			return server.Close()
		}
		return nil
	})
	log.Info("ready", "listen", listener.Addr().String(), "clusters", len(clusters))
	return group.Wait()
}

func version() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "devel"
}
