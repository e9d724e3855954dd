package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/spf13/cobra"

	"github.com/firstlight-dev/firstlight/launcher/toolsimage"
)

func newToolsCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "tools", Short: "Make what is brought into environments"}
	cmd.AddCommand(newToolsImageCommand())
	return cmd
}

// newToolsImageCommand makes the image that Kubernetes mounts into pods.
func newToolsImageCommand() *cobra.Command {
	var agent, layout string
	cmd := &cobra.Command{
		Use:   "image --layout DIR",
		Short: "Write the image that holds firstlight-agent to an OCI layout folder",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if layout == "" {
				return usageError{errors.New("give --layout DIR, or push REF")}
			}
			image, err := buildTools(agent)
			if err != nil {
				return err
			}
			digest, err := toolsimage.WriteLayout(layout, image)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), digest)
			return err
		},
	}
	cmd.PersistentFlags().StringVar(&agent, "agent", "", "the agent's file (default: firstlight-agent beside this program)")
	cmd.Flags().StringVar(&layout, "layout", "", "OCI layout folder to write to")
	cmd.AddCommand(newToolsPushCommand(&agent))
	return cmd
}

func newToolsPushCommand(agent *string) *cobra.Command {
	var plain bool
	cmd := &cobra.Command{
		Use:   "push REF",
		Short: "Push the image that holds firstlight-agent, and print its pinned reference",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var options []name.Option
			if plain {
				options = append(options, name.Insecure)
			}
			ref, err := name.ParseReference(args[0], options...)
			if err != nil {
				return usageError{fmt.Errorf("reference %q: %w", args[0], err)}
			}
			image, err := buildTools(*agent)
			if err != nil {
				return err
			}
			pinned, err := toolsimage.Push(cmd.Context(), ref, image, remote.WithAuthFromKeychain(authn.DefaultKeychain))
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), pinned)
			return err
		},
	}
	cmd.Flags().BoolVar(&plain, "plain-http", false, "speak HTTP to the registry")
	return cmd
}

func buildTools(agent string) (v1.Image, error) {
	if agent == "" {
		self, err := os.Executable()
		if err != nil {
			return nil, fmt.Errorf("find this program: %w", err)
		}
		agent = filepath.Join(filepath.Dir(self), "firstlight-agent")
	}
	return toolsimage.Build(agent)
}
