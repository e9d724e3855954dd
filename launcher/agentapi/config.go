package agentapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
)

// Names and numbers both sides must agree on.
const (
	// ConfigVariable is the environment variable that may hold a [Config] as
	// JSON. A file is better: /proc/1/environ is readable for the life of the
	// container.
	ConfigVariable = "FIRSTLIGHT_AGENT_CONFIG"

	// VariablePrefix marks the agent's own variables. Neither the app nor any
	// session sees a variable that starts with it.
	VariablePrefix = "FIRSTLIGHT_AGENT_"

	// InjectedDir is where the tools are mounted in an environment, read-only.
	InjectedDir = "/opt/firstlight"

	// BinaryPath is the agent inside an environment.
	BinaryPath = InjectedDir + "/bin/firstlight-agent"

	// ConfigPath is where a cluster puts the agent's [Config] in an environment.
	ConfigPath = "/run/firstlight/agent.json"

	// SSHPort and StatusPort are the ports an environment with a network of
	// its own serves on. They are above 1023, since an image's user need not
	// be root. They are also the names by which Cluster.Dial finds the two
	// services on clusters that had to choose other ports.
	SSHPort    = 2222
	StatusPort = 2223

	// PingSubsystem is an SSH subsystem that ends at once with status 0 and
	// touches nothing in the image. It separates the cost of a login from the
	// cost of the image's shell.
	PingSubsystem = "ping@firstlight.dev"
)

// Limits of a configuration. They are far above what a real one needs and
// keep a wrong file from steering the agent's memory.
const (
	maxConfigBytes    = 1 << 20
	maxProbes         = 64
	maxAuthorizedKeys = 256
)

// ErrInvalidConfig is wrapped by every error about a configuration's content.
var ErrInvalidConfig = errors.New("invalid agent configuration")

// Config is all that the agent is told. Unknown fields are refused.
type Config struct {
	// Environment is the launcher's identifier, for logs and the status.
	Environment string `json:"environment"`

	SSH     SSHConfig     `json:"ssh"`
	Status  StatusConfig  `json:"status"`
	App     AppConfig     `json:"app"`
	Session SessionConfig `json:"session"`
	Probes  []Probe       `json:"probes,omitempty"`
}

// SSHConfig configures the SSH server.
type SSHConfig struct {
	// Address to listen on, as host:port.
	Address string `json:"address"`
	// HostKey is an Ed25519 private key, PEM encoded.
	HostKey string `json:"hostKey"`
	// AuthorizedKeys are the only keys that may log in, one authorized_keys
	// line each. Options before the key are refused: none is implemented.
	AuthorizedKeys []string `json:"authorizedKeys"`
	// AcceptEnv names the variables a client may set; a trailing * matches any
	// rest. Nil means [DefaultAcceptEnv]. Variables that carry GPU limits or
	// change the loader are refused whatever is listed.
	AcceptEnv []string `json:"acceptEnv,omitempty"`
}

// DefaultAcceptEnv returns the variables a client may set if nothing else is
// configured.
func DefaultAcceptEnv() []string { return []string{"LANG", "LC_*", "COLORTERM", "TZ"} }

// StatusConfig configures the HTTP status server.
type StatusConfig struct {
	Address string `json:"address"`
	// Token, when set, must come as a bearer token with every request.
	Token string `json:"token,omitempty"`
}

// Policy says what the agent does when the app ends.
type Policy string

// Policies.
const (
	PolicyKeep Policy = "keep" // stay, so that a user can log in and look
	PolicyExit Policy = "exit" // end the container with the app's exit code
)

// AppConfig configures the app.
type AppConfig struct {
	// Policy defaults to [PolicyKeep].
	Policy Policy `json:"policy,omitempty"`
}

// SessionConfig configures SSH sessions.
type SessionConfig struct {
	// Shell is tried before $SHELL, the passwd entry, bash and sh.
	Shell string `json:"shell,omitempty"`
	// Dir is where sessions start: before the home directory and PID 1's own.
	Dir string `json:"dir,omitempty"`
}

// Probe is one check that the agent repeats until it first succeeds.
//
// The command runs with the environment of a session. It may report levels by
// printing lines of the form
//
//	firstlight:NONCE:LEVEL
//
// where NONCE is the value of [NonceVariable]; each is stamped when the agent
// reads it. Everything else it prints is ignored, unless Expect is set.
type Probe struct {
	ID string `json:"id"`
	// Exec is the command, found by PATH. No shell is involved.
	Exec []string `json:"exec"`
	// Expect, when set, must be found in the standard output.
	Expect string `json:"expect,omitempty"`
	// Timeout bounds one attempt. Default [DefaultProbeTimeout].
	Timeout Duration `json:"timeout,omitempty"`
	// GiveUp bounds all attempts. Default [DefaultProbeGiveUp].
	GiveUp Duration `json:"giveUp,omitempty"`
}

// NonceVariable is set for every probe attempt; see [Probe].
const NonceVariable = "FIRSTLIGHT_PROBE_NONCE"

// Defaults of a probe. A first import over a slow link can take minutes, so
// one attempt gets long: ending it early would only start it over.
const (
	DefaultProbeTimeout = 5 * time.Minute
	DefaultProbeGiveUp  = 30 * time.Minute
)

// Duration is a time.Duration that reads and writes as text, such as "1m30s".
type Duration time.Duration

// MarshalText implements encoding.TextMarshaler.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Duration) UnmarshalText(b []byte) error {
	v, err := time.ParseDuration(string(b))
	if err != nil {
		return err
	}
	*d = Duration(v)
	return nil
}

// ReadConfig decodes and validates a configuration. It fills in defaults.
func ReadConfig(r io.Reader) (*Config, error) {
	b, err := io.ReadAll(io.LimitReader(r, maxConfigBytes+1))
	if err != nil {
		return nil, fmt.Errorf("read agent configuration: %w", err)
	}
	if len(b) > maxConfigBytes {
		return nil, fmt.Errorf("%w: longer than %d bytes", ErrInvalidConfig, maxConfigBytes)
	}
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	var c Config
	if err := dec.Decode(&c); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalidConfig, err)
	}
	if dec.More() {
		return nil, fmt.Errorf("%w: more than one JSON value", ErrInvalidConfig)
	}
	c.setDefaults()
	if err := c.Validate(); err != nil {
		return nil, err
	}
	return &c, nil
}

func (c *Config) setDefaults() {
	if c.App.Policy == "" {
		c.App.Policy = PolicyKeep
	}
	if c.SSH.AcceptEnv == nil {
		c.SSH.AcceptEnv = DefaultAcceptEnv()
	}
	for i := range c.Probes {
		if c.Probes[i].Timeout <= 0 {
			c.Probes[i].Timeout = Duration(DefaultProbeTimeout)
		}
		if c.Probes[i].GiveUp <= 0 {
			c.Probes[i].GiveUp = Duration(DefaultProbeGiveUp)
		}
	}
}

// Validate reports the first thing wrong with the configuration, without
// repeating any secret.
func (c *Config) Validate() error {
	switch {
	case c.SSH.Address == "":
		return fmt.Errorf("%w: ssh.address is empty", ErrInvalidConfig)
	case c.SSH.HostKey == "":
		return fmt.Errorf("%w: ssh.hostKey is empty", ErrInvalidConfig)
	case len(c.SSH.AuthorizedKeys) == 0:
		return fmt.Errorf("%w: ssh.authorizedKeys is empty, nobody could log in", ErrInvalidConfig)
	case len(c.SSH.AuthorizedKeys) > maxAuthorizedKeys:
		return fmt.Errorf("%w: more than %d authorized keys", ErrInvalidConfig, maxAuthorizedKeys)
	case c.Status.Address == "":
		return fmt.Errorf("%w: status.address is empty", ErrInvalidConfig)
	case c.App.Policy != PolicyKeep && c.App.Policy != PolicyExit:
		return fmt.Errorf("%w: app.policy %q is neither keep nor exit", ErrInvalidConfig, c.App.Policy)
	case len(c.Probes) > maxProbes:
		return fmt.Errorf("%w: more than %d probes", ErrInvalidConfig, maxProbes)
	}
	seen := make(map[string]bool, len(c.Probes))
	for _, p := range c.Probes {
		if err := p.validate(); err != nil {
			return err
		}
		if seen[p.ID] {
			return fmt.Errorf("%w: probe %q is listed twice", ErrInvalidConfig, p.ID)
		}
		seen[p.ID] = true
	}
	return nil
}

func (p Probe) validate() error {
	switch {
	case p.ID == "" || strings.ContainsAny(p.ID, " \t\r\n"):
		return fmt.Errorf("%w: probe id %q is empty or has blanks", ErrInvalidConfig, p.ID)
	case len(p.Exec) == 0 || p.Exec[0] == "":
		return fmt.Errorf("%w: probe %s has no command", ErrInvalidConfig, p.ID)
	}
	return nil
}
