package agent

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/firstlight-dev/firstlight/launcher/agentapi"
)

// userHz is the unit of times in /proc/PID/stat. The kernel fixes it at 100
// for user space on every architecture Go runs on.
const userHz = 100

// initStep is the resolution of a process's start time.
const initStep = time.Second / userHz

var errStatFormat = errors.New("unexpected format")

// bootNow reads CLOCK_BOOTTIME, which can't fail on a kernel that runs Go.
func bootNow() agentapi.BootTime {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return 0
	}
	return agentapi.BootTime(ts.Nano())
}

// processStart returns when the given process was started.
func processStart(stat string) (agentapi.BootTime, error) {
	b, err := os.ReadFile(stat)
	if err != nil {
		return 0, err
	}
	return parseStart(b)
}

// parseStart finds field 22 of a /proc/PID/stat line. Field 2, the name, may
// itself hold blanks and parentheses, so counting begins after the last ")".
func parseStart(stat []byte) (agentapi.BootTime, error) {
	end := bytes.LastIndexByte(stat, ')')
	if end < 0 {
		return 0, fmt.Errorf("parse process start: %w", errStatFormat)
	}
	const startTime = 22 - 3 // the first field after the name is number 3
	fields := strings.Fields(string(stat[end+1:]))
	if len(fields) <= startTime {
		return 0, fmt.Errorf("parse process start: %w", errStatFormat)
	}
	ticks, err := strconv.ParseInt(fields[startTime], 10, 64)
	if err != nil || ticks < 0 || ticks > int64(1<<62)/int64(initStep) {
		return 0, fmt.Errorf("parse process start: %w", errStatFormat)
	}
	return agentapi.BootTime(ticks * int64(initStep)), nil
}

func bootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}
