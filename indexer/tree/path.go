package tree

import (
	"errors"
	"fmt"
	"iter"
	"path"
	"strings"

	"github.com/firstlight-dev/firstlight/indexer/index"
)

var (
	errMissing = errors.New("no such file")
	// errHost: the system call containerd would make leaves the layer's folder.
	errHost  = errors.New("what it resolves to depends on the machine that extracts it")
	errSteps = errors.New("the layer's paths and attributes take too many look-ups")
)

const (
	// maxFollow is how many symbolic links a path may pass in all, maxKernelFollow
	// in one system call.
	maxFollow       = 255
	maxKernelFollow = 40
)

// components are the parts of a clean path, absolute or not.
func components(p string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for name := range strings.SplitSeq(p, "/") {
			if name != "" && !yield(name) {
				return
			}
		}
	}
}

// resolve follows the symbolic links of a path and returns it absolute and
// clean, with none left. Missing components stay as they are. The order in which
// containerd looks is kept, for its results in odd cases depend on it.
func (b *Builder) resolve(p string) (string, error) {
	if b.steps > maxSteps {
		return "", errSteps
	}
	if p == "" {
		return "/", nil
	}
	if clean := path.Join("/", p); !strings.Contains(p, "..") && b.plain(clean) {
		return clean, nil
	}
	for followed := 0; ; {
		before := followed
		next, err := b.walk(p, &followed)
		if err != nil {
			return "", err
		}
		p = next
		if followed > before {
			continue
		}
		clean := path.Join("/", p)
		if clean == p {
			return clean, nil
		}
		p = clean
	}
}

// plain reports whether the part of a path that exists is made of directories.
func (b *Builder) plain(p string) bool {
	row := Root
	for name := range components(p) {
		b.steps++
		if len(name) > index.MaxName {
			return false
		}
		next, ok := b.nodes[row].children[name]
		if !ok {
			return true
		}
		if !b.nodes[next].isDir() {
			return false
		}
		row = next
	}
	return true
}

// walk goes through a path once, from its first component on, and puts the
// target of a symbolic link in its place.
func (b *Builder) walk(p string, followed *int) (string, error) {
	p = trimSlash(p)
	if p == "/" {
		return p, nil
	}
	dir, base := path.Split(p)
	if dir == "" {
		next, _, err := b.follow(base, followed)
		return next, err
	}
	dir, err := b.walk(dir, followed)
	if err != nil {
		return "", err
	}
	next, link, err := b.follow(path.Join(dir, base), followed)
	if err != nil || !link || path.IsAbs(next) {
		return next, err
	}
	return path.Join(dir, next), nil
}

func trimSlash(p string) string {
	for len(p) > 1 && p[len(p)-1] == '/' {
		p = p[:len(p)-1]
	}
	return p
}

// follow returns the target if p is a symbolic link, else p.
func (b *Builder) follow(p string, followed *int) (next string, link bool, err error) {
	if *followed > maxFollow {
		return "", false, errors.New("too many symbolic links")
	}
	p = path.Join("/", p)
	row, err := b.lookup(p)
	switch {
	case errors.Is(err, errMissing):
		return p, false, nil
	case err != nil:
		return "", false, err
	case !b.nodes[row].isSymlink():
		return p, false, nil
	}
	*followed++
	return b.nodes[row].Target, true, nil
}

// lookup finds a path as lstat(2) does below the extracted layer: symbolic links
// before the last component are followed by the kernel.
func (b *Builder) lookup(p string) (int, error) {
	rest := trimSlash(p)
	stack := []int{Root} // the directories from the root to here
	for links := 0; ; {
		rest = strings.TrimLeft(rest, "/")
		name, tail, more := strings.Cut(rest, "/")
		row := stack[len(stack)-1]
		switch {
		case name == "":
			return row, nil
		case !b.nodes[row].isDir():
			return 0, errors.New("not a directory")
		case name == ".":
			rest = tail
			continue
		case name == "..":
			if len(stack) == 1 {
				return 0, errHost
			}
			stack, rest = stack[:len(stack)-1], tail
			continue
		case len(name) > index.MaxName:
			return 0, fmt.Errorf("a name has more than %d bytes", index.MaxName)
		}
		if b.steps++; b.steps > maxSteps {
			return 0, errSteps
		}
		next, ok := b.nodes[row].children[name]
		if !ok {
			return 0, errMissing
		}
		n := &b.nodes[next]
		if !more || !n.isSymlink() {
			stack, rest = append(stack, next), tail
			continue
		}
		if links++; links > maxKernelFollow {
			return 0, errors.New("too many symbolic links")
		}
		if path.IsAbs(n.Target) {
			return 0, errHost
		}
		rest = n.Target + "/" + tail
	}
}
