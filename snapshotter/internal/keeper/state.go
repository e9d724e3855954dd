package keeper

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// maxState bounds what a worker can leave for the next one.
const maxState = 8 << 20

// stateHeader is the length of the data, 8 bytes, and their SHA-256.
const stateHeader = 8 + sha256.Size

// State is memory that the keeper holds for its workers: what one stores the
// next one loads. It is never on disk, except where a machine swaps.
type State struct{ f *os.File }

var errState = errors.New("the worker before ended while it stored it")

func newState() (*os.File, error) {
	fd, err := unix.MemfdCreate("firstlight-state", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make memory for workers: %w", err)
	}
	return os.NewFile(uintptr(fd), "state"), nil
}

// Load returns what was stored last, nil if nothing was.
func (s *State) Load() ([]byte, error) {
	info, err := s.f.Stat()
	if err != nil {
		return nil, fmt.Errorf("load state: %w", err)
	}
	if info.Size() == 0 {
		return nil, nil
	}
	if info.Size() < stateHeader || info.Size() > stateHeader+maxState {
		return nil, fmt.Errorf("load state: %w", errState)
	}
	b := make([]byte, info.Size())
	if _, err := s.f.ReadAt(b, 0); err != nil {
		return nil, fmt.Errorf("load state: %w", err)
	}
	n, data := binary.LittleEndian.Uint64(b), b[stateHeader:]
	if n > uint64(len(data)) {
		return nil, fmt.Errorf("load state: %w", errState)
	}
	data = data[:n]
	if sum := sha256.Sum256(data); !bytes.Equal(sum[:], b[8:stateHeader]) {
		return nil, fmt.Errorf("load state: %w", errState)
	}
	return data, nil
}

// Store replaces what is stored. A worker that is killed meanwhile leaves
// nothing that can be loaded.
func (s *State) Store(data []byte) error {
	if len(data) > maxState {
		return fmt.Errorf("store state: %d bytes, at most %d are kept", len(data), maxState)
	}
	sum := sha256.Sum256(data)
	b := binary.LittleEndian.AppendUint64(make([]byte, 0, stateHeader+len(data)), uint64(len(data)))
	b = append(append(b, sum[:]...), data...)
	if _, err := s.f.WriteAt(b, 0); err != nil {
		return fmt.Errorf("store state: %w", err)
	}
	return nil
}
