package fit_test

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/firstlight-dev/firstlight/sharing/fit"
	"github.com/firstlight-dev/firstlight/sharing/wire"
)

func card(index int) fit.Usage {
	return fit.Usage{Device: wire.Device{
		UUID: "GPU-" + string(rune('a'+index)), Index: index, Slots: 10, MemMiB: 40960, Cores: 100,
		Type: "NVIDIA A100-SXM4-40GB", Mode: wire.ModeCore, Healthy: true,
	}}
}

func with(u fit.Usage, change func(*fit.Usage)) fit.Usage {
	change(&u)
	return u
}

func placed(a fit.Allocation) string {
	var b strings.Builder
	for _, c := range a {
		for _, d := range c {
			b.WriteString(strings.TrimPrefix(d.UUID, "GPU-"))
		}
		b.WriteByte(';')
	}
	return b.String()
}

// run places n pods one after another and returns the cards they got.
func run(t *testing.T, cards []fit.Usage, r fit.Request, p fit.Policy, n int) string {
	t.Helper()
	var order strings.Builder
	for range n {
		a, refusal := fit.Pick(cards, []fit.Request{r}, p)
		if refusal != nil {
			order.WriteByte('-')
			continue
		}
		order.WriteString(strings.TrimSuffix(placed(a), ";"))
		take(cards, fit.Charges(a, []fit.Role{r.Role}))
	}
	return order.String()
}

func take(cards []fit.Usage, charges []fit.Charge) {
	for _, c := range charges {
		for i := range cards {
			if cards[i].UUID == c.UUID {
				cards[i].Take(c, 1)
			}
		}
	}
}

func TestPolicies(t *testing.T) {
	big := fit.Request{Count: 1, MemMiB: 15000, Cores: 30}
	small := fit.Request{Count: 1, MemMiB: 10000, Cores: 30}
	for name, tc := range map[string]struct {
		policy string
		r      fit.Request
		want   string
	}{
		"spread":             {"spread", big, "abab-"},
		"binpack":            {"binpack", big, "aabb-"},
		"spread three small": {"spread", small, "ababab"},
		"binpack small":      {"binpack", small, "aaabbb"},
		"mutex":              {"mutex", small, "ab---"},
	} {
		t.Run(name, func(t *testing.T) {
			policy, ok := fit.ParsePolicy(tc.policy)
			if !ok {
				t.Fatal("unknown policy")
			}
			if got := run(t, []fit.Usage{card(0), card(1)}, tc.r, policy, len(tc.want)); got != tc.want {
				t.Errorf("cards = %s, want %s", got, tc.want)
			}
		})
	}
}

func TestRefusalNamesEachCard(t *testing.T) {
	cards := []fit.Usage{card(0), card(1)}
	cards[0].UsedMemMiB, cards[0].UsedCores, cards[0].UsedSlots = 15000, 30, 1
	_, refusal := fit.Pick(cards, []fit.Request{{Count: 1, MemMiB: 45000}}, fit.Policy{})
	if refusal == nil {
		t.Fatal("45000 MiB fit on a card of 40960")
	}
	const want = "2/2 CardInsufficientMemory (GPU-a needs 45000 MiB, free 25960 of 40960; GPU-b needs 45000 MiB, free 40960 of 40960)"
	if got := refusal.String(); got != want {
		t.Errorf("refusal:\n got %s\nwant %s", got, want)
	}
}

func TestReasons(t *testing.T) {
	for name, tc := range map[string]struct {
		card fit.Usage
		r    fit.Request
		p    fit.Policy
		want []fit.Code
	}{
		"fits":            {card(0), fit.Request{MemMiB: 1}, fit.Policy{}, nil},
		"unhealthy":       {with(card(0), func(u *fit.Usage) { u.Healthy = false }), fit.Request{MemMiB: 1}, fit.Policy{}, []fit.Code{fit.CardNotHealthy}},
		"cordoned":        {with(card(0), func(u *fit.Usage) { u.Cordoned = true }), fit.Request{MemMiB: 1}, fit.Policy{}, []fit.Code{fit.CardCordoned}},
		"mig":             {with(card(0), func(u *fit.Usage) { u.Mode = wire.ModeMIG }), fit.Request{MemMiB: 1}, fit.Policy{}, []fit.Code{fit.CardMIGNotSupported}},
		"mode":            {card(0), fit.Request{MemMiB: 1, Modes: "mps"}, fit.Policy{}, []fit.Code{fit.ModeNotFit}},
		"either mode":     {card(0), fit.Request{MemMiB: 1, Modes: "hami-core,mps"}, fit.Policy{}, nil},
		"type":            {card(0), fit.Request{MemMiB: 1, UseTypes: []string{"H100", "L4"}}, fit.Policy{}, []fit.Code{fit.CardTypeMismatch}},
		"type by part":    {card(0), fit.Request{MemMiB: 1, UseTypes: []string{"a100"}}, fit.Policy{}, nil},
		"avoided type":    {card(0), fit.Request{MemMiB: 1, AvoidTypes: []string{"a100"}}, fit.Policy{}, []fit.Code{fit.CardTypeMismatch}},
		"uuid":            {card(0), fit.Request{MemMiB: 1, UseUUIDs: []string{"GPU-b"}}, fit.Policy{}, []fit.Code{fit.CardUUIDMismatch}},
		"avoided uuid":    {card(0), fit.Request{MemMiB: 1, AvoidUUIDs: []string{"GPU-a"}}, fit.Policy{}, []fit.Code{fit.CardUUIDMismatch}},
		"slots":           {with(card(0), func(u *fit.Usage) { u.UsedSlots = 10 }), fit.Request{MemMiB: 1}, fit.Policy{}, []fit.Code{fit.CardSlotsExhausted}},
		"memory":          {with(card(0), func(u *fit.Usage) { u.UsedMemMiB = 40000 }), fit.Request{MemMiB: 961}, fit.Policy{}, []fit.Code{fit.CardShortOfMemory}},
		"memory just":     {with(card(0), func(u *fit.Usage) { u.UsedMemMiB = 40000 }), fit.Request{MemMiB: 960}, fit.Policy{}, nil},
		"percent":         {with(card(0), func(u *fit.Usage) { u.UsedMemMiB = 20481 }), fit.Request{MemPercent: 50}, fit.Policy{}, []fit.Code{fit.CardShortOfMemory}},
		"whole by defect": {with(card(0), func(u *fit.Usage) { u.UsedMemMiB = 1 }), fit.Request{}, fit.Policy{}, []fit.Code{fit.CardShortOfMemory}},
		"cores":           {with(card(0), func(u *fit.Usage) { u.UsedCores = 80 }), fit.Request{MemMiB: 1, Cores: 30}, fit.Policy{}, []fit.Code{fit.CardShortOfCores}},
		"cores full":      {with(card(0), func(u *fit.Usage) { u.UsedCores = 100 }), fit.Request{MemMiB: 1}, fit.Policy{}, []fit.Code{fit.CardCoresExhausted}},
		"exclusive":       {with(card(0), func(u *fit.Usage) { u.UsedSlots = 1 }), fit.Request{MemMiB: 1, Cores: 100}, fit.Policy{}, []fit.Code{fit.CardNotExclusive}},
		"exclusive above": {card(0), fit.Request{MemMiB: 1, Cores: 900}, fit.Policy{}, nil},
		"mutex":           {with(card(0), func(u *fit.Usage) { u.UsedSlots = 1 }), fit.Request{MemMiB: 1}, fit.Policy{IdleOnly: true}, []fit.Code{fit.CardNotExclusive}},
		"several":         {with(card(0), func(u *fit.Usage) { u.UsedMemMiB = 40960; u.UsedCores = 90 }), fit.Request{MemMiB: 1, Cores: 20}, fit.Policy{}, []fit.Code{fit.CardShortOfMemory, fit.CardShortOfCores}},
	} {
		t.Run(name, func(t *testing.T) {
			tc.r.Count = 1
			var got []fit.Code
			for _, r := range fit.Explain([]fit.Usage{tc.card}, tc.r, tc.p)[0].Reasons {
				got = append(got, r.Code)
				if r.String() == string(r.Code) {
					t.Errorf("reason %s has no words", r.Code)
				}
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("reasons (-want +got):\n%s", diff)
			}
		})
	}
}

func TestContainersOfOnePod(t *testing.T) {
	app := func(mem int) fit.Request { return fit.Request{Count: 1, MemMiB: mem} }
	as := func(role fit.Role, r fit.Request) fit.Request { r.Role = role; return r }
	two := fit.Request{Count: 2, MemMiB: 100}
	for name, tc := range map[string]struct {
		requests []fit.Request
		want     string
		charges  []fit.Charge
	}{
		"two vGPUs of one container never share": {
			[]fit.Request{two}, "ab;",
			[]fit.Charge{{"GPU-a", 100, 0, 1}, {"GPU-b", 100, 0, 1}},
		},
		"two containers may share": {
			[]fit.Request{{}, app(100), app(200)}, ";a;a;",
			[]fit.Charge{{"GPU-a", 300, 0, 2}},
		},
		"apps beyond a card": {
			[]fit.Request{app(30000), app(30000)}, "a;b;",
			[]fit.Charge{{"GPU-a", 30000, 0, 1}, {"GPU-b", 30000, 0, 1}},
		},
		"init takes turns": {
			[]fit.Request{as(fit.Init, app(40000)), as(fit.Init, app(30000)), app(20000)}, "a;a;a;",
			[]fit.Charge{{"GPU-a", 40000, 0, 1}},
		},
		"sidecar stays": {
			[]fit.Request{as(fit.Init, app(40000)), as(fit.Sidecar, app(20000)), as(fit.Init, app(20960)), app(20000)}, "a;a;a;a;",
			[]fit.Charge{{"GPU-a", 40960, 0, 2}},
		},
		"init beside a sidecar": {
			[]fit.Request{as(fit.Sidecar, app(20000)), as(fit.Init, app(20961)), app(20000)}, "a;b;a;",
			[]fit.Charge{{"GPU-a", 40000, 0, 2}, {"GPU-b", 20961, 0, 1}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			a, refusal := fit.Pick([]fit.Usage{card(0), card(1)}, tc.requests, fit.Policy{})
			if refusal != nil {
				t.Fatal(refusal)
			}
			if got := placed(a); got != tc.want {
				t.Errorf("cards = %s, want %s", got, tc.want)
			}
			if diff := cmp.Diff(tc.charges, fit.Charges(a, roles(tc.requests))); diff != "" {
				t.Errorf("charges (-want +got):\n%s", diff)
			}
		})
	}
}

func roles(requests []fit.Request) []fit.Role {
	r := make([]fit.Role, len(requests))
	for i := range requests {
		r[i] = requests[i].Role
	}
	return r
}

func TestTooFewCards(t *testing.T) {
	_, refusal := fit.Pick([]fit.Usage{card(0)}, []fit.Request{{}, {Count: 2, MemMiB: 1}}, fit.Policy{})
	if refusal == nil {
		t.Fatal("two vGPUs of one container on one card")
	}
	if got, want := refusal.Summary(), "NodeInsufficientDevice, 1/1 AllocatedCardsInsufficientRequest"; got != want || refusal.Container != 1 {
		t.Errorf("container %d: %s, want %s", refusal.Container, got, want)
	}
	if _, refusal := fit.Pick(nil, []fit.Request{{Count: 1}}, fit.Policy{}); refusal.String() != "NodeInsufficientDevice" {
		t.Errorf("no cards: %s", refusal)
	}
}

func TestNumaBind(t *testing.T) {
	cards := []fit.Usage{card(0), card(1), card(2), card(3)}
	cards[1].NUMA, cards[2].NUMA = 1, 1
	r := fit.Request{Count: 2, MemMiB: 30000, NumaBind: true}
	a, refusal := fit.Pick(cards, []fit.Request{r}, fit.Policy{})
	if refusal != nil || placed(a) != "ad;" {
		t.Fatalf("cards = %s, %v", placed(a), refusal)
	}
	cards[0].UsedMemMiB, cards[1].UsedMemMiB = 20000, 20000
	_, refusal = fit.Pick(cards, []fit.Request{r}, fit.Policy{})
	if refusal == nil || !strings.Contains(refusal.Summary(), "2/4 NumaNotFit") {
		t.Errorf("refusal = %v", refusal)
	}
}

func TestScoreIsHAMis(t *testing.T) {
	c := card(0)
	c.UsedMemMiB, c.UsedCores, c.UsedSlots = 15000, 30, 1
	if got := fit.Score([]fit.Usage{c}); got < 7.66209 || got > 7.66211 {
		t.Errorf("card score = %f", got)
	}
	if got := fit.Score([]fit.Usage{c, card(1)}); got < 3.83104 || got > 3.83106 {
		t.Errorf("node score = %f", got)
	}
	if got := fit.Score(nil); got != 0 {
		t.Errorf("empty node score = %f", got)
	}
}

// Random pods come and go; no card may ever be over its limits, every refusal
// must name a reason for enough cards, and the same input must give the same
// answer.
func TestNeverOverAllocates(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 1))
		cards := make([]fit.Usage, 1+rng.IntN(5))
		for i := range cards {
			cards[i] = card(i)
			cards[i].MemMiB, cards[i].Slots, cards[i].NUMA = 1000+rng.IntN(50000), 1+rng.IntN(5), rng.IntN(2)
			cards[i].Healthy = rng.IntN(8) > 0
		}
		var running [][]fit.Charge
		for range 60 {
			if len(running) > 0 && rng.IntN(4) == 0 {
				i := rng.IntN(len(running))
				for _, c := range running[i] {
					for k := range cards {
						if cards[k].UUID == c.UUID {
							cards[k].Take(c, -1)
						}
					}
				}
				running = append(running[:i], running[i+1:]...)
			}
			requests := randomPod(rng)
			policy := fit.Policy{Spread: rng.IntN(2) == 0, IdleOnly: rng.IntN(6) == 0}
			a, refusal := fit.Pick(cards, requests, policy)
			again, _ := fit.Pick(cards, requests, policy)
			if diff := cmp.Diff(a, again, cmpopts.EquateEmpty()); diff != "" {
				t.Fatalf("seed %d: second answer differs:\n%s", seed, diff)
			}
			if refusal != nil {
				checkRefusal(t, refusal)
				continue
			}
			checkAllocation(t, a, requests)
			charges := fit.Charges(a, roles(requests))
			take(cards, charges)
			running = append(running, charges)
			for _, c := range cards {
				if c.UsedMemMiB > c.MemMiB || c.UsedCores > c.Cores || c.UsedSlots > c.Slots {
					t.Fatalf("seed %d: over-allocated %+v", seed, c)
				}
			}
		}
	}
}

func randomPod(rng *rand.Rand) []fit.Request {
	requests := make([]fit.Request, 1+rng.IntN(4))
	for i := range requests {
		requests[i] = fit.Request{
			Role: fit.Role(rng.IntN(3)), Count: rng.IntN(3), MemMiB: rng.IntN(2) * rng.IntN(20000),
			MemPercent: rng.IntN(120), Cores: rng.IntN(2) * rng.IntN(130), NumaBind: rng.IntN(3) == 0,
		}
	}
	return requests
}

func checkAllocation(t *testing.T, a fit.Allocation, requests []fit.Request) {
	t.Helper()
	for i, r := range requests {
		if len(a[i]) != r.Count {
			t.Fatalf("container %d has %d vGPUs, asked for %d", i, len(a[i]), r.Count)
		}
		seen := map[string]bool{}
		for _, d := range a[i] {
			if seen[d.UUID] {
				t.Fatalf("container %d has two vGPUs on %s", i, d.UUID)
			}
			seen[d.UUID] = true
		}
	}
}

func checkRefusal(t *testing.T, r *fit.Refusal) {
	t.Helper()
	lacking := 0
	for _, v := range r.Cards {
		if len(v.Reasons) > 0 {
			lacking++
		}
	}
	if len(r.Cards)-lacking >= r.Want || r.Summary() == "" {
		t.Fatalf("refused %d although %d of %d cards fit: %s", r.Want, len(r.Cards)-lacking, len(r.Cards), r)
	}
}
