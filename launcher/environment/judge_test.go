package environment

import (
	"errors"
	"testing"

	"github.com/firstlight-dev/firstlight/launcher/cluster"
	"github.com/firstlight-dev/firstlight/launcher/store"
)

// TestJudge says how an environment that was usable stands.
func TestJudge(t *testing.T) {
	for name, tc := range map[string]struct {
		seen   cluster.Observed
		there  bool
		err    error
		phase  store.Phase
		reason string
	}{
		"runs":         {seen: cluster.Observed{State: cluster.StateRunning}, there: true, phase: store.PhaseUsable},
		"ended":        {seen: cluster.Observed{State: cluster.StateExited, ExitCode: 3}, there: true, phase: store.PhaseDegraded, reason: "exited"},
		"killed":       {seen: cluster.Observed{State: cluster.StateExited, Reason: "OOMKilled"}, there: true, phase: store.PhaseDegraded, reason: "OOMKilled"},
		"restarting":   {seen: cluster.Observed{State: cluster.StatePending}, there: true, phase: store.PhaseDegraded, reason: "restarting"},
		"gone":         {phase: store.PhaseDegraded, reason: "missing"},
		"node lost":    {seen: cluster.Observed{State: cluster.StateUnknown, Reason: "NodeLost"}, there: true, phase: store.PhaseUnknown, reason: "NodeLost"},
		"cluster lost": {err: errors.New("refused"), phase: store.PhaseUnknown, reason: string(cluster.CodeUnreachable)},
		"not allowed":  {err: cluster.Fail(cluster.CodeForbidden, "no"), phase: store.PhaseUnknown, reason: string(cluster.CodeForbidden)},
	} {
		t.Run(name, func(t *testing.T) {
			phase, reason, _ := judge(tc.seen, tc.there, tc.err)
			if phase != tc.phase || reason != tc.reason {
				t.Errorf("it is %s (%s), want %s (%s)", phase, reason, tc.phase, tc.reason)
			}
		})
	}
}
