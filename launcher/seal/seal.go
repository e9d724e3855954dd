// Package seal encrypts what must not lie readable in a database or its
// backups: AES-256-GCM with a random nonce, under keys from a file of their own.
//
// # Key file
//
// A text file that only its owner can read: one key a line, 32 bytes in
// standard base64; empty lines and lines that begin with # are skipped. The
// first key seals, every key opens. To change keys, put a new line on top,
// have everything sealed anew, and take the old line away.
//
// A key is known by its identifier: the first 8 bytes of its SHA-256, in hex.
package seal

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// Errors of Open.
var (
	ErrNoKey   = errors.New("it is sealed with a key that is not in the key file")
	ErrChanged = errors.New("it was changed after it was sealed, or belongs elsewhere")
)

const (
	keySize = 32 // bytes: AES-256
	idSize  = 8  // bytes of the key's hash
	// maxFile bounds a key file: a thousand keys.
	maxFile = 64 << 10
)

// Keys seals and opens. It is safe for concurrent use.
type Keys struct {
	all []key // the first one seals; never empty
}

type key struct {
	id   string
	aead cipher.AEAD
}

// Read reads a key file. An error that is fs.ErrNotExist says that there is
// none. No error shows a part of a key.
func Read(path string) (*Keys, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if info.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("key file %s: mode is %v: nobody but its owner may read it (chmod 600)", path, info.Mode().Perm())
	}
	text, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("read key file: %w", err)
	}
	if len(text) > maxFile {
		return nil, fmt.Errorf("key file %s is larger than %d bytes", path, maxFile)
	}
	keys, err := parse(text)
	if err != nil {
		return nil, fmt.Errorf("key file %s: %w", path, err)
	}
	return keys, nil
}

func parse(text []byte) (*Keys, error) {
	var keys Keys
	n := 0
	for line := range bytes.Lines(text) {
		n++
		line = bytes.TrimSpace(line)
		if len(line) == 0 || line[0] == '#' {
			continue
		}
		secret, err := base64.StdEncoding.DecodeString(string(line))
		if err != nil || len(secret) != keySize {
			return nil, fmt.Errorf("line %d is not %d bytes in base64", n, keySize)
		}
		k, err := newKey(secret)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		keys.all = append(keys.all, k)
	}
	if len(keys.all) == 0 {
		return nil, errors.New("it has no key")
	}
	return &keys, nil
}

func newKey(secret []byte) (key, error) {
	block, err := aes.NewCipher(secret)
	if err != nil {
		return key{}, err
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		return key{}, err
	}
	sum := sha256.Sum256(secret)
	return key{id: hex.EncodeToString(sum[:idSize]), aead: aead}, nil
}

// Create writes a key file with one new key. It never replaces a file, and the
// key is on disk when it returns.
func Create(path string) error {
	secret := make([]byte, keySize)
	_, _ = rand.Read(secret) // never fails
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("create key file: %w", err)
	}
	_, err = fmt.Fprintf(f, "# Keep this apart from backups of the database, and do not lose it.\n%s\n",
		base64.StdEncoding.EncodeToString(secret))
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = syncDir(filepath.Dir(path))
	}
	if err != nil {
		return fmt.Errorf("create key file: %w", errors.Join(err, os.Remove(path)))
	}
	return nil
}

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// ID identifies the key that Seal uses.
func (k *Keys) ID() string { return k.all[0].id }

// Has says whether what the key of that identifier sealed can be opened.
func (k *Keys) Has(id string) bool {
	for _, one := range k.all {
		if one.id == id {
			return true
		}
	}
	return false
}

// Seal encrypts plain under the first key. Only an Open with the same place,
// which names what is sealed, gets it back: a sealed value that was copied to
// another place does not open there.
func (k *Keys) Seal(plain []byte, place string) []byte {
	return k.all[0].aead.Seal(nil, nil, plain, []byte(place))
}

// Open decrypts what the key of that identifier sealed for place.
func (k *Keys) Open(id string, sealed []byte, place string) ([]byte, error) {
	for _, one := range k.all {
		if one.id != id {
			continue
		}
		plain, err := one.aead.Open(nil, nil, sealed, []byte(place))
		if err != nil {
			return nil, ErrChanged
		}
		return plain, nil
	}
	return nil, fmt.Errorf("%w: key %s", ErrNoKey, id)
}
