package cluster

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// ownerDir makes the test binary own a cluster in the folder it names.
const ownerDir = "FIRSTLIGHT_TEST_OWN_CLUSTER"

func TestMain(m *testing.M) {
	dir := os.Getenv(ownerDir)
	if dir == "" {
		os.Exit(m.Run())
	}
	c, err := Start(context.Background(), Config{Dir: dir})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("init", c.Namespaces().PID())
	<-make(chan struct{}) // until it is killed
}

// TestOwnerKilled checks that a cluster ends with the process that started it
// when that has no chance to clean up.
func TestOwnerKilled(t *testing.T) {
	if err := Probe(Config{}); err != nil {
		t.Skip(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	owner := exec.CommandContext(ctx, os.Args[0])
	owner.Env = append(os.Environ(), ownerDir+"="+t.TempDir())
	stdout, err := owner.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := owner.Start(); err != nil {
		t.Fatal(err)
	}
	var pid int
	for lines := bufio.NewScanner(stdout); pid == 0 && lines.Scan(); {
		if _, err := fmt.Sscanf(lines.Text(), "init %d", &pid); err != nil {
			t.Log(lines.Text())
		}
	}
	init, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatalf("open init %d: %v", pid, err)
	}
	defer func() { _ = unix.Close(init) }()
	if err := owner.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = owner.Wait() // it was killed

	// A process descriptor can be read when its process has ended, and an init
	// ends after everything in its namespace.
	poll := []unix.PollFd{{Fd: int32(init), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(poll, int(time.Minute/time.Millisecond))
		if errors.Is(err, unix.EINTR) {
			continue // the runtime's signals
		}
		if n != 1 {
			t.Fatalf("the cluster outlives its owner: %v", err)
		}
		break
	}
	sweepCgroups()
	if left := findCgroups(cgroupPrefix + strconv.Itoa(owner.Process.Pid) + "-*"); len(left) > 0 {
		t.Errorf("cgroups left: %v", left)
	}
}
