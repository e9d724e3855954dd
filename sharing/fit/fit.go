// Package fit decides which cards serve a pod's vGPUs, and says why a card
// can't. It is pure: no clock, no I/O, no goroutines, no randomness, so the same
// input gives the same answer in a scheduler, a launcher and a test.
//
// # Model
//
// A node has cards ([Usage]: what a card has and what is taken). A pod has
// containers ([Request]), in the order init containers first, then the others.
// A container asks for Count vGPUs of equal size; they land on Count different
// cards. Memory is never summed over cards.
//
// # What a pod is charged
//
// Init containers run one after another, each beside the restartable ones
// (sidecars) started before it; afterwards all sidecars and app containers run
// together. A card is charged the largest of these moments ([Charges]), never
// their sum. The charge does not shrink when init containers have ended,
// because a restarted sandbox runs them again.
//
// # Invariants
//
//   - The charges of an allocation that [Pick] returns fit into what is free on
//     every card: memory, cores and slots.
//   - Two vGPUs of one container are on different cards.
//   - Equal cards are taken in the order of their index, then UUID.
package fit

import (
	"cmp"
	"slices"
	"strings"

	"github.com/firstlight-dev/firstlight/sharing/wire"
)

// Usage is a card and what is taken of it.
type Usage struct {
	wire.Device
	UsedMemMiB int
	UsedCores  int
	UsedSlots  int
	Cordoned   bool // closed to new work; what runs stays
}

// Role says when a container runs beside the others of its pod.
type Role int

// The roles.
const (
	App     Role = iota // runs beside all other app containers and sidecars
	Init                // runs alone, but for the sidecars started before it
	Sidecar             // a restartable init container: runs from its turn to the end
)

// Request is what one container asks for.
type Request struct {
	Role       Role
	Count      int // vGPUs, 0 for a container without any
	MemMiB     int // per vGPU; wins over MemPercent
	MemPercent int // of the card it lands on; with MemMiB also 0, the whole memory
	Cores      int // percent; 100 wants a card that nobody else uses

	UseUUIDs, AvoidUUIDs []string // exact; empty means no constraint
	UseTypes, AvoidTypes []string // substring of the card's type, in any case
	Modes                string   // must contain the card's mode; empty means any
	NumaBind             bool     // all cards from one NUMA node
}

// Policy is the order in which cards or nodes are preferred.
type Policy struct {
	Spread   bool // least used first; otherwise most used first
	IdleOnly bool // only cards that nobody uses
}

// ParsePolicy knows binpack, spread and mutex (idle cards only).
func ParsePolicy(s string) (Policy, bool) {
	switch s {
	case "binpack":
		return Policy{}, true
	case "spread":
		return Policy{Spread: true}, true
	case "mutex":
		return Policy{Spread: true, IdleOnly: true}, true
	}
	return Policy{}, false
}

// Allocation is the vGPUs of a pod, one element per Request.
type Allocation = wire.PodDevices

// Pick chooses cards for every container of a pod on one node. Exactly one of
// the results is nil. Containers are served in order, each taking the first
// cards by policy that fit; it does not go back on a choice.
func Pick(cards []Usage, requests []Request, policy Policy) (Allocation, *Refusal) {
	p := plan{base: cards, policy: policy, moments: newMoments(len(cards))}
	allocation := make(Allocation, len(requests))
	for i, r := range requests {
		if r.Count <= 0 {
			continue
		}
		chosen, refusal := p.choose(r)
		if refusal != nil {
			refusal.Container = i
			return nil, refusal
		}
		for _, c := range chosen {
			mem := r.memory(cards[c].MemMiB)
			cores := r.cores()
			p.moments.add(r.Role, c, taken{mem: mem, cores: cores, slots: 1})
			allocation[i] = append(allocation[i], wire.ContainerDevice{
				UUID: cards[c].UUID, Type: wire.Vendor, MemMiB: mem, Cores: cores,
			})
		}
	}
	return allocation, nil
}

// Explain judges each card for one container, without choosing.
func Explain(cards []Usage, r Request, policy Policy) []Verdict {
	p := plan{base: cards, policy: policy, moments: newMoments(len(cards))}
	return p.judge(r, anyNUMA)
}

// Score is how full a node or a single card is: HAMi's figure, 0 when idle, 30
// when slots, cores and memory are all taken.
func Score(cards []Usage) float64 {
	var used, all taken
	for _, c := range cards {
		used = used.plus(taken{c.UsedMemMiB, c.UsedCores, c.UsedSlots})
		all = all.plus(taken{c.MemMiB, c.Cores, c.Slots})
	}
	return 10 * (ratio(used.slots, all.slots) + ratio(used.cores, all.cores) + ratio(used.mem, all.mem))
}

func ratio(part, whole int) float64 {
	if whole <= 0 {
		return 0
	}
	return float64(part) / float64(whole)
}

func (r Request) memory(total int) int {
	switch {
	case r.MemMiB > 0:
		return r.MemMiB
	case r.MemPercent > 0 && r.MemPercent < 100:
		return int(int64(total) * int64(r.MemPercent) / 100)
	}
	return total
}

func (r Request) cores() int { return min(max(r.Cores, 0), 100) }

// plan is a pod half placed on a node.
type plan struct {
	base    []Usage
	policy  Policy
	moments moments
}

// anyNUMA lets judge look at cards of all NUMA nodes.
const anyNUMA = -1 << 31

// choose returns r.Count cards, by position, or why there are too few.
func (p *plan) choose(r Request) ([]int, *Refusal) {
	if !r.NumaBind {
		return p.chooseFrom(r, anyNUMA)
	}
	for _, n := range p.numaNodes(r.Role) {
		if chosen, refusal := p.chooseFrom(r, n); refusal == nil {
			return chosen, nil
		}
	}
	// Explain over all cards: if enough of them fit, only NUMA is in the way.
	_, refusal := p.chooseFrom(r, anyNUMA)
	if refusal == nil {
		verdicts := p.judge(r, anyNUMA)
		for i := range verdicts {
			if len(verdicts[i].Reasons) == 0 {
				verdicts[i].Reasons = []Reason{{Code: NumaNotFit}}
			}
		}
		refusal = &Refusal{Want: r.Count, Cards: verdicts}
	}
	return nil, refusal
}

func (p *plan) chooseFrom(r Request, numa int) ([]int, *Refusal) {
	verdicts := p.judge(r, numa)
	var fitting []int
	for i, v := range verdicts {
		if len(v.Reasons) == 0 {
			fitting = append(fitting, i)
		}
	}
	if len(fitting) < r.Count {
		return nil, &Refusal{Want: r.Count, Found: len(fitting), Cards: verdicts}
	}
	p.order(r.Role, fitting)
	return fitting[:r.Count], nil
}

// order sorts cards, by position, as the policy prefers them.
func (p *plan) order(role Role, cards []int) {
	score := make(map[int]float64, len(cards))
	for _, c := range cards {
		score[c] = Score([]Usage{p.now(role, c)})
	}
	slices.SortFunc(cards, func(a, b int) int {
		order := cmp.Compare(score[b], score[a])
		if p.policy.Spread {
			order = -order
		}
		return cmp.Or(order, cmp.Compare(p.base[a].Index, p.base[b].Index), strings.Compare(p.base[a].UUID, p.base[b].UUID))
	})
}

// numaNodes lists the NUMA nodes in the order of their best card.
func (p *plan) numaNodes(role Role) []int {
	all := make([]int, len(p.base))
	for i := range all {
		all[i] = i
	}
	p.order(role, all)
	var nodes []int
	for _, c := range all {
		if !slices.Contains(nodes, p.base[c].NUMA) {
			nodes = append(nodes, p.base[c].NUMA)
		}
	}
	return nodes
}

// now returns card c as a container of the role would find it.
func (p *plan) now(role Role, c int) Usage {
	u := p.base[c]
	t := p.moments.beside(role, c)
	u.UsedMemMiB += t.mem
	u.UsedCores += t.cores
	u.UsedSlots += t.slots
	return u
}

func (p *plan) judge(r Request, numa int) []Verdict {
	verdicts := make([]Verdict, len(p.base))
	for i := range p.base {
		u := p.now(r.Role, i)
		verdicts[i] = Verdict{UUID: u.UUID, Index: u.Index, Reasons: judge(u, r, p.policy)}
		if numa != anyNUMA && u.NUMA != numa {
			verdicts[i].Reasons = append(verdicts[i].Reasons, Reason{Code: NumaNotFit})
		}
	}
	return verdicts
}
