package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/firstlight-dev/firstlight/test/lab"
)

// clockTicks is the unit of CPU times in /proc, the same on every Linux that Go
// runs on.
const clockTicks = 100

// process is what one process of a node has used so far.
type process struct {
	name    string // at most 15 bytes
	cpu     float64
	peakRSS int64
}

type processes []process

// usage reads all processes of a node. Its /proc shows only those. CPU includes
// children that have ended and were waited for.
func usage(n *lab.Node) (processes, error) {
	dirs, err := filepath.Glob(n.Root("/proc") + "/[0-9]*")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var all processes
	for _, dir := range dirs {
		p, err := readProcess(dir)
		if gone(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		all = append(all, p)
	}
	return all, nil
}

// gone tells the error of a process that ended while it was read.
func gone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH)
}

func readProcess(dir string) (process, error) {
	stat, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		return process{}, fmt.Errorf("read process: %w", err)
	}
	status, err := os.ReadFile(filepath.Join(dir, "status"))
	if err != nil {
		return process{}, fmt.Errorf("read process: %w", err)
	}
	return parseProcess(stat, status)
}

// parseProcess reads /proc/PID/stat and /proc/PID/status. A kernel thread or a
// zombie has no peak.
func parseProcess(stat, status []byte) (process, error) {
	open, end := bytes.IndexByte(stat, '('), bytes.LastIndexByte(stat, ')')
	if open < 0 || end < open {
		return process{}, fmt.Errorf("parse process %q: no name", stat)
	}
	p := process{name: string(stat[open+1 : end])}
	fields := strings.Fields(string(stat[end+1:]))
	const userTime, times = 11, 4 // utime, stime, cutime, cstime, of proc(5), counted from the state
	if len(fields) < userTime+times {
		return process{}, fmt.Errorf("parse process %s: %d fields", p.name, len(fields))
	}
	for _, field := range fields[userTime : userTime+times] {
		ticks, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return process{}, fmt.Errorf("parse process %s: %w", p.name, err)
		}
		p.cpu += float64(ticks) / clockTicks
	}
	for line := range strings.Lines(string(status)) {
		if value, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kib, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), "kB")), 10, 64)
			if err != nil {
				return process{}, fmt.Errorf("parse process %s: %w", p.name, err)
			}
			p.peakRSS = kib << 10
		}
	}
	return p, nil
}

// cpu sums up the seconds of the processes whose name begins with program.
func (ps processes) cpu(program string) (seconds float64) {
	for _, p := range ps {
		if strings.HasPrefix(p.name, program) {
			seconds += p.cpu
		}
	}
	return seconds
}

func (ps processes) peakRSS(program string) (sum int64) {
	for _, p := range ps {
		if strings.HasPrefix(p.name, program) {
			sum += p.peakRSS
		}
	}
	return sum
}
