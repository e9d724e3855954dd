package agent

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/pkg/sftp"
)

// ServeSFTP serves one SFTP session on the given streams, in a process of its
// own: what a client does to it can't harm PID 1. Relative paths start in the
// current directory.
func ServeSFTP(in io.Reader, out io.WriteCloser) error {
	dir, err := os.Getwd()
	if err != nil {
		dir = "/"
	}
	srv, err := sftp.NewServer(duplex{in, out}, sftp.WithServerWorkingDirectory(dir))
	if err != nil {
		return fmt.Errorf("start sftp: %w", err)
	}
	if err := srv.Serve(); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("serve sftp: %w", err)
	}
	return nil
}

type duplex struct {
	io.Reader
	io.WriteCloser
}
