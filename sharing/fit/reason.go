package fit

import (
	"fmt"
	"slices"
	"strings"

	"github.com/firstlight-dev/firstlight/sharing/wire"
)

// Code names what a card or node lacks. The values are HAMi's, which its users
// search for.
type Code string

// The codes of cards.
const (
	CardNotHealthy       Code = "CardNotHealth"
	CardCordoned         Code = "CardCordoned"
	CardTypeMismatch     Code = "CardTypeMismatch"
	CardUUIDMismatch     Code = "CardUuidMismatch"
	CardSlotsExhausted   Code = "CardTimeSlicingExhausted"
	CardCoresExhausted   Code = "CardComputeUnitsExhausted"
	CardShortOfMemory    Code = "CardInsufficientMemory"
	CardShortOfCores     Code = "CardInsufficientCore"
	CardNotExclusive     Code = "ExclusiveDeviceAllocateConflict"
	CardMIGNotSupported  Code = "CardMigTopologyInfeasible"
	ModeNotFit           Code = "ModeNotFit"
	NumaNotFit           Code = "NumaNotFit"
	CardsTooFewFitting   Code = "AllocatedCardsInsufficientRequest" // of a node: some cards fit, not enough
	NodeHasTooFewDevices Code = "NodeInsufficientDevice"            // of a node: fewer cards than asked for
)

// Reason is one thing a card lacks. The numbers are in MiB, percent or slots,
// and zero where the code has none.
type Reason struct {
	Code Code
	Need int
	Free int
	Of   int // what the card has in all
}

// String gives the numbers in words, without the code.
func (r Reason) String() string {
	switch r.Code {
	case CardShortOfMemory:
		return fmt.Sprintf("needs %d MiB, free %d of %d", r.Need, r.Free, r.Of)
	case CardShortOfCores:
		return fmt.Sprintf("needs %d%% cores, free %d of %d", r.Need, r.Free, r.Of)
	case CardSlotsExhausted:
		return fmt.Sprintf("all %d slots taken", r.Of)
	case CardCoresExhausted:
		return fmt.Sprintf("all %d%% cores taken", r.Of)
	case CardNotExclusive:
		return "needs the card alone, others use it"
	case CardNotHealthy:
		return "unhealthy"
	case CardCordoned:
		return "cordoned"
	case CardTypeMismatch:
		return "type not wanted"
	case CardUUIDMismatch:
		return "UUID not wanted"
	case CardMIGNotSupported:
		return "in MIG mode, which is not scheduled here"
	case ModeNotFit:
		return "mode not wanted"
	case NumaNotFit:
		return "not enough cards on its NUMA node"
	}
	return string(r.Code)
}

// Verdict is what one card lacks, in HAMi's order of checks. No reasons: it fits.
type Verdict struct {
	UUID    string
	Index   int
	Reasons []Reason
}

// String is "GPU-…0 needs 45000 MiB, free 25960 of 40960".
func (v Verdict) String() string {
	if len(v.Reasons) == 0 {
		return v.UUID + " fits"
	}
	words := make([]string, len(v.Reasons))
	for i, r := range v.Reasons {
		words[i] = r.String()
	}
	return v.UUID + " " + strings.Join(words, ", ")
}

// Refusal is why a node can't serve a pod.
type Refusal struct {
	Container   int // the first container, by position in the requests, that does not fit
	Want, Found int // vGPUs it asked for, cards that would do
	Cards       []Verdict
}

// Count is how many cards lack something.
type Count struct {
	Code  Code
	Cards int
}

// Counts sums the verdicts up, ordered by code.
func (r *Refusal) Counts() []Count {
	cards := map[Code]int{}
	for _, v := range r.Cards {
		for _, reason := range v.Reasons {
			cards[reason.Code]++
		}
	}
	var counts []Count
	for code, n := range cards {
		counts = append(counts, Count{code, n})
	}
	slices.SortFunc(counts, func(a, b Count) int { return strings.Compare(string(a.Code), string(b.Code)) })
	if r.Found > 0 {
		counts = append(counts, Count{CardsTooFewFitting, r.Found})
	}
	return counts
}

// Summary is HAMi's text for a node: "2/2 CardInsufficientMemory".
func (r *Refusal) Summary() string {
	var parts []string
	if len(r.Cards) < r.Want {
		parts = append(parts, string(NodeHasTooFewDevices))
	}
	for _, c := range r.Counts() {
		parts = append(parts, fmt.Sprintf("%d/%d %s", c.Cards, len(r.Cards), c.Code))
	}
	return strings.Join(parts, ", ")
}

// String is the summary followed by what each card lacks.
func (r *Refusal) String() string {
	if len(r.Cards) == 0 {
		return r.Summary()
	}
	words := make([]string, len(r.Cards))
	for i, v := range r.Cards {
		words[i] = v.String()
	}
	return r.Summary() + " (" + strings.Join(words, "; ") + ")"
}

// judge returns everything that keeps a card from serving a container.
func judge(u Usage, r Request, policy Policy) []Reason {
	var reasons []Reason
	add := func(bad bool, reason Reason) {
		if bad {
			reasons = append(reasons, reason)
		}
	}
	add(!u.Healthy, Reason{Code: CardNotHealthy})
	add(u.Cordoned, Reason{Code: CardCordoned})
	add(!typeWanted(u.Type, r), Reason{Code: CardTypeMismatch})
	add(u.Mode == wire.ModeMIG, Reason{Code: CardMIGNotSupported})
	add(r.Modes != "" && !strings.Contains(r.Modes, u.Mode), Reason{Code: ModeNotFit})
	add(!uuidWanted(u.UUID, r), Reason{Code: CardUUIDMismatch})
	add(u.UsedSlots >= u.Slots, Reason{Code: CardSlotsExhausted, Need: 1, Of: u.Slots})

	need, free := r.memory(u.MemMiB), max(u.MemMiB-u.UsedMemMiB, 0)
	add(need > u.MemMiB-u.UsedMemMiB, Reason{Code: CardShortOfMemory, Need: need, Free: free, Of: u.MemMiB})

	cores, left := r.cores(), u.Cores-u.UsedCores
	add(cores > left, Reason{Code: CardShortOfCores, Need: cores, Free: max(left, 0), Of: u.Cores})
	add(cores == 0 && left <= 0, Reason{Code: CardCoresExhausted, Of: u.Cores})
	alone := policy.IdleOnly || cores == 100 && u.Cores == 100
	add(alone && u.UsedSlots > 0 && cores <= left, Reason{Code: CardNotExclusive})
	return reasons
}

func typeWanted(cardType string, r Request) bool {
	cardType = strings.ToLower(cardType)
	in := func(s string) bool { return strings.Contains(cardType, strings.ToLower(s)) }
	return (len(r.UseTypes) == 0 || slices.ContainsFunc(r.UseTypes, in)) && !slices.ContainsFunc(r.AvoidTypes, in)
}

func uuidWanted(uuid string, r Request) bool {
	return (len(r.UseUUIDs) == 0 || slices.Contains(r.UseUUIDs, uuid)) && !slices.Contains(r.AvoidUUIDs, uuid)
}
