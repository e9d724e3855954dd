package lazy

import "context"

// streams remembers where readers are, to tell those that read on from those
// that jump. It is guarded by Layer.mu.
type streams struct {
	all  [8]stream // as many as programs commonly read side by side in a layer
	tick int
}

type stream struct {
	next   int64 // where the reader will go on
	window int64 // how far ahead to fetch, in tar bytes
	end    int64 // how far was asked for
	used   int
}

// firstWindow is fetched ahead once a reader has gone on twice; it doubles up
// to maxAhead.
const firstWindow = 2 << 20

// slack is how far from the expected place a read may begin: the kernel's own
// read-ahead sends pieces out of order.
const slack = 512 << 10

// note records a read and returns the range to fetch ahead, if any.
func (s *streams) note(off, n int64) (from, to int64) {
	s.tick++
	oldest := &s.all[0]
	for i := range s.all {
		st := &s.all[i]
		if st.used > 0 && off >= st.next-slack && off <= st.next+slack {
			return st.advance(off, n, s.tick)
		}
		if st.used < oldest.used {
			oldest = st
		}
	}
	*oldest = stream{next: off + n, used: s.tick}
	return 0, 0
}

func (st *stream) advance(off, n int64, tick int) (from, to int64) {
	st.used = tick
	if off+n <= st.next {
		return 0, 0
	}
	st.next = off + n
	if st.window == 0 {
		st.window = 1 // seen twice; the third makes it a stream
		return 0, 0
	}
	if st.end-st.next > st.window/2 {
		return 0, 0
	}
	st.window = min(max(2*st.window, firstWindow), maxAhead)
	from = max(st.end, st.next)
	st.end = st.next + st.window
	return from, st.end
}

// lookAhead starts fetching what a sequential reader will want next. A profile
// knows better: during its replay, and where a reader is at what it fetched,
// nothing is fetched ahead.
func (l *Layer) lookAhead(ctx context.Context, off, n int64) {
	if l.gate.replaying() {
		return
	}
	l.mu.Lock()
	if l.isReplayed(l.ix.ChunkAt(off)) {
		l.mu.Unlock()
		return
	}
	from, to := l.streams.note(off, n)
	l.mu.Unlock()
	to = min(to, l.ix.Size)
	if from >= to || l.cache.Complete() {
		return
	}
	l.want(ctx, l.ix.ChunkAt(from), l.ix.ChunkAt(to-1), ahead)
}
