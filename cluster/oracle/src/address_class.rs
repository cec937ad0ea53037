//! The inputs on which the oracle's verdicts depend. These are the boundaries at which a verdict may change, and
//! classes of ends and of peers for which the verdicts are equal.
//!
//! To compare the oracle with the compiled tables for all packets, a caller needs only the packets at these boundaries,
//! and only one end or peer of each class. This module follows `rules` term by term: `rules` decides whether a term
//! holds, and this module lists the inputs of the term.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;
use std::net::IpAddr;

use ipnet::IpNet;

use super::direction::Direction;
use super::enforcement::EnforcementPoint;
use super::members::Member;
use super::oracle::Oracle;
use super::place::Place;
use super::rules::{ClusterPeer, Entity, KubernetesPeer, Occupants, Rule, Terms};
use super::service_slices::ServiceMembers;
use super::set::Set;
use manx_objects::object::calico::{self, EntityRule};
use manx_objects::object::cluster::ClusterProtocol;
use manx_objects::object::{self, PortNumber};

/// The properties of an address that the terms of some rules depend on. The verdicts for two addresses of one family
/// are equal if their classes are equal.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct AddressClass {
    /// Whether each term holds.
    terms: Vec<bool>,
    /// For each port name and each service, the protocols and ports that it stands for.
    ports: Vec<BTreeSet<(u8, u16)>>,
}

/// The properties of a local end that its verdicts depend on.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    place: Place,
    direction: Direction,
    exists: bool,
    unreadable: bool,
    asked: Vec<usize>,
    broken: Vec<usize>,
    /// The profiles, only for a host endpoint.
    profiles: Vec<String>,
    failsafe: Vec<(u8, u16, Option<IpNet>)>,
    own: AddressClass,
}

/// The protocols, ICMP types and ranges of ports at whose boundaries the verdict of an end may change.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Limits {
    pub protocols: BTreeSet<u8>,
    /// ICMP types, with codes if a rule names them.
    pub icmp: BTreeSet<(u8, Option<u8>)>,
    /// Ranges of source ports.
    pub sources: BTreeSet<(u16, u16)>,
    /// Ranges of destination ports.
    pub destinations: BTreeSet<(u16, u16)>,
}

impl Oracle {
    /// Returns the prefixes of members, each with the number of a class. At these ends, the verdicts for members of one
    /// class are equal. A rule depends only on two properties of a member: whether it is in a set that the rule names,
    /// and which of its ports have a name that the rule uses. The addresses of invalid pods have the number `u32::MAX`.
    pub fn occupants(&self, ends: &[&EnforcementPoint<'_>]) -> Vec<(IpNet, u32)> {
        let mut rules: Vec<&Rule> = ends.iter().flat_map(|end| end.rules.iter().copied()).collect();
        rules.sort_unstable_by_key(|rule| std::ptr::from_ref(*rule));
        rules.dedup_by_key(|rule| std::ptr::from_ref(*rule));
        let mut names = [BTreeSet::new(), BTreeSet::new()];
        let mut sets: HashMap<&Option<String>, Vec<(usize, &Set)>> = HashMap::new();
        for rule in &rules {
            Limits::default().of_rule(rule, &mut names);
        }
        for (number, set) in rules.iter().flat_map(|rule| rule.sets()).enumerate() {
            sets.entry(&set.within).or_default().push((number, set));
        }
        self.numbered(|member| {
            let within = member.namespace.as_ref().and_then(|_| sets.get(&member.namespace));
            let asked = sets.get(&None).into_iter().chain(within).flatten();
            let is_in: Vec<usize> =
                asked.filter(|(_, set)| set.has(member)).map(|(number, _)| *number).collect();
            let named = |(name, ..): &&(String, u8, u16)| {
                names.iter().any(|names| names.contains(name.as_str()))
            };
            let ports: Vec<_> = member.ports().filter(named).collect();
            (is_in, ports)
        })
    }

    /// Like [`Self::occupants`], but the verdicts for members of one class are equal at every end, whatever its rules
    /// are.
    pub fn all_occupants(&self) -> Vec<(IpNet, u32)> {
        self.numbered(Member::content)
    }

    /// Returns the prefixes of members, each with a number. Two members have the same number if `said` returns equal
    /// values for them. The addresses of invalid pods have the number `u32::MAX`.
    fn numbered<'a, T: Hash + Eq>(&'a self, said: impl Fn(&'a Member) -> T) -> Vec<(IpNet, u32)> {
        let mut numbers: HashMap<T, u32> = HashMap::new();
        let mut occupants = Vec::new();
        for member in &self.members.list {
            let next = numbers.len() as u32;
            let number = *numbers.entry(said(member)).or_insert(next);
            occupants.extend(member.occupies().map(|net| (net, number)));
        }
        // These addresses are always denied.
        let invalid = &self.members.invalid_addresses;
        occupants.extend(invalid.iter().map(|address| (IpNet::from(*address), u32::MAX)));
        occupants
    }

    /// Returns the nets that the rules of an end name, the addresses of the services that these rules name, and the
    /// nets of the end's failsafe ports.
    pub fn nets(&self, end: &EnforcementPoint<'_>) -> BTreeSet<IpNet> {
        let mut nets = BTreeSet::new();
        for rule in &end.rules {
            match &rule.terms {
                Terms::Everything | Terms::Nothing => {}
                Terms::Kubernetes { peers, .. } => {
                    for peer in peers {
                        if let KubernetesPeer::Block(block) = peer {
                            nets.insert(block.cidr);
                            nets.extend(&block.except);
                        }
                    }
                }
                Terms::Cluster { peers, .. } => {
                    for peer in peers {
                        if let ClusterPeer::Networks(named) = peer {
                            nets.extend(named);
                        }
                    }
                }
                Terms::Calico(terms) => {
                    let ends = [
                        (&terms.wire.source, &terms.source),
                        (&terms.wire.destination, &terms.destination),
                    ];
                    for (wire, entity) in ends {
                        nets.extend(wire.nets.iter().chain(&wire.not_nets));
                        let service = entity.service.iter().flat_map(ServiceMembers::addresses);
                        nets.extend(service.map(IpNet::from));
                    }
                }
            }
        }
        nets.extend(end.failsafe.iter().filter_map(|safe| safe.net));
        nets
    }

    /// Returns the protocols, ports and ICMP types at which the verdict of an end may change.
    pub fn limits(&self, end: &EnforcementPoint<'_>) -> Limits {
        let mut limits = Limits::default();
        let mut names = [BTreeSet::new(), BTreeSet::new()];
        for rule in &end.rules {
            limits.of_rule(rule, &mut names);
        }
        for safe in &end.failsafe {
            limits.destinations.insert((safe.port, safe.port));
        }
        for (names, ports) in names.iter().zip([&mut limits.sources, &mut limits.destinations]) {
            let numbers = names.iter().filter_map(|name| self.members.port_names.get(*name));
            ports.extend(numbers.flatten().map(|port| (*port, *port)));
        }
        limits
    }

    /// Returns the properties that the verdicts of an end depend on, for one of the end's own addresses.
    pub fn key(&self, end: &EnforcementPoint<'_>, local: IpAddr) -> Key {
        let mut own = AddressClass::default();
        own.terms.push(self.unknown(end, local, local).is_some());
        let seen = self.occupants_at(end, local);
        let mut look =
            RuleScan { oracle: self, end, seen: &seen, is_peer: false, address_class: &mut own };
        end.rules.iter().for_each(|rule| look.rule(rule));
        let host = end.member.filter(|_| end.place == Place::Host);
        let host = host.map(|member| &self.members.list[member]);
        Key {
            place: end.place,
            direction: end.direction,
            exists: end.member.is_some(),
            unreadable: end.unreadable,
            asked: end.asked.clone(),
            broken: end.broken.clone(),
            profiles: host.map(|host| host.profiles.clone()).unwrap_or_default(),
            failsafe: end
                .failsafe
                .iter()
                .map(|safe| (safe.protocol, safe.port, safe.net))
                .collect(),
            own,
        }
    }

    /// Returns the properties of a peer's address that an end's verdicts depend on.
    pub fn address_class(&self, end: &EnforcementPoint<'_>, peer: IpAddr) -> AddressClass {
        let mut address_class = AddressClass::default();
        address_class.terms.push(self.members.invalid_addresses.contains(&peer));
        let within = |net: IpNet| super::matching::in_net(net, peer);
        address_class.terms.extend(end.failsafe.iter().map(|safe| safe.net.is_none_or(within)));
        let seen = self.occupants_of(peer, None);
        let mut look = RuleScan {
            oracle: self,
            end,
            seen: &seen,
            is_peer: true,
            address_class: &mut address_class,
        };
        end.rules.iter().for_each(|rule| look.rule(rule));
        address_class
    }
}

impl Limits {
    fn of_rule<'a>(&mut self, rule: &'a Rule, names: &mut [BTreeSet<&'a str>; 2]) {
        match &rule.terms {
            Terms::Everything | Terms::Nothing => {}
            Terms::Kubernetes { ports, .. } => {
                for port in ports {
                    match &port.port {
                        None => {}
                        Some(PortNumber::Number { port, end }) => {
                            self.destinations.insert((*port, end.unwrap_or(*port)));
                        }
                        Some(PortNumber::Name(name)) => {
                            names[1].insert(name);
                        }
                    }
                }
            }
            Terms::Cluster { protocols, .. } => {
                for protocol in protocols {
                    match protocol {
                        ClusterProtocol::Ports { ports, .. } => self.destinations.extend(*ports),
                        ClusterProtocol::Named(name) => {
                            names[1].insert(name);
                        }
                    }
                }
            }
            Terms::Calico(terms) => {
                let wire = &terms.wire;
                self.protocols.extend([wire.protocol, wire.not_protocol].into_iter().flatten());
                for icmp in [wire.icmp, wire.not_icmp].into_iter().flatten() {
                    self.icmp.extend(icmp.kind.map(|kind| (kind, icmp.code)));
                }
                let [of_source, of_destination] = names;
                self.of_ports(&wire.source, false, of_source);
                self.of_ports(&wire.destination, true, of_destination);
                let served = terms.destination.service.iter().flat_map(ServiceMembers::ports);
                self.destinations.extend(served.map(|(_, port)| (port, port)));
            }
        }
    }

    fn of_ports<'a>(
        &mut self,
        wire: &'a EntityRule,
        destination: bool,
        names: &mut BTreeSet<&'a str>,
    ) {
        let into = if destination { &mut self.destinations } else { &mut self.sources };
        for port in wire.ports.iter().chain(&wire.not_ports) {
            match port {
                calico::Port::Range(first, last) => {
                    into.insert((*first, *last));
                }
                calico::Port::Name(name) => {
                    names.insert(name);
                }
            }
        }
    }
}

/// Collects the properties of one address of a packet on which the rules of an end depend.
struct RuleScan<'a> {
    oracle: &'a Oracle,
    end: &'a EnforcementPoint<'a>,
    seen: &'a Occupants,
    is_peer: bool,
    address_class: &'a mut AddressClass,
}

impl RuleScan<'_> {
    fn rule(&mut self, rule: &Rule) {
        match &rule.terms {
            Terms::Everything | Terms::Nothing => {}
            Terms::Kubernetes { peers, ports, .. } => {
                let fits = |holder: Option<usize>| {
                    peers.is_empty()
                        || peers.iter().any(|peer| match peer {
                            KubernetesPeer::Block(block) => {
                                super::matching::in_block(block, self.seen.address)
                            }
                            KubernetesPeer::Pods(set) => holder
                                .is_some_and(|holder| set.has(&self.oracle.members.list[holder])),
                        })
                };
                let names = ports.iter().filter_map(|port: &object::Port| match &port.port {
                    Some(PortNumber::Name(name)) => Some(name.as_str()),
                    _ => None,
                });
                self.peers(&fits, names);
            }
            Terms::Cluster { peers, protocols, .. } => {
                let fits = |holder: Option<usize>| {
                    peers.iter().any(|peer| match peer {
                        ClusterPeer::Networks(nets) => within(nets, self.seen.address),
                        ClusterPeer::Pods(set) => {
                            holder.is_some_and(|holder| set.has(&self.oracle.members.list[holder]))
                        }
                    })
                };
                let names = protocols.iter().filter_map(|protocol| match protocol {
                    ClusterProtocol::Named(name) => Some(name.as_str()),
                    ClusterProtocol::Ports { .. } => None,
                });
                self.peers(&fits, names);
            }
            Terms::Calico(terms) => {
                // For ingress the peer is the source.
                let is_source = self.is_peer == (self.end.direction == Direction::Ingress);
                if is_source {
                    self.entity(&terms.wire.source, &terms.source, false);
                } else {
                    let served = self.end.direction == Direction::Egress;
                    self.entity(&terms.wire.destination, &terms.destination, served);
                }
            }
        }
    }

    /// Rules of Kubernetes' kinds depend on the members that have the peer's address. They also depend on port names of
    /// the destination: the names of the end itself, or the names of the members that the rule selects.
    fn peers<'n>(
        &mut self,
        fits: &dyn Fn(Option<usize>) -> bool,
        names: impl Iterator<Item = &'n str>,
    ) {
        let mut owners: Vec<usize> = Vec::new();
        if self.is_peer {
            let holders = self.seen.holders.iter().copied();
            owners.extend(holders.filter(|holder| fits(Some(*holder))));
            self.address_class.terms.push(!owners.is_empty() || fits(None));
        } else {
            owners.extend(self.seen.endpoint);
        }
        // For ingress, the destination is the local end. For egress, it is the peer.
        if self.is_peer == (self.end.direction == Direction::Egress) {
            names.for_each(|name| self.named(name, &owners));
        }
    }

    fn entity(&mut self, wire: &EntityRule, entity: &Entity, with_served_ports: bool) {
        let Occupants { address, holders, .. } = self.seen;
        let members = &self.oracle.members.list;
        let any = |set: &Set| holders.iter().any(|holder| set.has(&members[*holder]));
        if !wire.nets.is_empty() {
            self.address_class.terms.push(within(&wire.nets, *address));
        }
        if !wire.not_nets.is_empty() {
            self.address_class.terms.push(within(&wire.not_nets, *address));
        }
        self.address_class.terms.extend(entity.positive.as_ref().map(any));
        self.address_class.terms.extend(entity.negative.as_ref().map(any));
        if let Some(service) = &entity.service {
            self.address_class.terms.push(service.has(*address));
            if with_served_ports {
                self.address_class.ports.push(service.served(*address));
            }
        }
        let owners = self.seen.owners();
        let meant =
            |owner: &usize| entity.positive.as_ref().is_none_or(|set| set.has(&members[*owner]));
        let meant: Vec<usize> = owners.iter().copied().filter(meant).collect();
        for (ports, owners) in [(&wire.ports, &meant[..]), (&wire.not_ports, owners)] {
            for port in ports {
                if let calico::Port::Name(name) = port {
                    self.named(name, owners);
                }
            }
        }
    }

    fn named(&mut self, wanted: &str, owners: &[usize]) {
        let named = owners.iter().flat_map(|owner| self.oracle.members.list[*owner].ports());
        let named = named.filter(|(name, ..)| name == wanted);
        self.address_class
            .ports
            .push(named.map(|(_, protocol, port)| (*protocol, *port)).collect());
    }
}

fn within(nets: &[IpNet], address: IpAddr) -> bool {
    nets.iter().any(|net| super::matching::in_net(*net, address))
}
