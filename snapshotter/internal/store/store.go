// Package store keeps what must survive the worker: which layers exist, which
// snapshots show them, and which images they were prepared for.
//
// A layer, and the tree of a snapshot, has a number, handed out once and never
// again: the FUSE node ids that the kernel holds are made of it, so a new worker
// must serve the same thing under the same number. A layer's record is written before a mount can refer
// to it and deleted after the last one is gone.
//
// The file is a bbolt database. Records are JSON, so that a field added later
// reads as its zero value from an older file; a file of a later version is
// refused.
package store

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/opencontainers/go-digest"
	"go.etcd.io/bbolt"
)

// version is that of the file's layout.
const version = 1

// openTimeout bounds the wait for the file's lock: another process that holds
// it will not let go.
const openTimeout = 2 * time.Second

var (
	bucketMeta      = []byte("meta")
	bucketLayers    = []byte("layers")
	bucketSnapshots = []byte("snapshots")
	bucketImages    = []byte("images")
	keyVersion      = []byte("version")
)

// ErrVersion marks a file of another version of this program.
var ErrVersion = errors.New("database of another version of this program")

// ErrNotFound marks a record that does not exist.
var ErrNotFound = errors.New("no such record")

// Layer is a lazy layer.
type Layer struct {
	Number    uint64        `json:"number"`
	Digest    digest.Digest `json:"digest"`
	DiffID    digest.Digest `json:"diffID"`
	MediaType string        `json:"mediaType"`
	Size      int64         `json:"size"` // of the blob
	Ref       string        `json:"ref"`  // an image that has the layer, to fetch it from
}

// Snapshot says what a supplied snapshot shows.
type Snapshot struct {
	ID      string        `json:"id"`     // containerd's number of it
	Number  uint64        `json:"number"` // lazy: of its tree
	Layer   digest.Digest `json:"layer"`
	Lazy    bool          `json:"lazy"`    // mounted, not unpacked
	Bottom  bool          `json:"bottom"`  // lazy: nothing below
	Mode    string        `json:"mode"`    // lazy: "erofs" or "fuse"
	Session string        `json:"session"` // lazy: the FUSE mount it was mounted from
	Served  bool          `json:"served"`  // lazy: reads come to us; else the kernel reads the cached file
	Size    int64         `json:"size"`    // bytes of the tar stream
	Blob    int64         `json:"blob"`    // bytes of the blob
	Fetched int64         `json:"fetched"` // bytes of it that came over the network, if not lazy
}

// Image is an image that was prepared.
type Image struct {
	Ref        string        `json:"ref"`
	Manifest   digest.Digest `json:"manifest"`
	PreparedAt time.Time     `json:"preparedAt"`
	Took       time.Duration `json:"took"`
	Layers     []ImageLayer  `json:"layers"`
}

// ImageLayer is one layer of an image in its place.
type ImageLayer struct {
	Digest   digest.Digest `json:"digest"`
	Blob     int64         `json:"blob"`     // bytes of the blob
	Snapshot string        `json:"snapshot"` // its number
}

// Store is the open file. It is safe for concurrent use.
type Store struct{ db *bbolt.DB }

// Open opens or creates the file at path.
func Open(path string) (*Store, error) {
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{Timeout: openTimeout})
	if err != nil {
		return nil, fmt.Errorf("open layer database %s: %w", path, err)
	}
	err = db.Update(func(tx *bbolt.Tx) error {
		for _, name := range [][]byte{bucketMeta, bucketLayers, bucketSnapshots, bucketImages} {
			if _, err := tx.CreateBucketIfNotExists(name); err != nil {
				return err
			}
		}
		meta := tx.Bucket(bucketMeta)
		b := meta.Get(keyVersion)
		if b == nil {
			return meta.Put(keyVersion, binary.BigEndian.AppendUint64(nil, version))
		}
		if len(b) != 8 || binary.BigEndian.Uint64(b) != version {
			return fmt.Errorf("%w: its version is %x, this one knows %d", ErrVersion, b, version)
		}
		return nil
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open layer database %s: %w", path, err), db.Close())
	}
	return &Store{db}, nil
}

// Close closes the file.
func (s *Store) Close() error { return s.db.Close() }

// PutLayer records a layer and returns its number, the old one if it has one.
func (s *Store) PutLayer(_ context.Context, l Layer) (Layer, error) {
	err := s.db.Update(func(tx *bbolt.Tx) error {
		b := tx.Bucket(bucketLayers)
		var old Layer
		switch err := get(b, string(l.Digest), &old); {
		case err == nil:
			l.Number = old.Number
		case errors.Is(err, ErrNotFound):
			n, err := b.NextSequence()
			if err != nil {
				return err
			}
			l.Number = n
		default:
			return err
		}
		return put(b, string(l.Digest), l)
	})
	if err != nil {
		return Layer{}, fmt.Errorf("record layer %s: %w", l.Digest, err)
	}
	return l, nil
}

// DeleteLayer forgets a layer. Its number is not used again.
func (s *Store) DeleteLayer(_ context.Context, d digest.Digest) error {
	return s.db.Update(func(tx *bbolt.Tx) error { return tx.Bucket(bucketLayers).Delete([]byte(d)) })
}

// Layers returns every layer.
func (s *Store) Layers(context.Context) ([]Layer, error) { return all[Layer](s, bucketLayers) }

// NewNumber hands out a number for a snapshot's tree.
func (s *Store) NewNumber(context.Context) (n uint64, err error) {
	err = s.db.Update(func(tx *bbolt.Tx) error {
		n, err = tx.Bucket(bucketLayers).NextSequence()
		return err
	})
	return n, err
}

// PutSnapshot records what a snapshot shows.
func (s *Store) PutSnapshot(_ context.Context, sn Snapshot) error {
	return s.db.Update(func(tx *bbolt.Tx) error { return put(tx.Bucket(bucketSnapshots), sn.ID, sn) })
}

// Snapshots returns every supplied snapshot.
func (s *Store) Snapshots(context.Context) ([]Snapshot, error) {
	return all[Snapshot](s, bucketSnapshots)
}

// PutImage records an image, replacing an earlier record of the same image.
func (s *Store) PutImage(_ context.Context, im Image) error {
	return s.db.Update(func(tx *bbolt.Tx) error { return put(tx.Bucket(bucketImages), imageKey(im), im) })
}

// Images returns every prepared image.
func (s *Store) Images(context.Context) ([]Image, error) { return all[Image](s, bucketImages) }

func imageKey(im Image) string { return im.Ref + " " + im.Manifest.String() }

// DeleteSnapshot forgets a snapshot, and every image that has none left. It
// returns what the record said, or ErrNotFound.
func (s *Store) DeleteSnapshot(_ context.Context, id string) (sn Snapshot, err error) {
	err = s.db.Update(func(tx *bbolt.Tx) error {
		b := tx.Bucket(bucketSnapshots)
		if err := get(b, id, &sn); err != nil {
			return err
		}
		if err := b.Delete([]byte(id)); err != nil {
			return err
		}
		return forgetImages(tx)
	})
	return sn, err
}

// forgetImages deletes the images without a snapshot.
func forgetImages(tx *bbolt.Tx) error {
	images, snapshots := tx.Bucket(bucketImages), tx.Bucket(bucketSnapshots)
	var gone [][]byte
	err := images.ForEach(func(k, v []byte) error {
		var im Image
		if err := json.Unmarshal(v, &im); err != nil {
			return fmt.Errorf("read record %s: %w", k, err)
		}
		for _, l := range im.Layers {
			if snapshots.Get([]byte(l.Snapshot)) != nil {
				return nil
			}
		}
		gone = append(gone, append([]byte(nil), k...))
		return nil
	})
	if err != nil {
		return err
	}
	for _, k := range gone {
		if err := images.Delete(k); err != nil {
			return err
		}
	}
	return nil
}

func put(b *bbolt.Bucket, key string, v any) error {
	enc, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return b.Put([]byte(key), enc)
}

func get(b *bbolt.Bucket, key string, v any) error {
	enc := b.Get([]byte(key))
	if enc == nil {
		return ErrNotFound
	}
	if err := json.Unmarshal(enc, v); err != nil {
		return fmt.Errorf("read record %s: %w", key, err)
	}
	return nil
}

func all[T any](s *Store, bucket []byte) (records []T, err error) {
	err = s.db.View(func(tx *bbolt.Tx) error {
		return tx.Bucket(bucket).ForEach(func(k, v []byte) error {
			var r T
			if err := json.Unmarshal(v, &r); err != nil {
				return fmt.Errorf("read record %s of %s: %w", k, bucket, err)
			}
			records = append(records, r)
			return nil
		})
	})
	return records, err
}
