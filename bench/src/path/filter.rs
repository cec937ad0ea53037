//! The packet filters of the kernel, with rules like those of Manx's policies: connection tracking first, then one rule
//! after the other. The last rule allows the traffic.

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

/// The peers (in CIDR notation) and the TCP port of a rule that no packet of a measurement matches.
pub fn unmatched_rule(index: usize) -> (String, usize) {
    (format!("203.{}.{}.0/24", index / 256 % 256, index % 256), 1024 + index % 1000)
}

impl Filter {
    /// The program that loads a whole set of rules.
    const fn program(self) -> &'static str {
        match self {
            Self::Nftables => "nft",
            Self::Iptables => "iptables-legacy-restore",
        }
    }

    /// Why this filter cannot be measured here; `None`: it can.
    pub fn why_missing(self) -> Option<String> {
        let package = match self {
            Self::Nftables => "nftables",
            Self::Iptables => "iptables",
        };
        programs::why_missing(&[self.program()], package)
    }

    /// Has the namespace forward only packets that `rules` rules and a last one allow.
    pub fn load(self, netns: &OwnedFd, rules: usize) -> Result<(), Error> {
        let (arguments, text): (&[&str], _) = match self {
            Self::Nftables => (&["-f", "-"], nftables(rules)),
            Self::Iptables => (&[], iptables(rules)),
        };
        let what = format!("{} cannot load its rules", self.program());
        let output = netns::run_in(netns, || {
            let mut child = Command::new(self.program())
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
}

fn nftables(rules: usize) -> String {
    let mut text = "table ip bench {\n chain forward {\n  \
                    type filter hook forward priority filter; policy drop;\n  \
                    ct state established,related accept\n"
        .to_owned();
    for (peers, port) in (0..rules).map(unmatched_rule) {
        let _ = writeln!(text, "  ip saddr {peers} tcp dport {port} accept");
    }
    for protocol in ["tcp", "udp"] {
        let _ = writeln!(text, "  {protocol} dport {PORT} accept");
    }
    text + " }\n}\n"
}

fn iptables(rules: usize) -> String {
    let mut text = "*filter\n:FORWARD DROP [0:0]\n\
                    -A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\n"
        .to_owned();
    for (peers, port) in (0..rules).map(unmatched_rule) {
        let _ = writeln!(text, "-A FORWARD -s {peers} -p tcp --dport {port} -j ACCEPT");
    }
    for protocol in ["tcp", "udp"] {
        let _ = writeln!(text, "-A FORWARD -p {protocol} --dport {PORT} -j ACCEPT");
    }
    text + "COMMIT\n"
}
