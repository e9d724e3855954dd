package wire

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// ErrFormat is wrapped by every decoder's error.
var ErrFormat = errors.New("malformed sharing annotation")

const (
	// maxAnnotation is the API server's limit on all annotations of an object
	// together; nothing longer can come from it.
	maxAnnotation = 256 << 10
	// MaxCards bounds the cards of one node. The largest machines sold hold 16
	// cards; 1024 leaves room for simulated ones and fits maxAnnotation.
	MaxCards = 1024
	// MaxSlots bounds the vGPUs of one card. Each is a line in the kubelet's
	// device list, whose message is limited to about 32767 entries.
	MaxSlots = 32767
)

// Device is one card as its node registers it. Fields with the zero value are
// left out of the JSON form: an unhealthy card has no "health" key, so absence
// means unhealthy.
type Device struct {
	UUID    string       `json:"id,omitempty"`
	Index   int          `json:"index,omitempty"`
	Slots   int          `json:"count,omitempty"`   // vGPUs it can be split into
	MemMiB  int          `json:"devmem,omitempty"`  // after memory scaling
	Cores   int          `json:"devcore,omitempty"` // percent, after core scaling
	Type    string       `json:"type,omitempty"`    // model; must contain "NVIDIA"
	NUMA    int          `json:"numa,omitempty"`
	Mode    string       `json:"mode,omitempty"`
	Healthy bool         `json:"health,omitempty"`
	MIG     []MIGProfile `json:"migProfiles,omitempty"`
}

// MIGProfile is one way to partition a card in MIG mode.
type MIGProfile struct {
	Name       string         `json:"name,omitempty"`
	MemoryMiB  int            `json:"memoryMB,omitempty"`
	Cores      int            `json:"core,omitempty"`
	SliceCount int            `json:"sliceCount,omitempty"`
	Placements []MIGPlacement `json:"placements,omitempty"`
}

// MIGPlacement is a place on a card where a profile can start. Start has no
// omitempty: zero is a real place and HAMi writes it.
type MIGPlacement struct {
	Start int `json:"start"`
	Size  int `json:"size"`
}

// ModelType returns the type to register for a model name: readers choose a
// vendor's cards by finding its name in the type.
func ModelType(model string) string {
	if strings.HasPrefix(model, Vendor) {
		return model
	}
	return Vendor + "-" + model
}

// EncodeDevices returns the register annotation of HAMi 2.8 and later, the
// cards ordered by index.
func EncodeDevices(cards []Device) (string, error) {
	if err := checkDevices(cards); err != nil {
		return "", err
	}
	sorted := byIndex(cards)
	if sorted == nil {
		sorted = []Device{}
	}
	b, err := json.Marshal(sorted)
	if err != nil {
		return "", fmt.Errorf("encode cards: %w", err)
	}
	return string(b), nil
}

// EncodeDevicesLegacy returns the register annotation of HAMi 2.7 and earlier.
// It has no place for MIG profiles.
func EncodeDevicesLegacy(cards []Device) (string, error) {
	if err := checkDevices(cards); err != nil {
		return "", err
	}
	var b strings.Builder
	for _, d := range byIndex(cards) {
		fmt.Fprintf(&b, "%s,%d,%d,%d,%s,%d,%t,%d,%s:",
			d.UUID, d.Slots, d.MemMiB, d.Cores, d.Type, d.NUMA, d.Healthy, d.Index, d.Mode)
	}
	return b.String(), nil
}

// DecodeDevices reads a register annotation in either form and returns the
// cards ordered by index. Unknown JSON fields are ignored.
func DecodeDevices(s string) ([]Device, error) {
	if len(s) > maxAnnotation {
		return nil, fmt.Errorf("%w: %d bytes of cards, limit %d", ErrFormat, len(s), maxAnnotation)
	}
	var cards []Device
	var err error
	if s = strings.TrimSpace(s); strings.HasPrefix(s, "[") {
		if err = json.Unmarshal([]byte(s), &cards); err != nil {
			err = fmt.Errorf("%w: cards: %w", ErrFormat, err)
		}
	} else {
		cards, err = decodeLegacy(s)
	}
	if err != nil {
		return nil, err
	}
	if err := checkDevices(cards); err != nil {
		return nil, err
	}
	return byIndex(cards), nil
}

// decodeLegacy reads "UUID,count,mem,cores,type,numa,health[,index,mode]:" per
// card. Without an index, the position counts.
func decodeLegacy(s string) ([]Device, error) {
	var cards []Device
	for part := range strings.SplitSeq(s, ":") {
		if part == "" {
			continue
		}
		if len(cards) == MaxCards {
			return nil, fmt.Errorf("%w: more than %d cards", ErrFormat, MaxCards)
		}
		f := strings.Split(part, ",")
		if len(f) != 7 && len(f) != 9 {
			return nil, fmt.Errorf("%w: card %d has %d fields, want 7 or 9", ErrFormat, len(cards), len(f))
		}
		d := Device{UUID: f[0], Type: f[4], Index: len(cards), Mode: ModeCore}
		numbers := []field{{"count", f[1], &d.Slots}, {"memory", f[2], &d.MemMiB}, {"cores", f[3], &d.Cores}, {"numa", f[5], &d.NUMA}}
		if len(f) == 9 {
			numbers = append(numbers, field{"index", f[7], &d.Index})
			d.Mode = f[8]
		}
		for _, n := range numbers {
			if err := n.parse(); err != nil {
				return nil, fmt.Errorf("card %d: %w", len(cards), err)
			}
		}
		healthy, err := strconv.ParseBool(f[6])
		if err != nil {
			return nil, fmt.Errorf("%w: card %d: health %q", ErrFormat, len(cards), f[6])
		}
		d.Healthy = healthy
		cards = append(cards, d)
	}
	return cards, nil
}

// field is a number to read from an annotation.
type field struct {
	name, text string
	to         *int
}

// parse accepts what HAMi's int32 fields can hold.
func (f field) parse() error {
	n, err := strconv.ParseInt(f.text, 10, 32)
	if err != nil {
		return fmt.Errorf("%w: %s %q is not a number", ErrFormat, f.name, f.text)
	}
	*f.to = int(n)
	return nil
}

// checkDevices holds the rules of both forms, on the way in and on the way out.
func checkDevices(cards []Device) error {
	if len(cards) > MaxCards {
		return fmt.Errorf("%w: %d cards, limit %d", ErrFormat, len(cards), MaxCards)
	}
	seen := make(map[string]bool, len(cards))
	for i, d := range cards {
		if d.UUID == "" || !plain(d.UUID) {
			return fmt.Errorf("%w: card %d has UUID %q", ErrFormat, i, d.UUID)
		}
		if seen[d.UUID] {
			return fmt.Errorf("%w: card %s is there twice", ErrFormat, d.UUID)
		}
		seen[d.UUID] = true
		if !plain(d.Type) || !plain(d.Mode) {
			return fmt.Errorf("%w: card %s has a separator in type %q or mode %q", ErrFormat, d.UUID, d.Type, d.Mode)
		}
		if d.Slots < 0 || d.Slots > MaxSlots || d.Index < 0 || d.Index > math.MaxInt32 ||
			d.MemMiB < 0 || d.MemMiB > math.MaxInt32 || d.Cores < 0 || d.Cores > math.MaxInt32 ||
			d.NUMA < math.MinInt32 || d.NUMA > math.MaxInt32 {
			return fmt.Errorf("%w: card %s has a number out of range", ErrFormat, d.UUID)
		}
	}
	return nil
}

// plain reports whether s can stand in every annotation form.
func plain(s string) bool { return !strings.ContainsAny(s, ",:;\n") }

// byIndex returns a copy of cards ordered by index, then UUID.
func byIndex(cards []Device) []Device {
	sorted := slices.Clone(cards)
	slices.SortFunc(sorted, func(a, b Device) int {
		if a.Index != b.Index {
			return a.Index - b.Index
		}
		return strings.Compare(a.UUID, b.UUID)
	})
	return sorted
}

// ReplicaID names vGPU slot n of a card for the kubelet.
func ReplicaID(uuid string, n int) string { return uuid + "-" + strconv.Itoa(n) }

// ReplicaCard returns the card of a kubelet device id, in the form of
// ReplicaID or with HAMi's "::n" suffix.
func ReplicaCard(id string) (string, error) {
	if card, n, ok := strings.Cut(id, "::"); ok && card != "" && isNumber(n) {
		return card, nil
	}
	if i := strings.LastIndexByte(id, '-'); i > 0 && isNumber(id[i+1:]) {
		return id[:i], nil
	}
	return "", fmt.Errorf("%w: device id %q", ErrFormat, id)
}

func isNumber(s string) bool {
	n, err := strconv.Atoi(s)
	return err == nil && n >= 0 && strconv.Itoa(n) == s
}

// MemoryLimitEnv names the variable with the memory limit of a container's i-th card.
func MemoryLimitEnv(i int) string { return "CUDA_DEVICE_MEMORY_LIMIT_" + strconv.Itoa(i) }
