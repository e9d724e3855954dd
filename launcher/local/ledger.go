package local

import (
	"slices"
	"sync"

	"github.com/firstlight-dev/firstlight/launcher/cluster"
	"github.com/firstlight-dev/firstlight/launcher/spec"
	"github.com/firstlight-dev/firstlight/sharing/fit"
	"github.com/firstlight-dev/firstlight/sharing/wire"
)

// ledger is what is taken of each card, and by whom. Choosing and taking is one
// step under its lock, so two environments can't be given the same share.
type ledger struct {
	policy fit.Policy
	idle   []fit.Usage // the cards as if nobody used them

	mu      sync.Mutex
	cards   []fit.Usage                // guarded by mu
	held    map[string]wire.PodDevices // guarded by mu; by environment
	changed chan struct{}              // guarded by mu; closed when something was given back
}

func newLedger(cards []wire.Device, policy fit.Policy) *ledger {
	l := &ledger{policy: policy, held: make(map[string]wire.PodDevices), changed: make(chan struct{})}
	for _, card := range cards {
		l.idle = append(l.idle, fit.Usage{Device: card})
	}
	l.cards = slices.Clone(l.idle)
	return l
}

// request says in fit's terms what a Spec asks for.
func request(g *spec.GPU) fit.Request {
	r := fit.Request{Role: fit.App, Count: g.Count}
	if g.Model != "" {
		r.UseTypes = []string{g.Model}
	}
	if g.Share == nil { // the whole card: all memory, and nobody else on it
		r.Cores = wholeCores
		return r
	}
	r.MemMiB, r.Cores = g.Share.MemoryMiB, g.Share.Cores
	return r
}

// wholeCores asks for a card that nobody else uses.
const wholeCores = 100

// reserve gives the environment its cards, or says why not. An environment
// that already holds some keeps them.
func (l *ledger) reserve(env string, r fit.Request) (wire.PodDevices, *fit.Refusal) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if held, ok := l.held[env]; ok {
		return held, nil
	}
	chosen, refusal := fit.Pick(l.cards, []fit.Request{r}, l.policy)
	if refusal != nil {
		return nil, refusal
	}
	l.take(chosen, 1)
	l.held[env] = chosen
	return chosen, nil
}

// restore notes what an environment was found to hold, even beyond what a card
// has: it does hold it.
func (l *ledger) restore(env string, devices wire.PodDevices) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, ok := l.held[env]; ok || devices.Empty() {
		return
	}
	l.take(devices, 1)
	l.held[env] = devices
}

// release gives back what the environment holds, if anything.
func (l *ledger) release(env string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	devices, ok := l.held[env]
	if !ok {
		return
	}
	l.take(devices, -1)
	delete(l.held, env)
	close(l.changed)
	l.changed = make(chan struct{})
}

// take must be called with mu held.
func (l *ledger) take(devices wire.PodDevices, sign int) { take(l.cards, devices, sign) }

func take(cards []fit.Usage, devices wire.PodDevices, sign int) {
	for _, charge := range fit.Charges(devices, []fit.Role{fit.App}) {
		for i := range cards {
			if cards[i].UUID == charge.UUID {
				cards[i].Take(charge, sign)
			}
		}
	}
}

// waitChange returns a channel that is closed when something is given back.
func (l *ledger) waitChange() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.changed
}

// usage returns the cards as they would be without the given environments.
func (l *ledger) usage(without ...string) []fit.Usage {
	l.mu.Lock()
	defer l.mu.Unlock()
	cards := slices.Clone(l.cards)
	for _, env := range without {
		take(cards, l.held[env], -1)
	}
	return cards
}

// holders returns who holds something, in order.
func (l *ledger) holders() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	envs := make([]string, 0, len(l.held))
	for env := range l.held {
		envs = append(envs, env)
	}
	slices.Sort(envs)
	return envs
}

// holding returns what the environment holds.
func (l *ledger) holding(env string) (wire.PodDevices, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	d, ok := l.held[env]
	return d, ok
}

// never reports that the request would not fit if nobody used the cards.
func (l *ledger) never(r fit.Request) *fit.Refusal {
	_, refusal := fit.Pick(l.idle, []fit.Request{r}, l.policy)
	return refusal
}

func deviceStatus(u *fit.Usage) cluster.DeviceStatus {
	return cluster.DeviceStatus{
		UUID: u.UUID, Index: u.Index, Model: u.Type, Healthy: u.Healthy && !u.Cordoned,
		MemoryMiB: u.MemMiB, MemoryUsedMiB: u.UsedMemMiB,
		Cores: u.Cores, CoresUsed: u.UsedCores,
		Slots: u.Slots, SlotsUsed: u.UsedSlots,
	}
}
