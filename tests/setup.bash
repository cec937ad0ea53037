# The requirements of the tests and of .ci/run: root installs what is missing, an ordinary user gets
# a message. Source this file in bash, in the repository's folder.

# Tests that are left out because something is missing, one per line; and the commands that restore
# the machine at the end.
not_run=() cleanups=()

# An ordinary user's shell does not search these folders.
export PATH=$PATH:/usr/sbin:/sbin

can_tun() { { : <>/dev/net/tun; } 2>/dev/null; }
is_root() { [ "$(id -u)" -eq 0 ]; }
has() { command -v "$1" >/dev/null 2>&1; }

# The programs that the build and the tests call, and their packages. Without most of them only some
# tests are left out.
tools() {
    local missing=() pair
    for pair in cc:build-essential curl:curl timeout:coreutils unshare:util-linux setpriv:util-linux \
        ip:iproute2 ethtool:ethtool tshark:tshark nft:nftables iptables-legacy-restore:iptables chromium:chromium \
        strip:binutils podman:podman runc:runc containerd:containerd conntrack:conntrack promtool:prometheus go:golang-go \
        busybox:busybox-static dig:bind9-dnsutils wget:wget nc.openbsd:netcat-openbsd pasta:passt bird:bird2 /usr/lib/cni/portmap:containernetworking-plugins; do
        has "${pair%%:*}" || missing+=("${pair##*:}")
    done
    if [ ${#missing[@]} -eq 0 ]; then
        echo "all there"
        return
    elif is_root && has apt-get; then
        export DEBIAN_FRONTEND=noninteractive
        apt-get update -qq
        # A package that this system does not have must not prevent the others.
        apt-get install -y -qq --no-install-recommends "${missing[@]}" ||
            for pair in "${missing[@]}"; do
                apt-get install -y -qq --no-install-recommends "$pair" ||
                    not_run+=("what needs the package $pair, which could not be installed")
            done
    else
        not_run+=("what needs these packages, which root installs: apt-get install ${missing[*]}")
        echo "${not_run[-1]}"
    fi
    has cc && has timeout && has unshare && has ip
}

# Installs a Rust toolchain if there is none; an existing one is used as it is.
toolchain() {
    if ! has cargo && [ -f "${CARGO_HOME:-$HOME/.cargo}/env" ]; then
        # shellcheck disable=SC1091
        . "${CARGO_HOME:-$HOME/.cargo}/env"
    fi
    if ! has cargo; then
        curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs |
            sh -s -- -y --no-modify-path --profile minimal -c rustfmt -c clippy || return 1
        # shellcheck disable=SC1091
        . "${CARGO_HOME:-$HOME/.cargo}/env"
    fi
    cargo --version
}

# From Ubuntu 23.10 on, programs without a profile have no capabilities in user namespaces. Root
# lifts that for the run.
allow_user_namespaces() {
    local switch=/proc/sys/kernel/apparmor_restrict_unprivileged_userns
    if [ -e "$switch" ] && [ "$(cat "$switch")" = 1 ]; then
        if is_root && echo 0 >"$switch" 2>/dev/null; then
            cleanups+=("echo 1 >$switch")
            echo "AppArmor's restriction of user namespaces is lifted until the end of this run"
        else
            echo "AppArmor restricts user namespaces here; root lifts it: sysctl kernel.apparmor_restrict_unprivileged_userns=0"
        fi
    fi
}

# The runtime for the CNI plugin's tests, built from its Go module into a folder that stays.
install_cnitool() {
    local folder=${XDG_CACHE_HOME:-$HOME/.cache}/manx-ci/bin
    export PATH=$folder:$PATH
    if ! has cnitool && has go; then GOBIN=$folder go install github.com/containernetworking/cni/cnitool@v1.3.0; fi
}
