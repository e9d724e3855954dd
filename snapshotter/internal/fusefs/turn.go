package fusefs

import (
	"context"
	"encoding/binary"
	"strconv"
	"syscall"
	"time"
)

// A read whose registry does not answer stays for as long as the layer's reader
// allows. So that one container with many of them does not keep others waiting,
// reads are answered in turns: see package quota. Until its turn a read has no
// memory but its request, and the protocol server does not know of it; an
// interrupt that comes meanwhile is kept and delivered afterwards.

// queued is a read that waits for its turn.
type queued struct {
	interrupt   chan struct{} // closed when the kernel says that its thread got a signal
	interrupted bool          // guarded by loop.mu
}

// read answers a read when its turn comes.
func (l *loop) read(ctx context.Context, req []byte) {
	owner := l.owner(req)
	if l.reads.Try(owner) {
		defer l.reads.Release(owner)
		l.answer(ctx, req)
		return
	}
	q := l.enqueue(unique(req))
	waiting := newReadContext(q.interrupt, binary.NativeEndian.Uint32(req[pidOffset:]))
	err := l.reads.Acquire(waiting, owner)
	waiting.end()
	interrupted := l.dequeue(unique(req))
	if err != nil {
		l.reply(ctx, req, failure(req, syscall.EINTR)) // it is being killed
		return
	}
	defer l.reads.Release(owner)
	if interrupted {
		done := make(chan struct{})
		defer close(done)
		go l.interruptLater(unique(req), done)
	}
	l.answer(ctx, req)
}

// owner names whose read it is: the container's, or if that is not known the
// layer's.
func (l *loop) owner(req []byte) string {
	if l.server.book != nil {
		return l.server.book.Of(binary.NativeEndian.Uint32(req[pidOffset:])).Group()
	}
	_, id, _ := splitNode(binary.NativeEndian.Uint64(req[nodeOffset:]))
	return strconv.FormatUint(id, 10)
}

func unique(req []byte) uint64 { return binary.NativeEndian.Uint64(req[uniqueOffset:]) }

func (l *loop) enqueue(n uint64) *queued {
	q := &queued{interrupt: make(chan struct{})}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.queued[n] = q
	return q
}

func (l *loop) dequeue(n uint64) (interrupted bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	interrupted = l.queued[n].interrupted
	delete(l.queued, n)
	return interrupted
}

// interrupt keeps an INTERRUPT for a read that waits for its turn. Unanswered it
// counts as delivered; the kernel would repeat one that was refused at once.
func (l *loop) interrupt(req []byte) bool {
	if len(req) < inHeaderSize+8 {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	q := l.queued[binary.NativeEndian.Uint64(req[inHeaderSize:])]
	if q == nil {
		return false
	}
	if !q.interrupted {
		q.interrupted = true
		close(q.interrupt)
	}
	return true
}

// interruptEvery is how often a kept interrupt is tried until the protocol
// server knows of the read.
const interruptEvery = 5 * time.Millisecond

// interruptLater delivers a kept interrupt to a read that is being answered now,
// unless it is done first.
func (l *loop) interruptLater(n uint64, done <-chan struct{}) {
	msg := make([]byte, inHeaderSize+8)
	binary.NativeEndian.PutUint32(msg, uint32(len(msg)))
	binary.NativeEndian.PutUint32(msg[4:], opInterrupt)
	binary.NativeEndian.PutUint64(msg[inHeaderSize:], n)
	t := time.NewTicker(interruptEvery)
	defer t.Stop()
	for {
		out := make([]byte, outHeaderSize)
		if n, _ := l.ps.HandleRequest([][]byte{msg}, [][]byte{out}); n == 0 {
			return // delivered: that has no answer
		}
		select {
		case <-done:
			return
		case <-t.C:
		}
	}
}
