package agent

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/firstlight-dev/firstlight/launcher/agentapi"
)

func TestParseStart(t *testing.T) {
	line := func(name string) string {
		return "7 (" + name + ") S 1 7 7 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 12345 10 11"
	}
	for _, name := range []string{"sh", "a b", "x) S 1 (y", ""} {
		if got, err := parseStart([]byte(line(name))); err != nil || got != agentapi.BootTime(12345*10*time.Millisecond) {
			t.Errorf("name %q: %v, %v", name, got, err)
		}
	}
	if got, err := processStart("/proc/self/stat"); err != nil || got <= 0 || got > bootNow() {
		t.Errorf("own start = %v, %v", got, err)
	}
}

func FuzzParseStart(f *testing.F) {
	f.Add([]byte("7 (sh) S 1 7 7 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 12345 10 11"))
	f.Add([]byte("7 (sh) S"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if at, err := parseStart(b); err == nil && at < 0 {
			t.Errorf("start = %d", at)
		}
	})
}

func TestSplitWords(t *testing.T) {
	tests := map[string]struct {
		want []string
		err  string
	}{
		`a b  c`:                        {want: []string{"a", "b", "c"}},
		`a 'b c' "d e" f\ g`:            {want: []string{"a", "b c", "d e", "f g"}},
		`a '' ""`:                       {want: []string{"a", "", ""}},
		`a"b"'c'`:                       {want: []string{"abc"}},
		`a 'b|c;$d' "e|f"`:              {want: []string{"a", "b|c;$d", "e|f"}},
		`a "b\"c\\d\e"`:                 {want: []string{"a", `b"c\d\e`}},
		`a=b c`:                         {want: []string{"a=b", "c"}},
		``:                              {err: "empty"},
		`  `:                            {err: "empty"},
		`''`:                            {err: "empty"},
		`a | b`:                         {err: "needs one"},
		`a "$b"`:                        {err: "needs one"},
		`a $(b)`:                        {err: "needs one"},
		"a\nb":                          {err: "needs one"},
		`a *.c`:                         {err: "needs one"},
		`a 'b`:                          {err: "open ' quote"},
		`a "b`:                          {err: `open " quote`},
		`a \`:                           {err: "backslash"},
		"a\x00":                         {err: "zero byte"},
		strings.Repeat("x", 1<<20):      {err: "longer"},
		strings.Repeat("x ", 1<<13):     {err: "words"},
		"'" + strings.Repeat("\x00", 1): {err: "zero byte"},
	}
	for line, tt := range tests {
		got, err := splitWords(line)
		if (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
			t.Errorf("%.20q: error %v, want %q", line, err, tt.err)
			continue
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%.20q (-want +got):\n%s", line, diff)
		}
	}
}

func FuzzSplitWords(f *testing.F) {
	f.Add(`a 'b c' "d\"e" f\ g`)
	f.Add(`a | b`)
	f.Fuzz(func(t *testing.T, line string) {
		words, err := splitWords(line)
		if err != nil {
			return
		}
		// Quoted again, the same words must come out.
		quoted := make([]string, len(words))
		for i, w := range words {
			quoted[i] = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
		}
		again, err := splitWords(strings.Join(quoted, " "))
		if len(strings.Join(quoted, " ")) > maxCommandBytes {
			return
		}
		if err != nil {
			t.Fatalf("%q: %v", quoted, err)
		}
		if diff := cmp.Diff(words, again); diff != "" {
			t.Error(diff)
		}
	})
}

func TestAccount(t *testing.T) {
	passwd := []byte("root:x:0:0:root:/root:/bin/bash\nbroken\n:x:5:5::/x:/y\nuser:x:1000:1000::/home/user:/bin/zsh\nnohome:x:7:7:::\n")
	for uid, want := range map[int]account{
		0:    {"root", "/root", "/bin/bash"},
		1000: {"user", "/home/user", "/bin/zsh"},
		7:    {"nohome", "/", ""},
		5:    {"5", "/", ""},
		99:   {"99", "/", ""},
	} {
		if got := lookupAccount(passwd, uid); got != want {
			t.Errorf("%d: %+v, want %+v", uid, got, want)
		}
	}
	if got := lookupAccount(nil, 0); got.name != "root" {
		t.Errorf("root without a passwd file: %+v", got)
	}
}

func FuzzLookupAccount(f *testing.F) {
	f.Add([]byte("root:x:0:0:root:/root:/bin/bash\n"), 0)
	f.Fuzz(func(t *testing.T, passwd []byte, uid int) {
		if a := lookupAccount(passwd, uid); a.name == "" || a.home == "" {
			t.Errorf("account = %+v", a)
		}
	})
}

func TestSessionEnvironment(t *testing.T) {
	e := newEnvironment([]string{"PATH=/a", "X=1", "FIRSTLIGHT_AGENT_CONFIG=secret", "X=2"}, []byte("u:x:5:5::/home/u:/bin/s"), 5, nil)
	got := e.session("/bin/s", []string{"TERM=t"})
	want := []string{"PATH=/a", "X=1", "X=2", "HOME=/home/u", "USER=u", "LOGNAME=u", "SHELL=/bin/s", "TERM=t"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("session (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"PATH=/a", "X=1", "X=2"}, e.app()); diff != "" {
		t.Errorf("app (-want +got):\n%s", diff)
	}
}

// TestShellOrder makes shells and takes them away one after the other.
func TestShellOrder(t *testing.T) {
	dir := t.TempDir()
	script := func(name string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, nil, mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	order := []string{script("spec", 0o755), script("var", 0o755), script("passwd", 0o755), script("bash", 0o755), script("sh", 0o755)}
	e := newEnvironment([]string{"SHELL=" + order[1], "PATH=relative:" + dir}, []byte("u:x:5:5::/:"+order[2]), 5, nil)
	for len(order) > 0 {
		if got, err := e.shell(filepath.Join(dir, "spec")); err != nil || got != order[0] {
			t.Errorf("shell = %q, %v, want %q", got, err, order[0])
		}
		if err := os.Chmod(order[0], 0o644); err != nil { // there, but not executable
			t.Fatal(err)
		}
		order = order[1:]
	}
	_, err := e.shell("")
	var none *noShellError
	if !errors.As(err, &none) || !slices.Contains(none.tried, "bash") {
		t.Errorf("no shell: %v", err)
	}
	e.account.shell = "/usr/sbin/nologin"
	if _, err := e.shell(""); !errors.As(err, &none) || slices.Contains(none.tried, "/usr/sbin/nologin") {
		t.Errorf("nologin: %v", err)
	}
}

func TestMarks(t *testing.T) {
	var now agentapi.BootTime
	m := &marks{prefix: "firstlight:N:", now: func() agentapi.BootTime { now++; return now }}
	text := "firstlight:N:a\nnoise\nfirstlight:N:" + strings.Repeat("x", 2*maxMarkLine) + "\nfirstlight:M:b\r\nfirstlight:N:\nfirstlight:N:c\r\nfirstlight:N:unfinished"
	for i := range len(text) { // byte by byte: lines come in any pieces
		if _, err := m.Write([]byte{text[i]}); err != nil {
			t.Fatal(err)
		}
	}
	want := []mark{{"a", 1}, {"c", 2}}
	if diff := cmp.Diff(want, m.found, cmp.AllowUnexported(mark{})); diff != "" {
		t.Errorf("marks (-want +got):\n%s", diff)
	}
	for i := range 10 * maxMarks {
		if _, err := m.Write([]byte("\nfirstlight:N:" + strconv.Itoa(i) + "\n")); err != nil {
			t.Fatal(err)
		}
	}
	if len(m.found) != maxMarks || m.text.Len() > maxProbeText || len(m.line) > maxMarkLine {
		t.Errorf("kept %d marks, %d bytes of text, %d of a line", len(m.found), m.text.Len(), len(m.line))
	}
}

func FuzzMarks(f *testing.F) {
	f.Add([]byte("firstlight:N:a\nx\n"), 3)
	f.Fuzz(func(t *testing.T, b []byte, cut int) {
		collect := func(pieces ...[]byte) []string {
			m := &marks{prefix: "firstlight:N:", now: bootNow}
			for _, p := range pieces {
				_, _ = m.Write(p)
			}
			var ids []string
			for _, f := range m.found {
				ids = append(ids, f.id)
			}
			return ids
		}
		cut = min(max(cut, 0), len(b))
		if diff := cmp.Diff(collect(b), collect(b[:cut], b[cut:])); diff != "" {
			t.Errorf("depends on how the output is cut:\n%s", diff)
		}
	})
}

func TestTail(t *testing.T) {
	for _, text := range []string{"", "short", strings.Repeat("a", maxTail) + "end", strings.Repeat("b", 10*maxTail) + "end"} {
		whole, bits := &tail{}, &tail{}
		_, _ = whole.Write([]byte(text))
		for i := range len(text) {
			_, _ = bits.Write([]byte{text[i]})
		}
		if whole.String() != bits.String() || len(whole.kept) > maxTail || !strings.HasSuffix(text, string(whole.kept)) {
			t.Errorf("%d bytes: %q and %q", len(text), whole, bits)
		}
	}
}
