package agent_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/firstlight-dev/firstlight/launcher/agentapi"
)

func probes(list ...agentapi.Probe) func(*agentapi.Config) {
	return func(c *agentapi.Config) { c.Probes = list }
}

func TestProbeFirstSuccess(t *testing.T) {
	gate := filepath.Join(t.TempDir(), "gate")
	e := start(t, options{config: probes(agentapi.Probe{
		ID: "gated", Exec: []string{"sh", "-c", `test -e ` + gate + ` || { echo not yet >&2; exit 3; }; echo firstlight:$FIRSTLIGHT_PROBE_NONCE:import; echo noise; echo firstlight:wrong:level; echo the answer; echo firstlight:$FIRSTLIGHT_PROBE_NONCE:compute`},
		Expect: "the answer",
	})})
	lane := func(s *agentapi.Status) agentapi.Lane {
		l, ok := s.Lane("gated")
		if !ok {
			t.Fatal("no lane")
		}
		return l
	}
	st := e.until(t, "failed attempts", func(s *agentapi.Status) bool { return lane(s).Attempts >= 2 })
	if l := lane(st); l.State != agentapi.LanePending || !strings.Contains(l.LastError, "exit status 3: not yet") || l.Levels != nil {
		t.Errorf("pending lane = %+v", l)
	}
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	l := lane(e.until(t, "success", func(s *agentapi.Status) bool { return lane(s).State == agentapi.LaneSucceeded }))
	var ids []string
	from := l.Levels[0].Start
	for _, level := range l.Levels {
		ids = append(ids, level.ID)
		if level.Start != from || level.End < level.Start {
			t.Errorf("levels have gaps: %+v", l.Levels)
		}
		from = level.End
	}
	if diff := cmp.Diff([]string{"import", "compute", "exit"}, ids); diff != "" {
		t.Errorf("levels (-want +got):\n%s", diff)
	}
	if from != l.FirstSuccess || l.Uncertainty <= 0 || l.FirstSuccess.Sub(l.Levels[0].Start) > l.Uncertainty {
		t.Errorf("lane = %+v", l)
	}

	round, err := e.status.Confirm(t.Context())
	if err != nil || !round.OK || len(round.Results) != 1 || round.Started < l.FirstSuccess {
		t.Errorf("round = %+v, %v", round, err)
	}
	if err := os.Remove(gate); err != nil {
		t.Fatal(err)
	}
	if round, err = e.status.Confirm(t.Context()); err != nil || round.OK || !strings.Contains(round.Results[0].Error, "not yet") {
		t.Errorf("round after the gate closed = %+v, %v", round, err)
	}
	if l := lane(e.until(t, "status", func(s *agentapi.Status) bool { return s.Round != nil && !s.Round.OK })); l.State != agentapi.LaneSucceeded {
		t.Errorf("a failed round changed the lane: %+v", l)
	}
}

func TestProbeFailures(t *testing.T) {
	short := agentapi.Duration(50 * time.Millisecond)
	e := start(t, options{config: probes(
		agentapi.Probe{ID: "hangs", Exec: []string{"sh", "-c", "sleep 1000 & wait"}, Timeout: short, GiveUp: agentapi.Duration(time.Millisecond)},
		agentapi.Probe{ID: "missing", Exec: []string{"no-such-program"}, GiveUp: agentapi.Duration(time.Millisecond)},
		agentapi.Probe{ID: "other", Exec: []string{"echo", "something else"}, Expect: "the answer", GiveUp: agentapi.Duration(time.Millisecond)},
		agentapi.Probe{ID: "loud", Exec: []string{"sh", "-c", "head -c 300000 /dev/zero; exit 1"}, GiveUp: agentapi.Duration(time.Millisecond)},
		agentapi.Probe{ID: "plain", Exec: []string{"true"}},
	)})
	st := e.until(t, "end of all probes", func(s *agentapi.Status) bool {
		for _, l := range s.Lanes {
			if l.State == agentapi.LanePending {
				return false
			}
		}
		return true
	})
	for probe, text := range map[string]string{"hangs": "timed out", "missing": "not found", "other": "does not hold", "loud": "exit status 1"} {
		if l, _ := st.Lane(probe); l.State != agentapi.LaneGaveUp || !strings.Contains(l.LastError, text) {
			t.Errorf("%s = %+v, want %q", probe, l, text)
		}
	}
	if l, _ := st.Lane("hangs"); l.Timeouts == 0 {
		t.Errorf("hangs = %+v", l)
	}
	if l, _ := st.Lane("plain"); l.State != agentapi.LaneSucceeded || l.Uncertainty != 0 || l.Attempts != 1 || len(l.Levels) != 1 || l.Levels[0].ID != "run" {
		t.Errorf("plain = %+v", l)
	}
	// The whole process group of a probe that timed out is gone.
	eventually(t, "end of the sleep", func() bool {
		out, _, _ := e.run(t, "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c '[s]leep 1000'")
		return first(out) == "0"
	})
}

func TestProbeEnvironment(t *testing.T) {
	e := start(t, options{env: gpuEnv, config: probes(agentapi.Probe{ID: "limits", Exec: []string{"sh", "-c", "echo limit=$CUDA_DEVICE_MEMORY_LIMIT_0"}, Expect: "limit=10240m"})})
	e.until(t, "success", func(s *agentapi.Status) bool { return s.Lanes[0].State == agentapi.LaneSucceeded })
}

func TestStatusNeedsToken(t *testing.T) {
	e := start(t, options{})
	st, _, err := e.status.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if text := fmt.Sprintf("%+v", st); strings.Contains(text, "canary") || strings.Contains(text, "PRIVATE KEY") {
		t.Errorf("status holds a secret: %s", text)
	}
	stranger := agentapi.NewClient(e.dialStatus, "wrong")
	defer stranger.Close()
	if _, _, err := stranger.Status(t.Context()); err == nil {
		t.Error("wrong token was accepted")
	}
	if _, err := stranger.Confirm(t.Context()); err == nil {
		t.Error("wrong token was accepted")
	}
}
