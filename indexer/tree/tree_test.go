package tree_test

import (
	"archive/tar"
	"errors"
	"fmt"
	"math"
	"math/rand"
	"strings"
	"testing"
	"time"

	"github.com/firstlight-dev/firstlight/indexer/index"
)

func dir(name string) tar.Header {
	return tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: 0o755, ModTime: time.Unix(1e9, 0)}
}

func reg(name, body string) tar.Header {
	return tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Uname: body, ModTime: time.Unix(1e9, 5)}
}

func sym(name, target string) tar.Header {
	return tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target, ModTime: time.Unix(1e9, 0)}
}

func hard(name, target string) tar.Header {
	return tar.Header{Typeflag: tar.TypeLink, Name: name, Linkname: target, Mode: 0o600, Uid: 7, ModTime: time.Unix(2e9, 0)}
}

func with(h tar.Header, change func(*tar.Header)) tar.Header {
	change(&h)
	return h
}

func xattr(h tar.Header, kv ...string) tar.Header {
	h.PAXRecords = map[string]string{}
	for i := 0; i < len(kv); i += 2 {
		h.PAXRecords["SCHILY.xattr."+kv[i]] = kv[i+1]
	}
	return h
}

const capability = "\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"

// Each case gives containerd's tree, or containerd's refusal.
func TestOddLayers(t *testing.T) {
	long := strings.Repeat("n", 255)
	for name, c := range map[string]struct {
		hs     []tar.Header
		refuse bool
	}{
		"empty":                       {hs: nil},
		"plain":                       {hs: []tar.Header{dir("a/"), reg("a/f", "hello"), sym("a/s", "f"), hard("a/h", "a/f")}},
		"missing parents":             {hs: []tar.Header{reg("a/b/c/f", "x"), dir("a/b/")}},
		"dot root":                    {hs: []tar.Header{with(dir("./"), func(h *tar.Header) { h.Mode = 0o700 }), reg("./f", "x")}},
		"absolute":                    {hs: []tar.Header{dir("/abs"), reg("/abs/f", "x")}},
		"dots":                        {hs: []tar.Header{dir("a/"), reg("a/../b", "x"), reg("../c", "y"), dir(".."), dir("a/../..")}},
		"duplicate file":              {hs: []tar.Header{reg("f", "one"), reg("f", "two")}},
		"duplicate directory":         {hs: []tar.Header{with(dir("d"), func(h *tar.Header) { h.Mode = 0o700 }), reg("d/f", "x"), dir("d")}},
		"file becomes directory":      {hs: []tar.Header{reg("d", "x"), dir("d"), reg("d/f", "y")}},
		"directory becomes file":      {hs: []tar.Header{dir("d"), reg("d/f", "y"), reg("d", "x")}},
		"directory becomes symlink":   {hs: []tar.Header{dir("d"), reg("d/f", "y"), sym("d", "e"), dir("e")}},
		"its time goes astray":        {hs: []tar.Header{dir("d"), sym("d", "nowhere")}, refuse: true},
		"hard link chain":             {hs: []tar.Header{reg("f", "x"), hard("g", "f"), hard("h", "g")}},
		"hard link too early":         {hs: []tar.Header{hard("g", "f"), reg("f", "x")}, refuse: true},
		"hard link elsewhere":         {hs: []tar.Header{hard("g", "usr/bin/other")}, refuse: true},
		"hard link to itself":         {hs: []tar.Header{reg("f", "x"), hard("f", "f")}, refuse: true},
		"hard link to directory":      {hs: []tar.Header{dir("d"), hard("g", "d")}, refuse: true},
		"hard link to symlink":        {hs: []tar.Header{sym("s", "nowhere"), hard("g", "s")}},
		"hard link through symlink":   {hs: []tar.Header{dir("d"), reg("d/f", "x"), sym("s", "/d"), hard("g", "s/f")}},
		"hard link to fifo":           {hs: []tar.Header{{Typeflag: tar.TypeFifo, Name: "p", Mode: 0o600}, hard("g", "p")}},
		"hard link outlives name":     {hs: []tar.Header{reg("f", "x"), hard("g", "f"), reg("f", "y")}},
		"hard link to slash":          {hs: []tar.Header{dir("d"), hard("g", "d/")}, refuse: true},
		"hard link absolute":          {hs: []tar.Header{reg("f", "x"), hard("g", "/../f")}},
		"hard link not clean":         {hs: []tar.Header{dir("a"), reg("f", "x"), hard("g", "a/.././f")}},
		"hard link sets owner":        {hs: []tar.Header{xattr(reg("f", "x"), "security.capability", capability, "user.a", "b"), hard("g", "f")}},
		"hard link to whiteout":       {hs: []tar.Header{reg(".wh.f", ""), hard("g", "f")}, refuse: true},
		"whiteout":                    {hs: []tar.Header{with(reg("a/.wh.f", ""), func(h *tar.Header) { h.Uid = 5 })}},
		"whiteout directory":          {hs: []tar.Header{dir("a/.wh.f/")}},
		"whiteout after":              {hs: []tar.Header{reg("f", "x"), reg(".wh.f", "")}, refuse: true},
		"whiteout before":             {hs: []tar.Header{reg(".wh.f", ""), reg("f", "x")}},
		"whiteout then directory":     {hs: []tar.Header{reg(".wh.f", ""), reg("f/g", "x")}, refuse: true},
		"whiteout then entry":         {hs: []tar.Header{reg(".wh.f", ""), dir("f"), reg("f/g", "x")}},
		"whiteout twice":              {hs: []tar.Header{reg(".wh.f", ""), reg(".wh.f", "")}, refuse: true},
		"whiteout bare":               {hs: []tar.Header{reg(".wh.", "")}, refuse: true},
		"whiteout dot":                {hs: []tar.Header{reg("a/.wh..", "")}, refuse: true},
		"whiteout dots":               {hs: []tar.Header{reg("a/.wh...", "")}, refuse: true},
		"whiteout of whiteout":        {hs: []tar.Header{reg(".wh..wh.f", "")}},
		"whiteout long":               {hs: []tar.Header{reg(".wh."+long, "")}},
		"whiteout too long":           {hs: []tar.Header{reg(".wh."+long+"n", "")}, refuse: true},
		"aufs":                        {hs: []tar.Header{dir(".wh..wh.plnk"), reg(".wh..wh.plnk/1", "x"), dir(".wh..wh.orph")}},
		"opaque":                      {hs: []tar.Header{dir("d"), reg("d/.wh..wh..opq", ""), reg("d/f", "x")}},
		"opaque last":                 {hs: []tar.Header{dir("d"), reg("d/f", "x"), reg("d/.wh..wh..opq", "")}},
		"opaque alone":                {hs: []tar.Header{reg("d/.wh..wh..opq", "")}},
		"opaque root":                 {hs: []tar.Header{reg(".wh..wh..opq", "")}},
		"opaque over implied":         {hs: []tar.Header{reg("d/e/f", "x"), reg("d/.wh..wh..opq", "")}, refuse: true},
		"symlinked parent":            {hs: []tar.Header{dir("usr/lib"), sym("lib", "usr/lib"), reg("lib/f", "x"), dir("lib/d"), reg("lib/d/g", "y")}},
		"symlinked parent missing":    {hs: []tar.Header{sym("lib", "usr/lib"), reg("lib/f", "x")}},
		"symlinked parent outside":    {hs: []tar.Header{sym("lib", "../../../usr"), reg("lib/f", "x")}},
		"symlinked parent loop":       {hs: []tar.Header{sym("a", "b"), sym("b", "a"), reg("a/f", "x")}, refuse: true},
		"symlinked parent of file":    {hs: []tar.Header{reg("f", "x"), sym("a", "f"), reg("a/g", "x")}, refuse: true},
		"symlink chain":               {hs: []tar.Header{dir("d"), sym("a", "b"), sym("b", "d"), reg("a/f", "x")}},
		"parent is file":              {hs: []tar.Header{reg("f", "x"), reg("f/g", "y")}, refuse: true},
		"parent is file, deeper":      {hs: []tar.Header{reg("f", "x"), reg("f/g/h", "y")}, refuse: true},
		"symlink empty":               {hs: []tar.Header{sym("s", "")}, refuse: true},
		"symlink longest":             {hs: []tar.Header{sym("s", strings.Repeat("t", 4095))}},
		"symlink too long":            {hs: []tar.Header{sym("s", strings.Repeat("t", 4096))}, refuse: true},
		"name longest":                {hs: []tar.Header{reg(long, "x"), reg("d/"+long+"/f", "x")}},
		"name too long":               {hs: []tar.Header{reg(long+"n", "x")}, refuse: true},
		"directory name too long":     {hs: []tar.Header{reg(long+"n/f", "x")}, refuse: true},
		"path too long":               {hs: []tar.Header{reg(strings.Repeat(long+"/", 14)+"f", "x")}},
		"path far too long":           {hs: []tar.Header{reg(strings.Repeat(long+"/", 16)+"f", "x")}, refuse: true},
		"name not UTF-8":              {hs: []tar.Header{reg("caf\xe9", "x")}},
		"devices":                     {hs: []tar.Header{{Typeflag: tar.TypeChar, Name: "c", Mode: 0o666, Devmajor: 1, Devminor: 3}, {Typeflag: tar.TypeBlock, Name: "b", Mode: 0o660, Devmajor: 259, Devminor: 1048575}, {Typeflag: tar.TypeFifo, Name: "p", Mode: 0o644}}},
		"device too large for mknod":  {hs: []tar.Header{{Typeflag: tar.TypeChar, Name: "c", Devmajor: 4097, Devminor: 1 << 20}}},
		"device zero":                 {hs: []tar.Header{{Typeflag: tar.TypeChar, Name: "c", Mode: 0o600}}},
		"modes":                       {hs: []tar.Header{with(reg("f", "x"), func(h *tar.Header) { h.Mode = 0o6755 }), with(dir("d"), func(h *tar.Header) { h.Mode = 0o1777 })}},
		"set-group-ID parent":         {hs: []tar.Header{with(dir("d"), func(h *tar.Header) { h.Mode, h.Gid = 0o2775, 50 }), reg("d/e/f", "x"), with(reg("d/g", ""), func(h *tar.Header) { h.Gid = -1 })}},
		"owners":                      {hs: []tar.Header{with(reg("f", "x"), func(h *tar.Header) { h.Uid, h.Gid = 1<<32-2, 1<<31 }), with(reg("g", "x"), func(h *tar.Header) { h.Uid, h.Gid = -1, -1 })}},
		"times":                       {hs: []tar.Header{with(reg("f", ""), func(h *tar.Header) { h.ModTime = time.Unix(-1, 5) }), with(reg("g", ""), func(h *tar.Header) { h.ModTime = time.Unix(1<<34, 0) }), with(reg("h", ""), func(h *tar.Header) { h.ModTime = time.Unix(0, math.MaxInt64) }), with(dir("d"), func(h *tar.Header) { h.ModTime = time.Unix(0, 999999999); h.AccessTime = time.Unix(5, 0) })}},
		"xattrs":                      {hs: []tar.Header{xattr(reg("f", "x"), "user.a", "1", "user.empty", "", "security.capability", capability, "trusted.overlay.opaque", "y", "unknown.ns", "v", "user.overlay.origin", ""), xattr(dir("d"), "user.d", "\x00\xff=\n"), xattr(sym("s", "f"), "user.a", "1", "security.x", "z")}},
		"xattrs merge on directory":   {hs: []tar.Header{xattr(dir("d"), "user.a", "1", "user.b", "2"), xattr(dir("d"), "user.b", "3")}},
		"xattr without name":          {hs: []tar.Header{xattr(reg("f", "x"), "user.", "1")}, refuse: true},
		"xattr name too long":         {hs: []tar.Header{xattr(reg("f", "x"), "user."+long, "1")}, refuse: true},
		"xattr bad capability":        {hs: []tar.Header{xattr(reg("f", "x"), "security.capability", "junk")}, refuse: true},
		"xattr access control":        {hs: []tar.Header{xattr(reg("f", "x"), "system.posix_acl_access", "\x02\x00\x00\x00")}, refuse: true},
		"global header":               {hs: []tar.Header{{Typeflag: tar.TypeXGlobalHeader, Name: "pax_global_header", PAXRecords: map[string]string{"comment": "c"}}, reg("f", "x")}},
		"global header over file":     {hs: []tar.Header{reg("g", "x"), {Typeflag: tar.TypeXGlobalHeader, Name: "g", PAXRecords: map[string]string{"comment": "c"}}}},
		"directory over implied":      {hs: []tar.Header{reg("a/f", "x"), with(dir("a"), func(h *tar.Header) { h.Mode, h.Uid = 0o711, 9 })}},
		"removed tree, new content":   {hs: []tar.Header{dir("a"), reg("a/b/c", "x"), reg("a", "y"), dir("a"), reg("a/d", "z")}},
		"entry through moved symlink": {hs: []tar.Header{dir("x"), dir("z"), sym("l", "x"), dir("l/y"), sym("l", "z"), dir("z/y")}},
	} {
		t.Run(name, func(t *testing.T) {
			err := compare(t, pack(t, c.hs))
			if errors.Is(err, index.ErrUnsupported) != c.refuse {
				t.Errorf("refused: %v, want %v", err, c.refuse)
			}
		})
	}
}

// randomLayer makes a layer of few names, so that entries collide in every way.
func randomLayer(r *rand.Rand) []tar.Header {
	part := func() string { return []string{"a", "b", "c", "d", "..", ".", "l"}[r.Intn(7)] }
	name := func() string {
		n := part()
		for range r.Intn(3) {
			n += "/" + part()
		}
		return strings.Repeat("/", r.Intn(8)/7) + n
	}
	var hs []tar.Header
	for range 1 + r.Intn(14) {
		h := tar.Header{
			Name: name(), Mode: int64(r.Intn(0o10000)), Uid: r.Intn(3) - 1, Gid: r.Intn(3) - 1,
			ModTime: time.Unix(1e9+int64(r.Intn(1000)), int64(r.Intn(1e9))),
		}
		switch r.Intn(12) {
		case 0, 1, 2:
			h.Typeflag = tar.TypeDir
		case 3, 4:
			h.Typeflag, h.Uname = tar.TypeReg, fmt.Sprint(r.Int())
		case 5, 6:
			h.Typeflag, h.Linkname = tar.TypeSymlink, name()
		case 7, 8:
			h.Typeflag, h.Linkname = tar.TypeLink, name()
		case 9:
			h.Typeflag, h.Name = tar.TypeReg, name()+"/.wh."+part()
		case 10:
			h.Typeflag, h.Name = tar.TypeReg, name()+"/.wh..wh..opq"
		default:
			h.Typeflag, h.Devminor = []byte{tar.TypeChar, tar.TypeBlock, tar.TypeFifo}[r.Intn(3)], int64(r.Intn(3))
		}
		if r.Intn(4) == 0 {
			h = xattr(h, "user."+part(), part(), "security.capability", capability)
		}
		hs = append(hs, h)
	}
	return hs
}

// Random layers give containerd's tree, or both refuse.
func TestRandomLayers(t *testing.T) {
	const layers = 1500
	taken := 0
	for seed := range layers {
		hs := randomLayer(rand.New(rand.NewSource(int64(seed))))
		if !t.Run(fmt.Sprint(seed), func(t *testing.T) {
			if compare(t, pack(t, hs)) == nil {
				taken++
			} else if testing.Verbose() {
				t.Log("refused")
			}
			if t.Failed() {
				for _, h := range hs {
					t.Logf("%c %q -> %q mode %o uid %d gid %d %v", h.Typeflag, h.Name, h.Linkname, h.Mode, h.Uid, h.Gid, h.PAXRecords)
				}
			}
		}) {
			t.Fatalf("seed %d", seed)
		}
	}
	if taken < layers/10 {
		t.Errorf("only %d of %d random layers were taken: the generator tests refusals", taken, layers)
	}
}
