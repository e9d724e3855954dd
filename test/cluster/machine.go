package cluster

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/firstlight-dev/firstlight/test/sandbox"
)

// prepareMachine turns the fresh namespaces into something that looks like a
// machine of its own: mounts, host name, network.
func prepareMachine(ctx context.Context, ns *sandbox.Namespaces, dir, node string) error {
	if err := ns.CoverMounts(ctx, filepath.Join(dir, "varlib")); err != nil {
		return err
	}
	return ns.Enter(func() error {
		if err := unix.Sethostname([]byte(node)); err != nil {
			return fmt.Errorf("set host name: %w", err)
		}
		for _, dir := range []string{"/var/lib/kubelet", "/run/cdi"} {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return fmt.Errorf("make folder of the cluster: %w", err)
			}
		}
		if err := coverSysctls(); err != nil {
			return err
		}
		return prepareNetwork()
	})
}

// coverSysctls shows kubelet the machine-wide settings that it would write
// otherwise. They concern the whole kernel, so writing them would reach the
// machine.
func coverSysctls() error {
	for name, value := range map[string]string{
		"vm/overcommit_memory": "1",
		"kernel/panic":         "10",
		"kernel/panic_on_oops": "1",
	} {
		cover := filepath.Join("/run/sysctl", name)
		if err := os.MkdirAll(filepath.Dir(cover), 0o755); err != nil {
			return fmt.Errorf("cover sysctl %s: %w", name, err)
		}
		if err := os.WriteFile(cover, []byte(value+"\n"), 0o644); err != nil {
			return fmt.Errorf("cover sysctl %s: %w", name, err)
		}
		if err := unix.Mount(cover, filepath.Join("/proc/sys", name), "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("cover sysctl %s: %w", name, err)
		}
	}
	return nil
}

// prepareNetwork gives the node an address. A bridge carries it, because
// kubelet refuses loopback addresses and kernels without dummy devices exist.
func prepareNetwork() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find loopback: %w", err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return fmt.Errorf("set loopback up: %w", err)
	}
	bridge := &netlink.Bridge{LinkAttrs: netlink.NewLinkAttrs()}
	bridge.Name = "node0"
	if err := netlink.LinkAdd(bridge); err != nil {
		return fmt.Errorf("add bridge: %w", err)
	}
	address, err := netlink.ParseAddr(nodeIP + "/24")
	if err != nil {
		return fmt.Errorf("parse node address: %w", err)
	}
	if err := netlink.AddrAdd(bridge, address); err != nil {
		return fmt.Errorf("add node address: %w", err)
	}
	if err := netlink.LinkSetUp(bridge); err != nil {
		return fmt.Errorf("set bridge up: %w", err)
	}
	// Kubernetes wants a default route to exist, not to lead anywhere.
	everywhere := &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}
	route := &netlink.Route{LinkIndex: bridge.Index, Dst: everywhere, Scope: netlink.SCOPE_LINK}
	if err := netlink.RouteAdd(route); err != nil {
		return fmt.Errorf("add default route: %w", err)
	}
	// This sysctl belongs to the network namespace.
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644); err != nil {
		return fmt.Errorf("turn forwarding on: %w", err)
	}
	return nil
}
