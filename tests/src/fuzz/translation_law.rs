//! The translated packets that may come out: the laws of docs/services.md for one input and its output.

use std::net::IpAddr;
use std::ops::RangeInclusive;

use manx_dataplane::tables::PortId;

use super::connections::Connection;
use super::epoch::{Entry, Epoch, Place};
use super::input::Input;
use super::oracle::{Because, Law, Passage, is_forwardable, is_tunnel};
use super::read::{FlowTuple, Read, TransportKey, flag, read_about};
use super::services::{Asked, End, Reach};
use super::translations::{Asking, FirstFragments, Pair, asked_of, end_of};
use super::way_out::ported_address;
use crate::fabric::{MANX, ROUTER};
use crate::packet::TCP;

/// The first port that may take the place of a client's.
const CLIENT_PORTS: u16 = 1024;

/// The source address that a pod sees if it reaches itself through a service.
pub fn hairpin(family: IpAddr) -> IpAddr {
    if family.is_ipv4() { [169, 254, 1, 1].into() } else { [0xfe80, 0, 0, 0, 0, 0, 0, 1].into() }
}

impl Law<'_> {
    /// The passage of an input that came out with the ends of another tuple, and its connection.
    pub fn translation(
        &self,
        epoch: &Epoch,
        input: &Input,
        tuple: &FlowTuple,
    ) -> Result<(Passage, Pair), String> {
        let (Some(read), Some(entry)) = (input.read, input.entry) else {
            return Err("it came by an unknown tunnel, or cannot be read".to_owned());
        };
        if read.is_later() {
            let ends = |tuple: &FlowTuple| (tuple.source, tuple.destination);
            let fits = |pair: &Pair| {
                let is_forward = ends(&pair.first) == ends(&read.tuple);
                let sent = if is_forward { pair.behind } else { pair.first.reversed() };
                ends(&sent) == ends(tuple)
            };
            let mut ways = self.translations_of(epoch, input).into_iter();
            let found = ways.find(|(_, pair)| fits(pair));
            return found.ok_or_else(|| "no first fragment of it was translated so".to_owned());
        }
        self.enters(epoch, input, &read, entry)?;
        let asking = Pair { first: read.tuple, behind: *tuple };
        let answering = Pair { first: tuple.reversed(), behind: read.tuple.reversed() };
        let mut refused = None;
        // A pod's packet to the world may also be an answer to a client of a service.
        for (pair, is_forward) in [(asking, true), (answering, false)] {
            if is_forward && !self.asks(epoch, &read.tuple) {
                continue;
            }
            match self.way(epoch, &read, entry, (&pair, is_forward)) {
                Ok(way) => return Ok((way, pair)),
                Err(why) => refused = refused.or(Some(why)),
            }
        }
        Err(refused.unwrap_or_default())
    }

    /// Whether a packet goes to a translated destination.
    pub fn asks(&self, epoch: &Epoch, tuple: &FlowTuple) -> bool {
        epoch.asks(self.node, tuple)
    }

    /// Whether the translation of a connection uses the node's address as the source, so that the
    /// answers come back to the node. A connection keeps its source, wherever its ends are later.
    pub fn hides_source(&self, epoch: &Epoch, pair: &Pair) -> bool {
        let own = ported_address(self.node, pair.first.source);
        pair.behind.source == own && self.comes_back(epoch, pair)
    }

    /// Whether the answers to a connection have to come back to the node.
    fn comes_back(&self, epoch: &Epoch, pair: &Pair) -> bool {
        let Pair { first, behind } = pair;
        let [from, to] =
            [first.source, behind.destination].map(|address| epoch.place(self.node, address));
        let is_beyond = |place| matches!(place, Place::Node | Place::World);
        self.terms.has_ports
            && (epoch.leaves(self.node, first)
                || is_beyond(from) && is_beyond(to) && is_of_service(pair))
    }

    /// The same as [`hops`](Self::hops), for a packet of a translated connection, whose client may
    /// be masqueraded.
    pub fn hops_translated(
        &self,
        input: &Input,
        passage: Passage,
        pair: &Pair,
    ) -> RangeInclusive<u8> {
        let translations = self.translations.borrow();
        let entries = translations.asking(&pair.first).map_or(&[][..], |it| &it.entries);
        // The node's own processes are one hop away at all ports except the host's.
        if self.terms.has_ports && [passage.from, passage.to].contains(&Place::Node) {
            let is_forward = input.read.is_some_and(|read| read.tuple == pair.first);
            let of_input = input.entry.filter(|_| is_forward);
            let entries = of_input.as_ref().map_or(entries, std::slice::from_ref);
            let makes_hop = |it: &Entry| u8::from(*it != Entry::Host);
            let hops = || entries.iter().map(makes_hop);
            return hops().min().unwrap_or(0)..=hops().max().unwrap_or(1);
        }
        let is_masqueraded = entries.contains(&Entry::Forwarded);
        if is_masqueraded && [passage.from, passage.to].contains(&Place::Node) {
            0..=1
        } else {
            self.hops(input, passage)
        }
    }

    /// The ports by which a packet of a translated connection may leave with this passage.
    pub fn ports_translated(&self, epoch: &Epoch, passage: Passage, pair: &Pair) -> Vec<PortId> {
        let client = epoch.place(self.node, pair.first.source);
        if !self.terms.has_ports || !matches!(passage.to, Place::Node | Place::World) {
            return epoch.port(passage.to).into_iter().collect();
        }
        let mut ports = Vec::new();
        if client == passage.to {
            let translations = self.translations.borrow();
            let entries = translations.asking(&pair.first).map_or(&[][..], |it| &it.entries);
            // A pod whose address now belongs to the world came in by a port of its own.
            let usual = epoch.port(passage.to);
            ports.extend(entries.iter().filter_map(|it| match it {
                Entry::Port(_) => usual,
                other => Some(other.back()),
            }));
        }
        // The client's address may belong to a pod by now. Its connections to hosts still have the node's address as
        // their source.
        let is_hidden = pair.first.source != pair.behind.source
            && pair.behind.source == ported_address(self.node, pair.first.source);
        if is_hidden || self.comes_back(epoch, pair) {
            ports.push(MANX);
        }
        if ports.is_empty() {
            ports.extend(epoch.port(passage.to));
        }
        ports
    }

    /// All passages with which an input may come out translated, each with its connection.
    pub fn translations_of(&self, epoch: &Epoch, input: &Input) -> Vec<(Passage, Pair)> {
        let (Some(read), Some(entry)) = (input.read, input.entry) else { return Vec::new() };
        if self.enters(epoch, input, &read, entry).is_err() {
            return Vec::new();
        }
        let FirstFragments { sent, pairs: before, .. } = if read.is_later() {
            let version = epoch.versions[self.node];
            let firsts = self.translations.borrow();
            firsts.first_fragments(&read, entry, version, self.now).unwrap_or_default()
        } else {
            FirstFragments { sent: vec![read.tuple], ..FirstFragments::default() }
        };
        let mut pairs = before;
        for pair in sent.iter().flat_map(|sent| self.pairs_of(epoch, sent)) {
            if !pairs.contains(&pair) {
                pairs.push(pair);
            }
        }
        let pairs = pairs.into_iter().map(|pair| (pair, sent.contains(&pair.first)));
        let ways = pairs.filter_map(|(pair, is_forward)| {
            let mut way = self.way(epoch, &read, entry, (&pair, is_forward)).ok()?;
            if read.is_later() {
                way.because = Because::LaterFragment;
            }
            Some((way, pair))
        });
        ways.collect()
    }

    /// The connections to which a packet may belong: those whose packets have come out, and those
    /// that may exist.
    pub fn pairs_of(&self, epoch: &Epoch, sent: &FlowTuple) -> Vec<Pair> {
        let translations = self.translations.borrow();
        let mut pairs = translations.pairs_answered(sent);
        if !self.asks(epoch, sent) {
            return pairs;
        }
        pairs.extend(translations.asking(sent).into_iter().flat_map(|it| it.pairs(sent)));
        if epoch.leaves(self.node, sent) {
            pairs.push(Pair { first: *sent, behind: self.behind_way_out(sent) });
        }
        let asked = asked_of(sent).filter(|_| epoch.asks_service(self.node, sent));
        for end in asked.iter().flat_map(|asked| translations.ever(asked)) {
            let behind = self.behind(epoch, sent, *end);
            if !pairs.iter().any(|pair| pair.behind == behind) {
                pairs.push(Pair { first: *sent, behind });
            }
        }
        pairs
    }

    /// The tuple of a client's packets on their way to a backend, if their source port stays.
    fn behind(&self, epoch: &Epoch, first: &FlowTuple, (address, port): End) -> FlowTuple {
        let TransportKey::Ports(from, _) = first.transport else { return *first };
        let transport = TransportKey::Ports(from, port);
        let behind = FlowTuple { destination: address, transport, ..*first };
        let pair = Pair { first: *first, behind };
        let source = self.source_behind(epoch, &pair);
        let least = self.epochs[0].services.way_out.as_ref().map_or(0, |it| it.egress.0);
        let from = if self.comes_back(epoch, &pair) { least } else { from };
        FlowTuple { source, transport: TransportKey::Ports(from, port), ..behind }
    }

    /// The possible tuple of a pod's packets on their way to the world. Their port is unknown
    /// before they come out.
    fn behind_way_out(&self, first: &FlowTuple) -> FlowTuple {
        let least = self.epochs[0].services.way_out.as_ref().map_or(0, |it| it.egress.0);
        let transport = match first.transport {
            TransportKey::Ports(_, to) => TransportKey::Ports(least, to),
            TransportKey::Query { kind, asks, .. } => TransportKey::Query { kind, asks, id: least },
            other => other,
        };
        FlowTuple { source: ported_address(self.node, first.source), transport, ..*first }
    }

    /// The source that a backend, or the world, sees.
    fn source_behind(&self, epoch: &Epoch, pair: &Pair) -> IpAddr {
        let (client, backend) = (pair.first.source, pair.behind.destination);
        let [from, to] = [client, backend].map(|it| epoch.place(self.node, it));
        let router = IpAddr::from(ROUTER[self.node]);
        match (from, to) {
            _ if from == to && matches!(from, Place::Pod(_)) => hairpin(client),
            _ if self.comes_back(epoch, pair) => ported_address(self.node, client),
            (Place::Node, Place::Tunnel) if self.terms.has_ports => router,
            _ => client,
        }
    }

    /// Whether a connection has the source behind the translation that it would have if it were opened now.
    pub fn has_source(&self, epoch: &Epoch, pair: &Pair) -> bool {
        let Pair { first, behind } = pair;
        let translations = self.translations.borrow();
        let entries = translations.asking(first).map_or(&[][..], |it| &it.entries);
        // A masqueraded client keeps its address.
        let is_masqueraded = entries.contains(&Entry::Forwarded) && behind.source == first.source;
        behind.source == self.source_behind(epoch, pair)
            || is_masqueraded && epoch.place(self.node, first.source) == Place::Node
    }

    /// Whether a connection may have its source behind the translation: it is right now, or it may have been right
    /// before the ends of the connection moved.
    fn may_have_source(&self, epoch: &Epoch, pair: &Pair) -> bool {
        let Pair { first, behind } = pair;
        let own = ported_address(self.node, first.source);
        let before = [first.source, own, ROUTER[self.node].into()];
        // The way out has no other source than the node's address.
        let is_old = before.contains(&behind.source) && is_of_service(pair);
        self.has_source(epoch, pair) || self.terms.has_ports && is_old && self.is_known(pair)
    }

    /// Whether the node may know a connection from earlier, although perhaps none of its packets
    /// has come out.
    fn is_known(&self, pair: &Pair) -> bool {
        let translations = self.translations.borrow();
        let is_live = |it: &Connection| it.lives(pair.first.upper, self.now);
        translations.connection(pair).is_some_and(is_live)
            || translations.asking(&pair.first).is_some_and(Asking::was_unclear)
    }

    /// Whether no other connection certainly has the same tuple behind the translation. Two such
    /// connections could not be distinguished, and the answers of one would reach the other. A
    /// packet without ports and identifier gets no answer through the node, so many connections may
    /// share its tuple.
    pub fn is_alone(&self, pair: &Pair) -> bool {
        if pair.behind.transport == TransportKey::Nothing {
            return true;
        }
        let translations = self.translations.borrow();
        let others =
            translations.firsts_behind(&pair.behind).iter().filter(|it| **it != pair.first);
        let mut others = others.map(|first| Pair { first: *first, behind: pair.behind });
        !others.any(|other| {
            translations.is_sure(&other, self.evictions, self.now)
                || !self.evicts && translations.is_seen(&other)
        })
    }

    /// Whether an input may come in by its entry, and is of a kind that may be forwarded.
    fn enters(
        &self,
        epoch: &Epoch,
        input: &Input,
        read: &Read,
        entry: Entry,
    ) -> Result<(), String> {
        let FlowTuple { source, destination, .. } = read.tuple;
        let from = epoch.place(self.node, source);
        if !self.may_come(epoch, entry, &read.tuple) {
            return Err(format!("its source is {from:?} and it came by {entry:?}"));
        }
        if !is_forwardable(source)
            || !(is_forwardable(destination) || destination == hairpin(source))
        {
            return Err("its addresses are never forwarded".to_owned());
        }
        if matches!(entry, Entry::Port(_)) && is_tunnel(read) {
            return Err("it is a tunnel packet of a pod".to_owned());
        }
        if input.is_cut_too_small() {
            return Err("it falls into more segments than any kernel makes".to_owned());
        }
        Ok(())
    }

    /// Returns the passage of a packet of this connection, or the reason why it may not pass.
    fn way(
        &self,
        epoch: &Epoch,
        read: &Read,
        entry: Entry,
        (pair, is_forward): (&Pair, bool),
    ) -> Result<Passage, String> {
        let refuse = |why: &str| Err(why.to_owned());
        let Pair { first, behind } = pair;
        if !self.asks(epoch, first) || first.upper != behind.upper {
            return refuse(
                "it was translated, and asks for nothing that is translated, nor answers",
            );
        }
        let is_service = is_of_service(pair);
        if is_service != epoch.asks_service(self.node, first) {
            return refuse(
                "it was led to a backend without asking for one, or the other way round",
            );
        }
        if !self.may_have_source(epoch, pair) {
            return refuse("its source behind the translation is wrong");
        }
        self.has_right_port(epoch, pair)?;
        if !is_forward && self.hides_source(epoch, pair) && entry != Entry::Manx {
            return refuse("it came back by another way than the ports of the node");
        }
        // A later fragment may follow the decision on its first fragment.
        if !read.is_later() && !pair.is_kept(&epoch.services) {
            return refuse("its backend is gone");
        }
        let translations = self.translations.borrow();
        let Some(asking) = translations.asking(first) else {
            return refuse("it was translated back, and nobody has asked");
        };
        let is_other =
            |other: &Pair| other != pair && translations.is_sure(other, self.evictions, self.now);
        if !read.is_later() && asking.pairs(first).any(|other| is_other(&other)) {
            return refuse("its connection has another backend");
        }
        let known = translations.connection(pair).filter(|it| it.lives(first.upper, self.now));
        if known.is_none() {
            if first.upper == TCP && !asking.has_opened() {
                return refuse("nobody knows the backend of its connection");
            }
            let is_new = translations.is_new(asking);
            let has = |epoch: &std::rc::Rc<Epoch>| self.may_choose(epoch, pair);
            // An earlier packet may have opened the connection, although it has not come out.
            let ends = asked_of(first).zip(end_of(behind));
            let is_old = !is_new
                && ends.is_some_and(|(asked, end)| translations.ever(&asked).contains(&end));
            if is_service && !self.epochs.iter().any(has) && !is_old {
                return refuse(
                    "it went to none of its service's backends, or its client is in none of the ranges",
                );
            }
            let was_open = asking.may_be_open(self.now) || read.is_later();
            if !is_service && !is_forward && !was_open {
                return refuse("it came back to a pod that has sent nothing from this port");
            }
        }
        if !is_forward && read.opens() {
            return refuse("a backend opens a connection, and passes for its service");
        }
        let entries = if is_forward { &[entry][..] } else { &asking.entries };
        // If no packet of a connection has come out, it is unknown whether it was answered.
        let may_be_kept =
            self.terms.keeps && !read.opens() && known.is_none() && !translations.is_new(asking);
        let because = match self.verdict(epoch, pair, (entries, read.opens()), known) {
            None if may_be_kept => Because::Kept,
            Some(Because::Allowed) if !is_forward => Because::Reply,
            Some(because) => because,
            None => return refuse("policy denies its client the backend"),
        };
        let [client, backend] =
            [first.source, behind.destination].map(|it| epoch.place(self.node, it));
        let (from, to) = if is_forward { (client, backend) } else { (backend, client) };
        Ok(Passage { because, from, to })
    }

    /// Checks that a connection may have its source port behind the translation.
    fn has_right_port(&self, epoch: &Epoch, pair: &Pair) -> Result<(), String> {
        let (before, after) = match (pair.first.transport, pair.behind.transport) {
            (TransportKey::Ports(before, _), TransportKey::Ports(after, _)) => (before, after),
            (TransportKey::Query { id: before, .. }, TransportKey::Query { id: after, .. }) => {
                (before, after)
            }
            (first, behind) if first == behind => return Ok(()),
            _ => return Err("it was translated, and has no ports".to_owned()),
        };
        // An older connection, whose source was not hidden when it was opened, keeps its port.
        let is_kept = pair.first.source == pair.behind.source;
        let is_right = match &epoch.services.way_out {
            Some(way_out) if self.hides_source(epoch, pair) && !is_kept => way_out.has_port(after),
            _ => before == after || after >= CLIENT_PORTS,
        };
        if is_right {
            return Ok(());
        }
        Err(format!("its source port behind the translation, {after}, is none that it may have"))
    }

    /// Whether a new connection of a service may get this backend.
    fn may_choose(&self, epoch: &Epoch, pair: &Pair) -> bool {
        let Some((asked, end)) = asked_of(&pair.first).zip(end_of(&pair.behind)) else {
            return false;
        };
        let is_outside = epoch.place(self.node, pair.first.source) == Place::World;
        let frontend = epoch.services.frontends.get(&asked);
        frontend.is_some_and(|it| {
            it.backends_for(is_outside).contains(&end) && it.takes(pair.first.source)
        })
    }

    /// Whether policy lets a connection begin that comes in by this entry, or lets it continue if the node `is_known`
    /// to have it. Outside clients and the node's own processes are also led to hosts and to the other node, where no
    /// policy of this node judges them.
    fn admits(&self, epoch: &Epoch, entry: Entry, pair: &Pair, is_known: bool) -> bool {
        let judged = pair.judged();
        let ends = [judged.source, judged.destination].map(|it| epoch.place(self.node, it));
        let is_led = match ends {
            [_, Place::Tunnel] => {
                let takes = |asked: Asked| match epoch.services.reach(&asked) {
                    // An existing connection continues.
                    Some(Reach::NodePort(_) | Reach::Balancer) if is_known => true,
                    _ => epoch.services.takes_visitors(&asked),
                };
                ends[0] == Place::World && asked_of(&pair.first).is_some_and(takes)
            }
            _ => !matches!(ends[0], Place::Pod(_)) && self.comes_back(epoch, pair),
        };
        is_led || epoch.admits(self.node, entry, &judged)
    }

    /// The reason for which policy lets a connection's packets pass, or lets them continue to pass.
    fn verdict(
        &self,
        epoch: &Epoch,
        pair: &Pair,
        (entries, opens): (&[Entry], bool),
        known: Option<&Connection>,
    ) -> Option<Because> {
        let judged = pair.judged();
        if entries.iter().any(|entry| self.admits(epoch, *entry, pair, known.is_some())) {
            return Some(Because::Allowed);
        }
        let stands = |it: &Connection| it.is_answered() && it.stands(epoch, self.node, &judged);
        (self.terms.keeps && !opens && known.is_some_and(stands)).then_some(Because::Kept)
    }

    /// The passage of an ICMP error about a packet that was sent with this tuple, the connection of that packet, and
    /// the error's addresses behind the translation.
    pub fn translated_error(
        &self,
        epoch: &Epoch,
        input: &Input,
        sent: &FlowTuple,
    ) -> Result<(Passage, Pair, (IpAddr, IpAddr)), String> {
        let refuse = |why: &str| Err(why.to_owned());
        let (Some(read), Some(entry)) = (input.read, input.entry) else {
            return refuse("it came by an unknown tunnel, or cannot be read");
        };
        let Some(got) =
            read_about(input.packet(), &read).filter(|it| !it.is_later() && !it.is_error())
        else {
            return refuse("it is an ICMP error about nothing that has a connection");
        };
        let got = got.tuple;
        let of_client = Pair { first: *sent, behind: got };
        let of_backend = Pair { first: got.reversed(), behind: sent.reversed() };
        let mut refused = String::new();
        for pair in [of_client, of_backend] {
            if pair.first == *sent && !self.asks(epoch, sent) {
                continue;
            }
            match self.translated_error_of(epoch, &read, entry, (&got, sent, pair)) {
                Ok(way) => return Ok(way),
                Err(why) if refused.is_empty() => refused = why,
                Err(_) => {}
            }
        }
        Err(refused)
    }

    /// The same as [`translated_error`](Self::translated_error), for an error about a packet of this connection. The
    /// packet was sent with one of these tuples, and received with the other.
    fn translated_error_of(
        &self,
        epoch: &Epoch,
        read: &Read,
        entry: Entry,
        (got, sent, pair): (&FlowTuple, &FlowTuple, Pair),
    ) -> Result<(Passage, Pair, (IpAddr, IpAddr)), String> {
        let refuse = |why: &str| Err(why.to_owned());
        let FlowTuple { source, destination, .. } = read.tuple;
        let [from, towards] = [source, got.destination].map(|it| epoch.place(self.node, it));
        let is_hop = matches!(
            (entry, from),
            (Entry::Host, Place::Service) | (Entry::Tunnel, Place::World | Place::Node)
        );
        if !is_hop && !epoch.may_enter(self.node, entry, from)
            || !epoch.may_enter(self.node, entry, towards)
        {
            return refuse("it is an ICMP error from another side than its packet went to");
        }
        if destination != got.source
            || !(is_forwardable(destination) || destination == hairpin(destination))
        {
            return refuse("it is an ICMP error to somebody else than the sender");
        }
        let translations = self.translations.borrow();
        let known = translations.connection(&pair).filter(|it| it.lives(got.upper, self.now));
        let Some(asking) = translations.asking(&pair.first) else {
            return refuse("it is an ICMP error about a connection that nobody has asked for");
        };
        // The connection may have been opened without any packet coming out.
        let ends = asked_of(&pair.first).zip(end_of(&pair.behind));
        let leads = || ends.is_some_and(|(asked, end)| translations.ever(&asked).contains(&end));
        let may_be = || {
            if is_of_service(&pair) { leads() } else { asking.may_be_open(self.now) }
        };
        if known.is_none() && !may_be() {
            return refuse(
                "it is an ICMP error about a connection to none of the service's backends",
            );
        }
        if !self.may_have_source(epoch, &pair) || self.has_right_port(epoch, &pair).is_err() {
            return refuse("it is an ICMP error about another source behind the translation");
        }
        let may_be_kept = self.terms.keeps && known.is_none();
        let verdict = self.verdict(epoch, &pair, (&asking.entries, false), known);
        if !pair.is_kept(&epoch.services) || verdict.is_none() && !may_be_kept {
            return refuse(
                "it is an ICMP error about a connection that policy denies, or whose backend is gone",
            );
        }
        let to = epoch.place(self.node, sent.source);
        let from_end = if source == got.destination { sent.destination } else { source };
        let passage = Passage { because: Because::Related, from: towards, to };
        Ok((passage, pair, (from_end, sent.source)))
    }

    /// Whether the node may answer an input with a refusal (a TCP reset or an ICMP error).
    pub fn may_refuse(&self, epoch: &Epoch, input: &Input) -> bool {
        let (Some(read), Some(entry)) = (input.read, input.entry) else { return false };
        // The node may send a refusal to itself if the source is a service's address.
        let from = epoch.place(self.node, read.tuple.source);
        let is_of_node = (entry, from) == (Entry::Host, Place::Service);
        let enters = is_of_node || self.enters(epoch, input, &read, entry).is_ok();
        if enters
            && (self.is_unknown_port(epoch, entry, &read) || self.is_of_before(epoch, entry, input))
        {
            return true;
        }
        if !self.asks(epoch, &read.tuple) || !enters {
            return false;
        }
        let translations = self.translations.borrow();
        let asking = translations.asking(&read.tuple);
        let mut pairs = asking.into_iter().flat_map(|it| it.pairs(&read.tuple));
        let is_known = pairs.any(|pair| {
            pair.is_kept(&epoch.services) && translations.is_sure(&pair, self.evictions, self.now)
        });
        let asked = asked_of(&read.tuple);
        let is_lost = read.tuple.upper == TCP && !read.opens();
        match asked.and_then(|asked| epoch.services.frontends.get(&asked)) {
            _ if is_known => false,
            _ if epoch.leaves(self.node, &read.tuple) => is_lost,
            None => true,
            // The packet's connection may be older than the client ranges, and its backend may be gone.
            Some(frontend) if !frontend.takes(read.tuple.source) => {
                is_lost && asking.is_some_and(Asking::has_opened)
            }
            Some(_) if is_lost => true,
            Some(frontend) => {
                let is_outside = epoch.place(self.node, read.tuple.source) == Place::World;
                frontend.refuses_without(is_outside)
            }
        }
    }

    /// Whether a packet may belong to an earlier connection that had the client's port of the way
    /// out: it does not answer a SYN, and no known connection with that port has had its SYN
    /// answered.
    fn is_of_before(&self, epoch: &Epoch, entry: Entry, input: &Input) -> bool {
        let Some(read) = input.read.filter(|it| it.tuple.upper == TCP && !it.opens()) else {
            return false;
        };
        let answers = flag::SYN | flag::ACK;
        let is_of_way_out =
            |port| epoch.services.way_out.as_ref().is_some_and(|it| it.has_port(port));
        if entry != Entry::Manx
            || read.flags & flag::RST != 0
            || read.flags & answers == answers
            || !asked_of(&read.tuple).is_some_and(|(_, _, port)| is_of_way_out(port))
        {
            return false;
        }
        let ways = self.translations_of(epoch, input);
        let translations = self.translations.borrow();
        !ways.iter().any(|(_, pair)| {
            let is_greeted = || translations.connection(pair).is_some_and(|it| it.is_greeted(TCP));
            pair.behind.reversed() == read.tuple
                && translations.is_sure(pair, self.evictions, self.now)
                && is_greeted()
        })
    }

    /// Whether a packet to a port of the node that belongs to Manx finds no service there. For a
    /// port of the way out this test does not know whether it is in use, so such a port does not
    /// count.
    fn is_unknown_port(&self, epoch: &Epoch, entry: Entry, read: &Read) -> bool {
        let Some((address, upper, port)) = asked_of(&read.tuple) else { return false };
        entry == Entry::Manx
            && epoch.place(self.node, address) == Place::Node
            && !epoch.services.frontends.contains_key(&(address, upper, port))
            && epoch.services.way_out.as_ref().is_some_and(|it| !it.has_port(port))
    }
}

/// Whether a connection goes to a backend of a service.
fn is_of_service(pair: &Pair) -> bool {
    let Pair { first, behind } = pair;
    let ports = (asked_of(first), asked_of(behind));
    first.destination != behind.destination || ports.0 != ports.1
}
