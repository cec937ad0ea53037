//! Policy routing rules as values: listed, added and deleted one by one.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use futures_util::TryStreamExt;
use rtnetlink::IpVersion;
use rtnetlink::packet_core::{DefaultNla, Nla};
use rtnetlink::packet_route::IpProtocol;
use rtnetlink::packet_route::route::RouteProtocol;
use rtnetlink::packet_route::rule::{
    RuleAction, RuleAttribute, RuleFlags, RuleHeader, RuleMessage, RulePortRange,
};

use super::family::Family;
use super::route::MANX_PROTOCOL;
use super::{Error, Netlink};

/// The table with the node's own addresses. The kernel uses it first, by a rule of preference 0.
pub const LOCAL: u8 = libc::RT_TABLE_LOCAL;

/// A transport protocol whose ports a rule can name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Transport {
    Tcp,
    Udp,
    Sctp,
}

impl Transport {
    pub const ALL: [Self; 3] = [Self::Tcp, Self::Udp, Self::Sctp];
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
            Self::Sctp => "SCTP",
        })
    }
}

impl From<Transport> for IpProtocol {
    fn from(transport: Transport) -> Self {
        match transport {
            Transport::Tcp => Self::Tcp,
            Transport::Udp => Self::Udp,
            Transport::Sctp => Self::Sctp,
        }
    }
}

/// A range of ports, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortRange {
    first: u16,
    last: u16,
}

impl PortRange {
    /// Returns `None` for a range that no rule can name: an empty range, or one that contains port 0 or port 65535
    /// (`fib_rules.h`).
    pub const fn new(first: u16, last: u16) -> Option<Self> {
        if first == 0 || last < first || last == u16::MAX {
            return None;
        }
        Some(Self { first, last })
    }

    pub const fn first(self) -> u16 {
        self.first
    }

    pub const fn last(self) -> u16 {
        self.last
    }
}

/// The error for a text that is no range of ports that a rule can name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no range of ports: expected one like 61000-65534, from 1 to 65534 (no routing rule can name 65535)"
)]
pub struct NoPortRange(String);

impl FromStr for PortRange {
    type Err = NoPortRange;

    fn from_str(text: &str) -> Result<Self, NoPortRange> {
        let ends = text.split_once('-').and_then(|(first, last)| {
            Self::new(first.trim().parse().ok()?, last.trim().parse().ok()?)
        });
        ends.ok_or_else(|| NoPortRange(text.to_owned()))
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

/// The effect of a rule on the packets that it matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Action {
    /// Looks up a table below 256. If the table has no route, the kernel continues with the next rule.
    Lookup(u8),
    /// Drops the packets without an ICMP error.
    Drop,
}

/// A rule of the kinds that Manx makes. Rules are in the order in which the kernel evaluates them.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rule {
    /// The place in the order: the kernel evaluates the lowest preference first.
    pub preference: u32,
    pub family: Family,
    /// The interface by which packets come in. For packets of the node's own processes this is `lo`.
    pub interface: Option<String>,
    pub from: Option<IpAddr>,
    pub to: Option<IpAddr>,
    /// The protocol and its destination ports.
    pub ports: Option<(Transport, PortRange)>,
    pub action: Action,
    /// The program that made the rule (`proto` of `ip rule`).
    pub made_by: u8,
}

impl Rule {
    /// A rule of Manx's that matches every packet.
    pub const fn new(preference: u32, family: Family, action: Action) -> Self {
        Self {
            preference,
            family,
            interface: None,
            from: None,
            to: None,
            ports: None,
            action,
            made_by: MANX_PROTOCOL,
        }
    }

    /// The rule for the table of the node's own addresses, with this preference. It counts as made by the kernel, so that
    /// no program takes it for a foreign rule and removes it (systemd-networkd: `ManageForeignRoutingPolicyRules`).
    pub fn of_local(preference: u32, family: Family) -> Self {
        let made_by = RouteProtocol::Kernel.into();
        Self { made_by, ..Self::new(preference, family, Action::Lookup(LOCAL)) }
    }

    /// Whether the rule sends every packet to the table of the node's own addresses.
    pub fn is_of_local(&self) -> bool {
        let made_by = self.made_by;
        *self == Self { made_by, ..Self::of_local(self.preference, self.family) }
    }

    fn message(&self) -> RuleMessage {
        let len = |address: Option<IpAddr>| address.map_or(0, |_| self.family.address_len());
        let (action, table) = match self.action {
            Action::Lookup(table) => (RuleAction::ToTable, table),
            Action::Drop => (RuleAction::Blackhole, 0),
        };
        let mut message = RuleMessage::default();
        message.header = RuleHeader {
            family: self.family.header(),
            dst_len: len(self.to),
            src_len: len(self.from),
            table,
            action,
            ..RuleHeader::default()
        };
        let ports = self.ports.map(|(transport, PortRange { first, last })| {
            let range = RulePortRange { start: first, end: last };
            let range = RuleAttribute::DestinationPortRange(range);
            [RuleAttribute::IpProtocol(transport.into()), range]
        });
        let of_all = [
            RuleAttribute::Priority(self.preference),
            RuleAttribute::Protocol(self.made_by.into()),
        ];
        let matched = [
            self.interface.clone().map(RuleAttribute::Iifname),
            self.from.map(RuleAttribute::Source),
            self.to.map(RuleAttribute::Destination),
        ];
        let attributes = of_all.into_iter().chain(matched.into_iter().flatten());
        message.attributes = attributes.chain(ports.into_iter().flatten()).collect();
        message
    }

    /// Returns `None` for a rule of a kind that Manx does not make.
    fn from_message(message: &RuleMessage) -> Option<Self> {
        let RuleHeader { dst_len, src_len, tos, table, action, flags, .. } = message.header;
        let family = family(message)?;
        let action = match action {
            RuleAction::ToTable => Action::Lookup(table),
            RuleAction::Blackhole => Action::Drop,
            _ => return None,
        };
        // The kernel detaches a rule while its interface does not exist.
        if tos != 0 || flags.contains(RuleFlags::Invert) {
            return None;
        }
        let mut rule = Self { made_by: 0, ..Self::new(0, family, action) };
        let (mut transport, mut range) = (None, None);
        for attribute in &message.attributes {
            match attribute {
                RuleAttribute::Priority(preference) => rule.preference = *preference,
                RuleAttribute::Protocol(by) => rule.made_by = (*by).into(),
                RuleAttribute::Iifname(name) => rule.interface = Some(name.clone()),
                RuleAttribute::Source(from) if src_len == family.address_len() => {
                    rule.from = Some(*from);
                }
                RuleAttribute::Destination(to) if dst_len == family.address_len() => {
                    rule.to = Some(*to);
                }
                RuleAttribute::IpProtocol(protocol) => {
                    let named = Transport::ALL.into_iter();
                    transport = Some(named.clone().find(|it| IpProtocol::from(*it) == *protocol)?);
                }
                RuleAttribute::DestinationPortRange(RulePortRange { start, end }) => {
                    range = Some(PortRange::new(*start, *end)?);
                }
                // The table again, and a setting that has no effect: "suppress nothing".
                RuleAttribute::Table(number) if *number == u32::from(table) => {}
                RuleAttribute::SuppressPrefixLen(u32::MAX) => {}
                RuleAttribute::Other(other) if is_whole_port(other) => {}
                _ => return None,
            }
        }
        rule.ports = match (transport, range) {
            (Some(transport), Some(range)) => Some((transport, range)),
            (None, None) => None,
            _ => return None,
        };
        Some(rule)
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_message(&self.message(), f)
    }
}

/// Whether an attribute is the port mask of a rule with a single port, with all bits set. Kernels from 6.15 on add such
/// attributes.
fn is_whole_port(attribute: &DefaultNla) -> bool {
    const DESTINATION_MASK: u16 = 29;
    let mut value = [0; 2];
    if attribute.kind() != DESTINATION_MASK || attribute.value_len() != value.len() {
        return false;
    }
    attribute.emit_value(&mut value);
    value == [0xff; 2]
}

fn family(message: &RuleMessage) -> Option<Family> {
    Family::ALL.into_iter().find(|family| family.header() == message.header.family)
}

/// A rule of any program.
#[derive(Debug, Clone)]
pub struct ListedRule {
    /// `None` for a kind that Manx does not make.
    pub rule: Option<Rule>,
    pub preference: u32,
    message: RuleMessage,
}

impl From<RuleMessage> for ListedRule {
    fn from(message: RuleMessage) -> Self {
        let preference = message.attributes.iter().find_map(|attribute| match attribute {
            RuleAttribute::Priority(preference) => Some(*preference),
            _ => None,
        });
        // The kernel leaves out a preference of 0.
        let preference = preference.unwrap_or_default();
        Self { rule: Rule::from_message(&message), preference, message }
    }
}

impl fmt::Display for ListedRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_message(&self.message, f)
    }
}

/// Writes a rule in the syntax of `ip`: its preference, its match, and its action.
fn write_message(message: &RuleMessage, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    use RuleAttribute::{
        Destination, DestinationPortRange, FwMark, FwMask, Goto, Iifname, IpProtocol as Transport,
        Oifname, Other, Priority, Protocol, Source, SourcePortRange, SuppressPrefixLen, Table,
    };
    let RuleHeader { dst_len, src_len, tos, table, action, flags, .. } = message.header;
    let six = if family(message) == Some(Family::V6) { "-6 " } else { "" };
    let not = if flags.contains(RuleFlags::Invert) { " not" } else { "" };
    let mut preference = 0;
    let mut matches = Vec::new();
    let mut long_table = u32::from(table);
    let mut does = Vec::new();
    for attribute in &message.attributes {
        match attribute {
            Priority(number) => preference = *number,
            Source(from) => matches.push((0, format!("from {from}/{src_len}"))),
            Destination(to) => matches.push((1, format!("to {to}/{dst_len}"))),
            Iifname(name) => matches.push((2, format!("iif {name}"))),
            Oifname(name) => matches.push((3, format!("oif {name}"))),
            FwMark(mark) => matches.push((4, format!("fwmark {mark:#x}"))),
            FwMask(mask) => matches.push((5, format!("mask {mask:#x}"))),
            Transport(protocol) => matches.push((6, format!("ipproto {}", name_of(*protocol)))),
            SourcePortRange(RulePortRange { start, end }) => {
                matches.push((7, format!("sport {start}-{end}")));
            }
            DestinationPortRange(RulePortRange { start, end }) => {
                matches.push((8, format!("dport {start}-{end}")));
            }
            Table(number) => long_table = *number,
            Goto(to) => does.push(format!("goto {to}")),
            Protocol(by) => does.push(format!("proto {}", u8::from(*by))),
            SuppressPrefixLen(u32::MAX) => {}
            Other(other) if is_whole_port(other) => {}
            other => matches.push((9, format!("{other:?}"))),
        }
    }
    matches.sort();
    write!(f, "ip {six}rule pref {preference}{not}")?;
    if tos != 0 {
        write!(f, " tos {tos}")?;
    }
    for (_, text) in matches {
        write!(f, " {text}")?;
    }
    match action {
        RuleAction::ToTable if long_table == u32::from(LOCAL) => write!(f, " lookup local")?,
        RuleAction::ToTable => write!(f, " lookup {long_table}")?,
        RuleAction::Blackhole => write!(f, " blackhole")?,
        RuleAction::Goto => {}
        other => write!(f, " {other:?}")?,
    }
    does.iter().try_for_each(|text| write!(f, " {text}"))
}

fn name_of(protocol: IpProtocol) -> String {
    match protocol {
        IpProtocol::Tcp => "tcp".to_owned(),
        IpProtocol::Udp => "udp".to_owned(),
        IpProtocol::Sctp => "sctp".to_owned(),
        other => i32::from(other).to_string(),
    }
}

impl Netlink {
    /// The rules of a family, in the order in which the kernel evaluates them. A kernel without the family has none.
    pub async fn rules(&self, family: Family) -> Result<Vec<ListedRule>, Error> {
        let version = match family {
            Family::V4 => IpVersion::V4,
            Family::V6 => IpVersion::V6,
        };
        let listed = self.handle.rule().get(version).execute().try_collect::<Vec<_>>().await;
        let listed = match (listed, family) {
            (Err(_), Family::V6) => Vec::new(),
            (listed, _) => listed
                .map_err(Error::request(|| "the routing rules cannot be listed".to_owned()))?,
        };
        let mut rules: Vec<ListedRule> = listed
            .into_iter()
            .filter(|message| message.header.family == family.header())
            .map(ListedRule::from)
            .collect();
        rules.sort_by_key(|rule| rule.preference);
        Ok(rules)
    }

    /// Adds a rule. It is no error if the same rule exists.
    pub async fn add_rule(&self, rule: &Rule) -> Result<(), Error> {
        let mut request = self.handle.rule().add();
        *request.message_mut() = rule.message();
        match request.execute().await {
            Err(rtnetlink::Error::NetlinkError(error)) if error.raw_code() == -libc::EEXIST => {
                Ok(())
            }
            other => other
                .map_err(Error::request(|| format!("the routing rule ({rule}) cannot be added"))),
        }
    }

    /// Deletes a rule. It is no error if the rule does not exist.
    pub async fn delete_rule(&self, rule: &Rule) -> Result<(), Error> {
        match self.handle.rule().del(rule.message()).execute().await {
            Err(rtnetlink::Error::NetlinkError(error)) if error.raw_code() == -libc::ENOENT => {
                Ok(())
            }
            other => other
                .map_err(Error::request(|| format!("the routing rule ({rule}) cannot be deleted"))),
        }
    }
}
