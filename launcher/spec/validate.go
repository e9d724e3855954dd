package spec

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Limits of a Spec, far above what real ones need. They bound the pod that is
// made from it and the work of probing it.
const (
	maxList      = 64      // entries in any list
	maxArgs      = 256     // arguments in a command
	maxText      = 4 << 10 // bytes in one string
	maxGPUs      = 16      // cards in one machine, today's largest
	maxMemoryMiB = 1 << 20 // 1 TiB of GPU memory on one card
	maxAttempt   = time.Hour
)

// Field is one problem with one field.
type Field struct {
	Path    string `json:"path"`
	Message string `json:"message"`
}

// Errors lists everything wrong with a Spec. It wraps [ErrInvalid].
type Errors []Field

func (e Errors) Error() string {
	var b strings.Builder
	b.WriteString(ErrInvalid.Error())
	for i, f := range e {
		sep := "; "
		if i == 0 {
			sep = ": "
		}
		fmt.Fprintf(&b, "%s%s: %s", sep, f.Path, f.Message)
	}
	return b.String()
}

// Unwrap makes errors.Is(err, ErrInvalid) hold.
func (Errors) Unwrap() error { return ErrInvalid }

func (e *Errors) add(field, format string, args ...any) {
	*e = append(*e, Field{Path: field, Message: fmt.Sprintf(format, args...)})
}

var (
	label    = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)
	variable = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	ident    = regexp.MustCompile(`^[a-z0-9][-_a-z0-9]{0,62}$`)
)

// IsLabel reports whether text is a DNS-1123 label.
func IsLabel(text string) bool { return label.MatchString(text) }

// reserved variables carry the GPU limits or steer the loader; a user's value
// would lift the limit for everyone on the card.
var reserved = []string{
	"CUDA_DEVICE_MEMORY_LIMIT", "CUDA_DEVICE_SM_LIMIT", "CUDA_DEVICE_MEMORY_SHARED_CACHE",
	"CUDA_DISABLE_CONTROL", "GPU_CORE_UTILIZATION_POLICY", "CUDA_TASK_PRIORITY", "CUDA_REDIRECT",
	"ACTIVE_OOM_KILLER", "LD_PRELOAD", "NVIDIA_VISIBLE_DEVICES", "FIRSTLIGHT_",
}

// Reserved reports whether a variable may not be set by a Spec.
func Reserved(variable string) bool {
	return slices.ContainsFunc(reserved, func(p string) bool { return strings.HasPrefix(variable, p) })
}

// Validate returns all problems, in the order of the fields.
func (s *Spec) Validate() Errors {
	var e Errors
	if !IsLabel(s.Name) {
		e.add("name", "must be a DNS label: lower-case letters, digits and hyphens, at most 63")
	}
	if _, err := name.ParseReference(s.Image); err != nil {
		e.add("image", "is not an image reference: %v", err)
	}
	validateArgs(&e, "command", s.Command)
	if s.OnExit != OnExitKeep && s.OnExit != OnExitExit {
		e.add("onExit", "must be keep or exit")
	}
	s.validateEnv(&e)
	s.validateSizes(&e)
	s.validateGPU(&e)
	for i, t := range s.Tools {
		if t != ToolSSH {
			e.add(fmt.Sprintf("tools[%d]", i), "unknown tool %q; known: ssh", t)
		}
	}
	s.validateVolumes(&e)
	s.validateReadiness(&e)
	return e
}

func validateArgs(e *Errors, field string, args []string) {
	if len(args) > maxArgs {
		e.add(field, "has more than %d arguments", maxArgs)
		return
	}
	if len(args) > 0 && args[0] == "" {
		e.add(field+"[0]", "is empty")
	}
	for i, a := range args {
		validateText(e, fmt.Sprintf("%s[%d]", field, i), a)
	}
}

func validateText(e *Errors, field, text string) {
	switch {
	case len(text) > maxText:
		e.add(field, "is longer than %d bytes", maxText)
	case strings.ContainsRune(text, 0):
		e.add(field, "contains a zero byte")
	}
}

func (s *Spec) validateEnv(e *Errors) {
	if len(s.Env) > maxList {
		e.add("env", "has more than %d entries", maxList)
		return
	}
	seen := make(map[string]bool, len(s.Env))
	for i, v := range s.Env {
		at := fmt.Sprintf("env[%d]", i)
		switch {
		case !variable.MatchString(v.Name):
			e.add(at+".name", "is not a variable name")
		case Reserved(v.Name):
			e.add(at+".name", "%s is reserved: it carries or lifts a limit", v.Name)
		case seen[v.Name]:
			e.add(at+".name", "%s is set twice", v.Name)
		}
		seen[v.Name] = true
		validateText(e, at+".value", v.Value)
	}
}

func (s *Spec) validateSizes(e *Errors) {
	positive(e, "cpu", s.CPU)
	memory := positive(e, "memory", s.Memory)
	if s.Shm == "" {
		return
	}
	if shm := positive(e, "shm", s.Shm); shm != nil && memory != nil && shm.Cmp(*memory) > 0 {
		e.add("shm", "is more than memory, into which it counts")
	}
}

func positive(e *Errors, field, text string) *resource.Quantity {
	q, err := resource.ParseQuantity(text)
	switch {
	case text == "":
		e.add(field, "is required")
	case err != nil:
		e.add(field, "is not a quantity such as 2, 500m or 8Gi")
	case q.Sign() <= 0:
		e.add(field, "must be more than 0")
	default:
		return &q
	}
	return nil
}

func (s *Spec) validateGPU(e *Errors) {
	if s.GPU == nil {
		if s.Backend != "" {
			e.add("backend", "is given but gpu is not")
		}
		return
	}
	g := s.GPU
	validateText(e, "gpu.model", g.Model)
	if g.Count < 1 || g.Count > maxGPUs {
		e.add("gpu.count", "must be between 1 and %d", maxGPUs)
	}
	if g.Whole == (g.Share != nil) {
		e.add("gpu", "needs exactly one of whole and share")
	}
	if g.Share != nil {
		if g.Share.MemoryMiB < 1 || g.Share.MemoryMiB > maxMemoryMiB {
			e.add("gpu.share.memoryMiB", "must be between 1 and %d", maxMemoryMiB)
		}
		if g.Share.Cores < 0 || g.Share.Cores > 100 {
			e.add("gpu.share.cores", "must be between 0 and 100")
		}
	}
	switch s.Backend {
	case BackendHAMi:
	case BackendWhole:
		if g.Share != nil {
			e.add("gpu.share", "backend whole cannot express a share")
		}
	default:
		e.add("backend", "unknown backend %q; known: hami, whole", s.Backend)
	}
}

func (s *Spec) validateVolumes(e *Errors) {
	if len(s.Volumes) > maxList {
		e.add("volumes", "has more than %d entries", maxList)
		return
	}
	names, mounts := map[string]bool{}, map[string]bool{}
	for i, v := range s.Volumes {
		at := fmt.Sprintf("volumes[%d]", i)
		if !IsLabel(v.Name) || names[v.Name] {
			e.add(at+".name", "must be a DNS label of its own")
		}
		names[v.Name] = true
		clean := path.Clean(v.MountPath)
		switch {
		case !path.IsAbs(v.MountPath) || clean != v.MountPath || clean == "/":
			e.add(at+".mountPath", "must be a clean absolute path below /")
		case under(clean, "/opt/firstlight") || under(clean, "/run/firstlight") || under("/opt/firstlight", clean):
			e.add(at+".mountPath", "would hide what the launcher brings along")
		case mounts[clean]:
			e.add(at+".mountPath", "%s is mounted twice", clean)
		}
		mounts[clean] = true
		switch {
		case (v.Claim == "") == (v.HostPath == ""):
			e.add(at, "needs exactly one of claim and hostPath")
		case v.Claim != "" && !IsLabel(v.Claim):
			e.add(at+".claim", "must be a DNS label")
		case v.HostPath != "" && (!path.IsAbs(v.HostPath) || path.Clean(v.HostPath) != v.HostPath):
			e.add(at+".hostPath", "must be a clean absolute path")
		}
	}
}

func under(p, dir string) bool { return p == dir || strings.HasPrefix(p, dir+"/") }

func (s *Spec) validateReadiness(e *Errors) {
	if len(s.Readiness) > maxList {
		e.add("readiness", "has more than %d entries", maxList)
		return
	}
	seen := map[string]bool{}
	for i := range s.Readiness {
		p := &s.Readiness[i]
		at := fmt.Sprintf("readiness[%d]", i)
		if !ident.MatchString(p.Name) || seen[p.Name] {
			e.add(at+".name", "must be a name of its own: lower-case letters, digits, hyphens and underscores")
		}
		seen[p.Name] = true
		if p.Timeout != "" {
			if d, err := time.ParseDuration(p.Timeout); err != nil || d <= 0 || d > maxAttempt {
				e.add(at+".timeout", "must be a duration such as 30s, at most %s", maxAttempt)
			}
		}
		s.validateProbe(e, at, p)
	}
}

func (s *Spec) validateProbe(e *Errors, at string, p *Probe) {
	switch p.Type {
	case ProbeSSHLogin:
		if len(p.Command) > 0 || p.Expect != "" {
			e.add(at, "ssh_login takes neither command nor expect")
		}
		if !slices.Contains(s.Tools, ToolSSH) {
			e.add(at+".type", "ssh_login needs the tool ssh")
		}
	case ProbeExec:
		if len(p.Command) == 0 {
			e.add(at+".command", "is required")
		}
		validateArgs(e, at+".command", p.Command)
		validateText(e, at+".expect", p.Expect)
	default:
		e.add(at+".type", "unknown probe %q; known: ssh_login, exec", p.Type)
	}
}
