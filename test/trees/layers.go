package trees

import (
	"archive/tar"
	"bytes"
	"math/rand/v2"
	"strings"
	"time"
)

// Layers returns the tar streams of an image, lowest first, that has everything
// in which a lazy tree could differ from an unpacked one, and the directories
// whose modification time is that of the unpacking. big is the size of its large
// file.
func Layers(big int) (layers [][]byte, implied map[string]bool) {
	return [][]byte{base(big), over(), third(), fourth()}, map[string]bool{
		"/": true, "/srv": true, "/srv/data": true, "/opt": true, "/opt/app": true, "/opt/app/lib": true, "/usr/share": true, "/new": true, "/new/deep": true,
		"/var/cache": true, "/var": true, "/etc": true, "/usr": true, "/usr/bin": true, "/etc/opaque": true,
	}
}

// When is the modification time of most entries: a time that survives neither truncation to seconds nor to
// microseconds.
var When = time.Unix(1_600_000_000, 123_456_789)

type archive struct {
	*tar.Writer
	buf bytes.Buffer
}

func newArchive() *archive {
	a := &archive{}
	a.Writer = tar.NewWriter(&a.buf)
	return a
}

func (a *archive) add(h tar.Header, content []byte) {
	h.Size, h.Format = int64(len(content)), tar.FormatPAX
	if h.ModTime.IsZero() {
		h.ModTime = When
	}
	if h.Mode == 0 {
		h.Mode = 0o644
	}
	if err := a.WriteHeader(&h); err != nil {
		panic(err) // the recipe is wrong
	}
	if _, err := a.Write(content); err != nil {
		panic(err)
	}
}

func (a *archive) dir(name string, mode int64) {
	a.add(tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: mode}, nil)
}

func (a *archive) file(name, content string) {
	a.add(tar.Header{Typeflag: tar.TypeReg, Name: name}, []byte(content))
}

func (a *archive) bytes() []byte {
	if err := a.Close(); err != nil {
		panic(err)
	}
	return a.buf.Bytes()
}

func xattr(pairs ...string) map[string]string {
	records := map[string]string{}
	for i := 0; i < len(pairs); i += 2 {
		records["SCHILY.xattr."+pairs[i]] = pairs[i+1]
	}
	return records
}

// netRaw is the file capability cap_net_raw+ep.
const netRaw = "\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"

func base(big int) []byte {
	a := newArchive()
	for _, d := range []string{"bin", "etc", "usr", "usr/bin", "usr/lib", "tmp2", "dev2"} {
		a.dir(d, 0o755)
	}
	a.dir("tmp2/sticky", 0o1777)
	a.add(tar.Header{Typeflag: tar.TypeDir, Name: "srv/", Mode: 0o2750, Uid: 1000, Gid: 1001, PAXRecords: xattr("user.owner", "base")}, nil)
	a.add(tar.Header{Typeflag: tar.TypeDir, Name: "srv/data/", Mode: 0o700, Uid: 4_000_000_000, Gid: 7}, nil)
	a.file("etc/hostname", "base\n")
	a.file("etc/passwd", "root:x:0:0::/root:/bin/sh\n")
	a.file("etc/removed", "gone in the next layer")
	a.file("etc/empty", "")
	a.dir("etc/opaque", 0o755)
	a.file("etc/opaque/old", "hidden")
	a.dir("etc/replaced", 0o755)
	a.file("etc/replaced/inside", "the directory becomes a file")
	a.add(tar.Header{Typeflag: tar.TypeReg, Name: "usr/bin/su", Mode: 0o4755}, []byte("setuid"))
	a.add(tar.Header{Typeflag: tar.TypeReg, Name: "usr/bin/ping", Mode: 0o755, PAXRecords: xattr("security.capability", netRaw, "user.note", "a=b\nc")}, []byte("capable"))
	a.add(tar.Header{Typeflag: tar.TypeLink, Name: "usr/bin/ping6", Linkname: "usr/bin/ping"}, nil)
	a.add(tar.Header{Typeflag: tar.TypeLink, Name: "bin/ping7", Linkname: "usr/bin/ping6"}, nil)
	a.add(tar.Header{Typeflag: tar.TypeSymlink, Name: "lib", Linkname: "usr/lib", Mode: 0o777}, nil)
	a.file("lib/through-link", "its directory is a symbolic link")
	a.add(tar.Header{Typeflag: tar.TypeSymlink, Name: "usr/dangling", Linkname: "../../nowhere", Mode: 0o777}, nil)
	a.add(tar.Header{Typeflag: tar.TypeLink, Name: "usr/dangling2", Linkname: "usr/dangling"}, nil)
	a.add(tar.Header{Typeflag: tar.TypeChar, Name: "dev2/null", Mode: 0o666, Devmajor: 1, Devminor: 3}, nil)
	a.add(tar.Header{Typeflag: tar.TypeBlock, Name: "dev2/disk", Mode: 0o660, Devmajor: 259, Devminor: 70_000, Gid: 6}, nil)
	a.add(tar.Header{Typeflag: tar.TypeFifo, Name: "dev2/fifo", Mode: 0o600}, nil)
	a.add(tar.Header{Typeflag: tar.TypeReg, Name: "etc/ancient", ModTime: time.Unix(1, 0)}, []byte("1970"))
	a.add(tar.Header{Typeflag: tar.TypeReg, Name: "etc/future", ModTime: time.Unix(5_000_000_000, 999_999_999)}, []byte("2128"))
	a.file("etc/"+string(bytes.Repeat([]byte("n"), 255)), "longest name")
	// A directory and a link target that fill a block of 512 bytes exactly, with
	// 12 bytes for each name, "." and ".." included.
	a.dir("etc/exact", 0o755)
	a.file("etc/exact/"+strings.Repeat("a", 230), "")
	a.file("etc/exact/"+strings.Repeat("b", 231), "")
	a.add(tar.Header{Typeflag: tar.TypeSymlink, Name: "etc/exact-link", Linkname: strings.Repeat("0123456/", 64), Mode: 0o777}, nil)
	a.file("etc/\xff\xfe not UTF-8", "bytes")
	content := make([]byte, big)
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range content {
		if i%3 == 0 { // compresses to about a half
			content[i] = byte(rng.Uint32())
		}
	}
	a.add(tar.Header{Typeflag: tar.TypeReg, Name: "usr/lib/big.so", Mode: 0o755}, content)
	for i := range 300 {
		a.file("usr/lib/many"+string(rune('a'+i%26))+string(rune('a'+i/26)), string(content[:i*37]))
	}
	a.file("/opt/app/lib/implied-in-base", "no entries for its directories")
	return a.bytes()
}

func over() []byte {
	a := newArchive()
	a.file("etc/hostname", "over\n")
	a.file("etc/.wh.removed", "")
	a.dir("etc", 0o700)
	a.file("etc/opaque/new", "seen")
	a.file("etc/opaque/.wh..wh..opq", "")
	a.file("etc/replaced", "now a file")
	// srv and srv/data are implied: owner, mode and attributes come from below.
	a.file("srv/data/file", "in an implied directory")
	a.file("new/deep/file", "in directories that are nowhere below")
	a.file("usr/bin/.wh.su", "")
	a.file("usr/share/.wh.nothing", "")
	return a.bytes()
}

func third() []byte {
	a := newArchive()
	a.file("srv/data/second", "implied again")
	a.file("etc/.wh.opaque", "")
	a.dir("var/cache", 0o711)
	a.add(tar.Header{Typeflag: tar.TypeReg, Name: "usr/bin/su", Mode: 0o755}, []byte("back"))
	return a.bytes()
}

func fourth() []byte {
	a := newArchive()
	a.file("var/cache/entry", "implied over an unpacked layer")
	a.dir("etc/opaque", 0o750)
	a.file("etc/opaque/again", "a directory where a whiteout was")
	a.file("opt/app/lib/.wh.implied-in-base", "")
	return a.bytes()
}
