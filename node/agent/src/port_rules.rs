//! The routing rules that send packets for some ports of the node's own addresses to Manx. This file has them as data:
//! the wanted rules, and the order of the changes.
//!
//! | preference | rule | |
//! |---|---|---|
//! | 1 | `iif manx1 lookup local` | what Manx sends to the node goes to its processes, and not back |
//! | 1 | `iif eth0 from NODE blackhole` | drops packets from outside with the node's address as their source |
//! | 2 | `to NODE ipproto tcp dport 31000 lookup local` | a health check, at which the agent itself listens |
//! | 3 | `to NODE ipproto tcp dport 61000-65534 lookup 79` | what comes to these ports goes to Manx, from outside and from the node's own processes |
//! | 3 | `to 127.0.0.1 iif lo ipproto tcp dport 30000-32767 lookup 79` | the same for the node's own processes |
//! | 4 | `lookup local` | everything else, as before |
//!
//! The kernel has its rule for the table `local` at preference 0. As long as that rule is there, the rules above have no
//! effect on packets to the node. So it is deleted last and added first: whatever step fails, the node's own connections
//! work.
//!
//! Here is why the second rule is needed. For IPv4 the kernel itself refuses a source that is the node's own address, but
//! it uses these rules to decide which addresses are the node's own. So a packet would pass if its source port is in a
//! range of the rules of preference 3. For IPv6 the kernel does not refuse such sources at all.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use ipnet::IpNet;
use manx_dataplane::services::FrontendKey;
use manx_dataplane::wire::protocol;
use manx_linux::netlink::{
    Action, Family, LOCAL, ListedRule, MANX_PROTOCOL, PORTS_TABLE, PortRange, Rule, Transport,
};

/// The address by which the node's own processes, and no others, reach ports.
pub(crate) const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
/// The interface by which the packets of the node's own processes come in.
const OWN: &str = "lo";

/// The preference of the kernel's own rule for the table `local`.
const KERNELS: u32 = 0;
const FROM_MANX: u32 = 1;
/// The preference of the rules against forged sources. It may be that of `FROM_MANX`, because no packet matches both
/// kinds of rules: a packet comes in by one interface, Manx's or an outside one.
const FORGED: u32 = FROM_MANX;
const HEALTH_CHECKS: u32 = 2;
const PORTS: u32 = 3;
/// The greatest preference that is Manx's.
pub(crate) const MOVED_LOCAL: u32 = 4;

/// The ports that are Manx's on the node's addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortRanges {
    /// The source ports of pods' translated connections out of the cluster (`--egress-ports`).
    pub egress: PortRange,
    pub node_ports: PortRange,
}

/// The addresses whose ports should be Manx's. Each is an address of the node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Desired {
    /// The source addresses of pods' connections out of the cluster, and of clients' connections to services whose backends
    /// are hosts.
    pub egress: BTreeSet<IpAddr>,
    /// The addresses at which services have node ports. 127.0.0.1 may be one, for the node's own processes.
    pub node_ports: BTreeSet<IpAddr>,
    /// The ports at these addresses that pods of this node have.
    pub host_ports: BTreeSet<GrantedPort>,
    /// The TCP ports among the node ports at which the agent itself answers. They stay the node's.
    pub health_checks: BTreeSet<SocketAddr>,
    /// The ranges of service addresses. Packets to them must not leave for unknown hosts while no agent runs.
    pub ranges: BTreeSet<IpNet>,
}

/// A port of one of the node's addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct GrantedPort {
    pub address: IpAddr,
    pub transport: Transport,
    /// The port, from 1 to 65534.
    pub port: u16,
}

impl GrantedPort {
    /// Returns `None` if rules cannot name ports of its protocol.
    pub(crate) fn new(key: &FrontendKey) -> Option<Self> {
        let transport = match key.protocol {
            protocol::TCP => Transport::Tcp,
            protocol::UDP => Transport::Udp,
            protocol::SCTP => Transport::Sctp,
            _ => return None,
        };
        Some(Self { address: key.address.to_ip(), transport, port: key.port })
    }

    /// Returns `None` for 65535, which no rule can name ([`PortRange::new`]).
    pub(crate) fn range(&self) -> Option<PortRange> {
        PortRange::new(self.port, self.port)
    }

    /// The rule that routes packets to this port to Manx.
    pub(crate) fn rule(&self) -> Option<Rule> {
        Some(to_manx(self.address, self.transport, self.range()?))
    }
}

impl fmt::Display for GrantedPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = SocketAddr::new(self.address, self.port);
        write!(f, "{} {address}", self.transport)
    }
}

impl Desired {
    /// The addresses of a family.
    pub(crate) fn of(&self, family: Family) -> BTreeSet<IpAddr> {
        let all = self.egress.union(&self.node_ports);
        all.copied().filter(|address| Family::of(*address) == family).collect()
    }

    /// The source address of the node's own processes for a destination, if they choose none.
    pub(crate) fn source(&self, address: IpAddr) -> Option<IpAddr> {
        if address != LOOPBACK {
            return Some(address);
        }
        self.node_ports.iter().find(|it| it.is_ipv4() && **it != LOOPBACK).copied()
    }
}

/// The interfaces that rules name.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Interfaces<'a> {
    /// Manx's own interface, by which translated packets come into the node's kernel.
    pub(crate) manx: &'a str,
    /// The interfaces by which other machines and containers can send.
    pub(crate) outside: &'a BTreeSet<String>,
}

/// The kernel's rules of a family on a node without Manx.
pub(crate) fn unmoved(family: Family) -> BTreeSet<Rule> {
    [Rule::of_local(KERNELS, family)].into()
}

/// All rules of a family that should be at the preferences of Manx and of the kernel's rule. A family without addresses has
/// only the kernel's rule.
pub(crate) fn wanted(
    family: Family,
    desired: &Desired,
    ports: PortRanges,
    interfaces: Interfaces<'_>,
) -> BTreeSet<Rule> {
    let addresses = desired.of(family);
    if addresses.is_empty() {
        return unmoved(family);
    }
    let from_manx = Rule {
        interface: Some(interfaces.manx.to_owned()),
        ..Rule::new(FROM_MANX, family, Action::Lookup(LOCAL))
    };
    let mut rules: BTreeSet<Rule> = [from_manx, Rule::of_local(MOVED_LOCAL, family)].into();
    for address in addresses.into_iter().filter(|it| *it != LOOPBACK) {
        let address = Some(address);
        rules.extend(interfaces.outside.iter().map(|name| Rule {
            interface: Some(name.clone()),
            from: address,
            ..Rule::new(FORGED, family, Action::Drop)
        }));
    }
    let of_family = |address: &&IpAddr| Family::of(**address) == family;
    for (addresses, range) in
        [(&desired.egress, ports.egress), (&desired.node_ports, ports.node_ports)]
    {
        for address in addresses.iter().filter(of_family) {
            rules.extend(Transport::ALL.map(|it| to_manx(*address, it, range)));
        }
    }
    let host_ports = desired.host_ports.iter().filter(|it| of_family(&&it.address));
    rules.extend(host_ports.filter_map(GrantedPort::rule));
    let checks = desired.health_checks.iter().filter(|it| of_family(&&it.ip()));
    rules.extend(checks.filter_map(to_agent));
    rules
}

/// The rule by which a port stays the node's, because the agent listens there. Returns `None` if no rule can name the port.
fn to_agent(at: &SocketAddr) -> Option<Rule> {
    let to_manx = to_manx(at.ip(), Transport::Tcp, PortRange::new(at.port(), at.port())?);
    Some(Rule { preference: HEALTH_CHECKS, action: Action::Lookup(LOCAL), ..to_manx })
}

fn to_manx(address: IpAddr, transport: Transport, range: PortRange) -> Rule {
    Rule {
        interface: (address == LOOPBACK).then(|| OWN.to_owned()),
        to: Some(address),
        ports: Some((transport, range)),
        ..Rule::new(PORTS, Family::of(address), Action::Lookup(PORTS_TABLE))
    }
}

/// The rules of one family at the preferences of Manx and of the kernel's rule.
#[derive(Debug, Default)]
pub(crate) struct Present {
    /// Manx's rules, and the kernel's rule for the table `local`.
    pub(crate) known: BTreeSet<Rule>,
    /// The text of each other rule.
    pub(crate) foreign: Vec<String>,
}

impl Present {
    pub(crate) fn new(listed: &[ListedRule]) -> Self {
        let mut present = Self::default();
        for listed in listed.iter().filter(|it| it.preference <= MOVED_LOCAL) {
            match &listed.rule {
                Some(rule) if is_known(rule) => {
                    present.known.insert(rule.clone());
                }
                _ => present.foreign.push(listed.to_string()),
            }
        }
        present
    }

    /// Whether there is a rule for the table `local`: the kernel's, or the rule of Manx that replaces it. There is none
    /// if another program has moved the kernel's rule.
    pub(crate) fn has_local(&self) -> bool {
        self.known.iter().any(Rule::is_of_local)
    }

    /// Whether there is any rule of Manx.
    pub(crate) fn has_manx(&self) -> bool {
        has_manx(&self.known)
    }
}

/// Whether any of the rules is Manx's and not the kernel's.
pub(crate) fn has_manx(rules: &BTreeSet<Rule>) -> bool {
    rules.iter().any(|rule| rule.preference != KERNELS)
}

/// Whether a rule is Manx's, or the kernel's rule for the table `local`.
fn is_known(rule: &Rule) -> bool {
    match rule.preference {
        KERNELS => rule.is_of_local(),
        MOVED_LOCAL => *rule == Rule::of_local(MOVED_LOCAL, rule.family),
        _ => rule.made_by == MANX_PROTOCOL,
    }
}

/// A change of one rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    Add(Rule),
    Delete(Rule),
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Add(rule) | Self::Delete(rule) => rule.fmt(f),
        }
    }
}

/// The steps from the known rules to the wanted ones. After each step the node finds its own addresses, and no port is
/// routed to Manx without the rules against forged sources:
///
/// 1. Rules for the table `local` are added, then the others, in the order in which the kernel evaluates them.
/// 2. Rules are deleted in the opposite order, so the kernel's rule is the last.
pub(crate) fn steps(known: &BTreeSet<Rule>, wanted: &BTreeSet<Rule>) -> Vec<Step> {
    // Another program may have added the kernel's rule again under its own protocol number.
    let is_same = |a: &Rule, b: &Rule| {
        a == b || (a.preference == b.preference && a.is_of_local() && b.is_of_local())
    };
    let is_in = |rules: &BTreeSet<Rule>, rule: &Rule| rules.iter().any(|it| is_same(it, rule));
    let missing = wanted.iter().filter(|rule| !is_in(known, rule)).cloned();
    let (local, others): (Vec<Rule>, Vec<Rule>) = missing.partition(Rule::is_of_local);
    let stale = known.iter().rev().filter(|rule| !is_in(wanted, rule)).cloned();
    local.into_iter().chain(others).map(Step::Add).chain(stale.map(Step::Delete)).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::sample::subsequence;

    use super::*;

    const MANX: &str = "manx1";

    fn ports() -> PortRanges {
        PortRanges {
            egress: PortRange::new(61000, 65534).unwrap(),
            node_ports: PortRange::new(30000, 32767).unwrap(),
        }
    }

    fn desired(addresses: &[&str]) -> Desired {
        let all: BTreeSet<IpAddr> = addresses.iter().map(|text| text.parse().unwrap()).collect();
        Desired { egress: all.clone(), node_ports: all, ..Desired::default() }
    }

    fn rules(family: Family, addresses: &[&str]) -> BTreeSet<Rule> {
        rules_of(family, &desired(addresses))
    }

    fn rules_of(family: Family, desired: &Desired) -> BTreeSet<Rule> {
        let outside = ["eth0".to_owned()].into();
        wanted(family, desired, ports(), Interfaces { manx: MANX, outside: &outside })
    }

    /// The same, with a health check at port 31000 of each of these addresses.
    fn checked(addresses: &[&str], at: &[&str]) -> Desired {
        let at = at.iter().map(|it| SocketAddr::new(it.parse().unwrap(), 31000));
        Desired { health_checks: at.collect(), ..desired(addresses) }
    }

    /// A packet to the node's own address.
    struct ToNode {
        interface: &'static str,
        from: IpAddr,
        to: IpAddr,
        port: u16,
    }

    /// The result of the rules for a packet, as in the kernel: the first rule that matches and has a route decides.
    fn decide(rules: &BTreeSet<Rule>, packet: &ToNode) -> Option<Action> {
        let matches = |rule: &&Rule| {
            rule.interface.as_deref().is_none_or(|name| name == packet.interface)
                && rule.from.is_none_or(|from| from == packet.from)
                && rule.to.is_none_or(|to| to == packet.to)
                && rule.ports.is_none_or(|(transport, range)| {
                    transport == Transport::Tcp
                        && (range.first()..=range.last()).contains(&packet.port)
                })
        };
        rules.iter().find(matches).map(|rule| rule.action)
    }

    #[test]
    fn the_rules_of_a_node_in_the_words_of_ip() {
        let all = rules(Family::V4, &["192.0.2.1"]);
        let text: Vec<String> = all.iter().map(ToString::to_string).collect();
        insta::assert_snapshot!(text.join("\n"), @r"
        ip rule pref 1 from 192.0.2.1/32 iif eth0 blackhole proto 77
        ip rule pref 1 iif manx1 lookup local proto 77
        ip rule pref 3 to 192.0.2.1/32 ipproto tcp dport 30000-32767 lookup 79 proto 77
        ip rule pref 3 to 192.0.2.1/32 ipproto tcp dport 61000-65534 lookup 79 proto 77
        ip rule pref 3 to 192.0.2.1/32 ipproto udp dport 30000-32767 lookup 79 proto 77
        ip rule pref 3 to 192.0.2.1/32 ipproto udp dport 61000-65534 lookup 79 proto 77
        ip rule pref 3 to 192.0.2.1/32 ipproto sctp dport 30000-32767 lookup 79 proto 77
        ip rule pref 3 to 192.0.2.1/32 ipproto sctp dport 61000-65534 lookup 79 proto 77
        ip rule pref 4 lookup local proto 2
        ");
        assert_eq!(rules(Family::V6, &["192.0.2.1"]), unmoved(Family::V6));
        let loopback: Vec<String> = rules(Family::V4, &["192.0.2.1", "127.0.0.1"])
            .difference(&all)
            .map(ToString::to_string)
            .collect();
        insta::assert_snapshot!(loopback[0], @"ip rule pref 3 to 127.0.0.1/32 iif lo ipproto tcp dport 30000-32767 lookup 79 proto 77");
        assert_eq!(rules(Family::V6, &["192.0.2.1", "2001:db8::1"]).len(), all.len());
        let at = ["192.0.2.1", "127.0.0.1", "2001:db8::1"];
        let checks: Vec<String> = rules_of(Family::V4, &checked(&["192.0.2.1"], &at))
            .difference(&all)
            .map(ToString::to_string)
            .collect();
        insta::assert_snapshot!(checks.join("\n"), @"
        ip rule pref 2 to 192.0.2.1/32 ipproto tcp dport 31000-31000 lookup local proto 77
        ip rule pref 2 to 127.0.0.1/32 iif lo ipproto tcp dport 31000-31000 lookup local proto 77
        ");
    }

    /// Felix's `natOutgoingAddress` is such an address.
    #[test]
    fn an_address_of_the_way_out_alone_has_those_ports_and_nobody_outside_sends_from_it() {
        let named = "192.0.2.9".parse().unwrap();
        let mut all = desired(&["192.0.2.1", "127.0.0.1"]);
        let before = rules_of(Family::V4, &all);
        all.egress.insert(named);
        let more = rules_of(Family::V4, &all);
        let more: Vec<String> = more.difference(&before).map(ToString::to_string).collect();
        insta::assert_snapshot!(more.join("\n"), @r"
        ip rule pref 1 from 192.0.2.9/32 iif eth0 blackhole proto 77
        ip rule pref 3 to 192.0.2.9/32 ipproto tcp dport 61000-65534 lookup 79 proto 77
        ip rule pref 3 to 192.0.2.9/32 ipproto udp dport 61000-65534 lookup 79 proto 77
        ip rule pref 3 to 192.0.2.9/32 ipproto sctp dport 61000-65534 lookup 79 proto 77
        ");
        assert_eq!(all.source(named), Some(named));
        // Whatever addresses pods have, the node's first address stays the source for loopback's ports.
        all.egress.insert("10.9.9.9".parse().unwrap());
        assert_eq!(all.source(LOOPBACK), "192.0.2.1".parse().ok());
    }

    proptest! {
        /// The law for a change from any rules to any others: after each step, ordinary packets of the node stay the
        /// node's, and so do those to a health check that stays. No other host can send as the node to a port of Manx.
        #[test]
        fn no_step_takes_the_nodes_own_connections_away(
            before in subsequence(vec!["192.0.2.1", "192.0.2.2"], 0..=2),
            after in subsequence(vec!["192.0.2.1", "192.0.2.2"], 0..=2),
            lost in subsequence((1..4).collect::<Vec<u32>>(), 0..=3),
            with_kernels: bool,
            [checks_before, checks_after]: [bool; 2],
        ) {
            let desired = |all: &[&str], has_checks: bool| checked(all, if has_checks { all } else { &[] });
            let mut known = rules_of(Family::V4, &desired(&before, checks_before));
            let unspoiled = lost.is_empty();
            // Another program has removed rules, but not those for the node's own addresses.
            known.retain(|rule| !lost.contains(&rule.preference));
            if with_kernels {
                known.insert(Rule::of_local(0, Family::V4));
            }
            let wanted = rules_of(Family::V4, &desired(&after, checks_after));
            let steps = steps(&known, &wanted);
            let mut now = known;
            for step in [None].into_iter().chain(steps.into_iter().map(Some)) {
                match step {
                    Some(Step::Add(rule)) => prop_assert!(now.insert(rule)),
                    Some(Step::Delete(rule)) => prop_assert!(now.remove(&rule)),
                    None => {}
                }
                for text in ["192.0.2.1", "192.0.2.2"] {
                    let node = text.parse::<IpAddr>().unwrap();
                    let world = "198.51.100.1".parse().unwrap();
                    let stays = checks_before && checks_after && before.contains(&text) && after.contains(&text);
                    for interface in ["eth0", "lo", "manx0"] {
                        let check = ToNode { interface, from: world, to: node, port: 31000 };
                        if unspoiled && stays {
                            prop_assert_eq!(decide(&now, &check), Some(Action::Lookup(LOCAL)));
                        }
                    }
                    for (interface, from) in [("eth0", world), ("lo", node), (MANX, world), (MANX, node)] {
                        let ssh = ToNode { interface, from, to: node, port: 22 };
                        prop_assert_eq!(decide(&now, &ssh), Some(Action::Lookup(LOCAL)));
                    }
                    let forged = ToNode { interface: "eth0", from: node, to: node, port: 30080 };
                    if unspoiled {
                        prop_assert_ne!(decide(&now, &forged), Some(Action::Lookup(PORTS_TABLE)));
                    }
                }
            }
            prop_assert_eq!(now, wanted);
        }
    }

    #[test]
    fn a_node_that_has_lost_its_own_addresses_gets_them_back_first() {
        let wanted = rules(Family::V4, &["192.0.2.1"]);
        let first = steps(&BTreeSet::new(), &wanted).into_iter().next();
        assert_eq!(first, Some(Step::Add(Rule::of_local(MOVED_LOCAL, Family::V4))));
    }

    #[test]
    fn a_rule_of_the_kernels_that_a_program_has_set_again_is_left_alone() {
        let again = Rule { made_by: 3, ..Rule::of_local(0, Family::V4) };
        let known = [again.clone()].into();
        assert_eq!(steps(&known, &unmoved(Family::V4)), []);
        let last = steps(&known, &rules(Family::V4, &["192.0.2.1"])).pop();
        assert_eq!(last, Some(Step::Delete(again)));
    }
}
