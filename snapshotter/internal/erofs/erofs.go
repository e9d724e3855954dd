// Package erofs builds EROFS images that hold a layer's tree but none of its
// data, and mounts them with the layer's tar stream as the device the data is
// on.
//
// # Vocabulary
//
// The metadata image has the superblock, the inodes and the directories. The
// device is a file with the layer's tar stream; the block size is 512 bytes,
// the unit of tar, so the content of every file begins on a block of it. A nid
// is an inode's place in the image in units of 32 bytes; it is the inode number
// that programs see.
//
// # Format
//
// That of Linux' fs/erofs/erofs_fs.h, with: one extra device; extended inodes
// only, since times differ; regular files chunk-based with 8-byte indexes, as
// few chunks as possible; directories and symbolic links with their last
// partial block behind the inode; extended attributes inline.
//
// # Invariants
//
// An image depends on the tree and the device's size only. It is made on the
// node from a validated tree and never taken from elsewhere: the kernel trusts
// what it mounts.
//
// # Failure behaviour
//
// Build returns ErrUnsupported for what the format cannot hold; the layer can
// still be served as a FUSE tree. Probe says whether this kernel mounts such
// images, in words for the person who wonders why not.
//
// The library github.com/erofs/go-erofs writes a path per inode: the names of a
// hard-linked file would be separate files with separate pages in memory. Hence
// our own writer.
package erofs

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/firstlight-dev/firstlight/indexer/tree"
)

// ErrUnsupported marks a tree that the format cannot hold.
var ErrUnsupported = errors.New("tree does not fit into erofs")

const (
	blockBits = 9
	blockSize = 1 << blockBits

	superOffset  = 1024
	superSize    = 128
	deviceOffset = superOffset + superSize
	deviceSize   = 128
	// metaBlock is where inodes begin.
	metaBlock = (deviceOffset + deviceSize + blockSize - 1) / blockSize

	magic             = 0xE0F5E1E2
	featureMtime      = 0x2 // compatible: inodes have mtime, not ctime
	featureChunked    = 0x4
	featureDevices    = 0x8
	layoutPlain       = 0
	layoutInline      = 2
	layoutChunked     = 4
	inodeExtended     = 1
	inodeSize         = 64
	nidBits           = 5
	direntSize        = 12
	chunkIndexSize    = 8
	chunkIndexes      = 0x20
	maxChunkBits      = blockBits + 0x1f
	xattrHeaderSize   = 12
	xattrEntrySize    = 4
	maxXattrSize      = xattrHeaderSize + 4*(1<<16-2)
	maxDeviceBlocks   = 1<<32 - 2 // 2 TiB
	maxMetadataBlocks = 1<<32 - 2
)

// node is where an inode of the tree goes.
type node struct {
	offset int64 // of the inode, from the start of the metadata blocks
	xattrs int   // bytes
	layout int
	size   int64 // as the inode says
	block  int64 // directories and long links: first full block, from the start of the data blocks
	inline int   // bytes behind inode and xattrs
}

type image struct {
	tree       *tree.Tree
	deviceSize int64
	nodes      []node
	metaSize   int64 // bytes, whole blocks
	dataBlocks int64
}

// Build writes the metadata image of a tree whose files are on a device of
// deviceSize bytes.
func Build(w io.Writer, t *tree.Tree, deviceSize int64) error {
	im := &image{tree: t, deviceSize: deviceSize, nodes: make([]node, len(t.Nodes))}
	if err := im.plan(); err != nil {
		return fmt.Errorf("build erofs: %w", err)
	}
	b := bufio.NewWriterSize(w, 1<<16)
	if err := im.write(b); err != nil {
		return fmt.Errorf("build erofs: %w", err)
	}
	return b.Flush()
}

// plan gives every inode its place.
func (im *image) plan() error {
	if len(im.tree.Nodes) == 0 {
		return fmt.Errorf("%w: no root", ErrUnsupported)
	}
	if im.deviceSize < 0 || blocks(im.deviceSize) > maxDeviceBlocks {
		return fmt.Errorf("%w: device of %d bytes", ErrUnsupported, im.deviceSize)
	}
	var at int64
	for row := range im.tree.Nodes {
		n := &im.tree.Nodes[row]
		p := &im.nodes[row]
		if err := im.shape(n, p); err != nil {
			return fmt.Errorf("%s: %w", n.Name, err)
		}
		// What must lie in one block: the inode, and with it data that is
		// inline, which may not cross the end of a block.
		head := int64(inodeSize)
		if p.layout == layoutInline {
			head += int64(p.xattrs + p.inline)
		}
		if left := blockSize - at%blockSize; head > left {
			at += left
		}
		p.offset = at
		at += inodeSize + int64(p.xattrs)
		if p.layout == layoutChunked {
			at = align(at, chunkIndexSize)
		}
		at = align(at+int64(p.inline), 1<<nidBits)
	}
	im.metaSize = align(at, blockSize)
	if metaBlock+im.metaSize/blockSize+im.dataBlocks > maxMetadataBlocks {
		return fmt.Errorf("%w: too many inodes", ErrUnsupported)
	}
	return nil
}

// shape decides how an inode's data is kept.
func (im *image) shape(n *tree.Node, p *node) error {
	var err error
	if p.xattrs, err = xattrSize(n.Xattrs); err != nil {
		return err
	}
	switch n.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		if n.Size == 0 {
			return nil
		}
		if n.Size < 0 || n.DataOffset < 0 || n.DataOffset%blockSize != 0 || n.DataOffset > im.deviceSize-n.Size {
			return fmt.Errorf("%w: content at %d with %d bytes", ErrUnsupported, n.DataOffset, n.Size)
		}
		p.layout, p.size = layoutChunked, n.Size
		p.inline = chunkIndexSize * int((n.Size-1)>>chunkBits(n.Size)+1)
	case unix.S_IFDIR:
		im.tail(p, directorySize(n))
	case unix.S_IFLNK:
		im.tail(p, int64(len(n.Target)))
	}
	return nil
}

// tail puts data behind the inode as far as it fits into the inode's block, and
// the rest in blocks of its own.
func (im *image) tail(p *node, size int64) {
	p.size, p.block = size, im.dataBlocks
	rest := size % blockSize
	// Without a rest the kernel would look for the last whole block there.
	if rest > 0 && inodeSize+int64(p.xattrs)+rest <= blockSize {
		p.layout, p.inline = layoutInline, int(rest)
		im.dataBlocks += size / blockSize
		return
	}
	p.layout = layoutPlain
	im.dataBlocks += blocks(size)
}

func blocks(n int64) int64          { return (n + blockSize - 1) / blockSize }
func align(n, to int64) int64       { return (n + to - 1) / to * to }
func (im *image) nid(row int) int64 { return im.nodes[row].offset >> nidBits }

// chunkBits is the smallest chunk size, as a power of two, that holds a file of
// n bytes in one chunk, or the largest there is.
func chunkBits(n int64) int {
	return min(max(bits.Len64(uint64(n-1)), blockBits), maxChunkBits)
}

func (im *image) write(w *bufio.Writer) error {
	if _, err := w.Write(im.super()); err != nil {
		return err
	}
	var at int64
	var buf []byte
	for row := range im.tree.Nodes {
		p := &im.nodes[row]
		if err := zeros(w, p.offset-at); err != nil {
			return err
		}
		buf = im.inode(buf[:0], row)
		if _, err := w.Write(buf); err != nil {
			return err
		}
		at = p.offset + int64(len(buf))
	}
	if err := zeros(w, im.metaSize-at); err != nil {
		return err
	}
	for row := range im.tree.Nodes {
		if err := im.full(w, row); err != nil {
			return err
		}
	}
	return nil
}

func zeros(w *bufio.Writer, n int64) error {
	for ; n > 0; n-- {
		if err := w.WriteByte(0); err != nil {
			return err
		}
	}
	return nil
}

// super is everything before the inodes.
func (im *image) super() []byte {
	b := make([]byte, metaBlock*blockSize)
	le := binary.LittleEndian
	s := b[superOffset:]
	le.PutUint32(s[0:], magic)
	le.PutUint32(s[8:], featureMtime)
	s[12] = blockBits
	le.PutUint16(s[14:], uint16(im.nid(tree.Root)))
	le.PutUint64(s[16:], uint64(len(im.tree.Nodes)))
	le.PutUint32(s[36:], uint32(metaBlock+im.metaSize/blockSize+im.dataBlocks))
	le.PutUint32(s[40:], metaBlock)
	le.PutUint32(s[80:], featureChunked|featureDevices)
	le.PutUint16(s[86:], 1) // extra devices
	le.PutUint16(s[88:], deviceOffset/deviceSize)
	d := b[deviceOffset:]
	le.PutUint32(d[64:], uint32(blocks(im.deviceSize)))
	return b
}

// inode appends an inode with what lies behind it.
func (im *image) inode(b []byte, row int) []byte {
	le := binary.LittleEndian
	n, p := &im.tree.Nodes[row], &im.nodes[row]
	var icount uint16
	if p.xattrs > 0 {
		icount = uint16((p.xattrs-xattrHeaderSize)/4 + 1)
	}
	sec, nsec := n.Mtime/int64(time.Second), n.Mtime%int64(time.Second)
	if nsec < 0 {
		sec, nsec = sec-1, nsec+int64(time.Second)
	}
	b = le.AppendUint16(b, inodeExtended|uint16(p.layout)<<1)
	b = le.AppendUint16(b, icount)
	b = le.AppendUint16(b, uint16(n.Mode))
	b = le.AppendUint16(b, 0)
	b = le.AppendUint64(b, uint64(p.size))
	b = le.AppendUint32(b, im.union(n, p))
	b = le.AppendUint32(b, uint32(row+1))
	b = le.AppendUint32(b, n.UID)
	b = le.AppendUint32(b, n.GID)
	b = le.AppendUint64(b, uint64(sec))
	b = le.AppendUint32(b, uint32(nsec))
	b = le.AppendUint32(b, n.Nlink)
	b = append(b, make([]byte, 16)...)
	b = appendXattrs(b, n.Xattrs)
	switch {
	case p.layout == layoutChunked:
		return im.chunks(b, n)
	case p.inline > 0:
		data := im.data(row)
		return append(b, data[len(data)-p.inline:]...)
	}
	return b
}

// union is the inode's field that means something else for every type.
func (im *image) union(n *tree.Node, p *node) uint32 {
	switch n.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		if p.layout == layoutChunked {
			return uint32(chunkBits(n.Size)-blockBits) | chunkIndexes
		}
		return 0
	case unix.S_IFCHR, unix.S_IFBLK:
		return n.Rdev
	case unix.S_IFDIR, unix.S_IFLNK:
		return uint32(metaBlock + im.metaSize/blockSize + p.block)
	}
	return 0
}

// chunks appends the indexes that say where a file is on the device.
func (im *image) chunks(b []byte, n *tree.Node) []byte {
	le := binary.LittleEndian
	for len(b)%chunkIndexSize != 0 {
		b = append(b, 0)
	}
	for off := int64(0); off < n.Size; off += 1 << chunkBits(n.Size) {
		b = le.AppendUint16(b, 0)
		b = le.AppendUint16(b, 1) // device
		b = le.AppendUint32(b, uint32((n.DataOffset+off)/blockSize))
	}
	return b
}

// data is a directory's or a symbolic link's content.
func (im *image) data(row int) []byte {
	n := &im.tree.Nodes[row]
	switch n.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		return im.directory(row)
	case unix.S_IFLNK:
		return []byte(n.Target)
	}
	return nil
}

// full writes the blocks of an inode's data that are not behind the inode.
func (im *image) full(w *bufio.Writer, row int) error {
	p := &im.nodes[row]
	if p.layout == layoutChunked || p.size <= int64(p.inline) {
		return nil
	}
	data := im.data(row)
	data = data[:len(data)-p.inline]
	if _, err := w.Write(data); err != nil {
		return err
	}
	return zeros(w, align(int64(len(data)), blockSize)-int64(len(data)))
}

// Names of extended attributes: the kernel has numbers for these prefixes.
func xattrPrefixes() []struct {
	index  byte
	prefix string
	whole  bool // the name, not a prefix of it
} {
	return []struct {
		index  byte
		prefix string
		whole  bool
	}{
		{1, "user.", false},
		{2, "system.posix_acl_access", true},
		{3, "system.posix_acl_default", true},
		{4, "trusted.", false},
		{6, "security.", false},
	}
}

func splitXattr(name string) (index byte, rest string, ok bool) {
	for _, p := range xattrPrefixes() {
		if r, found := strings.CutPrefix(name, p.prefix); found && (r == "") == p.whole {
			return p.index, r, true
		}
	}
	return 0, "", false
}

// xattrSize is the space of extended attributes behind an inode.
func xattrSize(xs []tree.Xattr) (int, error) {
	if len(xs) == 0 {
		return 0, nil
	}
	n := int64(xattrHeaderSize)
	for _, x := range xs {
		_, rest, ok := splitXattr(x.Name)
		if !ok || len(rest) > 255 || len(x.Value) >= 1<<16 {
			return 0, fmt.Errorf("%w: extended attribute %q", ErrUnsupported, x.Name)
		}
		n += align(int64(xattrEntrySize+len(rest)+len(x.Value)), 4)
	}
	if n > maxXattrSize {
		return 0, fmt.Errorf("%w: %d bytes of extended attributes", ErrUnsupported, n)
	}
	return int(n), nil
}

func appendXattrs(b []byte, xs []tree.Xattr) []byte {
	if len(xs) == 0 {
		return b
	}
	b = append(b, make([]byte, xattrHeaderSize)...)
	for _, x := range xs {
		index, rest, _ := splitXattr(x.Name)
		b = append(b, byte(len(rest)), index)
		b = binary.LittleEndian.AppendUint16(b, uint16(len(x.Value)))
		b = append(append(b, rest...), x.Value...)
		for len(b)%4 != 0 {
			b = append(b, 0)
		}
	}
	return b
}
