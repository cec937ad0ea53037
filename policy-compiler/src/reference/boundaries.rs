//! The boundaries at which the reference treats peers and packets differently: those that the model
//! and its rules contain.

use std::collections::BTreeSet;

use ahash::AHashMap;
use ipnet::IpNet;

use crate::check::{Atoms, Bounds};
use crate::model::{Endpoint, Model, NamedPort, Policy, PortMatch, Rule};
use crate::selector::Labels;

/// The atoms of a model with these policies. They follow from the prefixes of its members and services, and from the
/// prefixes that the rules and the failsafe ports name.
pub(super) fn atoms_of(model: &Model, policies: &[&Policy]) -> Atoms {
    type Seen<'m> = (&'m str, Option<&'m str>, &'m Labels, Option<&'m BTreeSet<NamedPort>>);
    let mut atoms = Atoms::default();
    let mut contents: AHashMap<(u8, Seen<'_>), u32> = AHashMap::new();
    let mut number = |kind: u8, seen| {
        let next = contents.len() as u32;
        *contents.entry((kind, seen)).or_insert(next)
    };
    for (name, pod) in &model.endpoints {
        let Endpoint { labels, service_account, addresses, named_ports } = pod.as_ref();
        let account = service_account.as_deref();
        let id = number(0, (name.namespace.as_str(), account, &**labels, Some(named_ports)));
        for address in addresses {
            atoms.member(IpNet::from(*address), id);
        }
    }
    for (name, set) in &model.network_sets {
        let id = number(1, (name.namespace.as_str(), None, &set.labels, None));
        set.nets.iter().for_each(|net| atoms.member(*net, id));
    }
    // Each host endpoint and each group of service endpoints gets a number of its own: host endpoints inherit labels
    // that are not compared here, and services have no labels.
    let mut alone = 1 << 30;
    for host in model.host_endpoints.values() {
        alone += 1;
        host.addresses.iter().for_each(|address| atoms.member(IpNet::from(*address), alone));
    }
    for some in model.services.values().flat_map(|service| service.iter()) {
        alone += 1;
        some.addresses.iter().for_each(|address| atoms.member(IpNet::from(*address), alone));
    }
    for address in &model.unknown {
        alone += 1;
        atoms.member(IpNet::from(*address), alone);
    }
    for rule in rules(model, policies) {
        let entities = [&rule.source, &rule.destination]
            .into_iter()
            .flat_map(|end| end.entities.iter().flatten());
        for net in entities.flat_map(|entity| entity.nets.iter().chain(&entity.not_nets)) {
            atoms.bound(*net);
        }
    }
    for net in model.failsafe.ports.iter().flatten().filter_map(|(_, _, net)| *net) {
        atoms.bound(net);
    }
    atoms
}

/// The bounds of these policies of a model.
pub(super) fn bounds_of(model: &Model, policies: &[&Policy]) -> Bounds {
    let mut bounds = Bounds::default();
    let mut names = BTreeSet::new();
    for rule in rules(model, policies) {
        for number in [rule.protocol, rule.not_protocol].into_iter().flatten() {
            bounds.protocol(number);
        }
        for icmp in [rule.icmp, rule.not_icmp].into_iter().flatten() {
            if let Some(kind) = icmp.kind {
                bounds.icmp(kind, icmp.code);
            }
        }
        for (end, destination) in [(&rule.source, false), (&rule.destination, true)] {
            for port in end.ports.iter().chain(&end.not_ports) {
                match port {
                    PortMatch::Range { first, last } => {
                        add_ports(&mut bounds, destination, *first, *last);
                    }
                    PortMatch::Named(name) => {
                        names.insert((name.as_str(), destination));
                    }
                }
            }
            for entity in end.entities.iter().flatten() {
                let service = entity.service.as_ref().and_then(|it| model.services.get(it));
                let ports = service.into_iter().flat_map(|it| it.iter()).flat_map(|s| &s.ports);
                for (_, port) in ports {
                    add_ports(&mut bounds, destination, *port, *port);
                }
            }
        }
    }
    if !names.is_empty() {
        let hosts = model.host_endpoints.values().flat_map(|host| &host.named_ports);
        let pods = model.endpoints.values().flat_map(|pod| &pod.named_ports);
        for named in pods.chain(hosts) {
            for destination in [false, true] {
                if names.contains(&(named.name.as_str(), destination)) {
                    add_ports(&mut bounds, destination, named.port, named.port);
                }
            }
        }
    }
    for (_, port, _) in model.failsafe.ports.iter().flatten() {
        bounds.destinations(*port, *port);
    }
    bounds
}

fn add_ports(bounds: &mut Bounds, destination: bool, first: u16, last: u16) {
    if destination { bounds.destinations(first, last) } else { bounds.sources(first, last) }
}

fn rules<'a>(model: &'a Model, policies: &'a [&'a Policy]) -> impl Iterator<Item = &'a Rule> {
    let of_policies = policies
        .iter()
        .flat_map(|policy| [&policy.ingress, &policy.egress])
        .flat_map(|rules| rules.iter().flatten());
    let profiles = model.profiles.values();
    of_policies.chain(profiles.flat_map(|profile| profile.ingress.iter().chain(&profile.egress)))
}
