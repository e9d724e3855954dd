package agent

import (
	"bytes"
	"strings"

	"github.com/firstlight-dev/firstlight/launcher/agentapi"
)

// Limits of what is kept of a probe's output.
const (
	maxMarkLine  = 512      // a longer line is no mark
	maxMarks     = 64       // levels of one probe
	maxProbeText = 64 << 10 // searched for what the probe expects
	maxTail      = 400      // of standard error, for the message
)

// mark is a level that a probe reported.
type mark struct {
	id string
	at agentapi.BootTime
}

// marks is the writer for a probe's standard output. It stamps lines that
// start with its prefix and keeps the beginning of everything.
type marks struct {
	prefix string
	now    func() agentapi.BootTime

	text  strings.Builder
	line  []byte
	long  bool // the line is too long to be a mark
	found []mark
}

// Write implements io.Writer. It never fails: a probe may print what it likes.
func (m *marks) Write(p []byte) (int, error) {
	if room := maxProbeText - m.text.Len(); room > 0 {
		m.text.Write(p[:min(room, len(p))])
	}
	for rest := p; len(rest) > 0; {
		line, after, complete := bytes.Cut(rest, []byte{'\n'})
		rest = after
		if m.long = m.long || len(m.line)+len(line) > maxMarkLine; !m.long {
			m.line = append(m.line, line...)
		}
		if complete {
			m.endLine()
		}
	}
	return len(p), nil
}

func (m *marks) endLine() {
	id, ok := strings.CutPrefix(strings.TrimSuffix(string(m.line), "\r"), m.prefix)
	if ok && !m.long && id != "" && len(m.found) < maxMarks {
		m.found = append(m.found, mark{id: id, at: m.now()})
	}
	m.line, m.long = m.line[:0], false
}

// tail keeps the end of what is written to it.
type tail struct{ kept []byte }

// Write implements io.Writer.
func (t *tail) Write(p []byte) (int, error) {
	t.kept = append(t.kept, p[max(0, len(p)-maxTail):]...)
	t.kept = append(t.kept[:0], t.kept[max(0, len(t.kept)-maxTail):]...)
	return len(p), nil
}

// String returns the text as the rest of a message.
func (t *tail) String() string {
	text := strings.ToValidUTF8(strings.TrimSpace(string(t.kept)), "?")
	if text == "" {
		return ""
	}
	return ": " + text
}
