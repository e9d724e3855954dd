package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/firstlight-dev/firstlight/indexer/batch"
)

func newIndexCreateCommand() *cobra.Command {
	var f indexFlags
	var force bool
	cmd := &cobra.Command{
		Use:   "create IMAGE",
		Short: "Index the layers of an image and publish the indexes beside it",
		Long: `Reads each layer once, makes its index and publishes them as one artifact for each
image manifest. Layers whose index is there already are not read again. A layer
that cannot be indexed exactly is reported with the reason; it is pulled in full.

In CI, run it after the push, with --check if such a layer should fail the build.`,
		Example: `  firstlight index create registry.example.com/team/pytorch:2.8
  firstlight index create --platform linux/amd64 registry.example.com/team/pytorch:2.8
  firstlight index create --check registry.example.com/team/pytorch:2.8
  firstlight index create oci:./image -o json`,
		RunE: func(cmd *cobra.Command, args []string) error {
			b, err := f.batch(cmd.Context(), args)
			if err != nil {
				return err
			}
			p := newIndexProgress(cmd.ErrOrStderr(), b.Images)
			b.Observer = p
			images, err := b.Create(cmd.Context(), force)
			p.stop()
			if err != nil && !errors.Is(err, batch.ErrNothing) {
				return err
			}
			if perr := f.print(cmd.OutOrStdout(), images, indexRow); perr != nil {
				return perr
			}
			return cmp.Or(f.fallback(images), err)
		},
	}
	f.register(cmd)
	f.registerJobs(cmd)
	f.registerCheck(cmd)
	cmd.Flags().BoolVar(&force, "force", false, "read all layers again, also those whose index is there")
	return cmd
}

// imageCommand completes a command that does one thing to the indexes of an
// image, without reading layers, and prints what came of it.
func imageCommand(cmd *cobra.Command, f *indexFlags, do func(*batch.Batch, context.Context) ([]batch.Image, error)) *cobra.Command {
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		b, err := f.batch(cmd.Context(), args)
		if err != nil {
			return err
		}
		images, err := do(b, cmd.Context())
		if err != nil {
			return notFound(err)
		}
		return cmp.Or(f.print(cmd.OutOrStdout(), images, indexRow), f.fallback(images))
	}
	f.register(cmd)
	return cmd
}

func newIndexListCommand() *cobra.Command {
	var f indexFlags
	cmd := imageCommand(&cobra.Command{
		Use:   "ls IMAGE",
		Short: "List which layers of an image have an index",
		Example: `  firstlight index ls registry.example.com/team/pytorch:2.8
  firstlight index ls --check registry.example.com/team/pytorch:2.8 >/dev/null`,
	}, &f, (*batch.Batch).List)
	f.registerCheck(cmd)
	return cmd
}

func newIndexInspectCommand() *cobra.Command {
	return imageCommand(&cobra.Command{
		Use:     "inspect IMAGE",
		Short:   "Read the indexes of an image and say what is in them",
		Example: "  firstlight index inspect -o json registry.example.com/team/pytorch:2.8",
	}, &indexFlags{}, (*batch.Batch).Inspect)
}

func newIndexVerifyCommand() *cobra.Command {
	var f indexFlags
	cmd := &cobra.Command{
		Use:   "verify IMAGE",
		Short: "Prove the indexes of an image against its layers",
		Long: `Reads every layer completely and checks its digest, that every chunk decodes by
itself to the bytes the index names, the diffID, and that the headers in the index
and the file contents make exactly the layer's tar. The exit code is 4 if an index
does not match.`,
		Example: "  firstlight index verify registry.example.com/team/pytorch:2.8",
		RunE: func(cmd *cobra.Command, args []string) error {
			b, err := f.batch(cmd.Context(), args)
			if err != nil {
				return err
			}
			p := newIndexProgress(cmd.ErrOrStderr(), b.Images)
			b.Observer = p
			images, err := b.Verify(cmd.Context())
			p.stop()
			if err != nil && !errors.Is(err, batch.ErrVerify) {
				return notFound(err)
			}
			if perr := f.print(cmd.OutOrStdout(), images, verifyRow); perr != nil {
				return perr
			}
			if err != nil {
				return codeError{err, exitMismatch}
			}
			return nil
		},
	}
	f.register(cmd)
	f.registerJobs(cmd)
	return cmd
}

func verifyRow(l batch.Layer) string {
	if l.Problem == "" && l.Refused == "" {
		return "ok: " + indexRow(l)
	}
	return indexRow(l)
}

func newIndexRemoveCommand() *cobra.Command {
	return imageCommand(&cobra.Command{
		Use:     "rm IMAGE",
		Short:   "Remove the indexes of an image",
		Example: "  firstlight index rm registry.example.com/team/pytorch:2.8",
	}, &indexFlags{}, (*batch.Batch).Remove)
}

func newIndexCopyCommand() *cobra.Command {
	var f indexFlags
	cmd := &cobra.Command{
		Use:   "copy SOURCE IMAGE",
		Short: "Copy the indexes of an image to where the image was copied",
		Long: `Most tools copy an image and leave behind what refers to it. This brings the
indexes after it: IMAGE is the copy, which must have the same digest as in SOURCE;
tags may differ. Nothing is read but the indexes.

Either can be a reference, or oci:DIR[:TAG] for an OCI layout folder.`,
		Example: `  crane copy build.example.com/pytorch:2.8 prod.example.com/pytorch:2.8
  firstlight index copy build.example.com/pytorch:2.8 prod.example.com/pytorch:2.8
  firstlight index copy oci:./image registry.example.com/team/pytorch:2.8`,
		RunE: func(cmd *cobra.Command, args []string) error {
			from, _, err := f.open(args[0])
			if err != nil {
				return err
			}
			b, err := f.batch(cmd.Context(), args[1:])
			if err != nil {
				return err
			}
			images, err := b.Copy(cmd.Context(), from)
			if err != nil {
				return notFound(err)
			}
			return cmp.Or(f.print(cmd.OutOrStdout(), images, indexRow), f.fallback(images))
		},
	}
	f.registerOutput(cmd)
	f.registerCheck(cmd)
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) != 2 {
			return usageError{fmt.Errorf("%s takes a source and an image, not %d arguments", cmd.CommandPath(), len(args))}
		}
		return f.checkOutput()
	}
	return cmd
}
