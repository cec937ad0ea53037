//! The packet filters of the kernel, with rules like those of Manx's policies. Connection tracking comes first, then
//! one rule after the other. The last rule allows the traffic.

use std::fmt::Write as _;
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};

use manx_linux::netns;

use super::constants::PORT;
use crate::error::{Error, io};
use crate::host::programs;

/// A filter of forwarded packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Filter {
    /// A chain of nftables.
    Nftables,
    /// A chain of iptables (xtables, "legacy").
    Iptables,
}

/// The peers (in CIDR notation) and the TCP port of the rule with this index. These rules match no packet of a
/// measurement.
pub fn unmatched_rule(index: usize) -> (String, usize) {
    (format!("203.{}.{}.0/24", index / 256 % 256, index % 256), 1024 + index % 1000)
}

impl Filter {
    /// The program that loads a complete set of rules.
    const fn program(self) -> &'static str {
        match self {
            Self::Nftables => "nft",
            Self::Iptables => "iptables-legacy-restore",
        }
    }

    /// Why this filter cannot be measured here. `None` if it can.
    pub fn why_missing(self) -> Option<String> {
        let package = match self {
            Self::Nftables => "nftables",
            Self::Iptables => "iptables",
        };
        programs::why_missing(&[self.program()], package)
    }

    /// Loads a filter into the namespace: `rules` rules that match no packet, and a last rule that allows `ports`
    /// ports, starting with [`PORT`]. Other packets are not forwarded.
    pub fn load(self, netns: &OwnedFd, rules: usize, ports: u16) -> Result<(), Error> {
        match self {
            Self::Nftables => load_nftables(netns, &nftables(rules, ports)),
            Self::Iptables => load(self.program(), &[], netns, &iptables(rules, ports)),
        }
    }
}

/// Loads nftables rules into a namespace.
pub(super) fn load_nftables(netns: &OwnedFd, text: &str) -> Result<(), Error> {
    load(Filter::Nftables.program(), &["-f", "-"], netns, text)
}

fn load(program: &str, arguments: &[&str], netns: &OwnedFd, text: &str) -> Result<(), Error> {
    let what = format!("{program} cannot load its rules");
    let output = netns::run_in(netns, || {
        let mut child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()?;
        if let Some(mut stdin) = child.stdin.take() {
            stdin.write_all(text.as_bytes())?;
        }
        child.wait_with_output()
    })?
    .map_err(io(what.clone()))?;
    if output.status.success() {
        return Ok(());
    }
    let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(io(what)(std::io::Error::other(message)))
}

/// The range of `ports` ports, starting with [`PORT`], with this sign between the first and the last.
fn port_range(ports: u16, sign: char) -> String {
    if ports == 1 { PORT.to_string() } else { format!("{PORT}{sign}{}", PORT + ports - 1) }
}

fn nftables(rules: usize, ports: u16) -> String {
    let mut text = "table ip bench {\n chain forward {\n  \
                    type filter hook forward priority filter; policy drop;\n  \
                    ct state established,related accept\n"
        .to_owned();
    for (peers, port) in (0..rules).map(unmatched_rule) {
        let _ = writeln!(text, "  ip saddr {peers} tcp dport {port} accept");
    }
    let ports = port_range(ports, '-');
    for protocol in ["tcp", "udp"] {
        let _ = writeln!(text, "  {protocol} dport {ports} accept");
    }
    text + " }\n}\n"
}

fn iptables(rules: usize, ports: u16) -> String {
    let mut text = "*filter\n:FORWARD DROP [0:0]\n\
                    -A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\n"
        .to_owned();
    for (peers, port) in (0..rules).map(unmatched_rule) {
        let _ = writeln!(text, "-A FORWARD -s {peers} -p tcp --dport {port} -j ACCEPT");
    }
    let ports = port_range(ports, ':');
    for protocol in ["tcp", "udp"] {
        let _ = writeln!(text, "-A FORWARD -p {protocol} --dport {ports} -j ACCEPT");
    }
    text + "COMMIT\n"
}
