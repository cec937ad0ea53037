//! The packets that may come out: the laws of docs/policy-semantics.md for one input and its output.

use std::cell::RefCell;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::rc::Rc;

use manx_dataplane::tables::PortId;

use super::connections::Connections;
use super::epoch::{Entry, Epoch, Place};
use super::input::Input;
use super::read::{FlowTuple, IPIP, Read, read_about};
use super::translations::Translations;
use crate::packet::{ICMPV6, TCP, UDP};

/// The settings by which the nodes of a world track connections.
#[derive(Debug, Clone, Copy)]
pub struct Terms {
    /// Whether a TCP packet without a connection must be a SYN.
    pub is_strict: bool,
    /// Whether a connection that was answered outlives its policy.
    pub keeps: bool,
    /// Whether the nodes translate services' addresses.
    pub translates: bool,
    /// Whether the nodes also have node ports, and masquerade pods (the way out).
    pub has_ports: bool,
}

impl Terms {
    /// Whether a packet may be the first of a connection.
    pub fn admits(&self, read: &Read) -> bool {
        !self.is_strict || read.tuple.upper != TCP || read.opens()
    }
}

/// The reason why a packet may pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Because {
    /// Policy allows the packet itself, which opens a connection or belongs to a known one.
    Allowed,
    /// The packet answers a connection that policy allows, and would not be allowed by itself.
    Reply,
    /// The packet is an ICMP error about a connection that policy allows.
    Related,
    /// The packet is a later fragment of one that was let through.
    LaterFragment,
    /// The packet's connection was answered before policy denied it, and such connections are kept.
    Kept,
}

/// The permission for a packet to pass: the reason, and the places of its source and its destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Passage {
    pub because: Because,
    pub from: Place,
    pub to: Place,
}

/// The state by which a node's packets are judged.
pub struct Law<'a> {
    pub node: usize,
    pub now: f64,
    pub terms: Terms,
    /// The publications during the batch, the current one last.
    pub epochs: &'a [Rc<Epoch>],
    pub connections: &'a Connections,
    pub translations: &'a RefCell<Translations>,
    /// The number of flows that the node has evicted.
    pub evictions: u64,
    /// Whether the node evicted a flow during the batch.
    pub evicts: bool,
    /// Whether the node has one worker.
    pub is_single: bool,
}

/// Whether routers forward packets from and to an address (RFC 1812, section 5.3.7; RFC 4291, sections 2.5 and 2.7).
/// IPv4's link-local addresses count as forwardable.
pub fn is_forwardable(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => (1..224).contains(&v4.octets()[0]) && !v4.is_loopback(),
        IpAddr::V6(v6) => {
            let first = v6.segments()[0];
            let is_link_local = first & 0xffc0 == 0xfe80;
            !v6.is_unspecified() && !v6.is_loopback() && !v6.is_multicast() && !is_link_local
        }
    }
}

/// Whether a packet is a tunnel packet. Pods must not send them.
pub fn is_tunnel(read: &Read) -> bool {
    let to_vxlan = matches!(read.tuple.transport, super::read::TransportKey::Ports(_, 4789));
    read.tuple.upper == IPIP || (read.tuple.upper == UDP && to_vxlan)
}

impl Law<'_> {
    /// The number by which the TTL decreases: 0 for packets from the node and to it, 1 for all others, including those
    /// of masqueraded clients. Some packets with the node's address may be the node's or a masqueraded client's, so
    /// that both 0 and 1 are right. They came by the port of forwarded packets, or go to an address and port that a
    /// masqueraded client has used.
    pub fn hops(&self, input: &Input, Passage { from, to, .. }: Passage) -> RangeInclusive<u8> {
        let is_of_others = || {
            let Some(read) = &input.read else { return false };
            let about = read_about(input.packet(), read).unwrap_or(*read);
            self.connections.is_masqueraded(&about)
        };
        match (input.entry, from, to) {
            // The node's own processes are treated as clients from outside.
            (Some(Entry::Manx | Entry::Tunnel), Place::Node, _) => 1..=1,
            (Some(Entry::Forwarded), Place::Node, _) => 0..=1,
            (_, _, Place::Node) if is_of_others() => 0..=1,
            (_, Place::Node, _) | (_, _, Place::Node) => 0..=0,
            _ => 1..=1,
        }
    }

    /// Whether a packet with these ends may come in by an entry.
    pub fn may_come(&self, epoch: &Epoch, entry: Entry, tuple: &FlowTuple) -> bool {
        epoch.may_come(self.node, entry, tuple)
            || entry == Entry::Tunnel && self.connections.is_visitors(tuple)
    }

    /// Whether packets that come in by an entry may answer a packet with this tuple.
    fn may_answer(&self, epoch: &Epoch, entry: Entry, tuple: &FlowTuple) -> bool {
        epoch.may_enter(self.node, entry, epoch.place(self.node, tuple.destination))
            || self.connections.entries(&tuple.reversed()).contains(&entry)
    }

    /// The ports by which an input with this passage may leave. Answers to outside clients leave by the port by which
    /// the clients' packets came in, which may be the other node's tunnel, or the port for the node's ports that belong
    /// to Manx.
    pub fn ports(&self, epoch: &Epoch, input: &Input, passage: Passage) -> Vec<PortId> {
        let usual = epoch.port(passage.to).into_iter();
        if !self.terms.has_ports || !matches!(passage.to, Place::Node | Place::World) {
            return usual.collect();
        }
        let about = input.read.map(|read| read_about(input.packet(), &read).unwrap_or(read));
        // An error goes to the sender of the packet that it quotes.
        let is_error = input.read.is_some_and(|read| read.is_error());
        let client = about.map(|it| if is_error { it.tuple } else { it.tuple.reversed() });
        let entries = match (client, about) {
            (Some(client), Some(about)) if about.is_later() => {
                self.connections.entries_between(client.source, client.destination)
            }
            (Some(client), _) => self.connections.entries(&client).to_vec(),
            _ => Vec::new(),
        };
        let is_certain = client.and_then(|it| self.connections.find(&it, self.now));
        let is_certain = is_certain.is_some_and(|it| {
            self.epochs.iter().all(|epoch| it.is_certain(epoch.number, self.evictions, self.now))
        });
        let back = entries.into_iter().map(Entry::back);
        if is_certain && passage.because == Because::Reply {
            back.collect()
        } else {
            usual.chain(back).collect()
        }
    }

    /// Returns the passage of an input according to one of the publications, or the reason why it may not pass.
    pub fn passage(&self, input: &Input) -> Result<Passage, String> {
        let mut refused = String::new();
        for epoch in self.epochs.iter().rev() {
            match self.passage_in(epoch, input) {
                Ok(passage) => return Ok(passage),
                Err(why) if refused.is_empty() => refused = why,
                Err(_) => {}
            }
        }
        Err(refused)
    }

    /// Returns the passage of an input according to a given publication, or the reason why it may not pass.
    pub fn passage_in(&self, epoch: &Epoch, input: &Input) -> Result<Passage, String> {
        let (Some(read), Some(entry)) = (input.read, input.entry) else {
            return Err("it came by an unknown tunnel, or cannot be read".to_owned());
        };
        let FlowTuple { source, destination, .. } = read.tuple;
        let [from, to] = [source, destination].map(|address| epoch.place(self.node, address));
        // Any hop may send an error. Then an error by the host port may have a service's address as its source, and an
        // error by the tunnel an address outside the other node's blocks.
        let is_hop = read.is_error()
            && matches!(
                (entry, from),
                (Entry::Host, Place::Service) | (Entry::Tunnel, Place::World | Place::Node)
            );
        if !self.may_come(epoch, entry, &read.tuple) && !is_hop {
            return Err(format!("its source is {from:?} and it came by {entry:?}"));
        }
        if ![source, destination].into_iter().all(is_forwardable) {
            return Err("its addresses are never forwarded".to_owned());
        }
        if matches!(entry, Entry::Port(_)) && is_tunnel(&read) {
            return Err("it is a tunnel packet of a pod".to_owned());
        }
        if input.is_cut_too_small() {
            return Err("it falls into more segments than any kernel makes".to_owned());
        }
        if read.is_error() && from != to {
            // An error may come from any hop on the way of the packet that it is about, back to that packet's sender.
            let from = self.related(epoch, input, &read, entry);
            let refused = || "it is an ICMP error about nothing that may pass".to_owned();
            return Ok(Passage { because: Because::Related, from: from.ok_or_else(refused)?, to });
        }
        let is_taken =
            |tuple| self.translations.borrow().holder(tuple, self.evictions, self.now).is_some();
        if !read.is_later() && is_taken(&read.tuple) {
            return Err("it came out as it was, and its connection is translated".to_owned());
        }
        if !read.is_later() && from != to && !self.may_stay(epoch, entry, &read) {
            return Err(
                "it came out as it was, and asks for something that is translated".to_owned()
            );
        }
        let because = self.because(epoch, &read, entry)?;
        Ok(Passage { because, from, to })
    }

    /// Whether a packet may come out untranslated: it goes to no translated destination, or belongs
    /// to an untranslated connection.
    fn may_stay(&self, epoch: &Epoch, entry: Entry, read: &Read) -> bool {
        let knows = |tuple: &FlowTuple| self.connections.find(tuple, self.now).is_some();
        let node = self.node;
        !epoch.asks(node, &read.tuple)
            || epoch.place(node, read.tuple.destination) == Place::Service
            || epoch.is_nodes_own(node, entry, &read.tuple)
            || epoch.asks_node_port(node, &read.tuple) && knows(&read.tuple)
            || knows(&read.tuple.reversed())
    }

    fn because(&self, epoch: &Epoch, read: &Read, entry: Entry) -> Result<Because, String> {
        let (node, tuple) = (self.node, &read.tuple);
        if read.is_later() {
            let version = epoch.versions[node];
            let knows = self.connections.knows_first(read, entry, version, self.now);
            return knows
                .then_some(Because::LaterFragment)
                .ok_or_else(|| "no first fragment of it was let through".to_owned());
        }
        let is_known = || self.connections.find(tuple, self.now).is_some();
        // Packets of a pod to itself need no connection.
        let is_itself = epoch.place(node, tuple.source) == epoch.place(node, tuple.destination);
        if (is_itself || self.terms.admits(read) || is_known()) && epoch.admits(node, entry, tuple)
        {
            return Ok(Because::Allowed);
        }
        let back = tuple.reversed();
        let known = self.connections.find(&back, self.now);
        if known.is_some() && !read.opens() && epoch.allows(node, &back) {
            return Ok(Because::Reply);
        }
        if !read.opens() && [*tuple, back].iter().any(|named| self.is_kept(epoch, named)) {
            return Ok(Because::Kept);
        }
        let known = if known.is_some() { "is denied, too" } else { "is not known" };
        Err(format!("policy denies it, and the connection that it might answer {known}"))
    }

    fn is_kept(&self, epoch: &Epoch, tuple: &FlowTuple) -> bool {
        let known = self.connections.find(tuple, self.now);
        self.terms.keeps
            && known.is_some_and(|it| it.is_answered() && it.stands(epoch, self.node, tuple))
    }

    /// The place to which the packet quoted in an ICMP error was sent. The receiver of the error must have sent that
    /// packet, its connection must be allowed, and the error must come from the direction of that place.
    fn related(&self, epoch: &Epoch, input: &Input, read: &Read, entry: Entry) -> Option<Place> {
        let about = match (read.tuple.icmp(), read.tuple.upper) {
            (Some((kind, _)), ICMPV6) => (1..=4).contains(&kind),
            (Some((kind, _)), _) => matches!(kind, 3 | 4 | 11 | 12),
            _ => false,
        };
        let quoted = read_about(input.packet(), read);
        let quoted = quoted.filter(|it| about && !it.is_later() && !it.is_error())?.tuple;
        let towards = epoch.place(self.node, quoted.destination);
        let is_related = quoted.source == read.tuple.destination
            && self.may_answer(epoch, entry, &quoted)
            && [quoted, quoted.reversed()].iter().any(|named| {
                self.connections.find(named, self.now).is_some()
                    && (epoch.allows(self.node, named) || self.is_kept(epoch, named))
            });
        is_related.then_some(towards)
    }
}
