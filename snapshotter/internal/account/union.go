package account

import (
	"sync"
	"time"
)

// Union measures the time during which at least one interval was open. The zero
// value has seen none. It is safe for concurrent use.
type Union struct {
	mu    sync.Mutex
	open  int
	count int64
	since time.Time // valid while open > 0
	total time.Duration
}

// Begin opens an interval; the returned function closes it.
func (u *Union) Begin() (end func()) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.count++
	if u.open++; u.open == 1 {
		u.since = time.Now()
	}
	return u.end
}

func (u *Union) end() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.open--; u.open == 0 {
		u.total += time.Since(u.since)
	}
}

// Total is the time so far, open intervals included, and how many there were.
func (u *Union) Total() (time.Duration, int64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	total := u.total
	if u.open > 0 {
		total += time.Since(u.since)
	}
	return total, u.count
}
