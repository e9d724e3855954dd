package agent

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/firstlight-dev/firstlight/launcher/agentapi"
)

// Limits of what a client may set and of what is read from the image.
const (
	maxClientVariables = 128     // OpenSSH clients send a handful
	maxVariableBytes   = 4 << 10 // a locale or a terminal name is far shorter
	maxPasswdBytes     = 4 << 20 // tens of thousands of users
)

// defaultPath is used where neither the image nor the pod sets PATH. It is
// what runc and most images use.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// reservedPrefixes are variables that carry GPU limits, choose devices or
// change how programs are loaded. Only PID 1's own values count.
var reservedPrefixes = [...]string{ //nolint:gochecknoglobals // a constant table
	"CUDA_", "GPU_", "NVIDIA_", "LD_", "LIBCUDA_", "ACTIVE_OOM_", "HAMI_", "FIRSTLIGHT_",
}

// account is what the agent knows about the user it runs as.
type account struct {
	name, home, shell string
}

// environment is the base of every process the agent starts.
type environment struct {
	vars    []string // PID 1's variables, less the agent's own
	account account
	accept  []string // patterns of variables that clients may set
}

// readPasswd returns the image's user list, or nothing if it has none.
func readPasswd() []byte {
	f, err := os.Open("/etc/passwd")
	if err != nil {
		return nil
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxPasswdBytes))
	if err != nil {
		return nil
	}
	return b
}

// newEnvironment takes PID 1's variables and the image's passwd file.
func newEnvironment(vars []string, passwd []byte, uid int, accept []string) *environment {
	e := &environment{account: lookupAccount(passwd, uid), accept: accept}
	for _, v := range vars {
		if !strings.HasPrefix(v, agentapi.VariablePrefix) {
			e.vars = append(e.vars, v)
		}
	}
	return e
}

// app returns the environment of the image's own command: PID 1's, unchanged.
func (e *environment) app() []string { return append([]string(nil), e.vars...) }

// session returns PID 1's environment, completed by what a login expects and
// PID 1 lacks, and by extra, which wins.
func (e *environment) session(shell string, extra []string) []string {
	out := append([]string(nil), e.vars...)
	complete := func(name, value string) {
		if value != "" && lookup(out, name) == "" {
			out = append(out, name+"="+value)
		}
	}
	complete("PATH", defaultPath)
	complete("HOME", e.account.home)
	complete("USER", e.account.name)
	complete("LOGNAME", e.account.name)
	complete("SHELL", shell)
	return append(out, extra...)
}

// acceptable reports whether a client may set the variable.
func (e *environment) acceptable(name, value string) bool {
	if name == "" || strings.ContainsAny(name, "=\x00") || strings.Contains(value, "\x00") || len(name)+len(value) > maxVariableBytes {
		return false
	}
	for _, p := range reservedPrefixes {
		if strings.HasPrefix(name, p) {
			return false
		}
	}
	for _, pattern := range e.accept {
		prefix, open := strings.CutSuffix(pattern, "*")
		if name == pattern || open && strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

// startDir returns the first of the given directory, the home directory and
// PID 1's own that exists.
func (e *environment) startDir(configured string) string {
	home := lookup(e.vars, "HOME")
	if home == "" {
		home = e.account.home
	}
	for _, dir := range []string{configured, home} {
		if dir == "" {
			continue
		}
		if st, err := os.Stat(dir); err == nil && st.IsDir() {
			return dir
		}
	}
	return "" // exec.Cmd takes the current directory
}

// lookup returns the last value of the variable, as a program would see it.
func lookup(vars []string, name string) string {
	for i := len(vars) - 1; i >= 0; i-- {
		if v, ok := strings.CutPrefix(vars[i], name+"="); ok {
			return v
		}
	}
	return ""
}

// lookupAccount finds the user in a passwd file. A user without an entry gets
// a number for a name and / for a home, which is what runc assumes as well.
func lookupAccount(passwd []byte, uid int) account {
	for line := range strings.Lines(string(passwd)) {
		f := strings.Split(strings.TrimSuffix(line, "\n"), ":")
		if len(f) < 7 || f[2] != strconv.Itoa(uid) || f[0] == "" {
			continue
		}
		a := account{name: f[0], home: f[5], shell: f[6]}
		if a.home == "" {
			a.home = "/"
		}
		return a
	}
	if uid == 0 {
		return account{name: "root", home: "/"}
	}
	return account{name: strconv.Itoa(uid), home: "/"}
}

// noShellError is what a user of an image without a shell gets to read.
type noShellError struct{ tried []string }

func (e *noShellError) Error() string {
	return fmt.Sprintf("this image has no shell (tried %s); commands given to ssh, sftp and port forwarding still work", strings.Join(e.tried, ", "))
}

// shell finds the shell for a login: the configured one, $SHELL, the passwd
// entry's, then bash or sh in PATH.
func (e *environment) shell(configured string) (string, error) {
	var tried []string
	for _, candidate := range []string{configured, lookup(e.vars, "SHELL"), e.account.shell} {
		if candidate == "" || isNoLogin(candidate) {
			continue
		}
		tried = append(tried, candidate)
		if filepath.IsAbs(candidate) && executable(candidate) {
			return candidate, nil
		}
	}
	path := lookup(e.vars, "PATH")
	if path == "" {
		path = defaultPath
	}
	for _, name := range []string{"bash", "sh"} {
		tried = append(tried, name)
		if found := find(path, name); found != "" {
			return found, nil
		}
	}
	return "", &noShellError{tried: tried}
}

// isNoLogin reports the shells of accounts that aren't meant for people. In a
// container the account says nothing about who may log in.
func isNoLogin(shell string) bool {
	base := filepath.Base(shell)
	return base == "nologin" || base == "false" || base == "true" || base == "sync"
}

// find looks a program up in an absolute directory of the path list.
func find(path, name string) string {
	if strings.Contains(name, "/") {
		if executable(name) {
			return name
		}
		return ""
	}
	for _, dir := range filepath.SplitList(path) {
		if full := filepath.Join(dir, name); filepath.IsAbs(dir) && executable(full) {
			return full
		}
	}
	return ""
}

func executable(path string) bool {
	st, err := os.Stat(path)
	return err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0
}

// newCommand looks a command up by the PATH of the given environment.
func newCommand(command, env []string, dir string) (*exec.Cmd, error) {
	path := lookup(env, "PATH")
	if path == "" {
		path = defaultPath
	}
	full := find(path, command[0])
	if full == "" {
		if !strings.Contains(command[0], "/") {
			return nil, &exec.Error{Name: command[0], Err: exec.ErrNotFound}
		}
		full = command[0] // the kernel will say what is wrong with it
	}
	return &exec.Cmd{Path: full, Args: command, Env: env, Dir: dir}, nil
}
