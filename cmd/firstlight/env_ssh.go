package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/crypto/ssh"
	"golang.org/x/term"

	"github.com/firstlight-dev/firstlight/launcher/agentapi"
	"github.com/firstlight-dev/firstlight/launcher/client"
	"github.com/firstlight-dev/firstlight/launcher/tunnel"
)

// identity is the key pair the command line logs in with.
type identity struct {
	signer ssh.Signer
	public string
}

// loadIdentity reads a private key. Without a file it is the command's own,
// which is made on first use.
func loadIdentity(file string) (*identity, error) {
	if file == "" {
		dir, err := configDir()
		if err != nil {
			return nil, err
		}
		file = filepath.Join(dir, "id_ed25519")
		if err := makeIdentity(file); err != nil {
			return nil, err
		}
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read identity: %w", err)
	}
	signer, err := tunnel.ParsePrivateKey(string(text))
	if err != nil {
		return nil, fmt.Errorf("read identity %s: %w", file, err)
	}
	line := strings.TrimSpace(string(ssh.MarshalAuthorizedKey(signer.PublicKey())))
	return &identity{signer: signer, public: line}, nil
}

// makeIdentity makes a key unless the file exists. Two that make one at the
// same time end up with the same.
func makeIdentity(file string) error {
	if _, err := os.Stat(file); err == nil {
		return nil
	}
	key, err := tunnel.NewKey("firstlight")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return err
	}
	temp, err := os.CreateTemp(filepath.Dir(file), ".id-*") // mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(temp.Name())
	_, err = temp.WriteString(key.Private)
	if err := errors.Join(err, temp.Close()); err != nil {
		return fmt.Errorf("write identity: %w", err)
	}
	if err := os.Link(temp.Name(), file); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("write identity: %w", err)
	}
	return nil
}

// publicKeys reads the keys of a file in the form of authorized_keys.
func publicKeys(file string) ([]string, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read keys: %w", err)
	}
	var lines []string
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			if _, err := tunnel.ParsePublicKey(line); err != nil {
				return nil, fmt.Errorf("%s: %w", file, err)
			}
			lines = append(lines, line)
		}
	}
	return lines, nil
}

func newEnvSSHCommand(f *launcherFlags) *cobra.Command {
	var file string
	var stdio bool
	cmd := &cobra.Command{
		Use: "ssh NAME [-- COMMAND...]", Short: "Log in to an environment, or run a command in it",
		Long: `Log in to an environment through the launcher, or run a command in it.

No settings are needed: the launcher says which host key to expect, and the key
that created the environment logs in. The exit code is the command's. With
--stdio it only carries the connection, for use as ssh's ProxyCommand.`,
		Example: `  firstlight env ssh train-a
  firstlight env ssh train-a -- python3 -c 'print(1)'
  ssh -o ProxyCommand='firstlight env ssh train-a --stdio' -i ~/.config/firstlight/id_ed25519 train-a`,
		Args: cobra.MinimumNArgs(1), ValidArgsFunction: f.completeEnvironments,
	}
	cmd.Flags().StringVarP(&file, "identity", "i", "", "private key to log in with; default: the command's own")
	cmd.Flags().BoolVar(&stdio, "stdio", false, "carry the connection over standard input and output")
	cmd.RunE = f.withClient(func(cmd *cobra.Command, c *client.Client, args []string) error {
		ctx := cmd.Context()
		conn, err := c.Tunnel(ctx, args[0], agentapi.SSHPort)
		if err != nil {
			return err
		}
		if stdio {
			return tunnel.Stdio(ctx, conn, cmd.InOrStdin(), cmd.OutOrStdout())
		}
		code, err := login(ctx, cmd, c, conn, file, args)
		if err == nil && code != 0 {
			err = remoteExit(code)
		}
		return err
	})
	return cmd
}

// remoteExit carries a remote command's exit code to our own.
type remoteExit int

func (e remoteExit) Error() string { return fmt.Sprintf("the command ended with code %d", int(e)) }

// ExitCode implements exitCoder.
func (e remoteExit) ExitCode() int { return int(e) }

func login(ctx context.Context, cmd *cobra.Command, c *client.Client, conn net.Conn, file string, args []string) (int, error) {
	defer conn.Close()
	env, err := c.Environment(ctx, args[0])
	if err != nil {
		return 0, err
	}
	own, err := loadIdentity(file)
	if err != nil {
		return 0, err
	}
	host, err := tunnel.ParsePublicKey(env.Status.HostKey)
	if err != nil {
		return 0, err
	}
	session, err := tunnel.Connect(ctx, conn, tunnel.Login{Signer: own.signer, HostKey: host})
	if err != nil {
		return 0, err
	}
	defer session.Close()
	command := shellWords(args[1:])
	if command == "" && term.IsTerminal(int(os.Stdin.Fd())) {
		return session.Shell(ctx, os.Stdin, os.Stdout, envOr("TERM", "xterm"), "")
	}
	return session.Run(ctx, command, tunnel.Streams{In: cmd.InOrStdin(), Out: cmd.OutOrStdout(), Err: cmd.ErrOrStderr()})
}

// shellWords makes one command line of arguments. A single argument is the
// command line itself, as with ssh; several are kept apart by quotes.
func shellWords(args []string) string {
	if len(args) == 1 {
		return args[0]
	}
	quoted := make([]string, len(args))
	for i, a := range args {
		quoted[i] = "'" + strings.ReplaceAll(a, "'", `'\''`) + "'"
	}
	return strings.Join(quoted, " ")
}
