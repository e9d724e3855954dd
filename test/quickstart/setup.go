package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// checkMachine looks for what no package can bring, and says what to do.
func checkMachine() error {
	if os.Geteuid() != 0 {
		return errors.New("run as root: namespaces, mounts and containers need it")
	}
	if _, err := os.Stat("/dev/fuse"); err != nil {
		return errors.New("/dev/fuse is missing: load the kernel module fuse (modprobe fuse)")
	}
	filesystems, err := os.ReadFile("/proc/filesystems")
	if err != nil {
		return fmt.Errorf("read the kernel's file systems: %w", err)
	}
	if !bytes.Contains(filesystems, []byte("\toverlay\n")) {
		return errors.New("the kernel has no overlay file system: load it (modprobe overlay)")
	}
	return nil
}

// build makes the commands and the programs they are tried with.
func build(ctx context.Context, tell *teller, root string, opts options) error {
	targets := []struct{ name, what string }{
		{"build", "build firstlight's commands"},
		{"tools-containerd", "build containerd and a registry (first time: minutes)"},
	}
	if opts.kubernetes {
		targets = append(targets, struct{ name, what string }{"tools-kubernetes", "build Kubernetes (first time: ten minutes or more)"})
	}
	for _, target := range targets {
		err := tell.step(target.what, func() (string, error) {
			cmd := exec.CommandContext(ctx, "make", "--silent", "--no-print-directory", target.name)
			cmd.Dir = root
			out, err := cmd.CombinedOutput()
			if err != nil {
				return "", fmt.Errorf("make %s: %w\n%s", target.name, err, strings.TrimSpace(string(out)))
			}
			return "", nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}
