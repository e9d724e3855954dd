package scheduler_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/apimachinery/pkg/types"

	"github.com/firstlight-dev/firstlight/sharing/demand"
	"github.com/firstlight-dev/firstlight/sharing/fit"
	"github.com/firstlight-dev/firstlight/sharing/scheduler"
	"github.com/firstlight-dev/firstlight/sharing/wire"
)

// clock is moved by hand.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) pass(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

func key(n int) scheduler.PodKey {
	return scheduler.PodKey{UID: types.UID(fmt.Sprint("uid-", n)), Namespace: "team", Name: fmt.Sprint("p", n)}
}

func want(mem int) demand.Demand {
	return demand.Demand{Requests: []fit.Request{{Count: 1, MemMiB: mem, Cores: 10}}}
}

func ledger(now func() time.Time, nodes ...string) *scheduler.Ledger {
	l := scheduler.NewLedger(now)
	inv := wire.Inventory{Devices: []wire.CardGroup{{Model: "NVIDIA A100", MemoryMiB: 40960, Count: 2, Slots: 4}}}
	for _, name := range nodes {
		cards, err := inv.Cards(name)
		if err != nil {
			panic(err)
		}
		l.SetNode(name, scheduler.NodeFacts{Cards: cards})
	}
	return l
}

func total(t *testing.T, l *scheduler.Ledger) (mem int) {
	t.Helper()
	nodes, _ := l.Snapshot()
	for _, n := range nodes {
		for _, u := range n.Cards {
			if u.UsedMemMiB > u.MemMiB || u.UsedCores > u.Cores || u.UsedSlots > u.Slots || u.UsedMemMiB < 0 || u.UsedSlots < 0 {
				t.Fatalf("account is wrong: %+v", u)
			}
			mem += u.UsedMemMiB
		}
	}
	return mem
}

func TestReservationsExpire(t *testing.T) {
	c := &clock{now: time.Unix(1_800_000_000, 0)}
	l := ledger(c.Now, "n1")
	if got := l.Reserve(key(1), want(30000), scheduler.Policies{}, []string{"n1"}, time.Minute); got.Node != "n1" {
		t.Fatalf("choice = %+v", got)
	}
	// Asking again moves the promise, it does not double it.
	l.Reserve(key(1), want(20000), scheduler.Policies{}, []string{"n1"}, time.Minute)
	if got := total(t, l); got != 20000 {
		t.Errorf("reserved %d MiB, want 20000", got)
	}
	c.pass(time.Minute)
	if got := total(t, l); got != 0 {
		t.Errorf("%d MiB outlive the reservation", got)
	}
	// A bind after that fits the pod again.
	if _, err := l.BeginBind(key(1), want(20000), scheduler.Policies{}, "n1"); err != nil {
		t.Error(err)
	}
	c.pass(time.Hour)
	if got := total(t, l); got != 20000 {
		t.Errorf("a bind at work holds %d MiB, want 20000", got)
	}
}

func TestUnconfirmedBinds(t *testing.T) {
	c := &clock{now: time.Unix(1_800_000_000, 0)}
	l := ledger(c.Now, "n1")
	if _, err := l.BeginBind(key(1), want(20000), scheduler.Policies{}, "n1"); err != nil {
		t.Fatal(err)
	}
	if _, err := l.BeginBind(key(1), want(20000), scheduler.Policies{}, "n1"); err == nil {
		t.Error("the pod is bound twice at once")
	}
	if got := l.Reserve(key(1), want(20000), scheduler.Policies{}, []string{"n0", "n1"}, time.Minute); got.Node != "n1" || got.Failed["n0"] == "" {
		t.Errorf("filter during the bind = %+v", got)
	}
	l.EndBind(key(1).UID, true)
	if len(l.Unconfirmed()) != 0 {
		t.Error("the watch had no time")
	}
	c.pass(time.Hour)
	if got := l.Unconfirmed(); len(got) != 1 || got[0] != key(1) {
		t.Errorf("unconfirmed = %v", got)
	}
	l.Forget(key(1).UID)
	if got := total(t, l); got != 0 {
		t.Errorf("a forgotten pod holds %d MiB", got)
	}
}

// Random schedulers, kubelets and watches at once: no card is ever over its
// limits, and when all pods are gone nothing is held.
func TestLedgerUnderConcurrency(t *testing.T) {
	const workers, rounds = 8, 400
	c := &clock{now: time.Unix(1_800_000_000, 0)}
	nodes := []string{"n1", "n2"}
	l := ledger(c.Now, nodes...)
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(w), 7))
			for i := range rounds {
				pod, d := key(w*rounds+i), want(1+rng.IntN(30000))
				p := scheduler.Policies{Node: fit.Policy{Spread: rng.IntN(2) == 0}, Card: fit.Policy{Spread: rng.IntN(2) == 0}}
				choice := l.Reserve(pod, d, p, nodes, time.Duration(1+rng.IntN(3))*time.Second)
				if rng.IntN(10) == 0 {
					c.pass(time.Second)
				}
				target := choice.Node
				if target == "" || rng.IntN(8) == 0 {
					target = nodes[rng.IntN(2)]
				}
				devices, err := l.BeginBind(pod, d, p, target)
				if err == nil {
					switch rng.IntN(3) {
					case 0:
						l.EndBind(pod.UID, false)
					case 1:
						l.Observe(pod, target, devices, nil)
						l.EndBind(pod.UID, true)
					case 2:
						l.EndBind(pod.UID, true)
						l.Observe(pod, target, devices, nil)
					}
				}
				total(t, l)
				if rng.IntN(4) > 0 {
					l.Remove(pod.UID)
				}
			}
			for i := range rounds {
				l.Remove(key(w*rounds + i).UID)
			}
		})
	}
	wg.Wait()
	if got := total(t, l); got != 0 {
		t.Errorf("%d MiB are held by nobody", got)
	}
}

func TestMetrics(t *testing.T) {
	l := ledger(time.Now, "n1")
	nodes, _ := l.Snapshot()
	uuid := nodes[0].Cards[0].UUID
	// Written by hand: the same card twice in one container.
	devices, err := wire.DecodePodDevices(";" + strings.Repeat(uuid+",NVIDIA,1000,10:", 2) + ";")
	if err != nil {
		t.Fatal(err)
	}
	l.Observe(key(1), "n1", devices, nil)
	card := `{device_index="0",device_type="NVIDIA A100",device_uuid="` + uuid + `",node="n1",zone="vGPU"}`
	expect := `
# HELP hami_gpu_shared_count vGPUs on a card.
# TYPE hami_gpu_shared_count gauge
hami_gpu_shared_count` + card + ` 2
hami_gpu_shared_count` + strings.NewReplacer(uuid, nodes[0].Cards[1].UUID, `index="0"`, `index="1"`).Replace(card) + ` 0
# HELP hami_vgpu_memory_allocated_bytes Memory allocated to a container on a card.
# TYPE hami_vgpu_memory_allocated_bytes gauge
hami_vgpu_memory_allocated_bytes{container_index="1",device_uuid="` + uuid + `",namespace="team",node="n1",pod="p1",zone="vGPU"} 2.097152e+09
`
	c := scheduler.NewCollector(l)
	if err := testutil.CollectAndCompare(c, strings.NewReader(expect), "hami_gpu_shared_count", "hami_vgpu_memory_allocated_bytes"); err != nil {
		t.Error(err)
	}
}
