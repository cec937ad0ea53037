//! Finds nets of rules that contain only addresses of Services. When policy sees a packet to a Service, the packet
//! already has the address of a pod behind the Service. So such a net does not match the packets that its author meant.
//!
//! Nothing is reported if the rules also match the pods behind the Service in another way. The net is then probably for
//! network plugins whose policy sees the Service's address.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use manx_objects::State;
use manx_objects::code::Code;
use manx_objects::contents::Contents;
use manx_objects::object::{Kind, Object, ObjectKey, Pairs, Service};
use manx_policy_compiler::model::{Direction, Entity, Hook, ObjectName, Policy, Rule};

use super::fields::{RuleFields, Side};
use super::report::Report;
use super::scene::Scene;
use super::selected::Selected;
use crate::explain::services;

/// The shortest prefix lengths of a range of Service addresses, for IPv4 and IPv6. The API server accepts no wider
/// range.
const WIDEST: [u8; 2] = [12, 64];

/// The prefix length (IPv4, IPv6) from which on every net is checked. A wider net is checked only if it is inside a
/// range of Service addresses.
const NARROW: [u8; 2] = [24, 112];

/// The label of the pods that listen on the DNS Service's address on every node.
const LOCAL_DNS: (&str, &str) = ("k8s-app", "node-local-dns");

/// Reports each net that contains only addresses of Services.
pub(super) fn check<'a>(scene: &Scene<'a>, selected: &mut Selected<'_>, report: &mut Report<'a>) {
    let contents = scene.contents();
    let is_known = |kind| matches!(kind, Kind::Node | Kind::Service | Kind::EndpointSlice);
    let mut objects = contents.objects.iter();
    if objects.any(|(key, it)| is_known(key.kind) && matches!(it.state, State::Invalid(_))) {
        return;
    }
    let known = Known::new(contents);
    if known.services.is_empty() {
        return;
    }
    for (key, object, policy) in scene.policies() {
        // Policies with these hooks see the address to which the client sent the packet.
        if matches!(policy.hook, Hook::PreDnat | Hook::Untracked) {
            continue;
        }
        for direction in Direction::ALL {
            for rule in policy.rules(direction).unwrap_or_default() {
                for (side, net) in nets(rule) {
                    let Some((holds, service)) = known.held(net) else { continue };
                    let fields = RuleFields { key, object, direction, index: rule.index };
                    let Some(field) = fields.net(side, net) else {
                        continue;
                    };
                    if report.has_told(key, &field)
                        || known.is_reached(service, (policy, direction, rule), side, selected)
                            != Some(false)
                    {
                        continue;
                    }
                    let message = format!(
                        "holds only {holds}: it matches no packet, because policy sees the address behind a Service; {}",
                        instead(service)
                    );
                    report.tell(key, &field, Code::ServiceAddress, message);
                }
            }
        }
    }
}

/// A Service with its key.
type Named<'a> = (&'a ObjectKey, &'a Service);

/// The addresses of the input.
struct Known<'a> {
    /// The cluster IPs.
    services: BTreeMap<IpAddr, Named<'a>>,
    others: BTreeSet<IpAddr>,
    /// The addresses of the endpoints of each Service, by namespace and name.
    endpoints: BTreeMap<(&'a str, &'a str), BTreeSet<IpAddr>>,
    /// For each family, the smallest net that contains all cluster IPs.
    ranges: Vec<IpNet>,
}

impl<'a> Known<'a> {
    fn new(contents: &'a Contents) -> Self {
        let mut known = Self {
            services: BTreeMap::new(),
            others: BTreeSet::new(),
            endpoints: BTreeMap::new(),
            ranges: Vec::new(),
        };
        let mut local_dns = false;
        for (key, object) in contents.all_valid() {
            match object {
                Object::Pod(pod) => {
                    local_dns |= is_local_dns(&pod.labels);
                    known.others.extend(pod.pod_ips.iter().copied().chain(pod.pod_ip));
                    known.others.extend(pod.annotated_ips.every().chain(pod.host_ip));
                }
                Object::Workload(workload) => local_dns |= is_local_dns(&workload.template.labels),
                Object::Node(node) => {
                    known.others.extend(node.internal_ips.iter().chain(&node.external_ips));
                    known.others.extend(node.calico_address.map(|net| net.addr()));
                }
                Object::EndpointSlice(slice) => {
                    known.others.extend(&slice.addresses);
                    if let Some(service) = &slice.service {
                        let those = known.endpoints.entry((&key.namespace, service)).or_default();
                        those.extend(&slice.addresses);
                    }
                }
                _ => {}
            }
        }
        for (key, service) in services(contents) {
            known.others.extend(service.addresses.difference(&service.cluster_ips));
            if local_dns && service.ports.iter().any(|port| port.port == 53) {
                known.others.extend(&service.cluster_ips);
            } else {
                known.services.extend(service.cluster_ips.iter().map(|it| (*it, (key, service))));
            }
        }
        for v4 in [true, false] {
            let mut of_family = known.services.keys().filter(|it| it.is_ipv4() == v4);
            if let (Some(first), last) = (of_family.next(), of_family.next_back()) {
                known.ranges.extend(range(*first, *last.unwrap_or(first)));
            }
        }
        known
    }

    /// Returns a text about the Service addresses in a net, and the net's first Service. Returns `None` if the net is
    /// too wide to be checked, contains no Service address, or contains other addresses, too.
    fn held(&self, net: IpNet) -> Option<(String, Named<'a>)> {
        let family = usize::from(net.addr().is_ipv6());
        let is_narrow = net.prefix_len() >= NARROW[family]
            || self
                .ranges
                .iter()
                .any(|range| range.contains(&net) && range.prefix_len() >= WIDEST[family]);
        if !is_narrow {
            return None;
        }
        let all = net.network()..=net.broadcast();
        if self.others.range(all.clone()).next().is_some() {
            return None;
        }
        let mut those = self.services.range(all);
        let (address, first) = those.next()?;
        let holds = match those.count() {
            0 => format!("{address}, the address of {}", first.0),
            more => format!("addresses of Services ({} and {more} more)", first.0),
        };
        Some((holds, *first))
    }

    /// Returns whether a rule with the same action matches the pods behind a Service, on the same side. Returns `None`
    /// if this is not known.
    fn is_reached(
        &self,
        (key, service): Named<'_>,
        (policy, direction, rule): (&Policy, Direction, &Rule),
        side: Side,
        selected: &mut Selected<'_>,
    ) -> Option<bool> {
        let pods = selected.behind(&key.namespace, &service.selector)?;
        let mut addresses = BTreeSet::new();
        if let Some(endpoints) = self.endpoints.get(&(&*key.namespace, &*key.name)) {
            addresses.extend(endpoints);
        }
        for pod in pods.iter().filter_map(|it| selected.members[*it].pod) {
            addresses.extend(pod.every_address());
        }
        let name = ObjectName::new(&key.namespace, &key.name);
        let rules = policy.rules(direction).unwrap_or_default().iter();
        let entities = rules.clone().flat_map(|it| side.of(it).entities.iter().flatten());
        selected
            .spend(entities.map(|it| it.nets.len() + 1).sum::<usize>() * (1 + addresses.len()))?;
        for other in rules.filter(|other| other.action == rule.action) {
            let Some(entities) = &side.of(other).entities else { return Some(true) };
            for entity in entities {
                let mut nets = entity.nets.iter();
                if entity.service.as_ref() == Some(&name)
                    || nets.any(|net| addresses.iter().any(|it| net.contains(it)))
                    || selects(entity, &pods, selected)?
                {
                    return Some(true);
                }
            }
        }
        Some(false)
    }
}

/// Returns whether an entity selects one of these members.
fn selects(entity: &Entity, members: &[usize], selected: &mut Selected<'_>) -> Option<bool> {
    if entity.selector.is_none() {
        return Some(false);
    }
    let found = selected.of_entity(entity)?;
    Some(members.iter().any(|it| found.binary_search(it).is_ok()))
}

fn is_local_dns(labels: &Pairs) -> bool {
    labels.get(LOCAL_DNS.0).is_some_and(|value| value == LOCAL_DNS.1)
}

/// Returns the smallest net with both addresses.
fn range(first: IpAddr, last: IpAddr) -> Option<IpNet> {
    let mut net = IpNet::from(first);
    while !net.contains(&last) {
        net = net.supernet()?;
    }
    Some(net)
}

/// Returns the nets of a rule.
fn nets(rule: &Rule) -> impl Iterator<Item = (Side, IpNet)> {
    Side::ALL.into_iter().flat_map(move |side| {
        let entities = side.of(rule).entities.iter().flatten();
        entities.flat_map(move |entity| entity.nets.iter().map(move |net| (side, *net)))
    })
}

/// Returns advice on what to write instead of a Service's address.
fn instead((key, service): Named<'_>) -> String {
    if service.selector.is_empty() {
        return format!("say the addresses of the endpoints of {key}");
    }
    let labels: Vec<String> =
        service.selector.iter().map(|(label, value)| format!("{label}={value}")).collect();
    format!("select its pods ({}, in namespace {})", labels.join(", "), key.namespace)
}
