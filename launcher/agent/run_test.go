package agent_test

import (
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/firstlight-dev/firstlight/launcher/agentapi"
	"github.com/firstlight-dev/firstlight/launcher/tunnel"
)

func exitPolicy(c *agentapi.Config) { c.App.Policy = agentapi.PolicyExit }

func TestExitCodes(t *testing.T) {
	tests := map[string]struct {
		command []string
		code    int
		app     agentapi.App
	}{
		"zero":          {[]string{"true"}, 0, agentapi.App{State: agentapi.AppExited}},
		"own code":      {[]string{"sh", "-c", "exit 42"}, 42, agentapi.App{State: agentapi.AppExited, ExitCode: 42}},
		"signal":        {[]string{"sh", "-c", "kill -KILL $$"}, 137, agentapi.App{State: agentapi.AppExited, ExitCode: 137, Signal: "SIGKILL"}},
		"not found":     {[]string{"no-such-program"}, 127, agentapi.App{State: agentapi.AppFailed, ExitCode: 127}},
		"no such path":  {[]string{"/no/such/program"}, 127, agentapi.App{State: agentapi.AppFailed, ExitCode: 127}},
		"not runnable":  {[]string{"/etc/passwd"}, 126, agentapi.App{State: agentapi.AppFailed, ExitCode: 126}},
		"relative path": {[]string{"./no/program"}, 127, agentapi.App{State: agentapi.AppFailed, ExitCode: 127}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := start(t, options{command: tt.command})
			st := e.until(t, "end of the app", func(s *agentapi.Status) bool { return s.App.State == tt.app.State })
			if st.App.ExitCode != tt.app.ExitCode || st.App.Signal != tt.app.Signal {
				t.Errorf("app = %+v, want %+v", st.App, tt.app)
			}
			if out, _, code := e.run(t, "echo here"); out != "here\n" || code != 0 {
				t.Errorf("session after the app's end: %q, %d", out, code)
			}
			e.signal(t, syscall.SIGTERM)
			if code := e.wait(t); code != tt.code {
				t.Errorf("exit code = %d, want %d", code, tt.code)
			}
		})
	}
}

// TestPolicyExit gates the app's end on a session, since an app that ends at
// once may end the agent before a test has seen it ready.
func TestPolicyExit(t *testing.T) {
	e := start(t, options{command: []string{"sh", "-c", "while ! [ -e /dev/shm/$$.end ]; do sleep 0.01; done; rm /dev/shm/$$.end; exit 42"}, config: exitPolicy})
	st := e.until(t, "start of the app", func(s *agentapi.Status) bool { return s.App.PID != 0 })
	c := e.login(t)
	// The agent may end before it has told this command's exit.
	_, _ = c.Run(t.Context(), fmt.Sprintf(": > /dev/shm/%d.end", st.App.PID), tunnel.Streams{})
	if code := e.wait(t); code != 42 {
		t.Errorf("exit code = %d, want the app's 42", code)
	}
}

func TestSignalsReachTheApp(t *testing.T) {
	const script = `trap 'echo got usr1' USR1; trap 'echo got hup' HUP; trap 'echo got term; exit 7' TERM; echo up; while :; do sleep 0.05; done`
	e := start(t, options{command: []string{"sh", "-c", script}})
	eventually(t, "start of the app", func() bool { return strings.Contains(e.stdout.String(), "up") })
	for sig, want := range map[syscall.Signal]string{syscall.SIGUSR1: "got usr1", syscall.SIGHUP: "got hup"} {
		e.signal(t, sig)
		eventually(t, want, func() bool { return strings.Contains(e.stdout.String(), want) })
	}
	e.signal(t, syscall.SIGTERM)
	if code := e.wait(t); code != 7 {
		t.Errorf("exit code = %d, want the app's 7", code)
	}
	if !strings.Contains(e.stdout.String(), "got term") {
		t.Errorf("app was not told to end: %q", e.stdout)
	}
}

func TestToolsOnly(t *testing.T) {
	e := start(t, options{})
	st, _, err := e.status.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if st.App.State != agentapi.AppNone {
		t.Errorf("app = %+v", st.App)
	}
	e.signal(t, syscall.SIGHUP) // for nobody: must not end PID 1
	if out, _, _ := e.run(t, "echo $PPID"); out != "1\n" {
		t.Errorf("parent of a session = %q, want PID 1", out)
	}
	e.signal(t, syscall.SIGTERM)
	if code := e.wait(t); code != 0 {
		t.Errorf("exit code = %d", code)
	}
}

func TestOrphansAreReaped(t *testing.T) {
	e := start(t, options{})
	const orphans = 50
	// Each inner shell ends at once and leaves its sleep to PID 1.
	if _, _, code := e.run(t, fmt.Sprintf("i=0; while [ $i -lt %d ]; do sh -c 'sleep 0.05 & true' >/dev/null 2>&1; i=$((i+1)); done", orphans)); code != 0 {
		t.Fatalf("exit code = %d", code)
	}
	st := e.until(t, "reaped orphans", func(s *agentapi.Status) bool { return s.Reaps >= orphans })
	if out, _, _ := e.run(t, "cat /proc/[0-9]*/stat 2>/dev/null | grep -c ') Z '"); first(out) != "0" {
		t.Errorf("zombies = %s after %d were reaped", out, st.Reaps)
	}
}

// TestReaperLeavesChildren starts many short children beside many orphans: no
// exit code may get lost.
func TestReaperLeavesChildren(t *testing.T) {
	e := start(t, options{command: []string{"sh", "-c", "while :; do sh -c 'true & true & true'; done"}})
	for i := range 100 {
		if _, _, code := e.run(t, fmt.Sprintf("sh -c 'true &'; exit %d", i)); code != i {
			t.Fatalf("exit code = %d, want %d", code, i)
		}
	}
	e.until(t, "reaped orphans", func(s *agentapi.Status) bool { return s.Reaps > 0 })
}

func TestStamps(t *testing.T) {
	e := start(t, options{command: []string{"sleep", "1000"}})
	e.until(t, "start of the app", func(s *agentapi.Status) bool { return s.App.Started != 0 })
	st, sample, err := e.status.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	order := []agentapi.BootTime{st.Start.Init, st.Start.Agent, st.Start.Ready, st.Now}
	for i := 1; i < len(order); i++ {
		if order[i] < order[i-1]-agentapi.BootTime(st.Start.InitStep) {
			t.Errorf("stamps go backwards: %v", order)
		}
	}
	if st.Start.Init == 0 || st.App.Started == 0 || st.Start.BootID == "" {
		t.Errorf("missing stamps: %+v, app %+v", st.Start, st.App)
	}
	if sample.Time(st.Start.Init).After(sample.Wall) {
		t.Errorf("start is in the future")
	}
	if !strings.HasPrefix(st.SSH.HostKey, "SHA256:") {
		t.Errorf("host key = %q", st.SSH.HostKey)
	}
}
