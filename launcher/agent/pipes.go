package agent

import (
	"errors"
	"os"
	"os/exec"
)

// pipes are this side's ends of a command's streams. They are files, and not
// what exec.Cmd would make of readers and writers, so that waiting for the
// process never waits for whoever else holds the other ends.
type pipes struct {
	stdin          *os.File
	stdout, stderr *os.File
	child          []*os.File
}

func openPipes(cmd *exec.Cmd) (*pipes, error) {
	var all [6]*os.File
	for i := 0; i < len(all); i += 2 {
		r, w, err := os.Pipe()
		if err != nil {
			return nil, errors.Join(err, closeAll(all[:i]))
		}
		all[i], all[i+1] = r, w
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = all[0], all[3], all[5]
	return &pipes{
		stdin: all[1], stdout: all[2], stderr: all[4],
		child: []*os.File{all[0], all[3], all[5]},
	}, nil
}

// closeChild closes the ends that the process has now.
func (p *pipes) closeChild() { _ = closeAll(p.child) }

func (p *pipes) closeOwn() { _ = closeAll([]*os.File{p.stdin, p.stdout, p.stderr}) }

func closeAll(files []*os.File) error {
	var errs []error
	for _, f := range files {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}
