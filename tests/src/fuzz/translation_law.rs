//! The translated packets that may come out: the laws of docs/services.md for one input and its output.

use std::net::IpAddr;
use std::ops::RangeInclusive;

use super::connections::Connection;
use super::epoch::{Entry, Epoch, Place};
use super::input::Input;
use super::oracle::{Because, Law, Passage, is_forwardable, is_tunnel};
use super::read::{FlowTuple, Read, TransportKey, read_about};
use super::services::End;
use super::translations::{Asking, Pair, asked_of, end_of};
use crate::packet::TCP;

/// The first port that may take the place of a client's.
const CLIENT_PORTS: u16 = 1024;

/// The source that a pod sees which reaches itself by a service.
pub fn hairpin(family: IpAddr) -> IpAddr {
    if family.is_ipv4() { [169, 254, 1, 1].into() } else { [0xfe80, 0, 0, 0, 0, 0, 0, 1].into() }
}

impl Law<'_> {
    /// The way of an input that came out with the ends of another tuple, and its connection.
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
            let fits = |pair: &Pair| {
                let sent =
                    if self.asks(epoch, &read.tuple) { pair.behind } else { pair.first.reversed() };
                (sent.source, sent.destination) == (tuple.source, tuple.destination)
            };
            let mut ways = self.translations_of(epoch, input).into_iter();
            let found = ways.find(|(_, pair)| fits(pair));
            return found.ok_or_else(|| "no first fragment of it was translated so".to_owned());
        }
        let pair = if self.asks(epoch, &read.tuple) {
            Pair { first: read.tuple, behind: *tuple }
        } else {
            Pair { first: tuple.reversed(), behind: read.tuple.reversed() }
        };
        self.enters(epoch, input, &read, entry)?;
        Ok((self.way(epoch, &read, entry, &pair)?, pair))
    }

    /// Whether a packet asks for something that is translated.
    pub fn asks(&self, epoch: &Epoch, tuple: &FlowTuple) -> bool {
        epoch.place(self.node, tuple.destination) == Place::Service
    }

    /// As [`hops`](Self::hops), for a packet of a translated connection, whose client may be a masqueraded one.
    pub fn hops_translated(
        &self,
        input: &Input,
        passage: Passage,
        pair: &Pair,
    ) -> RangeInclusive<u8> {
        let translations = self.translations.borrow();
        let is_masqueraded = translations
            .asking(&pair.first)
            .is_some_and(|it| it.entries.contains(&Entry::Forwarded));
        if is_masqueraded && [passage.from, passage.to].contains(&Place::Node) {
            0..=1
        } else {
            self.hops(input, passage)
        }
    }

    /// All ways in which an input may come out translated.
    pub fn translations_of(&self, epoch: &Epoch, input: &Input) -> Vec<(Passage, Pair)> {
        let (Some(read), Some(entry)) = (input.read, input.entry) else { return Vec::new() };
        if self.enters(epoch, input, &read, entry).is_err() {
            return Vec::new();
        }
        let sent = if read.is_later() {
            let version = epoch.versions[self.node];
            self.translations.borrow().first_fragments(&read, entry, version, self.now)
        } else {
            vec![read.tuple]
        };
        let pairs = sent.iter().flat_map(|sent| self.pairs_of(epoch, sent));
        let ways = pairs.filter_map(|pair| {
            let mut way = self.way(epoch, &read, entry, &pair).ok()?;
            if read.is_later() {
                way.because = Because::LaterFragment;
            }
            Some((way, pair))
        });
        ways.collect()
    }

    /// The connections that a packet may belong to: those of which packets have come out, and those that there may be.
    pub fn pairs_of(&self, epoch: &Epoch, sent: &FlowTuple) -> Vec<Pair> {
        let translations = self.translations.borrow();
        if !self.asks(epoch, sent) {
            return translations.pairs_answered(sent);
        }
        let Some(asked) = asked_of(sent) else { return Vec::new() };
        let mut pairs: Vec<Pair> =
            translations.asking(sent).into_iter().flat_map(|it| it.pairs(sent)).collect();
        for end in translations.ever(&asked) {
            let behind = self.behind(epoch, sent, *end);
            if !pairs.iter().any(|pair| pair.behind == behind) {
                pairs.push(Pair { first: *sent, behind });
            }
        }
        pairs
    }

    /// What a client's packets become on their way to a backend, if their source port stays.
    fn behind(&self, epoch: &Epoch, first: &FlowTuple, (address, port): End) -> FlowTuple {
        let TransportKey::Ports(from, _) = first.transport else { return *first };
        let source = self.source_behind(epoch, first.source, address);
        FlowTuple {
            source,
            destination: address,
            transport: TransportKey::Ports(from, port),
            ..*first
        }
    }

    /// The source that a backend sees.
    fn source_behind(&self, epoch: &Epoch, client: IpAddr, backend: IpAddr) -> IpAddr {
        let [from, to] = [client, backend].map(|it| epoch.place(self.node, it));
        if from == to && matches!(from, Place::Pod(_)) { hairpin(client) } else { client }
    }

    /// Whether an input may come in where it did, and is of a kind that may go on.
    fn enters(
        &self,
        epoch: &Epoch,
        input: &Input,
        read: &Read,
        entry: Entry,
    ) -> Result<(), String> {
        let FlowTuple { source, destination, .. } = read.tuple;
        let from = epoch.place(self.node, source);
        if !epoch.may_enter(self.node, entry, from) {
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

    /// The way of a packet of a connection.
    fn way(
        &self,
        epoch: &Epoch,
        read: &Read,
        entry: Entry,
        pair: &Pair,
    ) -> Result<Passage, String> {
        let refuse = |why: &str| Err(why.to_owned());
        let Pair { first, behind } = pair;
        let is_forward = self.asks(epoch, &read.tuple);
        let (Some(asked), Some(end)) = (asked_of(first), end_of(behind)) else {
            return refuse("it was translated, and has no ports");
        };
        if !self.asks(epoch, first) || first.upper != behind.upper {
            return refuse("it was translated, and is not to a service or from one");
        }
        if behind.source != self.source_behind(epoch, first.source, end.0) {
            return refuse("its source behind the translation is wrong");
        }
        if let (TransportKey::Ports(before, _), TransportKey::Ports(after, _)) =
            (first.transport, behind.transport)
            && before != after
            && after < CLIENT_PORTS
        {
            return refuse("its source port behind the translation is none of a client's");
        }
        // A fragment may follow what was decided on its first one.
        if !read.is_later() && !epoch.services.keeps(&asked, &end) {
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
            let has = |epoch: &std::rc::Rc<Epoch>| {
                let frontend = epoch.services.frontends.get(&asked);
                frontend.is_some_and(|it| it.backends.contains(&end) && it.takes(first.source))
            };
            // An earlier packet may have opened the connection without coming out.
            let is_old = !translations.is_new(asking) && translations.ever(&asked).contains(&end);
            if !self.epochs.iter().any(has) && !is_old {
                return refuse(
                    "it went to none of its service's backends, or its client is in none of the ranges",
                );
            }
        }
        if !is_forward && read.opens() {
            return refuse("a backend opens a connection, and passes for its service");
        }
        let entries = if is_forward { &[entry][..] } else { &asking.entries };
        // Of a connection of which nothing has come out it is not known whether it was answered.
        let may_be_kept =
            self.terms.keeps && !read.opens() && known.is_none() && !translations.is_new(asking);
        let because = match self.verdict(epoch, pair, (entries, read.opens()), known) {
            None if may_be_kept => Because::Kept,
            Some(Because::Allowed) if !is_forward => Because::Reply,
            Some(because) => because,
            None => return refuse("policy denies its client the backend"),
        };
        let [client, backend] = [first.source, end.0].map(|it| epoch.place(self.node, it));
        let (from, to) = if is_forward { (client, backend) } else { (backend, client) };
        Ok(Passage { because, from, to })
    }

    /// Whether policy lets a connection's packets pass, or lets them pass still.
    fn verdict(
        &self,
        epoch: &Epoch,
        pair: &Pair,
        (entries, opens): (&[Entry], bool),
        known: Option<&Connection>,
    ) -> Option<Because> {
        let judged = pair.judged();
        if entries.iter().any(|entry| epoch.admits(self.node, *entry, &judged)) {
            return Some(Because::Allowed);
        }
        let stands = |it: &Connection| it.is_answered() && it.stands(epoch, self.node, &judged);
        (self.terms.keeps && !opens && known.is_some_and(stands)).then_some(Because::Kept)
    }

    /// The connection of a packet that an ICMP error quotes as its receiver got it, by the packet as its sender sent it.
    pub fn pair_about(&self, epoch: &Epoch, got: &FlowTuple, sent: &FlowTuple) -> Pair {
        if self.asks(epoch, sent) {
            Pair { first: *sent, behind: *got }
        } else {
            Pair { first: got.reversed(), behind: sent.reversed() }
        }
    }

    /// The way of an ICMP error about a packet that was sent as this tuple, and the error's addresses behind the
    /// translation.
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
        let FlowTuple { source, destination, .. } = read.tuple;
        let pair = self.pair_about(epoch, &got, sent);
        let [from, towards] = [source, got.destination].map(|it| epoch.place(self.node, it));
        let is_hop = (entry, from) == (Entry::Host, Place::Service);
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
        let (Some(asking), Some(asked), Some(end)) =
            (translations.asking(&pair.first), asked_of(&pair.first), end_of(&pair.behind))
        else {
            return refuse("it is an ICMP error about a connection that nobody has asked for");
        };
        // The connection may have been opened without any packet coming out.
        if known.is_none() && !translations.ever(&asked).contains(&end) {
            return refuse(
                "it is an ICMP error about a connection to none of the service's backends",
            );
        }
        if pair.behind.source != self.source_behind(epoch, pair.first.source, end.0) {
            return refuse("it is an ICMP error about another source behind the translation");
        }
        let may_be_kept = self.terms.keeps && known.is_none();
        let verdict = self.verdict(epoch, &pair, (&asking.entries, false), known);
        if !epoch.services.keeps(&asked, &end) || verdict.is_none() && !may_be_kept {
            return refuse(
                "it is an ICMP error about a connection that policy denies, or whose backend is gone",
            );
        }
        let to = epoch.place(self.node, sent.source);
        let from_end = if source == got.destination { sent.destination } else { source };
        let passage = Passage { because: Because::Related, from: towards, to };
        Ok((passage, pair, (from_end, sent.source)))
    }

    /// Whether the node may tell the sender of an input that nobody is there.
    pub fn may_refuse(&self, epoch: &Epoch, input: &Input) -> bool {
        let (Some(read), Some(entry)) = (input.read, input.entry) else { return false };
        // The node may answer itself where a service's address is the source.
        let from = epoch.place(self.node, read.tuple.source);
        let is_of_node = (entry, from) == (Entry::Host, Place::Service);
        let enters = is_of_node || self.enters(epoch, input, &read, entry).is_ok();
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
            None => true,
            // Its connection may be one from before the ranges, whose backend is gone.
            Some(frontend) if !frontend.takes(read.tuple.source) => {
                is_lost && asking.is_some_and(Asking::has_opened)
            }
            Some(_) if is_lost => true,
            Some(frontend) => frontend.backends.is_empty() && frontend.refuses,
        }
    }
}
