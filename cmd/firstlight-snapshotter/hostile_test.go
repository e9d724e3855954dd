package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/firstlight-dev/firstlight/snapshotter/nodeapi"
	"github.com/firstlight-dev/firstlight/test/trees"
)

// TestHostileReader: a container whose 600 processes read a layer that the
// registry does not give keeps no other container waiting, nor the background
// from completing other images; it is told of, and can be killed.
func TestHostileReader(t *testing.T) {
	m := newMachine(t)
	m.startSnapshotter("--fill-after", "1s")
	m.startContainerd()
	big, _ := trees.Layers(24 << 20)
	small, _ := trees.Layers(12 << 20)
	dead := m.push("dead:1", [][]byte{busybox(t), big[0]}, gzipped)
	live := m.push("live:1", [][]byte{busybox(t), small[0]}, gzipped)
	asked := make(chan struct{}, 1)
	m.index(dead, nil)
	m.index(live, nil)
	m.fail(func(_ http.ResponseWriter, r *http.Request) bool {
		d, ok := blobOf(r)
		if !ok || d != dead.layers[1].digest.String() || !inTheMiddle(r, int64(len(dead.layers[1].blob))) {
			return false
		}
		select {
		case asked <- struct{}{}:
		default:
		}
		<-r.Context().Done()
		return true
	})
	m.pull("firstlight", dead.ref)
	const flood = `i=0; while [ $i -lt 600 ]; do dd if=/usr/lib/big.so of=/dev/null bs=4096 count=1 skip=$((2000+i*4)) 2>/dev/null & i=$((i+1)); done; wait`
	ended := make(chan error, 1)
	go func() {
		_, err := m.container("hostile", dead, "/bin/sh", "-c", flood)
		ended <- err
	}()
	<-asked

	m.pull("firstlight", live.ref)
	if out, err := m.container("modest", live, "/bin/sha256sum", "/usr/lib/big.so"); err != nil || len(out) < 64 {
		t.Errorf("the other container says %q, %v", out, err)
	}
	m.waitFor(m.snapshotter, func(context.Context) error {
		for _, s := range m.states(live.ref) {
			if s != nodeapi.StateComplete {
				return fmt.Errorf("a layer of the live image is %s", s)
			}
		}
		return nil
	})
	m.waitFor(m.snapshotter, func(context.Context) error {
		if !strings.Contains(m.log("snapshotter"), "a read waits for its registry") {
			return errors.New("nobody tells of hung reads")
		}
		return nil
	})
	m.run("ctr", "task", "kill", "--signal", "SIGKILL", "--all", "hostile")
	if err := <-ended; err == nil {
		t.Error("the hostile container ended well")
	}
}

// inTheMiddle says that a request wants some of the middle of a blob, where the
// large file is: a container starts with what is around it. The one byte that
// the snapshotter tries at the pull does not count.
func inTheMiddle(r *http.Request, size int64) bool {
	var from, to int64
	if _, err := fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-%d", &from, &to); err != nil {
		return false
	}
	return from != to && to > size/4 && from < size*3/4
}
