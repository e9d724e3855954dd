package fusefs

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"
	"sync"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/firstlight-dev/firstlight/snapshotter/internal/quota"
)

const (
	// maxIO is the largest read the kernel may send: its own maximum.
	maxIO = 1 << 20
	// requestBuffer holds any request. The kernel insists on room for a write
	// of maxIO, though none ever comes; the pages behind a request are never
	// touched.
	requestBuffer = maxIO + 4096
	// replyHeader holds all of an answer but the data of a read, list or xattr.
	// The longest is a symbolic link's target.
	replyHeader = 4096 + 512
	// maxBackground bounds the kernel's asynchronous reads under way. The kernel
	// counts them for all readers together and lets everybody wait beyond, so
	// there must be room for one container with thousands of threads beside the
	// others.
	maxBackground = 4096
	// maxRequests bounds the requests that were taken from the kernel. Those that
	// wait for their turn hold their few bytes and a goroutine.
	maxRequests = 2 * maxBackground
	// maxReads bounds the reads being answered: each holds its answer in memory,
	// at most maxIO. One container has at most ownReads of them; sureReads it gets
	// whatever others do.
	maxReads  = 512
	ownReads  = 128
	sureReads = 8
)

// Opcodes that matter to reading requests; see linux/fuse.h.
const (
	opForget       = 2
	opRead         = 15
	opGetXattr     = 22
	opListXattr    = 23
	opReadDir      = 28
	opInit         = 26
	opInterrupt    = 36
	opBatchForget  = 42
	opReadDirPlus  = 44
	notifyInval    = 3  // FUSE_NOTIFY_INVAL_ENTRY
	notifyResend   = 7  // FUSE_NOTIFY_RESEND
	uniqueOffset   = 8  // of InHeader.Unique
	nodeOffset     = 16 // of InHeader.NodeId
	pidOffset      = 32 // of InHeader.Pid
	inHeaderSize   = 40
	outHeaderSize  = 16
	readSizeOffset = inHeaderSize + 16 // of ReadIn.Size
	xattrSizeStart = inHeaderSize      // of GetXattrIn.Size
)

func options(l *slog.Logger) *fuse.MountOptions {
	return &fuse.MountOptions{
		MaxWrite: maxIO, MaxReadAhead: maxIO, MaxBackground: maxBackground,
		Name: "firstlight", FsName: "firstlight",
		EnableSymlinkCaching:     true,
		ExplicitDataCacheControl: true,
		ExtraCapabilities:        fuse.CAP_NO_OPENDIR_SUPPORT,
		Logger:                   slog.NewLogLogger(l.Handler(), slog.LevelWarn),
		PanicHandler: func(v any) fuse.Status {
			l.Error("panic while answering the kernel", "panic", fmt.Sprint(v), "stack", string(debug.Stack()))
			return fuse.EIO
		},
	}
}

// Mount opens /dev/fuse and mounts it, read-only and for root to mount further.
func Mount(dir string) (*os.File, error) {
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open /dev/fuse: %w (is the fuse module loaded, and the device visible in this container?)", err)
	}
	opts := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other,default_permissions,max_read=%d", fd, maxIO)
	flags := uintptr(unix.MS_RDONLY | unix.MS_NODEV | unix.MS_NOSUID)
	if err := unix.Mount("firstlight", dir, "fuse.firstlight", flags, opts); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("mount fuse on %s: %w", dir, err)
	}
	// Only now: before it is mounted the device cannot be polled.
	return os.NewFile(uintptr(fd), "/dev/fuse"), nil
}

// Handshake answers INIT on a freshly mounted device and returns the message,
// which every server of the device needs.
func Handshake(dev *os.File, l *slog.Logger, timeout time.Duration) ([]byte, error) {
	if err := dev.SetReadDeadline(time.Now().Add(timeout)); err != nil {
		return nil, fmt.Errorf("handshake with fuse: %w", err)
	}
	buf := make([]byte, requestBuffer)
	n, err := dev.Read(buf)
	if err != nil {
		return nil, fmt.Errorf("handshake with fuse: %w", err)
	}
	if err := dev.SetReadDeadline(time.Time{}); err != nil {
		return nil, fmt.Errorf("handshake with fuse: %w", err)
	}
	init := append([]byte(nil), buf[:n]...)
	_, reply, err := replay(New(l), init)
	if err != nil {
		return nil, err
	}
	if _, err := dev.Write(reply); err != nil {
		return nil, fmt.Errorf("handshake with fuse: %w", err)
	}
	return init, nil
}

// replay makes a protocol server that has settled on what INIT led to.
func replay(s *Server, init []byte) (*fuse.ProtocolServer, []byte, error) {
	if len(init) < inHeaderSize || opcode(init) != opInit {
		return nil, nil, errors.New("handshake with fuse: first message is not INIT")
	}
	ps := fuse.NewProtocolServer(&ops{fuse.NewDefaultRawFileSystem(), s}, options(s.log))
	out := make([]byte, replyHeader)
	n, st := ps.HandleRequest([][]byte{init}, [][]byte{out})
	if !st.Ok() || n < outHeaderSize {
		return nil, nil, fmt.Errorf("handshake with fuse: %s", st)
	}
	if e := int32(binary.NativeEndian.Uint32(out[4:])); e != 0 {
		return nil, nil, fmt.Errorf("handshake with fuse: %w", syscall.Errno(-e))
	}
	return ps, out[:n], nil
}

// CanTakeOver says whether the kernel that sent init can send requests again
// (6.9 or later). If not, requests that a dead server left would hang.
func CanTakeOver(init []byte) bool {
	const flags, flags2 = inHeaderSize + 12, inHeaderSize + 16
	if len(init) < flags2+4 {
		return false
	}
	const hasResend = fuse.CAP_HAS_RESEND >> 32
	return binary.NativeEndian.Uint32(init[flags2:])&hasResend != 0
}

func opcode(req []byte) uint32 { return binary.NativeEndian.Uint32(req[4:]) }

// Serve answers the kernel until the device is unmounted, which is no error,
// or the context ends: then requests may remain unanswered. init is what Handshake returned; with takeover set the
// requests that another server left unanswered are answered first.
func (s *Server) Serve(ctx context.Context, dev *os.File, init []byte, takeover bool) error {
	ps, _, err := replay(s, init)
	if err != nil {
		return err
	}
	s.setNotify(func(msg []byte) error { _, err := dev.Write(msg); return err })
	defer s.setNotify(nil)
	if takeover {
		if _, err := dev.Write(notification(notifyResend, nil)); err != nil {
			return fmt.Errorf("take fuse over: ask for unanswered requests: %w", err)
		}
	}
	stop := context.AfterFunc(ctx, func() { _ = dev.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	l := &loop{dev: dev, ps: ps, server: s, slots: make(chan struct{}, maxRequests), reads: s.reads, queued: map[uint64]*queued{}}
	err = l.run(ctx)
	if ctx.Err() != nil {
		// Requests still being answered may wait for a registry. They are left:
		// what they come to is not sent, and the next server gets them again.
		return ctx.Err()
	}
	l.wg.Wait()
	return err
}

func (s *Server) setNotify(f func([]byte) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.notify = f
}

// loop reads requests and answers each in a goroutine of its own.
type loop struct {
	dev    *os.File
	ps     *fuse.ProtocolServer
	server *Server
	slots  chan struct{}
	reads  *quota.Pool
	wg     sync.WaitGroup

	mu     sync.Mutex
	queued map[uint64]*queued // reads that wait for their turn, by number of the request
}

func (l *loop) run(ctx context.Context) error {
	buf := make([]byte, requestBuffer)
	for {
		n, err := l.dev.Read(buf)
		switch {
		case err == nil:
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, syscall.ENODEV), l.unmounted():
			return nil
		case errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.EINTR), errors.Is(err, syscall.EAGAIN):
			continue // the request was withdrawn
		default:
			return fmt.Errorf("read fuse device: %w", err)
		}
		if n < inHeaderSize {
			return fmt.Errorf("read fuse device: %d bytes", n)
		}
		switch opcode(buf) {
		case opInterrupt:
			if l.interrupt(buf[:n]) {
				continue
			}
			fallthrough
		case opForget, opBatchForget:
			// Short, without data, and never to wait behind reads.
			l.answer(ctx, buf[:n])
			continue
		}
		l.slots <- struct{}{}
		req := append([]byte(nil), buf[:n]...)
		l.wg.Go(func() {
			defer func() { <-l.slots }()
			if opcode(req) == opRead {
				l.read(ctx, req)
				return
			}
			l.answer(ctx, req)
		})
	}
}

// unmounted asks the device itself: polling a dead one fails before reading
// does, with an error of the Go runtime's own.
func (l *loop) unmounted() bool {
	raw, err := l.dev.SyscallConn()
	if err != nil {
		return false
	}
	var p [1]byte // too small for any request: none is lost
	var rerr error
	if err := raw.Control(func(fd uintptr) { _, rerr = unix.Read(int(fd), p[:]) }); err != nil {
		return false
	}
	return errors.Is(rerr, syscall.ENODEV)
}

// answer handles a request and writes the reply, if it has one.
func (l *loop) answer(ctx context.Context, req []byte) {
	out := make([]byte, replyHeader+payload(req))
	n, st := l.ps.HandleRequest([][]byte{req}, [][]byte{out})
	if !st.Ok() {
		// Not understood at all; the kernel still waits.
		n = copy(out, failure(req, syscall.EIO))
	}
	l.reply(ctx, req, out[:n])
}

func (l *loop) reply(ctx context.Context, req, out []byte) {
	if len(out) == 0 || ctx.Err() != nil {
		return
	}
	// ENOENT: the request was withdrawn meanwhile. ENODEV: unmounted.
	if _, err := l.dev.Write(out); err != nil && !errors.Is(err, syscall.ENOENT) && !errors.Is(err, syscall.ENODEV) {
		l.server.log.Error("answer the kernel", "opcode", opcode(req), "error", err)
	}
}

// payload is how many bytes of data the answer to a request may hold.
func payload(req []byte) int {
	var at int
	switch opcode(req) {
	case opRead, opReadDir, opReadDirPlus:
		at = readSizeOffset
	case opGetXattr, opListXattr:
		at = xattrSizeStart
	default:
		return 0
	}
	if len(req) < at+4 {
		return 0
	}
	return int(min(binary.NativeEndian.Uint32(req[at:]), maxIO))
}

func failure(req []byte, errno syscall.Errno) []byte {
	b := make([]byte, outHeaderSize)
	binary.NativeEndian.PutUint32(b, outHeaderSize)
	binary.NativeEndian.PutUint32(b[4:], uint32(-int32(errno)))
	copy(b[8:], req[8:16])
	return b
}

// notification is a message that the kernel did not ask for: its code takes
// the place of the error.
func notification(code uint32, body []byte) []byte {
	b := make([]byte, outHeaderSize, outHeaderSize+len(body))
	binary.NativeEndian.PutUint32(b, uint32(outHeaderSize+len(body)))
	binary.NativeEndian.PutUint32(b[4:], code)
	return append(b, body...)
}

// invalidate makes the kernel forget a name.
func (s *Server) invalidate(notify func([]byte) error, parent uint64, name string) {
	body := make([]byte, 16, 17+len(name))
	binary.NativeEndian.PutUint64(body, parent)
	binary.NativeEndian.PutUint32(body[8:], uint32(len(name)))
	body = append(append(body, name...), 0)
	// ENOENT: the kernel did not know it.
	if err := notify(notification(notifyInval, body)); err != nil && !errors.Is(err, syscall.ENOENT) {
		s.log.Warn("invalidate name in kernel", "name", name, "error", err)
	}
}
