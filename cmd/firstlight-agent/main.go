// Command firstlight-agent is PID 1 of an environment. It starts the image's
// own command and serves SSH and the environment's status beside it:
//
//	firstlight-agent run --config FILE -- ENTRYPOINT ARGS...
//
// Without a command it serves only. It needs nothing of the image. As
// "firstlight-agent install DIR" it copies itself to DIR/bin.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"

	"github.com/firstlight-dev/firstlight/launcher/agent"
	"github.com/firstlight-dev/firstlight/launcher/agentapi"
)

// version is set by the linker.
var version = "dev" //nolint:gochecknoglobals // the linker can set nothing else

const (
	exitError = 1
	exitUsage = 2
)

var errUsage = errors.New("usage: firstlight-agent run [--config FILE] [-- COMMAND ARGS...] | install DIR | sftp-server | version")

func main() {
	code, err := dispatch(context.Background(), os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "firstlight-agent:", err)
	}
	os.Exit(code)
}

func dispatch(ctx context.Context, args []string) (int, error) {
	if len(args) == 0 {
		return exitUsage, errUsage
	}
	switch args[0] {
	case "run":
		return run(ctx, args[1:])
	case agent.SFTPCommand:
		return failed(agent.ServeSFTP(os.Stdin, os.Stdout))
	case "install":
		if len(args) != 2 {
			return exitUsage, errUsage
		}
		return failed(agent.Install(args[1]))
	case "version":
		_, err := fmt.Println(version)
		return failed(err)
	}
	return exitUsage, errUsage
}

func failed(err error) (int, error) {
	if err != nil {
		return exitError, err
	}
	return 0, nil
}

func run(ctx context.Context, args []string) (int, error) {
	flags := flag.NewFlagSet("run", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	file := flags.String("config", "", "configuration file; without it, $"+agentapi.ConfigVariable)
	if err := flags.Parse(args); err != nil {
		return exitUsage, fmt.Errorf("%w (%w)", errUsage, err)
	}
	cfg, err := readConfig(*file)
	if err != nil {
		return exitError, err
	}
	code, err := agent.Run(ctx, agent.Options{
		Config:  cfg,
		Command: flags.Args(),
		Environ: os.Environ(),
		Version: version,
		Log:     slog.New(slog.NewJSONHandler(os.Stderr, nil)),
	})
	if err != nil {
		return exitError, err
	}
	return code, nil
}

func readConfig(file string) (*agentapi.Config, error) {
	if file == "" {
		text, ok := os.LookupEnv(agentapi.ConfigVariable)
		if !ok {
			return nil, fmt.Errorf("no configuration: give --config or set %s", agentapi.ConfigVariable)
		}
		return agentapi.ReadConfig(strings.NewReader(text))
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	return agentapi.ReadConfig(bytes.NewReader(b))
}
