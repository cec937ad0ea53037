//! Law: any order and any batches of changes lead to the addresses that a second, simple implementation of the rules
//! gives.

use std::cell::RefCell;

use manx_objects::State;
use manx_objects::contents::Stored;
use manx_objects::object::bgp::BgpConfiguration;
use manx_objects::object::{
    Created, EndpointSlice, Node, NodeBgp, Protocol, ServicePort, ServiceType,
};
use manx_objects::problem::Place;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select as one_of;
use proptest::test_runner::{Config, TestRunner};

use super::*;
use crate::import::Cluster;
use crate::services::addresses::{HEADLESS, OTHER_PROXY};
use crate::services::frontends::tests::events::{Event, event};
use crate::topology::{Reserved, ReservedFor};

/// The nets in which an address of `externalIPs` takes effect.
const EXTERNAL: [&str; 2] = ["10.96.0.2/32", "192.0.2.0/28"];

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn nets(texts: &[&str]) -> Vec<IpNet> {
    texts.iter().map(|it| net(it)).collect()
}

fn stored(state: State) -> Stored {
    let place = Place { file: "".into(), document: 0, at: None };
    Stored { state, place: Arc::new(place) }
}

/// Adds an object to the contents, or removes it. Returns the previous object.
fn put(contents: &mut Contents, key: &ObjectKey, state: Option<State>) -> Option<Stored> {
    match state {
        Some(state) => contents.objects.insert(key.clone(), stored(state)),
        None => contents.objects.remove(key),
    }
}

fn valid(object: Object) -> State {
    State::Valid(Arc::new(object))
}

fn configuration(fields: [&[&str]; 3], single_load_balancer_ips: bool) -> BgpConfiguration {
    let [cluster_ips, external_ips, load_balancer_ips] = fields.map(nets);
    BgpConfiguration {
        cluster_ips,
        external_ips,
        load_balancer_ips,
        single_load_balancer_ips,
        ..BgpConfiguration::default()
    }
}

fn announced_nets(configuration: BgpConfiguration) -> AnnouncedNets {
    let mut contents = Contents::default();
    let key = ObjectKey::new(Kind::BgpConfiguration, "", "default");
    put(&mut contents, &key, Some(valid(Object::BgpConfiguration(Box::new(configuration)))));
    AnnouncedNets::new(&contents, &Cluster::default(), &Reserved::new())
}

/// The rule by which an address is announced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rule {
    Here,
    Anywhere,
    Single,
}

/// Returns the single addresses that node n1 announces, each with the rule. Each address is looked up in all objects.
fn expected(contents: &Contents, settings: &BgpConfiguration) -> BTreeMap<IpAddr, Rule> {
    let services: Vec<(&ObjectKey, &Service)> = contents
        .all_valid()
        .filter_map(|(key, object)| match object {
            Object::Service(service) => Some((key, &**service)),
            _ => None,
        })
        .filter(|(_, it)| {
            !it.headless
                && it.service_type != Some(ServiceType::ExternalName)
                && !it.labels.contains_key(OTHER_PROXY)
                && !it.labels.contains_key(HEADLESS)
        })
        .collect();
    let every = services.iter().flat_map(|(_, it)| {
        it.cluster_ips.iter().chain(&it.load_balancer_vips).chain(&it.external_ips).copied()
    });
    let inside = |nets: &[IpNet], address: IpAddr| nets.iter().any(|net| net.contains(&address));
    let rule = |address: IpAddr| {
        let has_family =
            |it: &Service| it.cluster_ips.iter().any(|own| own.is_ipv4() == address.is_ipv4());
        let is_balancers = |it: &Service| {
            it.service_type == Some(ServiceType::LoadBalancer)
                && it.load_balancer_vips.contains(&address)
                && has_family(it)
        };
        let is_given = |it: &Service| it.cluster_ips.contains(&address) || is_balancers(it);
        let is_external = |it: &Service| {
            it.external_ips.contains(&address)
                && has_family(it)
                && EXTERNAL.iter().any(|it| net(it).contains(&address))
        };
        let of = |(key, service): &(&ObjectKey, &Service)| {
            let ready = endpoints(contents, key, service, address.is_ipv4());
            let is_here = ready.contains(&Some("n1"));
            let single = IpNet::from(address);
            let local = service.keeps_clients.then_some(Rule::Here).filter(|_| is_here);
            let BgpConfiguration { cluster_ips, external_ips, load_balancer_ips, .. } = settings;
            if service.cluster_ips.contains(&address) {
                local.filter(|_| inside(cluster_ips, address))
            } else if is_balancers(service) {
                local.filter(|_| inside(load_balancer_ips, address)).or_else(|| {
                    if service.keeps_clients || !inside(load_balancer_ips, address) {
                        None
                    } else if settings.single_load_balancer_ips {
                        (!ready.is_empty()).then_some(Rule::Anywhere)
                    } else {
                        load_balancer_ips.contains(&single).then_some(Rule::Single)
                    }
                })
            } else {
                local.filter(|_| inside(external_ips, address)).or_else(|| {
                    (!service.keeps_clients && external_ips.contains(&single))
                        .then_some(Rule::Single)
                })
            }
        };
        // These are the Services that got the address from the cluster or a load balancer. If there is none, the oldest
        // Service that names the address is used.
        let mut given = services.iter().filter(|(_, it)| is_given(it)).peekable();
        if given.peek().is_some() {
            return given.find_map(of);
        }
        let named = services.iter().filter(|(_, it)| is_external(it));
        let age = |(key, it): &&(&ObjectKey, &Service)| {
            (it.created.is_none(), it.created, (*key).clone())
        };
        of(named.min_by_key(age)?)
    };
    every.filter_map(|address| Some((address, rule(address)?))).collect()
}

/// Returns the nodes of a Service's ready endpoints in a family.
fn endpoints<'a>(
    contents: &'a Contents,
    key: &ObjectKey,
    service: &Service,
    is_v4: bool,
) -> Vec<Option<&'a str>> {
    let of_namespace = contents.of_kind_in(Kind::EndpointSlice, &key.namespace);
    let slices: Vec<_> = of_namespace.map(|(_, stored)| stored.state.valid()).collect();
    if slices.iter().any(Option::is_none) {
        return Vec::new();
    }
    let is_its = |slice: &EndpointSlice| {
        let named = |it: &ServicePort| (it.name.clone(), it.protocol.unwrap_or(Protocol::Tcp));
        let own: Vec<_> = service.ports.iter().map(named).collect();
        slice.service.as_ref() == Some(&key.name)
            && slice.ports.iter().any(|it| own.contains(&(it.name.clone(), it.protocol)))
    };
    let slices = slices.into_iter().flatten().filter_map(|it| match it {
        Object::EndpointSlice(slice) if is_its(slice) => Some(slice),
        _ => None,
    });
    let ready = slices
        .flat_map(|slice| &slice.endpoints)
        .filter(|it| it.ready && it.address.is_ipv4() == is_v4 && !it.address.is_loopback());
    ready.map(|it| it.node.as_deref()).collect()
}

#[test]
fn any_order_and_any_batches_of_changes_lead_to_the_addresses_that_the_rules_say() {
    let settings = || {
        let cluster = one_of(vec![&[][..], &["10.96.0.0/24", "fd00:96::/64"]]);
        let external = one_of(vec![
            &[][..],
            &["10.96.0.2/32", "192.0.2.0/24"],
            &["192.0.2.9/32", "fd00:96::/64"],
        ]);
        let balancers = one_of(vec![
            &[][..],
            &["192.0.2.0/24", "10.96.0.1/32"],
            &["192.0.2.9/32", "fd00:96::1/128", "10.96.0.0/30"],
        ]);
        (cluster, external, balancers, any::<bool>()).prop_map(
            |(cluster, external, balancers, single)| {
                configuration([cluster, external, balancers], single)
            },
        )
    };
    let batches = vec((vec(event(), 1..40), prop::bool::weighted(0.1), settings()), 1..10);
    let config = Config { cases: 400, failure_persistence: None, ..Config::default() };
    let counts: RefCell<BTreeMap<Rule, usize>> = RefCell::default();
    let run = |batches: Vec<(Vec<Event>, bool, BgpConfiguration)>| {
        let mut contents = Contents::default();
        let external = nets(&EXTERNAL);
        let mut announced = Announced::new("n1", external.clone());
        let mut last = None;
        for (batch, everything, settings) in batches {
            let mut changes = Changes::Objects(BTreeMap::new());
            for event in batch {
                if let Event::Object(key, state) = event {
                    let before = put(&mut contents, &key, state);
                    changes = changes.then(Changes::Objects(BTreeMap::from([(key, before)])));
                }
            }
            let changes = if everything { Changes::Everything } else { changes };
            let differs = announced.follow(&contents, &changes);
            let nets = announced_nets(settings.clone());
            let found = announced.routes(&contents, &nets, |_| true);
            let expected = expected(&contents, &settings);
            let mut routes: BTreeSet<IpNet> = expected.keys().copied().map(IpNet::from).collect();
            routes.extend(nets.announced_whole(&external));
            prop_assert_eq!(&found, &AnnouncedRoutes { routes, left_out: 0 });
            for rule in expected.values() {
                *counts.borrow_mut().entry(*rule).or_default() += 1;
            }
            // If `follow` reported no difference and the settings are the same, the routes are the same.
            if let Some((with, routes)) = last.replace((settings.clone(), found.routes.clone())) {
                prop_assert!(differs || with != settings || routes == found.routes);
            }
        }
        Ok(())
    };
    TestRunner::new(config).run(&batches, run).unwrap();
    let counts = counts.into_inner();
    assert!(counts.len() == 3 && counts.values().all(|it| *it > 10), "{counts:?}");
}

fn service(name: &str, created: &str, external_ip: &str) -> (ObjectKey, Service) {
    let service = Service {
        created: Created::parse(created),
        cluster_ips: ["10.96.0.9".parse().unwrap()].into(),
        external_ips: [external_ip.parse().unwrap()].into(),
        keeps_clients: true,
        ports: vec![ServicePort {
            name: None,
            protocol: None,
            port: 80,
            target: None,
            node_port: None,
        }],
        ..Service::default()
    };
    (ObjectKey::new(Kind::Service, "a", name), service)
}

/// Returns a slice with a ready endpoint on node n1.
fn slice(of: &str) -> (ObjectKey, Object) {
    let text = format!(
        "{{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {{name: {of}, namespace: a, labels: \
         {{kubernetes.io/service-name: {of}}}}}, addressType: IPv4, ports: [{{port: 80}}], endpoints: \
         [{{addresses: [10.0.0.1], nodeName: n1}}]}}"
    );
    let manifest = manx_objects::read("a.yaml", &text).unwrap();
    let object = manifest.entries[0].state.valid().unwrap().clone();
    (ObjectKey::new(Kind::EndpointSlice, "a", of), object)
}

/// Returns what node n1 announces for these Services. The Services in `ready` have an endpoint on this node.
fn routes_of(
    services: &[(ObjectKey, Service)],
    ready: &[&str],
    labels: &[(&str, &str)],
) -> AnnouncedRoutes {
    let mut contents = Contents::default();
    for (key, service) in services {
        put(&mut contents, key, Some(valid(Object::Service(Box::new(service.clone())))));
    }
    for (key, object) in ready.iter().map(|it| slice(it)) {
        put(&mut contents, &key, Some(valid(object)));
    }
    let node = Node {
        labels: labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect(),
        pod_cidrs: Vec::new(),
        internal_ips: Vec::new(),
        external_ips: Vec::new(),
        calico_address: None,
        tunnel_addresses: Vec::new(),
        vxlan_mac: None,
        bgp: NodeBgp::default(),
        is_leaving: false,
    };
    let key = ObjectKey::new(Kind::Node, "", "n1");
    put(&mut contents, &key, Some(valid(Object::Node(Box::new(node)))));
    let mut announced = Announced::new("n1", nets(&["0.0.0.0/0"]));
    announced.follow(&contents, &Changes::Everything);
    let nets = announced_nets(configuration([&[], &["192.0.2.0/24", "198.18.0.0/15"], &[]], false));
    announced.routes(&contents, &nets, |_| true)
}

fn texts(announced: &AnnouncedRoutes) -> Vec<String> {
    announced.routes.iter().map(ToString::to_string).collect()
}

#[test]
fn a_service_that_names_an_address_of_another_one_leads_nobody_to_its_node() {
    let services = [
        service("theirs", "2026-01-01T00:00:00Z", "192.0.2.9"),
        service("thief", "2026-01-02T00:00:00Z", "192.0.2.9"),
    ];
    let ranges = ["192.0.2.0/24", "198.18.0.0/15"];
    assert_eq!(texts(&routes_of(&services, &["thief"], &[])), ranges);
    let both = texts(&routes_of(&services, &["thief", "theirs"], &[]));
    assert_eq!(both, ["192.0.2.0/24", "192.0.2.9/32", "198.18.0.0/15"]);
}

#[test]
fn a_node_that_is_excluded_from_load_balancers_tells_nothing() {
    let services = [service("s", "", "192.0.2.9")];
    assert_eq!(routes_of(&services, &["s"], &[]).routes.len(), 3);
    assert_eq!(routes_of(&services, &["s"], &[(EXCLUDED, "")]), AnnouncedRoutes::default());
}

#[test]
fn of_too_many_single_addresses_the_oldest_services_are_told() {
    let many: Vec<(ObjectKey, Service)> = (0..MOST_ANNOUNCED + 2)
        .map(|at| {
            let address = IpAddr::from((0xc612_0000_u32 + at as u32).to_be_bytes());
            service(&format!("s{at:05}"), "2026-01-01T00:00:00Z", &address.to_string())
        })
        .collect();
    let names: Vec<&str> = many.iter().map(|(key, _)| key.name.as_str()).collect();
    let found = routes_of(&many, &names, &[]);
    assert_eq!((found.routes.len(), found.left_out), (MOST_ANNOUNCED + 2, 2));
    assert!(!found.routes.contains(&net("198.18.16.0/32")));
    assert!(found.routes.contains(&net("198.18.15.255/32")));
}

#[test]
fn a_range_with_an_address_that_is_no_services_is_told_to_nobody() {
    let text = "{apiVersion: v1, kind: Node, metadata: {name: n1}, spec: {podCIDR: 10.244.1.0/24}, \
                status: {addresses: [{type: InternalIP, address: 172.18.0.2}]}}\n---\n\
                {apiVersion: projectcalico.org/v3, kind: IPPool, metadata: {name: lb}, spec: {cidr: 192.0.2.0/24, allowedUses: [LoadBalancer]}}\n---\n\
                {apiVersion: networking.k8s.io/v1, kind: ServiceCIDR, metadata: {name: more}, spec: {cidrs: [10.97.0.0/16]}}\n---\n\
                {apiVersion: v1, kind: Service, metadata: {name: kubernetes, namespace: default}, spec: {clusterIP: 10.96.0.1, ports: [{port: 443}]}}\n---\n\
                {apiVersion: crd.projectcalico.org/v1, kind: BGPPeer, metadata: {name: rack}, spec: {peerIP: 198.51.100.1, asNumber: 65001}}\n---\n\
                {apiVersion: crd.projectcalico.org/v1, kind: BGPConfiguration, metadata: {name: default}, spec: \
                {serviceLoadBalancerIPs: [{cidr: 192.0.2.0/24}, {cidr: 172.18.0.0/24}, {cidr: 203.0.113.0/24}], \
                serviceExternalIPs: [{cidr: 10.244.0.0/16}, {cidr: 198.51.100.0/24}], serviceClusterIPs: [{cidr: 10.96.0.0/12}]}}\n";
    let contents = Contents::from_texts([("a.yaml", text)]);
    let cluster = crate::import::import_for(&contents, "n1");
    // An agent may reserve cluster IPs for the API server and for the cluster's DNS.
    let reserved = ["10.96.0.1", "10.97.0.10", "203.0.113.9"]
        .map(|it| (it.parse().unwrap(), ReservedFor::ApiServer));
    let found = AnnouncedNets::new(&contents, &cluster, &reserved.into());
    assert_eq!(found.all().collect::<Vec<_>>(), nets(&["10.96.0.0/12", "192.0.2.0/24"]));
    let problems: Vec<String> = found.problems.iter().map(ToString::to_string).collect();
    insta::assert_snapshot!(problems.join("\n"), @"
    BGPConfiguration default, serviceExternalIPs: found 10.244.0.0/16, which overlaps 10.244.1.0/24 of Node n1, expected a range for services alone, so nobody is told of it: give services a range of their own
    BGPConfiguration default, serviceExternalIPs: found 198.51.100.0/24, which overlaps 198.51.100.1 of BGPPeer rack, expected a range for services alone, so nobody is told of it: give services a range of their own
    BGPConfiguration default, serviceLoadBalancerIPs: found 172.18.0.0/24, which overlaps 172.18.0.2/32 of Node n1, expected a range for services alone, so nobody is told of it: give services a range of their own
    BGPConfiguration default, serviceLoadBalancerIPs: found 203.0.113.0/24, which overlaps 203.0.113.9, the API server, expected a range for services alone, so nobody is told of it: give services a range of their own
    ");
}
