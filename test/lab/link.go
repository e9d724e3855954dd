package lab

import (
	"fmt"
	"net"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/firstlight-dev/firstlight/test/sandbox"
)

const (
	// burst is what a link lets through at full speed: some scheduling ticks'
	// worth at the rates of interest, little beside any image.
	burst = 256 << 10
	// queueTime bounds how long a packet waits at a link, as a good router
	// would; what does not fit is dropped and TCP slows down.
	queueTime = 50 * time.Millisecond
)

// nodeLink is the name of a link at the far end.
const nodeLink = "registry"

// Link joins one sandbox to the registry.
type Link struct{ far *sandbox.Namespaces }

// Received is how many bytes have come from the registry, all headers
// included.
func (l *Link) Received() (bytes int64, err error) {
	err = l.far.Enter(func() (err error) {
		bytes, err = received(nodeLink)
		return err
	})
	return bytes, err
}

// Join lays a link of the lab's rate to a sandbox, which reaches the registry by
// it and nothing else. Each link has a subnet of its own.
func (l *Lab) Join(far *sandbox.Namespaces) (*Link, error) {
	number := l.links.Add(1)
	name := fmt.Sprintf("link%d", number)
	near, end := fmt.Sprintf("10.77.%d.1", number), fmt.Sprintf("10.77.%d.2", number)
	shape := newShape(l.cfg.Mbits)
	err := l.registry.Enter(func() error {
		if err := addVeth(name, nodeLink, far.PID()); err != nil {
			return err
		}
		return configureLink(name, near, shape)
	})
	if err != nil {
		return nil, err
	}
	err = far.Enter(func() error {
		if err := configureLink(nodeLink, end, shape); err != nil {
			return err
		}
		return addRoute(RegistryIP, near)
	})
	if err != nil {
		return nil, err
	}
	return &Link{far: far}, nil
}

// addLoopback sets loopback up with one more address on it.
func addLoopback(ip string) error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find loopback: %w", err)
	}
	if ip != "" {
		address := &netlink.Addr{IPNet: host(ip)}
		if err := netlink.AddrAdd(lo, address); err != nil {
			return fmt.Errorf("add address %s: %w", ip, err)
		}
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return fmt.Errorf("set loopback up: %w", err)
	}
	return nil
}

// addVeth makes a pair of links, one end here and one in the network of the
// process pid.
func addVeth(name, peer string, pid int) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	veth := &netlink.Veth{LinkAttrs: attrs, PeerName: peer, PeerNamespace: netlink.NsPid(pid)}
	if err := netlink.LinkAdd(veth); err != nil {
		return fmt.Errorf("add veth %s: %w", name, err)
	}
	return nil
}

// newShape describes a token bucket of a rate. It must be called outside: the
// kernel's clock, which it needs, is not to be read where the thread has no
// place in /proc.
func newShape(mbits int) netlink.Tbf {
	rate := uint64(mbits) * 1e6 / 8
	return netlink.Tbf{
		Rate:   rate,
		Buffer: netlink.Xmittime(rate, burst),
		Limit:  burst + uint32(float64(rate)*queueTime.Seconds()),
	}
}

// configureLink gives a link its address and shape and sets it up.
func configureLink(name, ip string, shape netlink.Tbf) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("find link %s: %w", name, err)
	}
	address := &netlink.Addr{IPNet: &net.IPNet{IP: net.ParseIP(ip), Mask: net.CIDRMask(24, 32)}}
	if err := netlink.AddrAdd(link, address); err != nil {
		return fmt.Errorf("add address %s: %w", ip, err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("set link %s up: %w", name, err)
	}
	shape.QdiscAttrs = netlink.QdiscAttrs{
		LinkIndex: link.Attrs().Index,
		Handle:    netlink.MakeHandle(1, 0),
		Parent:    netlink.HANDLE_ROOT,
	}
	if err := netlink.QdiscAdd(&shape); err != nil {
		return fmt.Errorf("shape link %s: %w", name, err)
	}
	return nil
}

// addRoute leads to one address by way of another.
func addRoute(ip, gateway string) error {
	route := &netlink.Route{Dst: host(ip), Gw: net.ParseIP(gateway)}
	if err := netlink.RouteAdd(route); err != nil {
		return fmt.Errorf("add route to %s: %w", ip, err)
	}
	return nil
}

// received reads how many bytes came in by a link.
func received(name string) (int64, error) {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return 0, fmt.Errorf("find link %s: %w", name, err)
	}
	return int64(link.Attrs().Statistics.RxBytes), nil
}

func host(ip string) *net.IPNet {
	return &net.IPNet{IP: net.ParseIP(ip), Mask: net.CIDRMask(32, 32)}
}
