// Package quota shares a number of slots between owners, so that one who takes
// all he can get leaves enough for the others.
//
// # Rules
//
// An owner has at most Each slots. Together owners have at most Total, but an
// owner with fewer than Sure always gets one: so Total may be passed, by Sure
// for each owner at most, and nobody ever waits because of others alone. A slot
// that becomes free goes to the owners in turn, and within an owner to who came
// first.
package quota

import (
	"container/list"
	"context"
	"slices"
	"sync"
)

// Limits say who gets how much. All are at least one.
type Limits struct{ Total, Each, Sure int }

// Pool is a number of slots. It is safe for concurrent use.
type Pool struct {
	limits Limits

	mu     sync.Mutex
	used   int
	owners map[string]*owner // those that have or want a slot
	turns  *list.List        // of *owner: those that want one, next first
}

type owner struct {
	name    string
	used    int
	waiting []*waiter // first come first
	turn    *list.Element
}

// waiter waits for a slot; granted is closed when it has one.
type waiter struct{ granted chan struct{} }

// New returns a pool without owners.
func New(l Limits) *Pool {
	return &Pool{limits: l, owners: map[string]*owner{}, turns: list.New()}
}

// Try takes a slot if there is one for the owner. Release gives it back.
func (p *Pool) Try(name string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	o := p.owner(name)
	if len(o.waiting) > 0 || !p.may(o) {
		p.forget(o)
		return false
	}
	p.take(o)
	return true
}

// Acquire waits for a slot, or returns the context's error. Release gives it
// back.
func (p *Pool) Acquire(ctx context.Context, name string) error {
	p.mu.Lock()
	o := p.owner(name)
	if len(o.waiting) == 0 && p.may(o) {
		p.take(o)
		p.mu.Unlock()
		return nil
	}
	w := &waiter{make(chan struct{})}
	o.waiting = append(o.waiting, w)
	if o.turn == nil {
		o.turn = p.turns.PushBack(o)
	}
	p.mu.Unlock()
	select {
	case <-w.granted:
		return nil
	case <-ctx.Done():
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-w.granted: // meanwhile
		p.release(o)
	default:
		o.waiting = slices.DeleteFunc(o.waiting, func(x *waiter) bool { return x == w })
		p.settle(o)
	}
	return ctx.Err()
}

// Release gives a slot of the owner back.
func (p *Pool) Release(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.release(p.owners[name])
}

// Used is the number of slots taken, and of those waiting for one.
func (p *Pool) Used() (used, waiting int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for e := p.turns.Front(); e != nil; e = e.Next() {
		if o, ok := e.Value.(*owner); ok {
			waiting += len(o.waiting)
		}
	}
	return p.used, waiting
}

func (p *Pool) owner(name string) *owner {
	o := p.owners[name]
	if o == nil {
		o = &owner{name: name}
		p.owners[name] = o
	}
	return o
}

func (p *Pool) may(o *owner) bool {
	return o.used < p.limits.Each && (p.used < p.limits.Total || o.used < p.limits.Sure)
}

func (p *Pool) take(o *owner) {
	o.used++
	p.used++
}

func (p *Pool) release(o *owner) {
	o.used--
	p.used--
	p.grant()
	p.forget(o)
}

// grant hands out what is free, an owner a turn.
func (p *Pool) grant() {
	for e := p.turns.Front(); e != nil; {
		o, ok := e.Value.(*owner)
		if !ok || !p.may(o) {
			e = e.Next()
			continue
		}
		p.take(o)
		close(o.waiting[0].granted)
		o.waiting = o.waiting[1:]
		p.turns.MoveToBack(e)
		p.settle(o)
		e = p.turns.Front()
	}
}

// settle takes an owner out of turn that wants nothing, and forgets it if it
// has nothing either.
func (p *Pool) settle(o *owner) {
	if len(o.waiting) == 0 && o.turn != nil {
		p.turns.Remove(o.turn)
		o.turn = nil
	}
	p.forget(o)
}

func (p *Pool) forget(o *owner) {
	if o.used == 0 && len(o.waiting) == 0 {
		delete(p.owners, o.name)
	}
}
