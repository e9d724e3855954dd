package spec

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"sigs.k8s.io/yaml"
)

// maxBytes bounds a Spec's text. Real ones have a few hundred bytes; the bound
// keeps YAML's alias expansion and the database small.
const maxBytes = 64 << 10

// ErrInvalid is wrapped by every error about a Spec's content.
var ErrInvalid = errors.New("invalid spec")

// Parse reads YAML or JSON, fills in the defaults and validates the result.
func Parse(text []byte) (*Spec, error) {
	if len(text) > maxBytes {
		return nil, fmt.Errorf("%w: longer than %d bytes", ErrInvalid, maxBytes)
	}
	asJSON, err := yaml.YAMLToJSONStrict(text)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	dec := json.NewDecoder(bytes.NewReader(asJSON))
	dec.DisallowUnknownFields()
	var s Spec
	if err := dec.Decode(&s); err != nil {
		return nil, fmt.Errorf("%w: %s", ErrInvalid, strings.TrimPrefix(err.Error(), "json: "))
	}
	return Complete(s)
}

// Complete fills in the defaults and validates the result.
func Complete(s Spec) (*Spec, error) {
	full := s.withDefaults()
	if errs := full.Validate(); len(errs) > 0 {
		return nil, errs
	}
	return &full, nil
}

// Ref names one revision of a Spec. Revision 0 means the newest.
type Ref struct {
	Name     string `json:"name"`
	Revision int    `json:"revision"`
}

// String returns name@revision.
func (r Ref) String() string {
	if r.Revision == 0 {
		return r.Name
	}
	return r.Name + "@" + strconv.Itoa(r.Revision)
}

// ParseRef reads name or name@revision.
func ParseRef(text string) (Ref, error) {
	name, rev, pinned := strings.Cut(text, "@")
	if !IsLabel(name) {
		return Ref{}, fmt.Errorf("%w: reference %q: the name is not a DNS label", ErrInvalid, text)
	}
	if !pinned {
		return Ref{Name: name}, nil
	}
	n, err := strconv.Atoi(rev)
	if err != nil || n < 1 {
		return Ref{}, fmt.Errorf("%w: reference %q: the revision is not a positive number", ErrInvalid, text)
	}
	return Ref{Name: name, Revision: n}, nil
}
