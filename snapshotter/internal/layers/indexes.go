package layers

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/opencontainers/go-digest"

	"github.com/firstlight-dev/firstlight/indexer/index"
	"github.com/firstlight-dev/firstlight/snapshotter/internal/store"
)

func (s *Set) indexPath(d digest.Digest) string {
	return filepath.Join(s.Indexes, d.Algorithm().String()+"-"+d.Encoded())
}

// loadIndex reads the layer's index from disk, or brings and keeps it.
func (s *Set) loadIndex(ctx context.Context, rec store.Layer, load func(context.Context) (*index.Index, error)) (*index.Index, error) {
	ix, err := s.readIndex(rec)
	if err == nil {
		return ix, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		s.Log.Warn("index on disk is of no use", "layer", rec.Digest.String(), "error", err)
	}
	if load == nil {
		return nil, err
	}
	if ix, err = load(ctx); err != nil {
		return nil, err
	}
	if err := match(ix, rec); err != nil {
		return nil, err
	}
	return ix, s.writeIndex(rec.Digest, ix)
}

func (s *Set) readIndex(rec store.Layer) (*index.Index, error) {
	path := s.indexPath(rec.Digest)
	st, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("read index: %w", err)
	}
	if st.Size() > index.MaxEncoded {
		return nil, fmt.Errorf("read index: %d bytes are more than %d", st.Size(), index.MaxEncoded)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read index: %w", err)
	}
	ix, err := index.Decode(b)
	if err != nil {
		return nil, fmt.Errorf("read index %s: %w", path, err)
	}
	return ix, match(ix, rec)
}

// match refuses an index that is for another layer than the image names.
func match(ix *index.Index, rec store.Layer) error {
	if ix.Layer != rec.Digest || ix.CompressedSize != rec.Size || ix.DiffID != rec.DiffID {
		return fmt.Errorf("%w: index is for %s (%d bytes, diffID %s), the image has %s (%d bytes, diffID %s)", index.ErrMismatch,
			ix.Layer, ix.CompressedSize, ix.DiffID, rec.Digest, rec.Size, rec.DiffID)
	}
	return nil
}

func (s *Set) writeIndex(d digest.Digest, ix *index.Index) error {
	b, err := ix.Encode()
	if err != nil {
		return fmt.Errorf("encode index of %s: %w", d, err)
	}
	return writeFile(s.indexPath(d), b)
}

func (s *Set) removeIndex(d digest.Digest) error {
	if err := os.Remove(s.indexPath(d)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove index: %w", err)
	}
	return nil
}

// sweepIndexes removes the files of layers that have no record, and unfinished
// ones.
func (s *Set) sweepIndexes(recs []store.Layer) error {
	files, err := os.ReadDir(s.Indexes)
	if err != nil {
		return fmt.Errorf("list indexes: %w", err)
	}
	known := make(map[string]bool, len(recs))
	for _, rec := range recs {
		known[filepath.Base(s.indexPath(rec.Digest))] = true
	}
	var errs []error
	for _, f := range files {
		if !known[f.Name()] {
			errs = append(errs, os.Remove(filepath.Join(s.Indexes, f.Name())))
		}
	}
	return errors.Join(errs...)
}

func writeFile(path string, b []byte) error {
	return replaceFile(path, func(w io.Writer) error {
		_, err := w.Write(b)
		return err
	})
}

// replaceFile makes path hold what write writes, durably, or leaves it as it
// was.
func replaceFile(path string, write func(io.Writer) error) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), ".new-")
	if err != nil {
		return fmt.Errorf("create file: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	buffered := bufio.NewWriterSize(f, 1<<16)
	if err = write(buffered); err == nil {
		err = buffered.Flush()
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return syncDir(filepath.Dir(path))
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("sync directory: %w", err)
	}
	return errors.Join(d.Sync(), d.Close())
}
