package agent

import (
	"errors"
	"io"
	"os"
	"syscall"
	"time"
)

// drainIdle is how long output may stay silent after its process ended before
// the rest is given up: a background process that still holds the other end
// may never close it. What is already in the pipe is there at once.
const drainIdle = 250 * time.Millisecond

// pumpBuffer is what one read takes. Pipes hold 64 KiB, and SSH packets half
// of that.
const pumpBuffer = 32 << 10

// pump copies a process's output until the end of file, an error, or silence
// after ended is closed. A slow reader of dst loses nothing: only silence of
// src counts.
func pump(dst io.Writer, src *os.File, ended <-chan struct{}) error {
	finished := make(chan struct{})
	defer close(finished)
	go func() { // interrupts the read that is waiting when the process ends
		select {
		case <-ended:
			_ = src.SetReadDeadline(time.Now().Add(drainIdle))
		case <-finished:
		}
	}()
	buf := make([]byte, pumpBuffer)
	for {
		select {
		case <-ended:
			_ = src.SetReadDeadline(time.Now().Add(drainIdle))
		default:
		}
		n, err := src.Read(buf)
		if n > 0 {
			if _, err := dst.Write(buf[:n]); err != nil {
				return err
			}
		}
		switch {
		case err == nil:
		case errors.Is(err, io.EOF), errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, syscall.EIO):
			return nil // EIO is how a terminal says that its last user is gone
		default:
			return err
		}
	}
}
