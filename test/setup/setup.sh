#!/bin/sh
# Installs the Debian packages that the tests and the quickstart need and this
# machine lacks. Says nothing and touches nothing when all are there. "peers" is
# for the benchmarks: what it takes to build other projects' programs.
set -eu

want=${1:-}

# Each line: a file that the package brings, the package, what it is for.
needs() {
	cat <<'EOF'
/usr/sbin/debootstrap      debootstrap               makes the base layer of the test images
/usr/bin/busybox           busybox-static            is the smallest test image
/usr/sbin/runc             runc                      runs containers
/usr/sbin/tc               iproute2                  shapes the link between registry and node
/usr/lib/cni/bridge        containernetworking-plugins gives pods a network
/usr/bin/unshare           util-linux                makes private namespaces
/usr/sbin/iptables         iptables                  serves the CNI portmap plugin
/usr/bin/xz                xz-utils                  unpacks Debian packages
/usr/bin/zstd              zstd                      unpacks Debian packages
/usr/bin/ssh               openssh-client            checks the agent against a stock client
/usr/bin/wget              wget                      downloads for debootstrap
/usr/share/keyrings/debian-archive-keyring.gpg debian-archive-keyring checks Debian's signatures
/usr/bin/gpgv              gpgv                      checks Debian's signatures
/etc/ssl/certs/ca-certificates.crt ca-certificates   checks mirrors reached by https
EOF
	[ "$want" = peers ] || return 0
	cat <<'EOF'
/usr/bin/gcc               gcc                       compiles what SOCI has in C
/usr/include/stdlib.h      libc6-dev                 the same
/usr/include/zlib.h        zlib1g-dev                inflates for SOCI
EOF
}

missing=
while read -r file package purpose; do
	if [ ! -e "$file" ]; then
		echo "setup: $package is missing ($purpose)"
		missing="$missing $package"
	fi
done <<EOF
$(needs)
EOF
[ -n "$missing" ] || exit 0

if [ "$(id -u)" != 0 ]; then
	echo "setup: run as root, or install by hand:$missing" >&2
	exit 1
fi
if ! command -v apt-get >/dev/null; then
	echo "setup: this machine has no apt-get; install the counterparts of:$missing" >&2
	exit 1
fi
export DEBIAN_FRONTEND=noninteractive
# Package lists may be empty or stale on a fresh machine; a failing update of
# some unrelated source must not stop us, a failing install does.
apt-get update -qq || echo "setup: apt-get update had errors, going on" >&2
# shellcheck disable=SC2086 # a list of package names
apt-get install -y -qq --no-install-recommends $missing
