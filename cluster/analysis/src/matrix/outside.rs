//! Addresses of no pod and no node. They belong to a net that a policy or a network set names, or to the rest of the
//! world.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::net::IpAddr;
use std::ops::Bound;

use ipnet::IpNet;

use manx_calculation::import::Cluster;
use manx_objects::State;
use manx_objects::contents::Contents;
use manx_objects::object::Object;
use manx_policy_compiler::image::Image;
use manx_policy_compiler::model::{Family, Rule};

use super::groups::End;

/// The maximum number of nets that become parties.
pub const MOST_NETS: usize = 24;

/// The maximum number of nets that become parties because the user requested them.
pub const MOST_ASKED_NETS: usize = 400;

/// Addresses for documentation (RFC 5737, RFC 3849). They are the first candidates for an address that no object names.
const DOCUMENTATION: [&str; 5] =
    ["203.0.113.1", "198.51.100.1", "192.0.2.1", "2001:db8::1", "2001:db8:ffff::1"];

/// Nets whose addresses no host uses as a source, which are all nets except global and private unicast addresses (RFC
/// 6890).
const NO_HOSTS: [&str; 12] = [
    "0.0.0.0/8",
    "127.0.0.0/8",
    "169.254.0.0/16",
    "224.0.0.0/3",
    "::/3",
    "4000::/2",
    "8000::/2",
    "c000::/3",
    "e000::/4",
    "f000::/5",
    "f800::/6",
    "fe00::/7",
];

/// Addresses outside the cluster, divided into groups that policy distinguishes.
#[derive(Debug, Default)]
pub(super) struct Outside {
    /// For each family, an address that no object names.
    pub(super) rest: [Option<End>; 2],
    /// Groups of nets with the same class. Each group has an address that is in no smaller net and belongs to no
    /// object. Nets with the class of `rest` are left out.
    pub(super) nets: Vec<(Vec<IpNet>, End)>,
    /// The number of nets, if there are too many. `nets` then contains only the requested ones.
    pub(super) too_many: Option<usize>,
    /// For each requested net, the groups that contain its addresses.
    pub(super) asked: BTreeMap<IpNet, Held>,
}

/// The groups that contain the addresses of a net, except addresses that belong to objects.
#[derive(Debug, Default)]
pub(super) struct Held {
    /// Indexes of [`Outside::nets`].
    pub(super) nets: BTreeSet<usize>,
    /// Whether some of the addresses belong to [`Outside::rest`].
    pub(super) rest: bool,
}

impl Held {
    /// Adds a group: an index in `nets`, or `None` for the rest.
    fn add(&mut self, place: Option<usize>) {
        match place {
            Some(net) => _ = self.nets.insert(net),
            None => self.rest = true,
        }
    }
}

impl Outside {
    /// `asked` are the requested nets, without host bits.
    pub(super) fn new(
        image: &Image,
        cluster: &Cluster,
        contents: &Contents,
        asked: &[IpNet],
    ) -> Self {
        let named = named_nets(cluster);
        let of_objects = of_objects(cluster, contents);
        let all: BTreeSet<IpNet> = named.union(&of_objects).copied().collect();
        let mut outside = Self::default();
        for family in Family::ALL {
            let address = unnamed(family, &all);
            outside.rest[family as usize] = address.map(|address| End::new(image, address, None));
        }
        let class = |end: &End| (end.family(), image.class_of(end.identity));
        // The index in `nets` for each family and class. The class of the rest has `None`.
        let rest = outside.rest.iter().flatten().map(|end| (class(end), None));
        let mut by_class: BTreeMap<_, Option<usize>> = rest.collect();
        let mut places: BTreeMap<IpNet, Option<usize>> = BTreeMap::new();
        // The address of an object is not a net outside the cluster. The nodes that `nodes` of a policy matches also
        // appear as nets of one address.
        for net in named.difference(&of_objects).filter(|net| net.prefix_len() > 0) {
            let Some(address) = free(*net, &all) else { continue };
            let end = End::new(image, address, None);
            let next = outside.nets.len();
            let place = *by_class.entry(class(&end)).or_insert(Some(next));
            places.insert(*net, place);
            let Some(at) = place else { continue };
            if at == next {
                outside.nets.push((Vec::new(), end));
            }
            outside.nets[at].0.push(*net);
        }
        for net in asked {
            let held = outside.asked.entry(*net).or_default();
            let within = places.range(net..).take_while(|(inner, _)| net.contains(*inner));
            within.for_each(|(_, place)| held.add(*place));
            let around = free(*net, &all).map(|address| End::new(image, address, None));
            if let Some(place) = around.and_then(|end| by_class.get(&class(&end))) {
                held.add(*place);
            }
        }
        outside.limit();
        outside
    }

    /// Leaves out nets if there are too many.
    fn limit(&mut self) {
        if self.nets.len() <= MOST_NETS {
            return;
        }
        self.too_many = Some(self.nets.len());
        let mut wanted: BTreeSet<usize> =
            self.asked.values().flat_map(|held| held.nets.iter().copied()).collect();
        if wanted.len() > MOST_ASKED_NETS {
            wanted.clear();
        }
        self.retain(|index, _| wanted.contains(&index));
    }

    /// Leaves out a family that no pod has.
    pub(super) fn forget(&mut self, family: Family) {
        self.rest[family as usize] = None;
        self.asked.retain(|net, _| Family::from_address(net.addr()) != family);
        self.retain(|_, end| end.family() != family);
    }

    fn retain(&mut self, is_kept: impl Fn(usize, &End) -> bool) {
        let mut numbers = BTreeMap::new();
        for (index, (nets, end)) in mem::take(&mut self.nets).into_iter().enumerate() {
            if is_kept(index, &end) {
                numbers.insert(index, self.nets.len());
                self.nets.push((nets, end));
            }
        }
        for held in self.asked.values_mut() {
            held.nets = held.nets.iter().filter_map(|net| numbers.get(net).copied()).collect();
        }
    }
}

/// Returns, for each family, an address that is in no net of the objects, if there is one.
pub(super) fn unnamed_addresses(cluster: &Cluster, contents: &Contents) -> Vec<IpAddr> {
    let mut all = named_nets(cluster);
    all.extend(of_objects(cluster, contents));
    Family::ALL.into_iter().filter_map(|family| unnamed(family, &all)).collect()
}

/// Returns the nets that rules and network sets name.
fn named_nets(cluster: &Cluster) -> BTreeSet<IpNet> {
    let model = &cluster.model;
    let rules = model.policies.values().flat_map(|policy| {
        let lists = [&policy.ingress, &policy.egress];
        lists.into_iter().flatten().flatten()
    });
    let of_rule = |rule: &Rule| -> Vec<IpNet> {
        let ends = [&rule.source, &rule.destination];
        let entities = ends.into_iter().flat_map(|end| end.entities.iter().flatten());
        entities.flat_map(|entity| entity.nets.iter().chain(&entity.not_nets)).copied().collect()
    };
    let of_sets = model.network_sets.values().flat_map(|set| set.nets.iter().copied());
    rules.flat_map(of_rule).chain(of_sets).map(|net| net.trunc()).collect()
}

/// Returns the addresses and nets of objects other than rules and network sets.
fn of_objects(cluster: &Cluster, contents: &Contents) -> BTreeSet<IpNet> {
    let model = &cluster.model;
    let mut addresses: BTreeSet<IpAddr> = BTreeSet::new();
    for stored in contents.objects.values() {
        match &stored.state {
            State::Valid(object) => match &**object {
                Object::Pod(pod) => addresses.extend(pod.every_address()),
                Object::EndpointSlice(slice) => addresses.extend(&slice.addresses),
                _ => {}
            },
            State::Invalid(invalid) => {
                addresses.extend(invalid.reported.iter().chain(&invalid.annotated));
            }
        }
    }
    addresses.extend(model.endpoints.values().flat_map(|pod| pod.addresses.iter()));
    addresses.extend(model.host_endpoints.values().flat_map(|host| host.addresses.iter()));
    addresses.extend(cluster.nodes.values().flat_map(|node| node.addresses.iter()));
    let blocks = cluster.nodes.values().flat_map(|node| node.plan.blocks());
    let blocks = blocks.chain(cluster.pools.iter().map(|pool| &pool.cidr)).map(IpNet::trunc);
    addresses.into_iter().map(IpNet::from).chain(blocks).collect()
}

/// Returns an address that a host can have and that is in none of these nets. Nets that contain every address are
/// ignored.
fn unnamed(family: Family, nets: &BTreeSet<IpNet>) -> Option<IpAddr> {
    let documentation = DOCUMENTATION.iter().filter_map(|text| text.parse::<IpAddr>().ok());
    let mut documentation = documentation.filter(|it| Family::from_address(*it) == family);
    let is_free =
        |address: &IpAddr| !nets.iter().any(|net| net.prefix_len() > 0 && net.contains(address));
    documentation.find(is_free).or_else(|| {
        let no_hosts = NO_HOSTS.iter().filter_map(|text| text.parse::<IpNet>().ok());
        free(family.everything(), &nets.iter().copied().chain(no_hosts).collect())
    })
}

/// Returns an address of `net` that is in none of the smaller nets.
fn free(net: IpNet, nets: &BTreeSet<IpNet>) -> Option<IpAddr> {
    // The nets are in ascending order, and two nets overlap only if one contains the other. So the nets inside `net`
    // follow it directly, and a free address comes directly after one of them.
    let behind = nets.range((Bound::Excluded(net), Bound::Unbounded));
    let mut candidate = net.network();
    for inner in behind.take_while(|inner| net.contains(*inner)) {
        if inner.contains(&candidate) {
            match after(inner.broadcast()) {
                Some(next) if net.contains(&next) => candidate = next,
                _ => return None,
            }
        } else if inner.network() > candidate {
            break;
        }
    }
    Some(candidate)
}

fn after(address: IpAddr) -> Option<IpAddr> {
    match address {
        IpAddr::V4(address) => Some(IpAddr::V4(address.to_bits().checked_add(1)?.into())),
        IpAddr::V6(address) => Some(IpAddr::V6(address.to_bits().checked_add(1)?.into())),
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use ipnet::Ipv4Net;
    use proptest::prelude::*;

    use super::*;

    fn nets(texts: &[&str]) -> BTreeSet<IpNet> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn a_free_address_is_in_no_smaller_net() {
        let of = |net: &str, others: &[&str]| {
            free(net.parse().unwrap(), &nets(others)).map(|address| address.to_string())
        };
        assert_eq!(of("10.0.0.0/8", &["10.0.0.0/8"]).as_deref(), Some("10.0.0.0"));
        let first = ["10.0.0.0/8", "10.0.0.0/24", "10.0.0.0/32", "10.0.1.0/24", "10.9.0.0/16"];
        assert_eq!(of("10.0.0.0/8", &first).as_deref(), Some("10.0.2.0"));
        assert_eq!(of("10.0.0.0/24", &first).as_deref(), Some("10.0.0.1"));
        assert_eq!(of("10.0.0.0/31", &["10.0.0.0/32", "10.0.0.1/32"]), None);
        assert_eq!(of("255.255.255.255/32", &[]).as_deref(), Some("255.255.255.255"));
        assert_eq!(of("fd00::/127", &["fd00::/128"]).as_deref(), Some("fd00::1"));
    }

    proptest! {
        #[test]
        fn what_is_free_is_found_if_there_is_any(
            others in prop::collection::vec((0u8..16, 28u8..=32), 0..20),
            length in 28u8..=32,
        ) {
            let net = |last: u8, length| Ipv4Net::new_assert([10, 0, 0, last].into(), length).trunc();
            let others = others.into_iter().map(|(last, length)| IpNet::from(net(last, length)));
            let (net, others) = (IpNet::from(net(5, length)), others.collect::<BTreeSet<_>>());
            let is_free = |address: &IpAddr| {
                !others.iter().any(|other| *other != net && net.contains(other) && other.contains(address))
            };
            prop_assert_eq!(free(net, &others), net_addresses(net).find(is_free));
        }
    }

    fn net_addresses(net: IpNet) -> impl Iterator<Item = IpAddr> {
        let IpNet::V4(net) = net else { unreachable!() };
        (net.network().to_bits()..=net.broadcast().to_bits())
            .map(|bits| Ipv4Addr::from(bits).into())
    }

    #[test]
    fn the_rest_of_the_world_is_in_no_net_but_those_of_everything() {
        let of = |others: &[&str]| unnamed(Family::V4, &nets(others)).unwrap().to_string();
        assert_eq!(of(&["0.0.0.0/0", "10.0.0.0/8"]), "203.0.113.1");
        assert_eq!(of(&["203.0.0.0/16", "198.51.100.1/32"]), "192.0.2.1");
        assert_eq!(of(&["128.0.0.0/1", "0.0.0.0/2"]), "64.0.0.0");
        let documentation = ["192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24"];
        assert_eq!(of(&documentation), "1.0.0.0", "an address that a host can have");
        assert_eq!(of(&[&documentation[..], &["0.0.0.0/2"]].concat()), "64.0.0.0");
        let of_v6 = unnamed(Family::V6, &nets(&["2001:db8::/32"])).unwrap();
        assert_eq!(of_v6.to_string(), "2000::");
        let of_v6 = unnamed(Family::V6, &nets(&["2000::/3"])).unwrap();
        assert_eq!(of_v6.to_string(), "fc00::");
        assert_eq!(
            unnamed(Family::V4, &nets(&["0.0.0.0/2", "64.0.0.0/2", "128.0.0.0/2", "192.0.0.0/3"])),
            None
        );
        assert_eq!(unnamed(Family::V4, &nets(&["0.0.0.0/1", "128.0.0.0/1"])), None);
    }
}
