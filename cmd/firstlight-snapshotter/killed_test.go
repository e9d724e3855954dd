package main

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// killsEnv is how many workers TestWorkersKilledUnderLoad ends instead of a
	// few. From the twentieth on the keeper pauses between them.
	killsEnv = "FIRSTLIGHT_TEST_KILLS"
	someKill = 15
	// pieceSize is what a reader reads at a time, perKill how many requests there
	// are from one death to the next.
	pieceSize = 256 << 10
	perKill   = 6
)

// noise is a layer of one incompressible file, and the digests of its pieces.
func noise(t *testing.T, pieces int) (layer []byte, sums []string) {
	t.Helper()
	data := make([]byte, pieces*pieceSize)
	if _, err := rand.NewChaCha8([32]byte{7}).Read(data); err != nil {
		t.Fatal(err)
	}
	for piece := range slices.Chunk(data, pieceSize) {
		sums = append(sums, fmt.Sprintf("%x", sha256.Sum256(piece)))
	}
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "noise", Mode: 0o644, Size: int64(len(data))}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes(), sums
}

// TestWorkersKilledUnderLoad ends one worker after the other, half of them by
// SIGKILL and half in order, while four readers in a container compare every
// byte of a file that comes from the registry piece by piece, in no order.
func TestWorkersKilledUnderLoad(t *testing.T) {
	kills := someKill
	if s := os.Getenv(killsEnv); s != "" {
		var err error
		if kills, err = strconv.Atoi(s); err != nil {
			t.Fatal(err)
		}
	}
	m := newMachine(t)
	m.startSnapshotter("--fill-after", "-1s")
	m.startContainerd()
	layer, sums := noise(t, 2*(kills+2)*perKill) // two pieces are a chunk
	image := m.push("image:1", [][]byte{busybox(t), layer}, gzipped)
	m.index(image, nil)
	m.pull("firstlight", image.ref)

	var requests, ended atomic.Int64
	due := make(chan struct{}, 1)
	m.fail(func(_ http.ResponseWriter, r *http.Request) bool {
		if d, ok := blobOf(r); ok && d == image.layers[1].digest.String() {
			if requests.Add(1)%perKill == 0 {
				select {
				case due <- struct{}{}:
				default: // the last one has not died yet
				}
			}
			select { // so that there is something to die in
			case <-time.After(10 * time.Millisecond):
			case <-r.Context().Done():
			}
		}
		return false
	})
	done := make(chan struct{})
	go func() {
		defer close(done)
		checkPieces(m, image, sums)
	}()
	for {
		select {
		case <-due:
		case <-done:
			if n := ended.Load(); n < int64(kills)/2 {
				t.Errorf("only %d workers were ended in %d requests", n, requests.Load())
			}
			t.Logf("%d workers were ended in %d requests", ended.Load(), requests.Load())
			return
		}
		if ended.Load() == int64(kills) {
			continue
		}
		signal := unix.SIGKILL
		if ended.Load()%2 == 1 {
			signal = unix.SIGTERM
		}
		if pid, ok := m.findWorker(); ok && unix.Kill(pid, signal) == nil {
			ended.Add(1)
		}
	}
}

// checkPieces reads the pieces of the file in a container.
func checkPieces(m *machine, image *testImage, sums []string) {
	const readers = 4
	order := rand.New(rand.NewPCG(1, 2)).Perm(len(sums))
	var script strings.Builder
	for i := range readers {
		var mine []string
		for j := i; j < len(order); j += readers {
			mine = append(mine, strconv.Itoa(order[j]))
		}
		fmt.Fprintf(&script, "(for i in %s; do echo $i $(/bin/dd if=/noise bs=%d skip=$i count=1 2>/dev/null | /bin/sha256sum); done) &\n", strings.Join(mine, " "), pieceSize)
	}
	script.WriteString("wait\n")
	out, err := m.container("reader", image, "/bin/sh", "-c", script.String())
	if err != nil {
		m.Error(err)
	}
	seen := 0
	for line := range strings.Lines(out) {
		f := strings.Fields(line)
		if len(f) != 3 {
			continue
		}
		piece, err := strconv.Atoi(f[0])
		if err != nil || piece >= len(sums) || sums[piece] != f[1] {
			m.Errorf("piece %s is %s", f[0], f[1])
			continue
		}
		seen++
	}
	if seen != len(sums) {
		m.Errorf("%d of %d pieces were read", seen, len(sums))
	}
}
