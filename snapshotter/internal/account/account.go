// Package account says which container a read was for, and what its reads cost.
//
// # Vocabulary
//
// A container is a control group: every thread is in one, and whoever starts
// containers gives each its own, whatever the runtime. Programs of the node
// have theirs too and are counted alike. A Book is the accounts of a node.
//
// # Bounds
//
// Threads and control groups come and go, and their numbers are the containers'
// choice. A Book remembers a fixed number of both; of accounts that nobody uses
// the one unused for longest is closed for a new one. What a thread belongs to
// is looked up again after a second, so a number that was given to another
// thread is wrong no longer than that.
package account

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// maxThreads bounds the threads remembered: more than may wait at a time.
	maxThreads = 4096
	// threadTTL is for how long a thread is taken to be where it was.
	threadTTL = time.Second
	// maxAccounts bounds the containers: kubelet allows a few hundred on a node.
	maxAccounts = 1024
	// maxCgroup bounds what is read of /proc/<tid>/cgroup: a line for each
	// hierarchy, none longer than a path.
	maxCgroup = 64 << 10
)

// Unknown names the container of threads that cannot be looked at: they ended,
// or are of another process namespace.
const Unknown = "unknown"

// Book is the accounts of a node. It is safe for concurrent use.
type Book struct {
	proc string
	now  func() time.Time

	mu       sync.Mutex
	threads  map[uint32]thread
	accounts map[string]*Account // by control group
}

type thread struct {
	account *Account
	until   time.Time
}

// Option changes what a book looks at.
type Option func(*Book)

// WithProc replaces /proc.
func WithProc(dir string) Option { return func(b *Book) { b.proc = dir } }

// WithClock replaces time.Now.
func WithClock(now func() time.Time) Option { return func(b *Book) { b.now = now } }

// NewBook returns a book without accounts.
func NewBook(opts ...Option) *Book {
	b := &Book{proc: "/proc", now: time.Now, threads: map[uint32]thread{}, accounts: map[string]*Account{}}
	for _, o := range opts {
		o(b)
	}
	return b
}

// Of returns the account of the container that a thread is in.
func (b *Book) Of(tid uint32) *Account {
	now := b.now()
	b.mu.Lock()
	t, ok := b.threads[tid]
	b.mu.Unlock()
	if ok && now.Before(t.until) {
		return t.account
	}
	group := b.group(tid)
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.threads) >= maxThreads {
		clear(b.threads)
	}
	a := b.account(group, now)
	b.threads[tid] = thread{a, now.Add(threadTTL)}
	return a
}

// account returns the account of a control group, a new one if need be. The
// caller holds b.mu.
func (b *Book) account(group string, now time.Time) *Account {
	if a := b.accounts[group]; a != nil {
		return a
	}
	if len(b.accounts) >= maxAccounts {
		b.closeOldest()
	}
	a := &Account{group: group, book: b, first: now}
	a.last.Store(now.UnixNano())
	b.accounts[group] = a
	return a
}

func (b *Book) closeOldest() {
	var oldest *Account
	for _, a := range b.accounts {
		if oldest == nil || a.last.Load() < oldest.last.Load() {
			oldest = a
		}
	}
	delete(b.accounts, oldest.group)
	for tid, t := range b.threads {
		if t.account == oldest {
			delete(b.threads, tid)
		}
	}
}

func (b *Book) group(tid uint32) string {
	if tid == 0 {
		return Unknown
	}
	f, err := os.Open(filepath.Join(b.proc, strconv.FormatUint(uint64(tid), 10), "cgroup"))
	if err != nil {
		return Unknown
	}
	defer f.Close()
	text := make([]byte, maxCgroup)
	n, err := f.Read(text) // proc gives it in one piece
	if err != nil {
		return Unknown
	}
	return parseGroup(string(text[:n]))
}

// parseGroup finds the control group in the content of /proc/<tid>/cgroup: the
// deepest path, because a runtime need not use every hierarchy.
func parseGroup(text string) string {
	group := "/"
	for line := range strings.Lines(text) {
		_, rest, ok := strings.Cut(strings.TrimSuffix(line, "\n"), ":")
		_, path, ok2 := strings.Cut(rest, ":")
		if ok && ok2 && strings.HasPrefix(path, "/") && len(path) > len(group) {
			group = path
		}
	}
	return group
}

// name makes of a control group's path what people call the container: its id,
// without what runtimes and systemd add.
func name(group string) string {
	n := filepath.Base(group)
	scope, ok := strings.CutSuffix(n, ".scope")
	if !ok {
		return n
	}
	for _, runtime := range []string{"cri-containerd-", "nerdctl-", "docker-", "crio-"} {
		scope = strings.TrimPrefix(scope, runtime)
	}
	return scope
}

// Figures says what the reads of one container have cost so far.
type Figures struct {
	Container string // its id
	Cgroup    string
	// Reads came to us and brought Bytes; the kernel's page cache answers others.
	Reads, Bytes int64
	// OnDemandReads of them had to wait, OnDemandWait long together: a union of
	// intervals, never more than the time that passed.
	OnDemandReads int64
	OnDemandWait  time.Duration
	// Requests to registries were made for them and brought Fetched bytes.
	Requests, Fetched int64
	First, Last       time.Time // of the reads
}

// Figures lists every account, by name.
func (b *Book) Figures() []Figures {
	b.mu.Lock()
	accounts := make([]*Account, 0, len(b.accounts))
	for _, a := range b.accounts {
		accounts = append(accounts, a)
	}
	b.mu.Unlock()
	figures := make([]Figures, 0, len(accounts))
	for _, a := range accounts {
		wait, waits := a.wait.Total()
		figures = append(figures, Figures{
			Container: name(a.group), Cgroup: a.group,
			Reads: a.reads.Load(), Bytes: a.bytes.Load(), OnDemandReads: waits, OnDemandWait: wait,
			Requests: a.requests.Load(), Fetched: a.fetched.Load(),
			First: a.first, Last: time.Unix(0, a.last.Load()),
		})
	}
	slices.SortFunc(figures, func(x, y Figures) int { return strings.Compare(x.Cgroup, y.Cgroup) })
	return figures
}

// Account is what one container's reads cost. A nil Account counts nothing. It
// is safe for concurrent use.
type Account struct {
	group string
	book  *Book
	first time.Time

	reads, bytes, requests, fetched atomic.Int64
	last                            atomic.Int64
	wait                            Union
}

// Group is the container's control group.
func (a *Account) Group() string {
	if a == nil {
		return Unknown
	}
	return a.group
}

// Served counts a read that brought n bytes.
func (a *Account) Served(n int) {
	if a == nil {
		return
	}
	a.reads.Add(1)
	a.bytes.Add(int64(n))
	a.last.Store(a.book.now().UnixNano())
}

// Wait counts a waiting reader until the returned function is called.
func (a *Account) Wait() (end func()) {
	if a == nil {
		return func() {}
	}
	return a.wait.Begin()
}

// Request counts a request to a registry.
func (a *Account) Request() {
	if a != nil {
		a.requests.Add(1)
	}
}

// Fetched counts n bytes from a registry.
func (a *Account) Fetched(n int64) {
	if a != nil {
		a.fetched.Add(n)
	}
}

type key struct{}

// With returns a context whose reads are for the account.
func With(ctx context.Context, a *Account) context.Context { return context.WithValue(ctx, key{}, a) }

// From returns the account that a context's reads are for, or nil.
func From(ctx context.Context) *Account {
	a, _ := ctx.Value(key{}).(*Account)
	return a
}
