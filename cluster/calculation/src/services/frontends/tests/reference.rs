//! A second, simple implementation of the rules of frontends.

use super::*;

/// The rule that chose the backends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Rule {
    Ready,
    Leaving,
    ForNode,
    ForZone,
    Local,
    Elsewhere,
    Nowhere,
    Unknown,
    OfPod,
}

/// A frontend in a form that can be compared, with its backends as a set.
pub(super) type Seen = (
    BTreeSet<Backend>,
    Option<u32>,
    WithoutBackend,
    (BTreeSet<Backend>, bool),
    [bool; CLIENTS.len()],
    Option<(BTreeSet<Backend>, WithoutBackend)>,
);

/// The age of a claim; the smallest comes first. The parts are: whether it is by `externalIPs`, whether its object is a
/// pod, whether its time is not known, its time, and its name.
type Age = (bool, bool, bool, Option<Created>, ObjectKey);

/// Returns the frontend at each address and port, and the rule that chose its backends or the reason why it has none.
pub(super) fn expected(
    contents: &Contents,
    admits: impl Fn(IpAddr) -> bool,
) -> BTreeMap<FrontendKey, (Seen, Rule)> {
    let mut all = Claimed::new();
    for (key, object) in contents.all_valid() {
        let Object::Service(service) = object else { continue };
        if is_left_alone(service) {
            continue;
        }
        let has_family =
            |of: &IpAddr| service.cluster_ips.iter().any(|it| it.is_ipv4() == of.is_ipv4());
        let mut addresses: BTreeSet<(IpAddr, bool)> =
            service.cluster_ips.iter().map(|it| (*it, service.internal_local)).collect();
        if service.service_type == Some(ServiceType::LoadBalancer) {
            let others = service.load_balancer_vips.difference(&service.cluster_ips);
            addresses.extend(others.filter(|it| has_family(it)).map(|it| (*it, false)));
        }
        // If an external IP is also another address of the Service, it counts as that address.
        let is_external = |it: &IpAddr| {
            service.external_ips.contains(it)
                && EXTERNAL.iter().any(|net| net.parse::<IpNet>().unwrap().contains(it))
                && has_family(it)
        };
        let others: BTreeSet<IpAddr> = addresses.iter().map(|(it, _)| *it).collect();
        let is_external = |it: &IpAddr| is_external(it) && !others.contains(it);
        addresses.extend(
            service.external_ips.iter().filter(|it| is_external(it)).map(|it| (*it, false)),
        );
        for port in &service.ports {
            let of_service = addresses.iter().filter(|(address, _)| admits(*address));
            let of_service = of_service.map(|(address, local)| (*address, port.port, *local));
            let node_port = port.node_port.filter(|it| (30_000..=32_767).contains(it));
            let of_node = node_port_places().into_iter().filter(|it| has_family(it));
            let of_node = of_node.zip(node_port.into_iter().cycle());
            let of_node = of_node.map(|(address, port)| (address, port, service.keeps_clients));
            for (address, number, local) in of_service.chain(of_node) {
                let claimed = FrontendKey {
                    address: address.into(),
                    protocol: port.protocol.unwrap_or(Protocol::Tcp).number(),
                    port: number,
                };
                let is_of_node = node_port_places().contains(&address);
                let is_cluster_ip = service.cluster_ips.contains(&address);
                let is_of_any_node = !is_of_node && !is_cluster_ip;
                let alike = is_of_any_node && service.maglev && !service.keeps_clients;
                let (backends, without, rule) = match ends(contents, key, port, address) {
                    Some(ends) if alike => {
                        let without_hints: Vec<_> = ends.iter().map(unhinted).collect();
                        let all: Vec<_> =
                            without_hints.iter().map(|(end, it)| (end, *it)).collect();
                        chosen(contents, &all, false)
                    }
                    Some(ends) => chosen(contents, &ends, local),
                    None => (BTreeSet::new(), WithoutBackend::Refuse, Rule::Unknown),
                };
                let affinity = service.client_affinity.map(|it| it.timeout.unwrap_or(10_800));
                let is_external = is_external(&address);
                let age =
                    (is_external, false, service.created.is_none(), service.created, key.clone());
                let all_ends = ends(contents, key, port, address).unwrap_or_default();
                let is_balancers = !is_of_node
                    && !is_external
                    && service.load_balancer_vips.contains(&address)
                    && !service.cluster_ips.contains(&address);
                let is_outside = is_of_node || is_balancers || is_external;
                let is_announced = || ANNOUNCED.parse::<IpNet>().unwrap().contains(&address);
                let takes_visitors = if is_outside {
                    !service.keeps_clients
                } else {
                    is_announced() && !service.internal_local
                };
                let has_all = takes_visitors || port.protocol == Some(Protocol::Udp);
                let kept = all_ends.into_iter().filter(|_| has_all).map(|(_, it)| it).collect();
                let all_clients = !is_balancers || service.source_ranges.is_empty();
                let clients = CLIENTS.map(ip).map(|client| {
                    all_clients || service.source_ranges.iter().any(|it| it.contains(&client))
                });
                let kept = (kept, takes_visitors);
                let outside = ((is_balancers || is_external) && service.keeps_clients).then(|| {
                    let ends = ends(contents, key, port, address);
                    ends.map_or((BTreeSet::new(), WithoutBackend::Refuse), |ends| {
                        let (backends, without, _) = chosen(contents, &ends, true);
                        (backends, without)
                    })
                });
                let found = ((backends, affinity, without, kept, clients, outside), rule);
                all.entry(claimed).or_default().entry(age).or_insert(found);
            }
        }
    }
    claim_host_ports(contents, &mut all);
    let oldest = all.into_iter().map(|(key, mut claims)| (key, claims.pop_first()));
    oldest.filter_map(|(key, found)| Some((key, found?.1))).collect()
}

/// The claims to each key, each with its frontend.
type Claimed = BTreeMap<FrontendKey, BTreeMap<Age, (Seen, Rule)>>;

/// Adds the ports of this node that its pods request.
fn claim_host_ports(contents: &Contents, all: &mut Claimed) {
    let checks = expected_checks(contents);
    for (key, object) in contents.all_valid() {
        let Object::Pod(pod) = object else { continue };
        let is_here = pod.node_name.as_deref() == Some("n1") && !pod.is_finished();
        for port in pod.containers.iter().flatten().filter(|_| is_here) {
            let Some(host) = port.host.filter(|it| it.port < 65_535) else { continue };
            for address in ["172.18.0.2", "127.0.0.1"].map(ip) {
                let mut own = pod.pod_ips.iter().filter(|it| it.is_ipv4() && !it.is_loopback());
                let Some(own) = own.next() else { continue };
                if host.address.is_some_and(|one| one != address) {
                    continue;
                }
                let protocol = port.protocol.unwrap_or(Protocol::Tcp);
                if protocol == Protocol::Tcp && checks.contains_key(&host.port) {
                    continue;
                }
                let protocol = protocol.number();
                let key_of_port =
                    FrontendKey { address: address.into(), protocol, port: host.port };
                let backends =
                    BTreeSet::from([Backend { address: (*own).into(), port: port.port }]);
                let kept = (backends.clone(), false);
                let everybody = [true; CLIENTS.len()];
                let found =
                    ((backends, None, WithoutBackend::Refuse, kept, everybody, None), Rule::OfPod);
                let age = (false, true, pod.created.is_none(), pod.created, key.clone());
                all.entry(key_of_port).or_default().entry(age).or_insert(found);
            }
        }
    }
}

fn is_left_alone(service: &Service) -> bool {
    service.headless
        || service.service_type == Some(ServiceType::ExternalName)
        || service.labels.contains_key(OTHER_PROXY)
        || service.labels.contains_key(HEADLESS)
}

/// Returns the answer of node `n1` on each port for health checks.
pub(super) fn expected_checks(contents: &Contents) -> HealthChecks {
    let services = || {
        contents.all_valid().filter_map(|(key, object)| match object {
            Object::Service(service) if !is_left_alone(service) => Some((key, service)),
            _ => None,
        })
    };
    // The node port is on an address of the node in the same family.
    let is_node_port = |port: u16| {
        services().any(|(_, service)| {
            let is_v4 = service.cluster_ips.iter().any(IpAddr::is_ipv4);
            let mut tcp =
                service.ports.iter().filter(|it| it.protocol.is_none_or(|it| it == Protocol::Tcp));
            is_v4 && tcp.any(|it| it.node_port == Some(port))
        })
    };
    let mut checks: BTreeMap<u16, BTreeMap<Age, HealthCheck>> = BTreeMap::new();
    for (key, service) in services() {
        let is_local =
            service.service_type == Some(ServiceType::LoadBalancer) && service.keeps_clients;
        let port =
            service.health_check_port.filter(|it| is_local && (30_000..=32_767).contains(it));
        let Some(port) = port.filter(|it| !is_node_port(*it)) else { continue };
        let of_family = |address: &str| {
            let address = ip(address);
            let ready: BTreeSet<IpAddr> = service
                .ports
                .iter()
                .flat_map(|port| ends(contents, key, port, address).unwrap_or_default())
                .filter(|(end, _)| end.ready && end.node.as_deref() == Some("n1"))
                .map(|(end, _)| end.address)
                .collect();
            let mut ips = service.cluster_ips.iter();
            ips.any(|it| it.is_ipv4() == address.is_ipv4()).then_some(ready.len())
        };
        let endpoints = ["0.0.0.0", "::"].map(of_family);
        let check = HealthCheck { service: Arc::new(key.clone()), endpoints };
        let age = (false, false, service.created.is_none(), service.created, key.clone());
        checks.entry(port).or_default().insert(age, check);
    }
    checks.into_iter().filter_map(|(port, mut all)| Some((port, all.pop_first()?.1))).collect()
}

/// An endpoint at a port, with its backend.
type End<'a> = (&'a SliceEndpoint, Backend);

/// Returns an endpoint without its hints.
fn unhinted((end, backend): &End<'_>) -> (SliceEndpoint, Backend) {
    (SliceEndpoint { hints: None, ..(*end).clone() }, *backend)
}

/// Returns the endpoints of a Service's port for an address, or `None` if they are not known.
fn ends<'a>(
    contents: &'a Contents,
    service: &ObjectKey,
    port: &ServicePort,
    address: IpAddr,
) -> Option<Vec<End<'a>>> {
    let mut ends = Vec::new();
    for (_, stored) in contents.of_kind_in(Kind::EndpointSlice, &service.namespace) {
        let Object::EndpointSlice(slice) = stored.state.valid()? else { continue };
        if slice.service.as_ref() != Some(&service.name) {
            continue;
        }
        for target in &slice.ports {
            for end in &*slice.endpoints {
                if target.name == port.name
                    && target.protocol == port.protocol.unwrap_or(Protocol::Tcp)
                    && end.address.is_ipv4() == address.is_ipv4()
                    && !end.address.is_loopback()
                {
                    ends.push((end, Backend { address: end.address.into(), port: target.port }));
                }
            }
        }
    }
    Some(ends)
}

/// Returns the backends for clients of node `n1`. If `local`, only endpoints on this node are used.
fn chosen(
    contents: &Contents,
    ends: &[End<'_>],
    local: bool,
) -> (BTreeSet<Backend>, WithoutBackend, Rule) {
    let zone = match contents.valid(&ObjectKey::new(Kind::Node, "", "n1")) {
        Some(Object::Node(node)) => node.labels.get(ZONE).map(String::as_str),
        _ => None,
    };
    let among = |counts: &dyn Fn(&SliceEndpoint) -> bool| -> BTreeSet<Backend> {
        ends.iter().filter(|(end, _)| counts(end)).map(|(_, it)| *it).collect()
    };
    let ready = among(&|it| it.ready);
    let leaving = among(&|it| it.serving && it.terminating);
    let without = WithoutBackend::Refuse;
    if local {
        let here = |it: &SliceEndpoint| it.node.as_deref() == Some("n1");
        let local_ready = among(&|it| here(it) && it.ready);
        let local_leaving = among(&|it| here(it) && it.serving && it.terminating);
        let found = if local_ready.is_empty() { local_leaving } else { local_ready };
        return if !found.is_empty() {
            (found, without, Rule::Local)
        } else if ready.is_empty() && leaving.is_empty() {
            (found, without, Rule::Nowhere)
        } else {
            (found, WithoutBackend::Drop, Rule::Elsewhere)
        };
    }
    let all_hinted = |has: &dyn Fn(&Hints) -> bool| {
        let mut all = ends.iter().filter(|(end, _)| end.ready);
        all.all(|(end, _)| end.hints.as_deref().is_some_and(has))
    };
    let hinted = |is_for: &dyn Fn(&Hints) -> bool| {
        among(&|it| it.ready && it.hints.as_deref().is_some_and(is_for))
    };
    let of_node = hinted(&|it| it.nodes.iter().any(|it| **it == *"n1"));
    let of_zone = hinted(&|it| it.zones.iter().any(|it| Some(&**it) == zone));
    if ready.is_empty() {
        let rule = if leaving.is_empty() { Rule::Nowhere } else { Rule::Leaving };
        (leaving, without, rule)
    } else if all_hinted(&|it| !it.nodes.is_empty()) && !of_node.is_empty() {
        (of_node, without, Rule::ForNode)
    } else if all_hinted(&|it| !it.zones.is_empty()) && !of_zone.is_empty() {
        (of_zone, without, Rule::ForZone)
    } else {
        (ready, without, Rule::Ready)
    }
}

/// Returns whether a pod or a node has an address.
pub(super) fn is_held(contents: &Contents, address: IpAddr) -> bool {
    let names = |object: &Object| match object {
        Object::Pod(pod) => !pod.is_finished() && pod.pod_ips.contains(&address),
        Object::Node(node) => node.internal_ips.contains(&address),
        _ => false,
    };
    contents.all_valid().any(|(_, object)| names(object))
}

/// Returns whether a slice of a namespace names an address.
pub(super) fn is_named(contents: &Contents, namespace: &str, address: IpAddr) -> bool {
    let names = |object: &Object| match object {
        Object::EndpointSlice(slice) => {
            slice.service.is_some() && slice.addresses.contains(&address) && !address.is_loopback()
        }
        _ => false,
    };
    contents.all_valid().any(|(key, object)| key.namespace == namespace && names(object))
}
