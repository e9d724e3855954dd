package daemon

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/dustin/go-humanize"
	"golang.org/x/sys/unix"

	"github.com/firstlight-dev/firstlight/snapshotter/internal/cache"
)

// Amount is a number of bytes or a part of a whole, written as "20GB" or "10%".
type Amount struct {
	Bytes   int64
	Percent float64
}

// UnmarshalText parses "20GB", "512MiB", "10%" or "0".
func (a *Amount) UnmarshalText(b []byte) error {
	text := strings.TrimSpace(string(b))
	if number, ok := strings.CutSuffix(text, "%"); ok {
		p, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
		if err != nil || !(p >= 0 && p <= 100) {
			return fmt.Errorf("%q is no percentage between 0%% and 100%%", text)
		}
		*a = Amount{Percent: p}
		return nil
	}
	n, err := humanize.ParseBytes(text)
	if err != nil || n > math.MaxInt64 {
		return fmt.Errorf("%q is neither a size as 20GB nor a part as 10%%", text)
	}
	*a = Amount{Bytes: int64(n)}
	return nil
}

// MarshalText writes what UnmarshalText reads.
func (a Amount) MarshalText() ([]byte, error) { return []byte(a.String()), nil }

func (a Amount) String() string {
	if a.Percent > 0 {
		return strconv.FormatFloat(a.Percent, 'g', -1, 64) + "%"
	}
	return strconv.FormatInt(a.Bytes, 10)
}

// of is the amount in bytes, of a whole of so many.
func (a Amount) of(whole int64) int64 {
	if a.Percent > 0 {
		return int64(float64(whole) * a.Percent / 100)
	}
	return a.Bytes
}

// minCache is the least that max_bytes may say: a few reads' worth of chunks.
const minCache = 64 << 20

func (c *Cache) validate() error {
	var errs []error
	if n := c.MaxBytes.Bytes; n > 0 && n < minCache {
		errs = append(errs, fmt.Errorf("cache.max_bytes: %d is less than %d, with which every page that is read would be fetched again", n, minCache))
	}
	if p := c.LowWater.Percent; p < 10 || p > 99 {
		errs = append(errs, fmt.Errorf("cache.low_water: %s is not between 10%% and 99%%", c.LowWater))
	}
	if c.MinFree.Percent > 90 {
		errs = append(errs, fmt.Errorf("cache.min_free: %s leaves no room", c.MinFree))
	}
	return errors.Join(errs...)
}

// limits are the bounds in bytes, for the file system of dir.
func (c *Cache) limits(dir string) (cache.Limits, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return cache.Limits{}, fmt.Errorf("measure file system of %s: %w", dir, err)
	}
	whole := int64(st.Blocks) * st.Bsize
	return cache.Limits{MaxBytes: c.MaxBytes.of(whole), MinFree: c.MinFree.of(whole), LowWater: c.LowWater.Percent / 100}, nil
}
