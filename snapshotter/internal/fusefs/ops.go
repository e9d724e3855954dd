package fusefs

import (
	"context"
	"slices"
	"sort"
	"strconv"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/firstlight-dev/firstlight/indexer/tree"
	"github.com/firstlight-dev/firstlight/snapshotter/internal/account"
)

// forever is how long the kernel may keep names and attributes: it takes any
// number of seconds and this is enough of them.
const forever = 100 * 365 * 24 * time.Hour

// ops answers the kernel. What it does not implement gets ENOSYS, which the
// kernel remembers where that spares a question: files and directories are
// opened without asking, with caches kept.
type ops struct {
	fuse.RawFileSystem
	s *Server
}

var _ fuse.RawFileSystem = (*ops)(nil)

func (o *ops) String() string { return "firstlight" }

// Open, OpenDir and Flush are answered so that the kernel never asks again: it
// then keeps pages and directories from one opening to the next.
func (o *ops) Open(<-chan struct{}, *fuse.OpenIn, *fuse.OpenOut) fuse.Status { return fuse.ENOSYS }

// OpenDir works as Open does.
func (o *ops) OpenDir(<-chan struct{}, *fuse.OpenIn, *fuse.OpenOut) fuse.Status { return fuse.ENOSYS }

// Flush has nothing to write.
func (o *ops) Flush(<-chan struct{}, *fuse.FlushIn) fuse.Status { return fuse.ENOSYS }

func topAttr(node uint64, a *fuse.Attr) {
	a.Ino, a.Mode, a.Nlink = node, syscall.S_IFDIR|0o755, 2
}

func layerAttr(id uint64, size int64, a *fuse.Attr) {
	a.Ino, a.Mode, a.Nlink = layerNode(id), syscall.S_IFREG|0o400, 1
	a.Size, a.Blocks, a.Blksize = uint64(size), uint64(size+511)/512, 4096
}

func nodeAttr(id uint64, row int, n *tree.Node, a *fuse.Attr) {
	a.Ino, a.Mode, a.Nlink = treeNode(id, row), n.Mode, n.Nlink
	a.Uid, a.Gid, a.Rdev = n.UID, n.GID, n.Rdev
	a.Size, a.Blocks, a.Blksize = uint64(n.Size), uint64(n.Size+511)/512, 4096
	sec := n.Mtime / int64(time.Second)
	nsec := n.Mtime % int64(time.Second)
	if nsec < 0 {
		sec, nsec = sec-1, nsec+int64(time.Second)
	}
	a.Mtime, a.Atime, a.Ctime = uint64(sec), uint64(sec), uint64(sec)
	a.Mtimensec, a.Atimensec, a.Ctimensec = uint32(nsec), uint32(nsec), uint32(nsec)
}

func entry(out *fuse.EntryOut, node uint64) {
	out.NodeId, out.Generation = node, 1
	out.SetEntryTimeout(forever)
	out.SetAttrTimeout(forever)
}

// Lookup finds a name. That a name does not exist is remembered inside trees,
// not among the layers, which come and go.
func (o *ops) Lookup(_ <-chan struct{}, h *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	switch h.NodeId {
	case rootNode:
		switch name {
		case "layer":
			return top(out, layersNode)
		case "tree":
			return top(out, treesNode)
		}
		return fuse.ENOENT
	case layersNode, treesNode:
		return o.lookupTop(h.NodeId, name, out)
	}
	m, id, row, st := o.s.find(h.NodeId)
	if !st.Ok() {
		return st
	}
	kids := m.Nodes[row].Children
	i := sort.Search(len(kids), func(i int) bool { return kids[i].Name >= name })
	if i == len(kids) || kids[i].Name != name {
		out.SetEntryTimeout(forever)
		return fuse.OK // with node id 0: there is none, and never will be
	}
	o.fill(out, m, id, kids[i].Row)
	return fuse.OK
}

func top(out *fuse.EntryOut, node uint64) fuse.Status {
	entry(out, node)
	topAttr(node, &out.Attr)
	return fuse.OK
}

func (o *ops) lookupTop(dir uint64, name string, out *fuse.EntryOut) fuse.Status {
	id, err := strconv.ParseUint(name, 10, 64)
	if err != nil || strconv.FormatUint(id, 10) != name {
		return fuse.ENOENT
	}
	if dir == layersNode {
		r := o.s.layer(id)
		if r == nil {
			return fuse.ENOENT
		}
		entry(out, layerNode(id))
		layerAttr(id, r.Size(), &out.Attr)
		return fuse.OK
	}
	m := o.s.tree(id)
	if m == nil {
		return fuse.ENOENT
	}
	o.fill(out, m, id, tree.Root)
	return fuse.OK
}

func (o *ops) fill(out *fuse.EntryOut, m *mounted, id uint64, row int) {
	entry(out, treeNode(id, row))
	nodeAttr(id, row, &m.Nodes[row], &out.Attr)
}

// GetAttr is asked when the kernel gave up what it knew.
func (o *ops) GetAttr(_ <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	out.SetTimeout(forever)
	switch in.NodeId {
	case rootNode, layersNode, treesNode:
		topAttr(in.NodeId, &out.Attr)
		return fuse.OK
	}
	if kind, id, _ := splitNode(in.NodeId); kind == kindLayer {
		r := o.s.layer(id)
		if r == nil {
			return fuse.ENOENT
		}
		layerAttr(id, r.Size(), &out.Attr)
		return fuse.OK
	}
	m, id, row, st := o.s.find(in.NodeId)
	if st.Ok() {
		nodeAttr(id, row, &m.Nodes[row], &out.Attr)
	}
	return st
}

// Readlink returns a symbolic link's target.
func (o *ops) Readlink(_ <-chan struct{}, h *fuse.InHeader) ([]byte, fuse.Status) {
	m, _, row, st := o.s.find(h.NodeId)
	if !st.Ok() {
		return nil, st
	}
	return []byte(m.Nodes[row].Target), fuse.OK
}

// Read reads a layer, or a file inside one.
func (o *ops) Read(interrupt <-chan struct{}, in *fuse.ReadIn, buf []byte) (fuse.ReadResult, fuse.Status) {
	buf = buf[:min(len(buf), int(in.Size))]
	kind, id, _ := splitNode(in.NodeId)
	off := int64(in.Offset)
	var r LayerReader
	var base, size int64
	if kind == kindLayer {
		if r = o.s.layer(id); r == nil {
			return nil, fuse.EIO
		}
		size = r.Size()
	} else {
		m, _, row, st := o.s.find(in.NodeId)
		if !st.Ok() {
			return nil, st
		}
		r, base, size = m.reader, m.Nodes[row].DataOffset, m.Nodes[row].Size
	}
	if off < 0 || off >= size {
		return fuse.ReadResultData(nil), fuse.OK
	}
	buf = buf[:min(int64(len(buf)), size-off)]
	reading := newReadContext(interrupt, in.Caller.Pid)
	defer reading.end()
	ctx := context.Context(reading)
	var reader *account.Account
	if o.s.book != nil {
		reader = o.s.book.Of(in.Caller.Pid)
		ctx = account.With(ctx, reader)
	}
	n, err := r.ReadAtContext(ctx, buf, base+off)
	if st := o.s.status(in.NodeId, err); !st.Ok() {
		return nil, st
	}
	reader.Served(n)
	return fuse.ReadResultData(buf[:n]), fuse.OK
}

// StatFs describes a file system that is full, as a read-only one is.
func (o *ops) StatFs(_ <-chan struct{}, _ *fuse.InHeader, out *fuse.StatfsOut) fuse.Status {
	out.Bsize, out.Frsize, out.NameLen = 4096, 4096, 255
	return fuse.OK
}

// GetXAttr reads an extended attribute.
func (o *ops) GetXAttr(_ <-chan struct{}, h *fuse.InHeader, name string, dest []byte) (uint32, fuse.Status) {
	m, _, row, st := o.s.find(h.NodeId)
	if !st.Ok() {
		return 0, fuse.ENOATTR
	}
	for _, x := range m.Nodes[row].Xattrs {
		if x.Name == name {
			return give(dest, x.Value)
		}
	}
	return 0, fuse.ENOATTR
}

// ListXAttr lists the names of extended attributes.
func (o *ops) ListXAttr(_ <-chan struct{}, h *fuse.InHeader, dest []byte) (uint32, fuse.Status) {
	m, _, row, st := o.s.find(h.NodeId)
	if !st.Ok() {
		return 0, fuse.OK
	}
	var list []byte
	for _, x := range m.Nodes[row].Xattrs {
		list = append(append(list, x.Name...), 0)
	}
	return give(dest, list)
}

func give(dest, value []byte) (uint32, fuse.Status) {
	if len(dest) < len(value) {
		return uint32(len(value)), fuse.ERANGE
	}
	return uint32(copy(dest, value)), fuse.OK
}

// ReadDir lists a directory.
func (o *ops) ReadDir(_ <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	return o.list(in, func(e fuse.DirEntry, _ func(*fuse.EntryOut)) bool { return out.AddDirEntry(e) })
}

// ReadDirPlus lists a directory with what Lookup would say of each entry.
func (o *ops) ReadDirPlus(_ <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	return o.list(in, func(e fuse.DirEntry, fill func(*fuse.EntryOut)) bool {
		slot := out.AddDirLookupEntry(e)
		if slot == nil {
			return false
		}
		if fill != nil { // an entry left empty makes the kernel look it up
			fill(slot)
		}
		return true
	})
}

// list calls add for the entries from the offset on until one does not fit.
// Offsets count entries, "." and ".." first, so they never change.
func (o *ops) list(in *fuse.ReadIn, add func(fuse.DirEntry, func(*fuse.EntryOut)) bool) fuse.Status {
	at := in.Offset
	for ; at < 2; at++ {
		e := fuse.DirEntry{Name: []string{".", ".."}[at], Mode: syscall.S_IFDIR, Ino: in.NodeId, Off: at + 1}
		if !add(e, nil) {
			return fuse.OK
		}
	}
	switch in.NodeId {
	case rootNode:
		names := []string{"layer", "tree"}
		return emit(at-2, len(names), func(i int, off uint64) bool {
			return add(fuse.DirEntry{Name: names[i], Mode: syscall.S_IFDIR, Ino: layersNode + uint64(i), Off: off}, nil)
		})
	case layersNode, treesNode:
		return o.listTop(in.NodeId, at, add)
	}
	m, id, row, st := o.s.find(in.NodeId)
	if !st.Ok() {
		return st
	}
	kids := m.Nodes[row].Children
	return emit(at-2, len(kids), func(i int, off uint64) bool {
		k := kids[i]
		e := fuse.DirEntry{Name: k.Name, Mode: m.Nodes[k.Row].Mode, Ino: treeNode(id, k.Row), Off: off}
		return add(e, func(out *fuse.EntryOut) { o.fill(out, m, id, k.Row) })
	})
}

// listTop lists layers by id, with the id as the offset: they come and go.
func (o *ops) listTop(dir, at uint64, add func(fuse.DirEntry, func(*fuse.EntryOut)) bool) fuse.Status {
	ids := o.s.ids(dir)
	slices.Sort(ids)
	for _, id := range ids {
		if id+2 < at {
			continue
		}
		e := fuse.DirEntry{Name: strconv.FormatUint(id, 10), Off: id + 3, Mode: syscall.S_IFREG, Ino: layerNode(id)}
		if dir == treesNode {
			e.Mode, e.Ino = syscall.S_IFDIR, treeNode(id, tree.Root)
		}
		if !add(e, nil) {
			break
		}
	}
	return fuse.OK
}

func emit(from uint64, n int, add func(i int, off uint64) bool) fuse.Status {
	for i := from; i < uint64(n); i++ {
		if !add(int(i), i+3) {
			break
		}
	}
	return fuse.OK
}
