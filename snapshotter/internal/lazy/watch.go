package lazy

import "slices"

// Watcher is told of every read of a layer while it watches.
type Watcher struct {
	// Touched gets the range of a read. It must be quick and safe for concurrent
	// use: readers wait for it.
	Touched func(off, n int64)
}

// Watch tells w of every read from now on, until the returned function was
// called. A layer that nobody watches pays one load for it.
func (l *Layer) Watch(w *Watcher) (stop func()) {
	l.watch(func(all []*Watcher) []*Watcher { return append(all, w) })
	return func() {
		l.watch(func(all []*Watcher) []*Watcher {
			return slices.DeleteFunc(all, func(x *Watcher) bool { return x == w })
		})
	}
}

// watch replaces the list of watchers; readers see the old one or the new one.
func (l *Layer) watch(change func([]*Watcher) []*Watcher) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var all []*Watcher
	if old := l.watched.Load(); old != nil {
		all = slices.Clone(*old)
	}
	if all = change(all); len(all) == 0 {
		l.watched.Store(nil)
		return
	}
	l.watched.Store(&all)
}

func (l *Layer) touch(off, n int64) {
	if all := l.watched.Load(); all != nil {
		for _, w := range *all {
			w.Touched(off, n)
		}
	}
}
