package layers

import (
	"sort"

	"github.com/firstlight-dev/firstlight/indexer/tree"
)

// mergeXattrs adds attributes to own that it does not have.
func mergeXattrs(own []tree.Xattr, more map[string][]byte) []tree.Xattr {
	merged := append([]tree.Xattr(nil), own...)
	has := map[string]bool{}
	for _, x := range own {
		has[x.Name] = true
	}
	for name, value := range more {
		if !has[name] {
			merged = append(merged, tree.Xattr{Name: name, Value: value})
		}
	}
	sort.Slice(merged, func(i, j int) bool { return merged[i].Name < merged[j].Name })
	return merged
}

func withoutXattr(own []tree.Xattr, name string) []tree.Xattr {
	var kept []tree.Xattr
	for _, x := range own {
		if x.Name != name {
			kept = append(kept, x)
		}
	}
	return kept
}
