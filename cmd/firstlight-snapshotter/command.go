package main

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime/debug"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/firstlight-dev/firstlight/snapshotter/daemon"
)

// newCommand is the keeper; its sub-commands are the worker and what prints.
func newCommand() *cobra.Command {
	var opts options
	cmd := &cobra.Command{
		Use:           "firstlight-snapshotter",
		Short:         "A containerd snapshotter whose layers come when they are read",
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, log, err := opts.load(cmd.Flags())
			if err != nil {
				return err
			}
			return daemon.Run(cmd.Context(), cfg, workerArgs(os.Args[1:]), version(), log)
		},
	}
	opts.register(cmd.PersistentFlags())
	cmd.AddCommand(
		&cobra.Command{
			Use:    "worker",
			Short:  "Started by the keeper",
			Hidden: true,
			Args:   cobra.NoArgs,
			RunE: func(cmd *cobra.Command, _ []string) error {
				cfg, log, err := opts.load(cmd.Flags())
				if err != nil {
					return err
				}
				return daemon.Work(cmd.Context(), cfg, version(), log)
			},
		},
		newConfigCommand(&opts),
	)
	return cmd
}

func newConfigCommand(opts *options) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Print a configuration file with every setting",
		Example: `  firstlight-snapshotter config > /etc/firstlight/snapshotter.toml
  firstlight-snapshotter config containerd > /etc/containerd/conf.d/firstlight.toml`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := io.WriteString(cmd.OutOrStdout(), daemon.Example)
			return err
		},
	}
	cmd.AddCommand(&cobra.Command{
		Use:   "containerd",
		Short: "Print the part of containerd's configuration that makes it use this snapshotter",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, _, err := opts.load(cmd.Flags())
			if err != nil {
				return err
			}
			return daemon.WriteDropIn(cmd.OutOrStdout(), cfg)
		},
	})
	return cmd
}

// workerArgs are the arguments for the worker: the keeper's own, so that both
// read the same configuration.
func workerArgs(args []string) []string { return append([]string{"worker"}, args...) }

// options are the flags. A flag that is given wins over the file, which wins
// over the default.
type options struct {
	file      string
	flags     daemon.Config
	fillAfter time.Duration
	quiet     time.Duration
}

func (o *options) register(f *pflag.FlagSet) {
	d := daemon.Default()
	f.StringVar(&o.file, "config", "", "configuration file (TOML)")
	f.StringVar(&o.flags.Root, "root", d.Root, "directory of state and layers")
	f.StringVar(&o.flags.Address, "address", d.Address, "socket for containerd")
	f.StringVar(&o.flags.NodeAddress, "node-address", d.NodeAddress, "socket of the node API")
	f.StringVar(&o.flags.ImageAddress, "image-address", d.ImageAddress, "socket for kubelet's imageServiceEndpoint, so that pull secrets count for lazy layers; empty for none")
	f.StringVar(&o.flags.MetricsAddress, "metrics-address", d.MetricsAddress, "host:port for Prometheus, empty for none")
	f.StringVar(&o.flags.ContainerdAddress, "containerd-address", d.ContainerdAddress, "containerd's socket")
	f.StringVar(&o.flags.HostsDir, "hosts-dir", d.HostsDir, "containerd's certs.d directory")
	f.StringVar(&o.flags.DockerConfig, "docker-config", d.DockerConfig, "docker config.json with credentials")
	f.StringVar(&o.flags.Mode, "mode", d.Mode, "how layers are mounted: auto, erofs or fuse")
	f.DurationVar(&o.fillAfter, "fill-after", time.Duration(d.FillAfter), "when to fetch the rest of a layer; negative for never")
	f.TextVar(&o.flags.Cache.MaxBytes, "cache-max-bytes", d.Cache.MaxBytes, "most that fetched layers may occupy, as 100GB or 50%; 0 for no bound but --cache-min-free")
	f.TextVar(&o.flags.Cache.MinFree, "cache-min-free", d.Cache.MinFree, "what fetched layers leave free of the file system, as 20GB or 10%")
	f.BoolVar(&o.flags.Profiles.Record, "profiles-record", d.Profiles.Record, "record what starts of images without an access profile read")
	f.BoolVar(&o.flags.Profiles.Replay, "profiles-replay", d.Profiles.Replay, "fetch ahead what an image's access profile says")
	f.DurationVar(&o.quiet, "profiles-quiet", time.Duration(d.Profiles.Quiet), "a start is over when nothing new is read for this long")
	f.StringVar(&o.flags.LogLevel, "log-level", d.LogLevel, "debug, info, warn or error")
}

// load joins defaults, file and flags.
func (o *options) load(f *pflag.FlagSet) (daemon.Config, *slog.Logger, error) {
	cfg := daemon.Default()
	if o.file != "" {
		if err := cfg.Load(o.file); err != nil {
			return cfg, nil, err
		}
	}
	set := map[string]func(){
		"root":               func() { cfg.Root = o.flags.Root },
		"address":            func() { cfg.Address = o.flags.Address },
		"node-address":       func() { cfg.NodeAddress = o.flags.NodeAddress },
		"image-address":      func() { cfg.ImageAddress = o.flags.ImageAddress },
		"metrics-address":    func() { cfg.MetricsAddress = o.flags.MetricsAddress },
		"containerd-address": func() { cfg.ContainerdAddress = o.flags.ContainerdAddress },
		"hosts-dir":          func() { cfg.HostsDir = o.flags.HostsDir },
		"docker-config":      func() { cfg.DockerConfig = o.flags.DockerConfig },
		"mode":               func() { cfg.Mode = o.flags.Mode },
		"fill-after":         func() { cfg.FillAfter = daemon.Duration(o.fillAfter) },
		"cache-max-bytes":    func() { cfg.Cache.MaxBytes = o.flags.Cache.MaxBytes },
		"cache-min-free":     func() { cfg.Cache.MinFree = o.flags.Cache.MinFree },
		"profiles-record":    func() { cfg.Profiles.Record = o.flags.Profiles.Record },
		"profiles-replay":    func() { cfg.Profiles.Replay = o.flags.Profiles.Replay },
		"profiles-quiet":     func() { cfg.Profiles.Quiet = daemon.Duration(o.quiet) },
		"log-level":          func() { cfg.LogLevel = o.flags.LogLevel },
	}
	f.Visit(func(f *pflag.Flag) {
		if apply, ok := set[f.Name]; ok {
			apply()
		}
	})
	if err := cfg.Validate(); err != nil {
		return cfg, nil, fmt.Errorf("configuration: %w", err)
	}
	level, err := cfg.Level()
	if err != nil {
		return cfg, nil, err
	}
	return cfg, slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level})), nil
}

// version is that of the module, or of the commit it was built from.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	if v := info.Main.Version; v != "" && v != "(devel)" {
		return v
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			return s.Value
		}
	}
	return "devel"
}
