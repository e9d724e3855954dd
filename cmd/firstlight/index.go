package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"text/tabwriter"

	"github.com/dustin/go-humanize"
	"github.com/dustin/go-humanize/english"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/spf13/cobra"

	"github.com/firstlight-dev/firstlight/indexer/batch"
	"github.com/firstlight-dev/firstlight/indexer/image"
	"github.com/firstlight-dev/firstlight/indexer/referrer"
)

func newIndexCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "index",
		Short: "Make and look after the indexes that let images start lazily",
		Long: `An index lets a node start an image before its layers are there: it says where in
each layer every file lies and how to read it from there. Indexes are kept beside
the image, in its registry or OCI layout folder, as an artifact that refers to it;
the image itself, its digest and its tags do not change.

An image is named as usual, or as oci:DIR[:TAG] in an OCI layout folder.
Registries are logged in to with the credentials of "docker login".

Exit codes: 1 error, 2 wrong command line, 3 no such image or index, 4 an index
does not match its layer, 6 with --check: a layer has no index.`,
	}
	cmd.AddCommand(newIndexCreateCommand(), newIndexListCommand(), newIndexInspectCommand(),
		newIndexVerifyCommand(), newIndexCopyCommand(), newIndexRemoveCommand())
	return cmd
}

// indexFlags are common to all of them.
type indexFlags struct {
	layout    string
	platform  string
	plainHTTP bool
	output    string
	jobs      int
	check     bool
}

func (f *indexFlags) register(cmd *cobra.Command) {
	f.registerOutput(cmd)
	cmd.Flags().StringVar(&f.layout, "layout", "", "OCI layout `folder` that holds the image; the argument is then its tag or digest")
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) != 1 && (f.layout == "" || len(args) > 1) {
			return usageError{fmt.Errorf("%s takes one image, not %d", cmd.CommandPath(), len(args))}
		}
		return f.checkOutput()
	}
}

// registerOutput adds the flags that do not say which image.
func (f *indexFlags) registerOutput(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.StringVar(&f.platform, "platform", "", "only the image for this `os/arch[/variant]` (default: all in the image index)")
	fs.BoolVar(&f.plainHTTP, "plain-http", false, "speak plain HTTP to the registry (always done on this machine)")
	fs.StringVarP(&f.output, "output", "o", "text", "`format` of the result: text or json")
}

func (f *indexFlags) checkOutput() error {
	if f.output != "text" && f.output != "json" {
		return usageError{fmt.Errorf("unknown output format %q: text or json", f.output)}
	}
	return nil
}

// registerJobs adds the flag of commands that read layers.
func (f *indexFlags) registerJobs(cmd *cobra.Command) {
	cmd.Flags().IntVarP(&f.jobs, "jobs", "j", min(runtime.GOMAXPROCS(0), 4), "`number` of layers to work on at a time; each takes some 60 MiB of memory")
}

// registerCheck adds the flag of commands that can fail a build.
func (f *indexFlags) registerCheck(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&f.check, "check", false, "exit with code 6 if a layer has no index, so that nodes would pull it in full")
}

// fallback is the error that --check asks for.
func (f *indexFlags) fallback(images []batch.Image) error {
	if !f.check {
		return nil
	}
	n := 0
	for _, img := range images {
		for _, l := range img.Layers {
			if l.IndexSize == 0 {
				n++
			}
		}
	}
	if n == 0 {
		return nil
	}
	return codeError{fmt.Errorf("%s no index: nodes would pull %s in full", english.Plural(n, "layer has", "layers have"), english.PluralWord(n, "it", "them")), exitFallback}
}

// batch opens the store and resolves the image.
func (f *indexFlags) batch(ctx context.Context, args []string) (*batch.Batch, error) {
	ref := strings.Join(args, "")
	store, tag, err := f.open(ref)
	if err != nil {
		return nil, err
	}
	images, err := image.Resolve(ctx, store, tag, f.platform)
	if err != nil {
		return nil, notFound(err)
	}
	return &batch.Batch{Store: store, Images: images, Jobs: f.jobs, Observer: batch.Quiet()}, nil
}

func (f *indexFlags) open(ref string) (referrer.Store, string, error) {
	if dir, ok := strings.CutPrefix(ref, "oci:"); ok && f.layout == "" {
		dir, tag, _ := strings.Cut(dir, ":")
		l, err := referrer.OpenLayout(dir)
		return l, tag, err
	}
	if f.layout != "" {
		l, err := referrer.OpenLayout(f.layout)
		return l, ref, err
	}
	var opts []name.Option
	if f.plainHTTP {
		opts = append(opts, name.Insecure)
	}
	r, err := name.ParseReference(ref, opts...)
	if err != nil {
		return nil, "", usageError{err}
	}
	return referrer.NewRemote(r.Context()), r.Identifier(), nil
}

// codeError gives an error an exit code.
type codeError struct {
	error
	code int
}

func (e codeError) ExitCode() int { return e.code }
func (e codeError) Unwrap() error { return e.error }

func notFound(err error) error {
	if errors.Is(err, referrer.ErrNotFound) {
		return codeError{err, exitNotFound}
	}
	return err
}

// print writes the images as the flags say.
func (f *indexFlags) print(w io.Writer, images []batch.Image, row func(batch.Layer) string) error {
	if f.output == "json" {
		if images == nil {
			images = []batch.Image{}
		}
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		return enc.Encode(map[string]any{"images": images})
	}
	for _, img := range images {
		fmt.Fprintf(w, "%s %s\n", printable(img.Platform), img.Manifest)
		tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		for _, l := range img.Layers {
			fmt.Fprintf(tw, "  %.19s\t%s\t%s\n", l.Digest, humanize.IBytes(uint64(l.Size)), printable(row(l)))
		}
		if err := tw.Flush(); err != nil {
			return err
		}
		if len(img.Layers) > 0 {
			fmt.Fprintf(w, "  %s\n", summary(img.Layers))
		}
		if img.Artifact != "" {
			fmt.Fprintf(w, "  artifact %s\n", img.Artifact)
		}
		for _, r := range img.Removed {
			fmt.Fprintf(w, "  removed %s\n", r)
		}
		for _, warning := range img.Warnings {
			fmt.Fprintf(w, "  warning: %s\n", printable(warning))
		}
	}
	return nil
}

// summary is an image in one line.
func summary(layers []batch.Layer) string {
	var indexed, indexes, total int64
	n := 0
	for _, l := range layers {
		total += l.Size
		if l.IndexSize > 0 {
			n, indexed, indexes = n+1, indexed+l.Size, indexes+l.IndexSize
		}
	}
	return fmt.Sprintf("%d of %s start lazily, %s of %s; indexes %s (%s)", n, english.Plural(len(layers), "layer", ""),
		humanize.IBytes(uint64(indexed)), humanize.IBytes(uint64(total)), humanize.IBytes(uint64(indexes)), percent(indexes, indexed))
}

// percent is a part of a whole, for people.
func percent(part, whole int64) string {
	if whole == 0 {
		return "-"
	}
	return fmt.Sprintf("%.2f %%", 100*float64(part)/float64(whole))
}

// indexRow describes a layer's index.
func indexRow(l batch.Layer) string {
	switch {
	case l.Problem != "":
		return "BAD: " + l.Problem
	case l.Refused != "":
		return "no index: " + strings.TrimPrefix(l.Refused, "no index")
	}
	row := fmt.Sprintf("index %s (%s)", humanize.IBytes(uint64(l.IndexSize)), percent(l.IndexSize, l.Size))
	if l.Chunks > 0 {
		row += fmt.Sprintf(", %d entries, %d chunks, %s unpacked", l.Entries, l.Chunks, humanize.IBytes(uint64(l.TarSize)))
	}
	if l.Reused {
		row += ", there already"
	}
	return row
}
