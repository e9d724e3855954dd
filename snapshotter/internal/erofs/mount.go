package erofs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/firstlight-dev/firstlight/indexer/tree"
)

// MountOption changes how an image is mounted.
type MountOption func(*mountOptions)

type mountOptions struct{ direct bool }

// WithDirectIO makes the kernel read the device past its page cache, so that
// data is kept once, not twice. It needs a device that takes direct reads.
func WithDirectIO() MountOption { return func(o *mountOptions) { o.direct = true } }

// Mount mounts a metadata image, whose data is on device, read-only on the
// directory target. Both files are opened by the kernel and may be unlinked
// afterwards. The mount has neither devices nor set-uid: it is made to be a
// lower layer of overlayfs, whose own mount decides about those.
func Mount(meta, device, target string, opts ...MountOption) error {
	var o mountOptions
	for _, f := range opts {
		f(&o)
	}
	if err := mount(meta, device, target, o); err != nil {
		return fmt.Errorf("mount erofs on %s: %w", target, err)
	}
	return nil
}

func mount(meta, device, target string, o mountOptions) error {
	fd, err := unix.Fsopen("erofs", unix.FSOPEN_CLOEXEC)
	if errors.Is(err, unix.ENODEV) {
		return errors.New("this kernel has no erofs (modprobe erofs, or CONFIG_EROFS_FS)")
	}
	if err != nil {
		return fmt.Errorf("open file system: %w", err)
	}
	defer unix.Close(fd)
	steps := []func() error{
		func() error { return unix.FsconfigSetString(fd, "source", meta) },
		func() error { return unix.FsconfigSetString(fd, "device", device) },
		func() error { return unix.FsconfigSetFlag(fd, "ro") },
	}
	if o.direct {
		steps = append(steps, func() error { return unix.FsconfigSetFlag(fd, "directio") })
	}
	steps = append(steps, func() error { return unix.FsconfigCreate(fd) })
	for _, step := range steps {
		if err := step(); err != nil {
			return explain(fd, err)
		}
	}
	m, err := unix.Fsmount(fd, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_RDONLY|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOSUID)
	if err != nil {
		return explain(fd, err)
	}
	defer unix.Close(m)
	return unix.MoveMount(m, "", unix.AT_FDCWD, target, unix.MOVE_MOUNT_F_EMPTY_PATH)
}

// explain adds what the kernel wrote about a failed mount.
func explain(fd int, err error) error {
	var said []string
	buf := make([]byte, 4096)
	for range 16 { // the kernel keeps 8 messages
		n, rerr := unix.Read(fd, buf)
		if rerr != nil || n == 0 {
			break
		}
		said = append(said, string(bytes.TrimSpace(buf[:n])))
	}
	if len(said) > 0 {
		err = fmt.Errorf("%w: %s", err, strings.Join(said, "; "))
	}
	switch {
	case errors.Is(err, unix.EINVAL) && len(said) == 0:
		err = fmt.Errorf("%w: the kernel log (dmesg) says what it does not like about the image", err)
	case errors.Is(err, unix.ENOTBLK):
		err = fmt.Errorf("%w: mounting a file needs Linux 6.12 with CONFIG_EROFS_FS_BACKED_BY_FILE", err)
	}
	return err
}

// Unmount takes away a mount made by Mount. Files in use stay usable until they
// are closed. What is not mounted is no error.
func Unmount(target string) error {
	err := unix.Unmount(target, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("unmount erofs from %s: %w", target, err)
	}
	return nil
}

// Probe mounts a small image in a folder below dir and reads from it. It
// returns why that did not work. The caller's files system for dir must be the
// one that images will be on.
func Probe(ctx context.Context, dir string) (err error) {
	if err := ctx.Err(); err != nil {
		return err
	}
	tmp, err := os.MkdirTemp(dir, "erofs-probe-")
	if err != nil {
		return fmt.Errorf("probe erofs: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(tmp)) }()
	content := bytes.Repeat([]byte("firstlight"), 100)
	device := append(make([]byte, blockSize), content...)
	device = append(device, make([]byte, align(int64(len(device)), blockSize)-int64(len(device)))...)
	t := &tree.Tree{Nodes: []tree.Node{
		{Mode: unix.S_IFDIR | 0o755, Nlink: 2, Children: []tree.Child{{Name: "file", Row: 1}}},
		{Mode: unix.S_IFREG | 0o644, Nlink: 1, Size: int64(len(content)), DataOffset: blockSize, Name: "file"},
	}}
	var meta bytes.Buffer
	if err := Build(&meta, t, int64(len(device))); err != nil {
		return fmt.Errorf("probe erofs: %w", err)
	}
	metaPath, devPath, mnt := filepath.Join(tmp, "meta"), filepath.Join(tmp, "device"), filepath.Join(tmp, "mnt")
	err = errors.Join(os.WriteFile(metaPath, meta.Bytes(), 0o600), os.WriteFile(devPath, device, 0o600), os.Mkdir(mnt, 0o700))
	if err != nil {
		return fmt.Errorf("probe erofs: %w", err)
	}
	if err := Mount(metaPath, devPath, mnt); err != nil {
		return fmt.Errorf("probe erofs: %w", err)
	}
	defer func() { err = errors.Join(err, unmountNow(mnt)) }()
	got, err := os.ReadFile(filepath.Join(mnt, "file"))
	if err != nil {
		return fmt.Errorf("probe erofs: %w", err)
	}
	if !bytes.Equal(got, content) {
		return errors.New("probe erofs: the kernel reads other bytes than were written")
	}
	return nil
}

// unmountNow unmounts what nobody uses, for the folder to be removed.
func unmountNow(target string) error {
	if err := unix.Unmount(target, unix.UMOUNT_NOFOLLOW); err != nil {
		return fmt.Errorf("unmount erofs from %s: %w", target, err)
	}
	return nil
}
