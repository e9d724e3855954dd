// Package fusefs is the daemon's one FUSE file system: layers as files, and
// where the kernel cannot mount them as EROFS, as trees.
//
//	layer/<id>   the layer's tar stream, one regular file
//	tree/<id>/   the layer's files
//
// # Vocabulary
//
// An id is the number under which whoever runs the daemon keeps a layer; it is
// never used for another one. A node id is what the kernel knows an inode by.
// A device is the open /dev/fuse of a mounted file system. INIT is the first
// message on it: the kernel says what it can do and the server answers which
// of that to use.
//
// # Invariants
//
// The server keeps no state that the kernel relies on: a node id holds the
// layer's id and the row of its tree, nothing is opened or remembered, and all
// answers depend on the layers alone. So a new process that knows the same
// layers can go on in the place of one that died: it replays INIT, asks the
// kernel to send again what the dead one had not answered, and serves. Names,
// attributes and pages never change and may be kept for ever.
//
// # Failure behaviour
//
// A read fails with EIO when the layer's reader fails, which has deadlines of
// its own; the kernel does not keep that answer, so a later read may work. A
// signal does not end a read, for programs do not expect that of files; a
// process that is being killed is let go at once. Reads are answered in turns,
// so that a container with many that hang does not keep others waiting. A request for a layer that is
// not there gets ENOENT or EIO. A panic becomes EIO.
package fusefs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"sync"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/firstlight-dev/firstlight/indexer/tree"
	"github.com/firstlight-dev/firstlight/snapshotter/internal/account"
	"github.com/firstlight-dev/firstlight/snapshotter/internal/quota"
)

// LayerReader reads the tar stream of a layer. Every read is bounded in time by
// the reader itself.
type LayerReader interface {
	Size() int64
	// ReadAtContext works as io.ReaderAt does.
	ReadAtContext(ctx context.Context, p []byte, off int64) (int, error)
}

// MaxID is the highest id a layer may have.
const MaxID = 1<<29 - 1

var errID = errors.New("layer id out of range or taken")

// Server holds the layers. It is safe for concurrent use; layers may come and
// go while it serves.
type Server struct {
	log   *slog.Logger
	book  *account.Book // nil: reads are not accounted for
	reads *quota.Pool

	mu     sync.RWMutex
	layers map[uint64]LayerReader
	trees  map[uint64]*mounted
	notify func(msg []byte) error // nil while not serving
}

// mounted is a tree with where its files' bytes come from.
type mounted struct {
	*tree.Tree
	reader LayerReader
}

// Option changes how a server works.
type Option func(*Server)

// WithBook accounts for reads by the container of the reading thread. Readers
// find the account in their context.
func WithBook(b *account.Book) Option { return func(s *Server) { s.book = b } }

// New returns a server without layers.
func New(log *slog.Logger, opts ...Option) *Server {
	s := &Server{log: log, reads: quota.New(quota.Limits{Total: maxReads, Each: ownReads, Sure: sureReads}), layers: map[uint64]LayerReader{}, trees: map[uint64]*mounted{}}
	for _, o := range opts {
		o(s)
	}
	return s
}

// AddLayer makes a layer's tar stream appear as layer/<id>.
func (s *Server) AddLayer(id uint64, r LayerReader) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if id > MaxID || s.layers[id] != nil {
		return fmt.Errorf("serve layer %d: %w", id, errID)
	}
	s.layers[id] = r
	return nil
}

// AddTree makes a layer's files appear below tree/<id>.
func (s *Server) AddTree(id uint64, t *tree.Tree, r LayerReader) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if id > MaxID || s.trees[id] != nil {
		return fmt.Errorf("serve tree %d: %w", id, errID)
	}
	if uint64(len(t.Nodes)) > maxRows || len(t.Nodes) == 0 {
		return fmt.Errorf("serve tree %d: %d inodes are out of range", id, len(t.Nodes))
	}
	s.trees[id] = &mounted{t, r}
	return nil
}

// Remove makes a layer's file and tree go. What the kernel keeps of them is
// given up as far as nobody uses it.
func (s *Server) Remove(id uint64) {
	s.mu.Lock()
	_, layer := s.layers[id]
	_, tr := s.trees[id]
	delete(s.layers, id)
	delete(s.trees, id)
	notify := s.notify
	s.mu.Unlock()
	if notify == nil {
		return
	}
	name := strconv.FormatUint(id, 10)
	if layer {
		s.invalidate(notify, layersNode, name)
	}
	if tr {
		s.invalidate(notify, treesNode, name)
	}
}

func (s *Server) layer(id uint64) LayerReader {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.layers[id]
}

func (s *Server) tree(id uint64) *mounted {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.trees[id]
}

// ids lists what a top directory holds, in order.
func (s *Server) ids(dir uint64) []uint64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var ids []uint64
	if dir == layersNode {
		for id := range s.layers {
			ids = append(ids, id)
		}
	} else {
		for id := range s.trees {
			ids = append(ids, id)
		}
	}
	return ids
}

// Node ids. The kernel gives 1 to the root; the two directories in it come
// next. All others have a kind in the two highest bits, the layer's id below,
// and the row of its tree, plus one, in the low 32.
const (
	rootNode   = uint64(fuse.FUSE_ROOT_ID)
	layersNode = uint64(2)
	treesNode  = uint64(3)

	kindShift = 62
	kindLayer = uint64(1)
	kindTree  = uint64(2)
	idShift   = 32
	maxRows   = 1<<32 - 2
)

func layerNode(id uint64) uint64 { return kindLayer<<kindShift | id<<idShift }

func treeNode(id uint64, row int) uint64 {
	return kindTree<<kindShift | id<<idShift | uint64(row)
}

func splitNode(n uint64) (kind, id uint64, row int) {
	return n >> kindShift, n >> idShift & MaxID, int(n & (1<<idShift - 1))
}

// find returns the node of a tree that a node id stands for.
func (s *Server) find(n uint64) (m *mounted, id uint64, row int, st fuse.Status) {
	kind, id, row := splitNode(n)
	if kind != kindTree {
		return nil, 0, 0, fuse.ENOENT
	}
	if m = s.tree(id); m == nil || row >= len(m.Nodes) {
		return nil, 0, 0, fuse.EIO
	}
	return m, id, row, fuse.OK
}

// status is the errno for a reader's error. The reader's owner has the details;
// this layer logs them, as nobody above it could.
func (s *Server) status(node uint64, err error) fuse.Status {
	switch {
	case err == nil, errors.Is(err, io.EOF):
		return fuse.OK
	case errors.Is(err, errKilled):
		return fuse.EINTR
	}
	_, id, _ := splitNode(node)
	s.log.Error("read layer", "id", id, "error", err)
	return fuse.EIO
}
