package scheduler

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/firstlight-dev/firstlight/sharing/demand"
	"github.com/firstlight-dev/firstlight/sharing/fit"
	"github.com/firstlight-dev/firstlight/sharing/wire"
)

// Ledger is the account of every card: what it has, and which pod holds what of
// it. Its methods are safe for concurrent use and do no I/O.
type Ledger struct {
	now func() time.Time

	mu    sync.Mutex
	nodes map[string]*node       // guarded by mu
	pods  map[types.UID]*holding // guarded by mu
}

// node is one node's account. closed says why it takes no new work, if it does
// not; cards it registered stay known.
type node struct {
	cards    []wire.Device
	cordoned map[string]bool
	closed   string
	used     map[string]fit.Charge // by card, including cards that are gone
	blockers map[types.UID]string  // pods that hold an unknown amount
}

// PodKey names a pod object.
type PodKey struct {
	UID             types.UID
	Namespace, Name string
}

// holding is what one pod holds.
type holding struct {
	pod     PodKey
	node    string
	devices wire.PodDevices
	charges []fit.Charge
	blocker string // set instead of devices when they can't be read
	state   state
	expires time.Time // of a reservation
}

// state is how sure a holding is.
type state int

const (
	reserved state = iota // by Filter, until it expires
	binding               // a Bind is at work with it
	assumed               // bound by us, not seen by the watch yet
	observed              // seen on the API server
)

// NewLedger returns an empty account.
func NewLedger(now func() time.Time) *Ledger {
	return &Ledger{now: now, nodes: map[string]*node{}, pods: map[types.UID]*holding{}}
}

// NodeFacts is what a node object says about its cards.
type NodeFacts struct {
	Cards    []wire.Device
	Cordoned []string
	Closed   string // why the node takes no new work, empty if it does
}

// SetNode records a node.
func (l *Ledger) SetNode(name string, f NodeFacts) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.node(name)
	n.cards, n.closed = f.Cards, f.Closed
	n.cordoned = make(map[string]bool, len(f.Cordoned))
	for _, uuid := range f.Cordoned {
		n.cordoned[uuid] = true
	}
}

// notRegistered is HAMi's text for a node without cards.
const notRegistered = "node unregistered"

// RemoveNode forgets a node's cards. What pods hold of them stays in the
// account until the pods go.
func (l *Ledger) RemoveNode(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := l.nodes[name]; n != nil {
		n.cards, n.cordoned, n.closed = nil, nil, notRegistered
		l.drop(name)
	}
}

// node returns the account of a node. The caller holds mu.
func (l *Ledger) node(name string) *node {
	n := l.nodes[name]
	if n == nil {
		n = &node{used: map[string]fit.Charge{}, blockers: map[types.UID]string{}, closed: notRegistered}
		l.nodes[name] = n
	}
	return n
}

// drop frees the account of a node that holds nothing any more.
func (l *Ledger) drop(name string) {
	if n := l.nodes[name]; n != nil && n.cards == nil && len(n.used) == 0 && len(n.blockers) == 0 {
		delete(l.nodes, name)
	}
}

// usage returns the cards of a node with what is taken. The caller holds mu.
func (n *node) usage() []fit.Usage {
	cards := make([]fit.Usage, len(n.cards))
	for i, d := range n.cards {
		cards[i] = fit.Usage{Device: d, Cordoned: n.cordoned[d.UUID]}
		cards[i].Take(n.used[d.UUID], 1)
	}
	return cards
}

// refuses says why a node takes no new work. The caller holds mu.
func (n *node) refuses() string {
	if n.closed != "" {
		return n.closed
	}
	if len(n.blockers) > 0 {
		uids := slices.Sorted(maps.Keys(n.blockers))
		return n.blockers[uids[0]]
	}
	return ""
}

// put and take out a holding. The caller holds mu.
func (l *Ledger) put(h *holding) {
	l.pods[h.pod.UID] = h
	n := l.node(h.node)
	if h.blocker != "" {
		n.blockers[h.pod.UID] = h.blocker
		return
	}
	for _, c := range h.charges {
		n.charge(c, 1)
	}
}

func (l *Ledger) takeOut(uid types.UID) {
	h := l.pods[uid]
	if h == nil {
		return
	}
	delete(l.pods, uid)
	n := l.node(h.node)
	delete(n.blockers, uid)
	if h.blocker == "" {
		for _, c := range h.charges {
			n.charge(c, -1)
		}
	}
	l.drop(h.node)
}

func (n *node) charge(c fit.Charge, sign int) {
	u := fit.Usage{}
	u.Take(n.used[c.UUID], 1)
	u.Take(c, sign)
	if u.UsedSlots == 0 && u.UsedMemMiB == 0 && u.UsedCores == 0 {
		delete(n.used, c.UUID)
		return
	}
	n.used[c.UUID] = fit.Charge{UUID: c.UUID, MemMiB: u.UsedMemMiB, Cores: u.UsedCores, Slots: u.UsedSlots}
}

// expire drops reservations whose time is over. The caller holds mu.
func (l *Ledger) expire() {
	now := l.now()
	for uid, h := range l.pods {
		if h.state == reserved && !now.Before(h.expires) {
			l.takeOut(uid)
		}
	}
}

// Choice is the outcome of Reserve.
type Choice struct {
	Node    string            // empty if no node fits
	Fitting []Scored          // all nodes that fit, best first
	Failed  map[string]string // why the others do not
}

// Scored is a node that fits and how full it was before.
type Scored struct {
	Node  string
	Score float64
}

// Policies steer one choice.
type Policies struct{ Node, Card fit.Policy }

// Reserve fits a pod on the candidates and holds cards on the best until ttl has
// passed. An earlier reservation of the same pod is given back first. With a ttl
// of 0 it only looks.
func (l *Ledger) Reserve(pod PodKey, d demand.Demand, p Policies, candidates []string, ttl time.Duration) Choice {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.expire()
	var earlier *holding
	if h := l.pods[pod.UID]; h != nil {
		if h.state != reserved {
			return l.keep(h, candidates)
		}
		earlier = h
		l.takeOut(pod.UID)
	}
	choice := Choice{Failed: map[string]string{}}
	allocations := map[string]fit.Allocation{}
	for _, name := range candidates {
		n := l.nodes[name]
		if n == nil {
			choice.Failed[name] = notRegistered
			continue
		}
		if why := n.refuses(); why != "" {
			choice.Failed[name] = why
			continue
		}
		cards := n.usage()
		a, refusal := fit.Pick(cards, d.Requests, p.Card)
		if refusal != nil {
			choice.Failed[name] = refusal.String()
			continue
		}
		allocations[name] = a
		choice.Fitting = append(choice.Fitting, Scored{name, fit.Score(cards)})
	}
	sortScored(choice.Fitting, p.Node)
	if len(choice.Fitting) > 0 {
		choice.Node = choice.Fitting[0].Node
	}
	switch {
	case ttl == 0 && earlier != nil:
		l.put(earlier)
	case ttl > 0 && choice.Node != "":
		a := allocations[choice.Node]
		l.put(&holding{
			pod: pod, node: choice.Node, devices: a, charges: fit.Charges(a, d.Roles()),
			state: reserved, expires: l.now().Add(ttl),
		})
	}
	return choice
}

// keep answers for a pod that already is on its way to a node.
func (l *Ledger) keep(h *holding, candidates []string) Choice {
	choice := Choice{Failed: map[string]string{}}
	for _, name := range candidates {
		if name == h.node {
			choice.Node = name
			choice.Fitting = []Scored{{Node: name}}
			continue
		}
		choice.Failed[name] = "pod is being bound to node " + h.node
	}
	return choice
}

func sortScored(s []Scored, p fit.Policy) {
	slices.SortFunc(s, func(a, b Scored) int {
		order := cmp.Compare(b.Score, a.Score)
		if p.Spread {
			order = -order
		}
		return cmp.Or(order, strings.Compare(a.Node, b.Node))
	})
}

// BeginBind returns the allocation with which to bind the pod to a node. If the
// reservation is gone or names another node, the pod is fitted again.
func (l *Ledger) BeginBind(pod PodKey, d demand.Demand, p Policies, name string) (wire.PodDevices, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.expire()
	if h := l.pods[pod.UID]; h != nil {
		if h.state != reserved {
			return nil, fmt.Errorf("pod %s/%s is already being bound to node %s", pod.Namespace, pod.Name, h.node)
		}
		if h.node == name {
			h.state = binding
			return h.devices, nil
		}
		l.takeOut(pod.UID)
	}
	n := l.nodes[name]
	if n == nil {
		return nil, fmt.Errorf("node %s: %s", name, notRegistered)
	}
	if why := n.refuses(); why != "" {
		return nil, fmt.Errorf("node %s: %s", name, why)
	}
	a, refusal := fit.Pick(n.usage(), d.Requests, p.Card)
	if refusal != nil {
		return nil, fmt.Errorf("node %s: %s", name, refusal)
	}
	l.put(&holding{pod: pod, node: name, devices: a, charges: fit.Charges(a, d.Roles()), state: binding})
	return a, nil
}

// EndBind says how a bind went. A bound pod keeps its cards; a pod that surely
// is not bound gives them back.
func (l *Ledger) EndBind(uid types.UID, bound bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := l.pods[uid]
	switch {
	case h == nil || h.state != binding:
		// The watch was faster, or the pod is gone.
	case bound:
		h.state, h.expires = assumed, l.now().Add(assumedFor)
	default:
		l.takeOut(uid)
	}
}

// assumedFor is how long the watch may take to show a pod that we bound before
// Unconfirmed lists it.
const assumedFor = 2 * time.Minute

// doubtFor is how long a request whose answer got lost may still be at work on
// the API server, whose own request limit is a minute.
const doubtFor = time.Minute

// DoubtBind leaves a bind open whose outcome nobody knows: the cards stay taken
// until the watch shows the pod or Unconfirmed has it looked up.
func (l *Ledger) DoubtBind(uid types.UID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if h := l.pods[uid]; h != nil && h.state == binding {
		h.state, h.expires = assumed, l.now().Add(doubtFor)
	}
}

// Unconfirmed returns pods that were assumed bound long ago and never seen.
func (l *Ledger) Unconfirmed() []PodKey {
	l.mu.Lock()
	defer l.mu.Unlock()
	var keys []PodKey
	for _, h := range l.pods {
		if h.state == assumed && !l.now().Before(h.expires) {
			keys = append(keys, h.pod)
		}
	}
	return keys
}

// Forget drops an assumed pod that turned out not to be bound.
func (l *Ledger) Forget(uid types.UID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if h := l.pods[uid]; h != nil && h.state == assumed {
		l.takeOut(uid)
	}
}

// Observe records a bound pod as the API server shows it.
func (l *Ledger) Observe(pod PodKey, name string, devices wire.PodDevices, roles []fit.Role) {
	l.replace(&holding{pod: pod, node: name, devices: devices, charges: fit.Charges(devices, roles), state: observed})
}

// Block records a bound pod that holds nobody knows what.
func (l *Ledger) Block(pod PodKey, name, why string) {
	l.replace(&holding{pod: pod, node: name, blocker: why, state: observed})
}

func (l *Ledger) replace(h *holding) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.takeOut(h.pod.UID)
	l.put(h)
}

// Remove gives back what a pod holds: its object is gone or its phase final.
func (l *Ledger) Remove(uid types.UID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.takeOut(uid)
}
