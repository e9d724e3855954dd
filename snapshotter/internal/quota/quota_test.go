package quota

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
)

func TestLimits(t *testing.T) {
	p := New(Limits{Total: 4, Each: 3, Sure: 1})
	for i, want := range []bool{true, true, true, false} {
		if p.Try("a") != want {
			t.Errorf("slot %d of a", i)
		}
	}
	if !p.Try("b") || p.Try("b") {
		t.Error("b gets the fourth slot and no more")
	}
	if !p.Try("c") || p.Try("c") {
		t.Error("c is sure of one slot")
	}
	p.Release("a")
	if p.Try("b") { // 4 of 4 are taken
		t.Error("a slot more than there are")
	}
	p.Release("c")
	if !p.Try("b") {
		t.Error("no slot though one is free")
	}
}

// TestTurns: of owners that wait, one who wants much gets no more than others.
func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New(Limits{Total: 1, Each: 1, Sure: 1})
		p.limits.Sure = 0 // so that owners must wait for each other
		if err := p.Acquire(t.Context(), "first"); err != nil {
			t.Fatal(err)
		}
		var order []string
		var wg sync.WaitGroup
		for _, name := range []string{"greedy", "greedy", "greedy", "greedy", "modest", "greedy", "late"} {
			wg.Go(func() {
				if err := p.Acquire(t.Context(), name); err != nil {
					t.Error(err)
				}
				order = append(order, name) // only one has the slot
				p.Release(name)
			})
			synctest.Wait()
		}
		if used, waiting := p.Used(); used != 1 || waiting != 7 {
			t.Errorf("%d used, %d waiting", used, waiting)
		}
		p.Release("first")
		wg.Wait()
		if fmt.Sprint(order[:3]) != "[greedy modest late]" {
			t.Errorf("order: %v", order)
		}
		if len(p.owners) != 0 || p.turns.Len() != 0 || p.used != 0 {
			t.Errorf("left: %+v", p)
		}
	})
}

func TestGivingUp(t *testing.T) {
	p := New(Limits{Total: 1, Each: 1, Sure: 1})
	if !p.Try("a") {
		t.Fatal("no slot")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := p.Acquire(ctx, "a"); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if _, waiting := p.Used(); waiting != 0 {
		t.Error("who gave up waits")
	}
	p.Release("a")
	if len(p.owners) != 0 || p.used != 0 {
		t.Errorf("left: %+v", p)
	}
}

// TestInvariants: whatever owners do, the limits hold and nothing is lost.
func TestInvariants(t *testing.T) {
	l := Limits{Total: 10, Each: 4, Sure: 2}
	p := New(l)
	var total atomic.Int64
	var each [6]atomic.Int64
	var wg sync.WaitGroup
	for g := range 60 {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(g), 1))
			who := g % len(each)
			name := fmt.Sprint(who)
			for range 300 {
				ctx, cancel := context.WithCancel(t.Context())
				if rnd.IntN(4) == 0 {
					cancel()
				}
				if p.Acquire(ctx, name) == nil {
					if n := each[who].Add(1); n > int64(l.Each) {
						t.Errorf("an owner has %d slots", n)
					}
					if n := total.Add(1); n > int64(l.Total+l.Sure*len(each)) {
						t.Errorf("%d slots are taken", n)
					}
					each[who].Add(-1)
					total.Add(-1)
					p.Release(name)
				}
				cancel()
			}
		})
	}
	wg.Wait()
	if len(p.owners) != 0 || p.turns.Len() != 0 || p.used != 0 {
		t.Errorf("left: %d owners, %d in turn, %d used", len(p.owners), p.turns.Len(), p.used)
	}
}

func BenchmarkTry(b *testing.B) {
	p := New(Limits{Total: 512, Each: 128, Sure: 8})
	for b.Loop() {
		p.Try("a")
		p.Release("a")
	}
}
