package profiles

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"

	"github.com/firstlight-dev/firstlight/indexer/profile"
)

// maxKept bounds the profiles on a node; the least recently written go first.
const maxKept = 256

// Names in the directory: <algorithm>-<hex>-<key of the command>, and for a
// recording that is on <algorithm>-<hex>.recording with the image's reference.
const activeSuffix = ".recording"

func prefix(manifest digest.Digest) string {
	return manifest.Algorithm().String() + "-" + manifest.Encoded()
}

// Put keeps a profile, in the place of an older one for the same command.
func (b *Book) Put(p *profile.Profile) error {
	enc, err := p.Encode()
	if err != nil {
		return err
	}
	name := filepath.Join(b.Dir, prefix(p.Manifest)+"-"+profile.Key(p.Command))
	if err := replaceFile(name, enc); err != nil {
		return fmt.Errorf("keep profile of %s: %w", p.Manifest, err)
	}
	return b.prune()
}

func replaceFile(name string, content []byte) (err error) {
	f, err := os.CreateTemp(filepath.Dir(name), ".new-")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	_, err = f.Write(content)
	err = errors.Join(err, f.Sync(), f.Close())
	if err != nil {
		return err
	}
	return os.Rename(f.Name(), name)
}

// files are the names of kept profiles whose names begin with a prefix.
func (b *Book) files(prefix string) ([]string, error) {
	entries, err := os.ReadDir(b.Dir)
	if err != nil {
		return nil, fmt.Errorf("list profiles: %w", err)
	}
	var names []string
	for _, e := range entries {
		if n := e.Name(); strings.HasPrefix(n, prefix) && !strings.HasPrefix(n, ".") && !strings.HasSuffix(n, activeSuffix) {
			names = append(names, n)
		}
	}
	return names, nil
}

func (b *Book) prune() error {
	names, err := b.files("")
	if err != nil || len(names) <= maxKept {
		return err
	}
	type aged struct {
		name string
		info fs.FileInfo
	}
	var all []aged
	for _, n := range names {
		info, err := os.Stat(filepath.Join(b.Dir, n))
		if err != nil {
			return fmt.Errorf("look at profile: %w", err)
		}
		all = append(all, aged{n, info})
	}
	slices.SortFunc(all, func(x, y aged) int { return x.info.ModTime().Compare(y.info.ModTime()) })
	var errs []error
	for _, x := range all[:len(all)-maxKept] {
		errs = append(errs, os.Remove(filepath.Join(b.Dir, x.name)))
	}
	return errors.Join(errs...)
}

// load reads kept profiles. What cannot be read is reported and left out.
func (b *Book) load(prefix string) ([]*profile.Profile, error) {
	names, err := b.files(prefix)
	if err != nil {
		return nil, err
	}
	var all []*profile.Profile
	for _, n := range names {
		p, err := readProfile(filepath.Join(b.Dir, n))
		if err != nil {
			b.Log.Warn("kept profile is of no use", "file", n, "error", err)
			continue
		}
		all = append(all, p)
	}
	return all, nil
}

func readProfile(path string) (*profile.Profile, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, profile.MaxEncoded+1))
	if err != nil {
		return nil, err
	}
	return profile.Decode(raw)
}

// List returns every kept profile, by manifest.
func (b *Book) List() ([]*profile.Profile, error) { return b.load("") }

// Find returns the kept profiles of an image; that for the command, if there is
// one, comes first.
func (b *Book) Find(manifest digest.Digest, command []string) ([]*profile.Profile, error) {
	all, err := b.load(prefix(manifest) + "-")
	if err != nil {
		return nil, err
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("image %s: %w", manifest, ErrNotFound)
	}
	key := profile.Key(command)
	rank := func(p *profile.Profile) int {
		if profile.Key(p.Command) == key {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(all, func(x, y *profile.Profile) int { return cmp.Compare(rank(x), rank(y)) })
	return all, nil
}

// Remove deletes an image's profiles and returns how many there were.
func (b *Book) Remove(manifest digest.Digest) (int, error) {
	names, err := b.files(prefix(manifest) + "-")
	if err != nil {
		return 0, err
	}
	for i, n := range names {
		if err := os.Remove(filepath.Join(b.Dir, n)); err != nil {
			return i, fmt.Errorf("remove profile of %s: %w", manifest, err)
		}
	}
	return len(names), nil
}

// markActive leaves word for a worker that comes after this one.
func (b *Book) markActive(im Image) error {
	return replaceFile(filepath.Join(b.Dir, prefix(im.Manifest)+activeSuffix), []byte(im.Ref))
}

func (b *Book) unmarkActive(manifest digest.Digest) {
	err := os.Remove(filepath.Join(b.Dir, prefix(manifest)+activeSuffix))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		b.Log.Warn("mark of a recording stays", "manifest", manifest.String(), "error", err)
	}
}

// reportLost says which recordings ended with the worker that made them, and
// removes what it left half written.
func (b *Book) reportLost() error {
	entries, err := os.ReadDir(b.Dir)
	if err != nil {
		return fmt.Errorf("list profiles: %w", err)
	}
	for _, e := range entries {
		lost := strings.HasSuffix(e.Name(), activeSuffix)
		if !lost && !strings.HasPrefix(e.Name(), ".new-") {
			continue
		}
		if lost {
			b.Log.Warn("a recording was lost with the worker that made it: firstlight profile record begins anew", "manifest", strings.TrimSuffix(e.Name(), activeSuffix))
		}
		if err := os.Remove(filepath.Join(b.Dir, e.Name())); err != nil {
			return fmt.Errorf("remove leftover: %w", err)
		}
	}
	return nil
}
