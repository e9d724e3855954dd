package daemon

import (
	_ "embed" // the example
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/pelletier/go-toml/v2"
)

// Modes of Config.Mode.
const (
	ModeAuto  = "auto"  // EROFS where the kernel can, else a FUSE tree
	ModeEROFS = "erofs" // EROFS or no lazy layers
	ModeFUSE  = "fuse"  // FUSE trees
)

// maxConfig bounds a configuration file; ours has a dozen lines.
const maxConfig = 1 << 20

// Example is a configuration file with every setting, its default, and what it
// is for.
//
//go:embed example.toml
var Example string

// Config is how a snapshotter runs. A file of it is strict: a key that is not
// known is an error.
type Config struct {
	Root              string   `toml:"root"`               // state and layers
	Address           string   `toml:"address"`            // socket for containerd
	NodeAddress       string   `toml:"node_address"`       // socket of the node API
	ImageAddress      string   `toml:"image_address"`      // socket for kubelet's image service, "" for none
	MetricsAddress    string   `toml:"metrics_address"`    // host:port for /metrics, "" for none
	ContainerdAddress string   `toml:"containerd_address"` // containerd's socket
	HostsDir          string   `toml:"hosts_dir"`          // containerd's certs.d
	DockerConfig      string   `toml:"docker_config"`      // config.json with credentials
	Mode              string   `toml:"mode"`               // auto, erofs or fuse
	FillAfter         Duration `toml:"fill_after"`         // before a layer's rest is fetched; negative: never
	LogLevel          string   `toml:"log_level"`          // debug, info, warn or error
	Cache             Cache    `toml:"cache"`              // what fetched layers may occupy
	Profiles          Profiles `toml:"profiles"`           // what starts read
}

// Cache bounds what fetched layers occupy under Root.
type Cache struct {
	MaxBytes Amount `toml:"max_bytes"` // "100GB", or "50%" of the file system; "0" for no bound but the next
	MinFree  Amount `toml:"min_free"`  // left to others, in the same ways
	LowWater Amount `toml:"low_water"` // of the room, what eviction leaves, in percent
}

// Profiles says what is done with access profiles.
type Profiles struct {
	Record bool     `toml:"record"` // starts of images without a profile
	Replay bool     `toml:"replay"` // what an earlier start read, at the next one
	Quiet  Duration `toml:"quiet"`  // a start is over when nothing new is read for this long
}

// Duration is a time.Duration that a file writes as "30s".
type Duration time.Duration

// UnmarshalText parses "30s".
func (d *Duration) UnmarshalText(b []byte) error {
	v, err := time.ParseDuration(string(b))
	*d = Duration(v)
	return err
}

// MarshalText writes "30s".
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// Default is the configuration of a node where everything is in its usual
// place.
func Default() Config {
	return Config{
		Root:              "/var/lib/firstlight",
		Address:           "/run/firstlight/snapshotter.sock",
		NodeAddress:       "/run/firstlight/node.sock",
		ContainerdAddress: "/run/containerd/containerd.sock",
		HostsDir:          "/etc/containerd/certs.d",
		DockerConfig:      "/root/.docker/config.json",
		Mode:              ModeAuto,
		FillAfter:         Duration(30 * time.Second),
		LogLevel:          "info",
		// Less than the 15 % at which kubelet begins to delete images would only
		// help when it has not.
		Cache:    Cache{MinFree: Amount{Percent: 10}, LowWater: Amount{Percent: 90}},
		Profiles: Profiles{Record: true, Replay: true, Quiet: Duration(30 * time.Second)},
	}
}

// Load reads a file over c.
func (c *Config) Load(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("open configuration: %w", err)
	}
	defer f.Close()
	err = toml.NewDecoder(io.LimitReader(f, maxConfig)).DisallowUnknownFields().Decode(c)
	var strict *toml.StrictMissingError
	if errors.As(err, &strict) {
		return fmt.Errorf("read configuration %s: unknown key\n%s", path, strict.String())
	}
	var bad *toml.DecodeError
	if errors.As(err, &bad) {
		return fmt.Errorf("read configuration %s:\n%s", path, bad.String())
	}
	if err != nil {
		return fmt.Errorf("read configuration %s: %w", path, err)
	}
	return nil
}

// Validate says what is wrong with a configuration.
func (c *Config) Validate() error {
	var errs []error
	for name, path := range map[string]string{"root": c.Root, "address": c.Address, "node_address": c.NodeAddress, "containerd_address": c.ContainerdAddress} {
		if !filepath.IsAbs(path) {
			errs = append(errs, fmt.Errorf("%s: %q is no absolute path", name, path))
		}
	}
	if c.ImageAddress != "" && !filepath.IsAbs(c.ImageAddress) {
		errs = append(errs, fmt.Errorf("image_address: %q is no absolute path", c.ImageAddress))
	}
	// overlayfs separates the directories of its options by these.
	if strings.ContainsAny(c.Root, ":,\\") {
		errs = append(errs, fmt.Errorf("root: %q has a colon, comma or backslash, which overlayfs cannot take", c.Root))
	}
	switch c.Mode {
	case ModeAuto, ModeEROFS, ModeFUSE:
	default:
		errs = append(errs, fmt.Errorf("mode: %q is not auto, erofs or fuse", c.Mode))
	}
	errs = append(errs, c.Cache.validate())
	if c.Profiles.Quiet <= 0 {
		errs = append(errs, fmt.Errorf("profiles.quiet: %s is no time to wait", time.Duration(c.Profiles.Quiet)))
	}
	if _, err := c.Level(); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// Level is the log level.
func (c *Config) Level() (slog.Level, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(c.LogLevel)); err != nil {
		return 0, fmt.Errorf("log_level: %q is not debug, info, warn or error", c.LogLevel)
	}
	return l, nil
}

// FUSEDir is where the FUSE mount is.
func (c *Config) FUSEDir() string { return filepath.Join(c.Root, "fuse") }
