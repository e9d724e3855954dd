package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/dustin/go-humanize"
	"github.com/opencontainers/go-digest"
	"github.com/spf13/cobra"

	"github.com/firstlight-dev/firstlight/indexer/image"
	"github.com/firstlight-dev/firstlight/indexer/profile"
	"github.com/firstlight-dev/firstlight/indexer/referrer"
	"github.com/firstlight-dev/firstlight/snapshotter/nodeapi"
)

func newProfileCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "profile",
		Short: "Look after the access profiles that let images start without waiting for bytes",
		Long: `An access profile says which parts of an image one start of it read, in order. A
node records it from the image's first start until the environment is usable, and
fetches those parts ahead at every later first start. Pushed beside the image, in
its registry, it does the same for every other node.

record, stop and ls speak to the snapshotter of this machine; show, push and rm
take an image as the registry knows it. A profile of this machine is used before
one from the registry.

Exit codes: 1 error, 2 wrong command line, 3 no such image, recording or profile.`,
	}
	cmd.AddCommand(newProfileRecordCommand(), newProfileStopCommand(), newProfileListCommand(),
		newProfileShowCommand(), newProfilePushCommand(), newProfileRemoveCommand())
	return cmd
}

// profileFlags are common to all of them.
type profileFlags struct {
	indexFlags
	socket string
}

// registerNode adds the flags of commands that ask this machine.
func (f *profileFlags) registerNode(cmd *cobra.Command, args int) {
	fs := cmd.Flags()
	fs.StringVar(&f.socket, "node-address", nodeapi.DefaultSocket, "socket of the snapshotter's node API")
	if fs.Lookup("output") == nil {
		fs.StringVarP(&f.output, "output", "o", "text", "`format` of the result: text or json")
	}
	cmd.Args = func(cmd *cobra.Command, got []string) error {
		if len(got) != args {
			return usageError{fmt.Errorf("%s takes %d arguments, not %d", cmd.CommandPath(), args, len(got))}
		}
		return f.checkOutput()
	}
}

func (f *profileFlags) node() *nodeapi.Client { return nodeapi.NewClient(f.socket) }

// missing gives an error of the node or a registry its exit code.
func missing(err error) error {
	if errors.Is(err, nodeapi.ErrNotFound) {
		return codeError{err, exitNotFound}
	}
	return notFound(err)
}

func newProfileRecordCommand() *cobra.Command {
	var f profileFlags
	cmd := &cobra.Command{
		Use:   "record IMAGE",
		Short: "Record what the start of an image reads, on this machine",
		Long: `Nodes record the first start of an image without a profile by themselves. This
records it again: if the image is not on this machine, its next first start,
whatever profiles it has; if it is, what is read from now on. What the kernel has
in memory is not read again, so remove the image first for a profile of its whole
start. IMAGE is the reference that it is pulled by.`,
		Example: "  firstlight profile record registry.example.com/team/pytorch:2.8",
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		p, err := f.node().Record(cmd.Context(), args[0])
		if err != nil {
			return missing(err)
		}
		return f.printProfiles(cmd.OutOrStdout(), []nodeapi.Profile{p})
	}
	f.registerNode(cmd, 1)
	return cmd
}

func newProfileStopCommand() *cobra.Command {
	var f profileFlags
	cmd := &cobra.Command{
		Use:   "stop IMAGE",
		Short: "End the recording of an image's start, and keep its profile on this machine",
		Long: `The launcher does this when an environment is usable; without it, a recording ends
when nothing new was read for a while. IMAGE is the reference that it was pulled
by, or the digest of its manifest.`,
		Example: "  firstlight profile stop registry.example.com/team/pytorch:2.8",
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		p, err := f.node().StopRecording(cmd.Context(), nodeapi.ProfileRequest{Image: args[0]})
		if err != nil {
			return missing(err)
		}
		return f.printProfiles(cmd.OutOrStdout(), []nodeapi.Profile{p})
	}
	f.registerNode(cmd, 1)
	return cmd
}

func newProfileListCommand() *cobra.Command {
	var f profileFlags
	cmd := &cobra.Command{
		Use:     "ls",
		Short:   "List the access profiles of this machine, and recordings that are on",
		Example: "  firstlight profile ls -o json",
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		all, err := f.node().Profiles(cmd.Context())
		if err != nil {
			return err
		}
		return f.printProfiles(cmd.OutOrStdout(), all)
	}
	f.registerNode(cmd, 0)
	return cmd
}

// remoteCommand completes a command about an image in a registry.
func (f *profileFlags) remoteCommand(cmd *cobra.Command, do func(context.Context, io.Writer, referrer.Store, image.Image) error) *cobra.Command {
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		store, tag, err := f.open(strings.Join(args, ""))
		if err != nil {
			return err
		}
		images, err := image.Resolve(cmd.Context(), store, tag, f.platform)
		if err != nil {
			return notFound(err)
		}
		done := 0
		for _, img := range images {
			err := do(cmd.Context(), cmd.OutOrStdout(), store, img)
			switch {
			// Of an image for several platforms, a node runs one.
			case errors.Is(err, referrer.ErrNotFound), errors.Is(err, nodeapi.ErrNotFound):
				continue
			case err != nil:
				return err
			}
			done++
		}
		if done == 0 {
			return codeError{fmt.Errorf("%s has no access profile %s", strings.Join(args, ""), f.where()), exitNotFound}
		}
		return nil
	}
	f.register(cmd)
	return cmd
}

func (f *profileFlags) where() string {
	if f.socket != "" {
		return "on this machine"
	}
	return "in the registry"
}

func newProfileShowCommand() *cobra.Command {
	var f profileFlags
	return f.remoteCommand(&cobra.Command{
		Use:     "show IMAGE",
		Short:   "Show the access profiles that an image has in its registry",
		Example: "  firstlight profile show -o json registry.example.com/team/pytorch:2.8",
	}, func(ctx context.Context, w io.Writer, store referrer.Store, img image.Image) error {
		found, err := referrer.ListProfiles(ctx, store, img.Descriptor.Digest)
		if err != nil {
			return err
		}
		if len(found) == 0 {
			return referrer.ErrNotFound
		}
		var all []nodeapi.Profile
		for _, r := range found {
			p, err := r.Load(ctx, store, img.Descriptor.Digest)
			if err != nil {
				return err
			}
			all = append(all, summarize(p))
		}
		return f.printProfiles(w, all)
	})
}

func summarize(p *profile.Profile) nodeapi.Profile {
	return nodeapi.Profile{Manifest: p.Manifest.String(), Command: p.Command, State: nodeapi.ProfileRecorded,
		Reason: p.Reason.String(), Layers: len(p.Layers), Parts: len(p.Parts), Bytes: p.Bytes()}
}

func newProfilePushCommand() *cobra.Command {
	var f profileFlags
	cmd := f.remoteCommand(&cobra.Command{
		Use:   "push IMAGE",
		Short: "Push this machine's access profile of an image to the image's registry",
		Long: `The profile becomes an artifact that refers to the image, with the credentials of
"docker login"; the image itself does not change. It takes the place of an older
profile for the same command.`,
		Example: "  firstlight profile push registry.example.com/team/pytorch:2.8",
	}, func(ctx context.Context, w io.Writer, store referrer.Store, img image.Image) error {
		raw, err := f.node().ProfileBytes(ctx, img.Descriptor.Digest.String())
		if err != nil {
			return err
		}
		p, err := profile.Decode(raw)
		if err != nil {
			return err
		}
		if err := pushProfile(ctx, store, img, p); err != nil {
			return err
		}
		return f.printProfiles(w, []nodeapi.Profile{summarize(p)})
	})
	cmd.Flags().StringVar(&f.socket, "node-address", nodeapi.DefaultSocket, "socket of the snapshotter's node API")
	return cmd
}

// pushProfile publishes a profile and then removes older ones for its command:
// at every moment the image has one.
func pushProfile(ctx context.Context, store referrer.Store, img image.Image, p *profile.Profile) error {
	a, err := referrer.NewProfileArtifact(img.Descriptor, p)
	if err != nil {
		return err
	}
	older, err := referrer.ListProfiles(ctx, store, img.Descriptor.Digest)
	if err != nil {
		return err
	}
	if err := store.Push(ctx, a); err != nil {
		return err
	}
	for _, r := range older {
		if r.Command != profile.Key(p.Command) || r.Artifact.Digest == a.Descriptor.Digest {
			continue
		}
		if err := store.Remove(ctx, img.Descriptor.Digest, r.Artifact); err != nil {
			return fmt.Errorf("remove older profile: %w", err)
		}
	}
	return nil
}

func newProfileRemoveCommand() *cobra.Command {
	var f profileFlags
	var local bool
	cmd := &cobra.Command{
		Use:   "rm IMAGE",
		Short: "Remove the access profiles of an image from its registry, or from this machine",
		Long: `Without --local, the profiles in the image's registry. With it, those that this
machine keeps; IMAGE is then the digest of the image's manifest (see ls).`,
		Example: `  firstlight profile rm registry.example.com/team/pytorch:2.8
  firstlight profile rm --local sha256:3f1c…`,
	}
	f.remoteCommand(cmd, func(ctx context.Context, _ io.Writer, store referrer.Store, img image.Image) error {
		found, err := referrer.ListProfiles(ctx, store, img.Descriptor.Digest)
		if err != nil {
			return err
		}
		if len(found) == 0 {
			return referrer.ErrNotFound
		}
		for _, r := range found {
			if err := store.Remove(ctx, img.Descriptor.Digest, r.Artifact); err != nil {
				return err
			}
		}
		return nil
	})
	remote := cmd.RunE
	var socket string
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if !local {
			return remote(cmd, args)
		}
		if _, err := digest.Parse(strings.Join(args, "")); err != nil {
			return usageError{fmt.Errorf("with --local, name the image by the digest of its manifest: %w", err)}
		}
		return missing(nodeapi.NewClient(socket).RemoveProfiles(cmd.Context(), args[0]))
	}
	cmd.Flags().BoolVar(&local, "local", false, "remove from this machine")
	cmd.Flags().StringVar(&socket, "node-address", nodeapi.DefaultSocket, "socket of the snapshotter's node API")
	return cmd
}

// printProfiles writes profiles as the flags say.
func (f *profileFlags) printProfiles(w io.Writer, all []nodeapi.Profile) error {
	if f.output == "json" {
		return printJSON(w, map[string]any{"profiles": all})
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "IMAGE\tCOMMAND\tSTATE\tENDED BY\tREADS\tRANGES")
	for _, p := range all {
		name := p.Ref
		if name == "" {
			name = fmt.Sprintf("%.19s", p.Manifest)
		}
		reads, ranges, reason := "-", "-", "-"
		if p.State == nodeapi.ProfileRecorded {
			reads, ranges, reason = humanize.IBytes(uint64(max(p.Bytes, 0))), fmt.Sprint(p.Parts), p.Reason
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\n", name, shorten(strings.Join(p.Command, " ")), p.State, reason, reads, ranges)
	}
	return t.Flush()
}

// shorten makes a command fit a column, whatever bytes it has.
func shorten(command string) string {
	const most = 40
	if command == "" {
		return "-"
	}
	text := []rune(strings.Trim(fmt.Sprintf("%q", command), `"`))
	if len(text) > most {
		text = append(text[:most-1], '…')
	}
	return string(text)
}
