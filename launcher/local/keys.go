package local

import (
	"context"
	"sync"
)

// keys serialises work by name. Waiting ends with the context, and a name that
// nobody uses takes no memory.
type keys struct {
	mu   sync.Mutex
	held map[string]*key // guarded by mu
}

type key struct {
	users int           // guarded by keys.mu: holder and waiters
	token chan struct{} // holds one element while free
}

func newKeys() *keys { return &keys{held: make(map[string]*key)} }

// lock returns a function that unlocks.
func (k *keys) lock(ctx context.Context, name string) (func(), error) {
	k.mu.Lock()
	e, ok := k.held[name]
	if !ok {
		e = &key{token: make(chan struct{}, 1)}
		e.token <- struct{}{}
		k.held[name] = e
	}
	e.users++
	k.mu.Unlock()

	leave := func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		if e.users--; e.users == 0 {
			delete(k.held, name)
		}
	}
	select {
	case <-e.token:
		return func() {
			e.token <- struct{}{}
			leave()
		}, nil
	case <-ctx.Done():
		leave()
		return nil, ctx.Err()
	}
}
