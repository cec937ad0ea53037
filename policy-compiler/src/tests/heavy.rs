//! Policies that are made to be expensive.

use std::net::{IpAddr, Ipv4Addr};

use super::build::*;
use crate::compile::{Compiler, PodChange};
use crate::image::Image;
use crate::model::*;
use crate::reference::{Packet, Reference};
use crate::resolve::Stage;
use crate::rows::Thresholds;

/// Marsaglia's xorshift.
struct Random(u32);

impl Random {
    fn next(&mut self) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 17;
        self.0 ^= self.0 << 5;
        self.0
    }
}

/// A pod `a/a` whose policy has rules for the whole world, each with four excepted nets and its own ports, and a pod
/// `z/z` with a small policy. `ports` returns the ports of a rule.
fn cluster(rules: u32, ports: impl Fn(u32, &mut Random) -> (u16, u16)) -> Cluster {
    let mut random = Random(99);
    let all = (0..rules).map(|index| {
        let mut world = nets("0.0.0.0/0");
        for _ in 0..4 {
            let len = 8 + random.next() % 25;
            let address = Ipv4Addr::from_bits(random.next() & u32::MAX << (32 - len));
            world.not_nets.insert(format!("{address}/{len}").parse().unwrap());
        }
        let (first, last) = ports(index, &mut random);
        let rule = allow().of(6).from([world]);
        let range = PortMatch::Range { first: first.min(last), last: first.max(last) };
        let destination = RuleEnd { ports: vec![range], ..RuleEnd::default() };
        Rule { index, destination, ..rule }
    });
    let mut heavy = kubernetes("a/heavy");
    heavy.1.ingress = Some(all.collect());
    Cluster::new()
        .pod("a/a", "", "10.0.0.1")
        .pod("z/z", "", "10.0.0.2")
        .policy(heavy)
        .policy(kubernetes("z/small").ingress([allow().tcp("80").from([nets("10.0.0.0/8")])]))
}

/// Compares an image with the reference at the addresses and ports where something changes.
fn agrees(cluster: &Cluster, image: &Image) {
    let reference = Reference::new(&cluster.model);
    let (a, stage, direction) = (name("a/a"), Stage::Pod, Direction::Ingress);
    let rules = cluster.model.policies.values().flat_map(|policy| policy.ingress.iter().flatten());
    let nets = rules.flat_map(|rule| rule.source.entities.iter().flatten());
    let nets: Vec<_> = nets.flat_map(|entity| entity.not_nets.iter().copied()).collect();
    let policies = reference.policies(&a, stage, direction).unwrap();
    let chain = image.chain(&a, direction).unwrap();
    let mut random = Random(7);
    for _ in 0..400 {
        let net = nets.get(random.next() as usize % nets.len().max(1)).copied();
        let net = net.unwrap_or_else(|| "192.0.2.0/24".parse().unwrap());
        let peer = if random.next().is_multiple_of(2) { net.network() } else { net.broadcast() };
        let transport = Transport::ports(Protocol::Tcp, random.next() as u16, random.next() as u16);
        let packet = Packet { local: ip("10.0.0.1"), peer, transport };
        let mut expected = reference.judge_by(&policies, &a, stage, direction, &packet);
        if image.is_linear(chain) {
            expected.noted.clear();
        }
        let ends = [packet.local, peer].map(|address: IpAddr| image.identity(address));
        let found = image.path(image.classify(chain, ends[0], ends[1], transport));
        assert_eq!(*found.decision, expected, "{packet:?}");
    }
}

fn any_range(_: u32, random: &mut Random) -> (u16, u16) {
    (random.next() as u16, random.next() as u16)
}

#[test]
fn rows_look_at_rules_in_proportion_to_the_rules() {
    let looks = [150, 300].map(|rules| {
        let cluster = cluster(rules, any_range);
        let mut compiler = Compiler::new();
        compiler.tables.scale.looks = 1000;
        let image = compiler.compile(&cluster.model, &cluster.all());
        assert_eq!(image.counts().linear, 0);
        agrees(&cluster, &image);
        compiler.looks()
    });
    assert!(looks[1] <= looks[0] * 5 / 2, "{looks:?}");
    // The four nets of each rule lead to 1,200 rows of up to 300 rules.
    assert!(looks[1] < 100_000, "{looks:?}");
}

#[test]
fn nets_that_no_chain_tells_apart_are_of_one_class() {
    let rules = [allow().tcp("80").from([nets("192.0.2.0/24 198.51.100.0/24 203.0.113.0/24")])];
    let cluster = Cluster::new()
        .pod("a/a", "", "10.0.0.1")
        .pod("a/b", "app=b", "10.0.0.2")
        .policy(kubernetes("a/a").ingress(rules))
        .policy(
            kubernetes("a/b")
                .selects("app == 'b'")
                .ingress([allow().tcp("81").from([nets("0.0.0.0/0").but("203.0.113.0/24")])]),
        );
    let image = cluster.image();
    let class = |address: &str| image.class_of(image.identity(ip(address))).unwrap();
    assert_eq!(class("192.0.2.1"), class("198.51.100.1"));
    let distinct = ["192.0.2.1", "203.0.113.1", "8.8.8.8", "10.0.0.1", "fd00::1"].map(class);
    assert_eq!(std::collections::BTreeSet::from(distinct).len(), 4, "{distinct:?}");
    assert_eq!(class("8.8.8.8"), class("10.0.0.1"), "no policy asks for pods");
}

#[test]
fn a_chain_that_is_too_dear_is_evaluated_rule_by_rule_and_costs_the_others_nothing() {
    // Each rule has a port that no other rule has, so no two rows are alike.
    let mut cluster = cluster(200, |index, _| (index as u16 * 300, index as u16 * 300 + 200));
    let mut compiler = Compiler::new();
    compiler.tables.scale = Thresholds { looks: 1000, work: 1000, ..Thresholds::default() };
    let local = cluster.all();
    let image = compiler.compile(&cluster.model, &local);
    let is_linear = |image: &Image, pod: &str| {
        Direction::ALL.map(|direction| image.is_linear(image.chain(&name(pod), direction).unwrap()))
    };
    assert_eq!(is_linear(&image, "a/a"), [true, false]);
    assert_eq!(is_linear(&image, "z/z"), [false; 2]);
    agrees(&cluster, &image);
    // It is not tried again when another policy changes.
    let before = compiler.looks();
    let small = kubernetes("z/small").ingress([allow().tcp("81").from([nets("10.0.0.0/8")])]);
    cluster = cluster.policy(small);
    let image = compiler.compile(&cluster.model, &local);
    assert!(compiler.looks() - before < 1000, "{before}, and then {}", compiler.looks());
    assert_eq!(is_linear(&image, "a/a"), [true, false]);
    assert_eq!(is_linear(&image, "z/z"), [false; 2]);
}

#[test]
fn what_one_row_asks_again_and_again_is_bounded() {
    let range = |random: &mut Random| {
        let (first, last) = any_range(0, random);
        PortMatch::Range { first: first.min(last), last: first.max(last) }
    };
    let (mut random, mut rules) = (Random(3), [Vec::new(), Vec::new()]);
    for index in 0..300 {
        // In the first list, each range of ports has other source ports. In the second list, each rule is noted.
        let mut both = Rule { index, ..allow().of(6) };
        both.source.ports = vec![range(&mut random)];
        let mut logs = Rule { index, ..log().of(6) };
        for rule in [&mut both, &mut logs] {
            rule.destination.ports = vec![range(&mut random)];
        }
        rules[0].push(both);
        rules[1].push(logs);
    }
    // The source ports and ports of one rule are not adjacent.
    let mut single = allow().of(6);
    let odd = (0..600).map(|at| PortMatch::Range { first: at * 2 + 1, last: at * 2 + 1 });
    single.source.ports = odd.clone().collect();
    single.destination.ports = odd.collect();
    for rules in rules.into_iter().chain([vec![single]]) {
        let mut heavy = kubernetes("a/heavy");
        heavy.1.ingress = Some(rules);
        let cluster = Cluster::new()
            .pod("a/a", "", "10.0.0.1")
            .pod("z/z", "", "10.0.0.2")
            .policy(heavy)
            .policy(kubernetes("z/small").ingress([allow().tcp("80")]));
        let image_of = |work| {
            let mut compiler = Compiler::new();
            compiler.tables.scale = Thresholds { work, ..Thresholds::default() };
            let image = compiler.compile(&cluster.model, &cluster.all());
            agrees(&cluster, &image);
            let chain = |pod| image.chain(&name(pod), Direction::Ingress).unwrap();
            (["a/a", "z/z"].map(|pod| image.is_linear(chain(pod))), compiler.looks())
        };
        let (linear, looks) = image_of(10_000);
        assert_eq!(linear, [true, false]);
        assert!(looks < 30_000, "{looks}");
        assert_eq!(image_of(Thresholds::default().work).0, [false; 2]);
    }
}

#[test]
fn a_pod_that_is_attached_costs_nothing_of_the_policies_of_others() {
    attach_beside_heavy("192.0.2.77");
}

#[test]
fn nor_does_one_with_an_address_of_each_family() {
    attach_beside_heavy("192.0.2.77 2001:db8::77");
}

fn attach_beside_heavy(addresses: &str) {
    let asks = kubernetes("z/asks").ingress([allow().from([who("of == 'another'")])]);
    let cluster = cluster(300, any_range).pod("z/other", "of=another", "10.0.0.3");
    let mut cluster = cluster.policy(asks);
    let mut compiler = Compiler::new();
    compiler.tables.scale.looks = 1000;
    let mut local = cluster.all();
    local.remove(&name("z/other"));
    let image = compiler.compile(&cluster.model, &local);
    let of_all = compiler.looks();
    let looks = |compiler: &Compiler, what: &str| {
        assert!(
            compiler.looks() - of_all < of_all / 20,
            "{what}: {of_all} and {}",
            compiler.looks()
        );
    };
    // The pod gets an address that is in no class of the image, is attached and detached, and loses the address.
    let before = cluster.model.endpoints[&name("z/other")].clone();
    let moved = Endpoint { addresses: words(addresses).into(), ..Endpoint::clone(&before) };
    cluster.model.endpoints.insert(name("z/other"), std::sync::Arc::new(moved.clone()));
    let it = name("z/other");
    let change = PodChange { name: &it, before: Some(&before), after: Some(&moved) };
    assert!(!compiler.update(&image, &cluster.model, change));
    compiler.compile(&cluster.model, &local);
    looks(&compiler, "an address");
    for attached in [true, false, true] {
        if attached {
            local.insert(it.clone())
        } else {
            local.remove(&it)
        };
        let image = compiler.compile(&cluster.model, &local);
        looks(&compiler, "attached");
        assert_eq!(image.chain(&it, Direction::Ingress).is_some(), attached);
        agrees(&cluster, &image);
        let fresh = Compiler::new().compile(&cluster.model, &local);
        assert_eq!(image.canonical_hash(), fresh.canonical_hash());
    }
}

fn set_of_world(mut cluster: Cluster, set: u32) -> Cluster {
    let it = NetworkSet { labels: labels(&format!("set={set}")), nets: words("0.0.0.0/0") };
    cluster.model.network_sets.insert(name(&format!("a/s{set}")), std::sync::Arc::new(it));
    cluster
}

/// 2,000 pods in the namespace `a`, and a policy there with this number of selectors. Each selector matches all of
/// these pods. The pod `z/z` has a small policy.
fn overlaps(selectors: u32) -> Cluster {
    let mut cluster = Cluster::new()
        .pod("z/z", "app=z", "10.0.0.2")
        .policy(kubernetes("z/small").ingress([allow().tcp("80").from([who("app == 'z'")])]));
    for pod in 0..2_000_u32 {
        let address = Ipv4Addr::from_bits(0x0a01_0000 + pod).to_string();
        cluster = cluster.pod(&format!("a/p{pod}"), &format!("of={pod}"), &address);
    }
    let mut heavy = kubernetes("a/heavy");
    let rule = |index| {
        let peer = who(&format!("has(of) && of != 'x{index}'"));
        Rule { index, ..allow().from([peer]) }
    };
    heavy.1.ingress = Some((0..selectors).map(rule).collect());
    cluster.policy(heavy)
}

#[test]
fn a_namespace_that_asks_too_much_gets_no_tables_and_its_neighbour_pays_nothing() {
    let local = [name("a/p1"), name("z/z")].into();
    let mut compiler = Compiler::new();
    let few = overlaps(10);
    let image = compiler.compile(&few.model, &local);
    assert!(compiler.left_out().is_empty());
    assert!(image.chain(&name("a/p1"), Direction::Ingress).is_some());

    let too_many = overlaps(6_000);
    let image = compiler.compile(&too_many.model, &local);
    assert_eq!(*compiler.left_out(), [name("a/p1")].into());
    assert!(image.chain(&name("a/p1"), Direction::Ingress).is_none());
    assert!(image.chain(&name("z/z"), Direction::Ingress).is_some());
    let of_neighbour = [name("z/z")].into();
    crate::reference::prove(&too_many.model, &of_neighbour, &image).unwrap();
    let alone = Compiler::new().compile(&too_many.model, &of_neighbour);
    assert_eq!(image.canonical_hash(), alone.canonical_hash());

    // While this does not change, other changes need no compilation from nothing, which would build their rows again.
    let before = compiler.looks();
    let more = too_many.policy(kubernetes("z/none").selects("app == 'none'").ingress([]));
    compiler.compile(&more.model, &local);
    assert_eq!((compiler.looks(), compiler.left_out().len()), (before, 1));

    let image = compiler.compile(&few.model, &local);
    assert!(compiler.left_out().is_empty());
    crate::reference::prove(&few.model, &local, &image).unwrap();
}

#[test]
fn a_network_set_that_overlaps_many_costs_its_namespace_its_tables() {
    let world = |cluster: Cluster, sets: u32| {
        let mut heavy = kubernetes("a/heavy");
        let rule = |index| Rule { index, ..allow().from([who(&format!("set == '{index}'"))]) };
        heavy.1.ingress = Some((0..sets).map(rule).collect());
        (0..sets).fold(cluster, set_of_world).policy(heavy)
    };
    let mut cluster = Cluster::new().pod("a/a", "", "10.0.0.1").pod("z/z", "", "10.0.0.2");
    let mut addresses = kubernetes("a/addresses");
    let single = |index| {
        let net = nets(&format!("{}/32", Ipv4Addr::from_bits(0x0b00_0000 + index)));
        Rule { index, ..deny().from([net]) }
    };
    addresses.1.ingress = Some((0..3_000).map(single).collect());
    cluster = cluster.policy(addresses);
    let local = cluster.all();
    let mut compiler = Compiler::new();
    cluster = world(cluster, 20);
    compiler.compile(&cluster.model, &local);
    assert!(compiler.left_out().is_empty());
    cluster = world(cluster, 4_000);
    compiler.compile(&cluster.model, &local);
    assert_eq!(*compiler.left_out(), [name("a/a")].into());
    assert_eq!(Compiler::new().compile(&cluster.model, &local).counts().endpoints, 1);
}

#[test]
fn rules_that_cost_too_much_close_their_namespace_and_its_neighbour_pays_nothing() {
    let from = |rule: Rule, nets_of: u32| {
        let each = |at: u32| nets(&format!("{}/32", Ipv4Addr::from_bits(0x0100_0000 + (at << 8))));
        let source = RuleEnd { entities: Some((0..nets_of).map(each).collect()), ..rule.source };
        Rule { source, ..rule }
    };
    let of = |policy: Draft, nets_of| {
        Cluster::new()
            .pod("a/a", "", "10.0.0.1")
            .pod("z/z", "", "10.0.0.2")
            .policy(kubernetes("z/small").ingress([from(allow().tcp("80"), 1)]))
            .policy(policy.ingress([from(allow().tcp("80"), nets_of)]))
    };
    let tenant = |rules| of(kubernetes("a/heavy"), rules);
    let mut compiler = Compiler::new();
    compiler.closed_namespaces.most_price = 10_000;
    let few = tenant(500);
    let local = few.all();
    let is_open = |image: &Image, pod| image.chain(&name(pod), Direction::Ingress).is_some();
    let image = compiler.compile(&few.model, &local);
    assert!(is_open(&image, "a/a") && compiler.left_out().is_empty());

    let heavy = |nets_of| kubernetes("a/heavy").ingress([from(allow().tcp("80"), nets_of)]);
    let mut cluster = few.policy(heavy(600));
    let image = compiler.compile(&cluster.model, &local);
    assert_eq!(*compiler.left_out(), [name("a/a")].into());
    assert!(!is_open(&image, "a/a"));
    let of_neighbour = [name("z/z")].into();
    crate::reference::prove(&cluster.model, &of_neighbour, &image).unwrap();
    let alone = Compiler::new().compile(&cluster.model, &of_neighbour);
    assert_eq!(image.canonical_hash(), alone.canonical_hash());
    cluster = cluster.policy(heavy(500));
    compiler.compile(&cluster.model, &local);
    assert!(compiler.left_out().is_empty());

    // If a rule uses the name of a port, each of the node's own pods counts, unless it is a replica of another one.
    let mut named = tenant(200).pod("a/b", "", "10.0.0.3");
    let local = named.all();
    compiler.compile(&named.model, &local);
    assert!(compiler.left_out().is_empty());
    named = named.policy(kubernetes("a/heavy").ingress([from(allow().tcp("http"), 500)]));
    compiler.compile(&named.model, &local);
    assert_eq!(*compiler.left_out(), [name("a/a"), name("a/b")].into());
    // When one of the two is removed, the other is no longer closed.
    let fewer = [name("a/a"), name("z/z")].into();
    compiler.compile(&named.model, &fewer);
    assert!(compiler.left_out().is_empty());
    let labels = named.model.endpoints[&name("a/a")].labels.clone();
    let replica = Endpoint { labels, ..Endpoint::clone(&named.model.endpoints[&name("a/b")]) };
    named.model.endpoints.insert(name("a/b"), std::sync::Arc::new(replica));
    let mut compiler = Compiler::new();
    compiler.closed_namespaces.most_price = 10_000;
    compiler.compile(&named.model, &local);
    assert!(compiler.left_out().is_empty());

    // Policies of the cluster's administrator have no price.
    let of_all = of(global("heavy"), 600);
    compiler.compile(&of_all.model, &of_all.all());
    assert!(compiler.left_out().is_empty());
}

#[test]
fn addresses_that_others_name_close_no_namespace_and_never_the_nodes_own_endpoints() {
    // The policies of `a` exceed the bound. It also has 40 network sets with 5,000 addresses each, and selects half of them.
    let mut cluster = overlaps(6_000).host("eth0", "host=", "172.18.0.2", "");
    for set in 0..40_u32 {
        let nets = (0..5_000).map(|at| Ipv4Addr::from_bits(0x0c00_0000 + set * 5_000 + at));
        let nets = nets.map(|address| IpAddr::from(address).into()).collect();
        let it = NetworkSet { labels: labels(&format!("many={}", set % 2)), nets };
        cluster.model.network_sets.insert(name(&format!("a/m{set}")), std::sync::Arc::new(it));
    }
    let selected = kubernetes("a/many").ingress([allow().from([who("many == '0'")])]);
    let worlds =
        (0..40).map(|index| Rule { index, ..allow().from([nets(&format!("{index}.0.0.0/8"))]) });
    let mut wide = kubernetes("z/wide");
    wide.1.ingress = Some(worlds.collect());
    let of_node =
        global("of-node").selects("has(host)").ingress([allow().from([nets("12.0.0.0/8")])]);
    cluster = cluster.policy(selected).policy(wide).policy(of_node);
    let local = [name("a/p1"), name("z/z"), name("/eth0")].into();
    let mut compiler = Compiler::new();
    let image = compiler.compile(&cluster.model, &local);
    assert_eq!(*compiler.left_out(), [name("a/p1")].into());
    assert_eq!(image.counts().endpoints, 2);
    // Another pod of a closed namespace is closed, too. If a pod changes, the choice is made again.
    let more = [name("a/p1"), name("a/p2"), name("z/z"), name("/eth0")].into();
    compiler.compile(&cluster.model, &more);
    assert_eq!(compiler.left_out().len(), 2);
    let (it, pod) = (name("a/p1"), cluster.model.endpoints[&name("a/p1")].clone());
    let change = PodChange { name: &it, before: Some(&pod), after: Some(&pod) };
    assert!(!compiler.update(&image, &cluster.model, change));
    let without = [name("z/z")].into();
    compiler.compile(&cluster.model, &without);
    assert!(compiler.left_out().is_empty());
}

#[test]
fn ports_of_one_name_close_the_namespace_that_asks_for_them() {
    let mut cluster = Cluster::new()
        .pod("z/z", "", "10.0.0.2")
        .policy(kubernetes("z/small").ingress([allow().tcp("80").from([nets("10.0.0.0/8")])]));
    let ports: Vec<String> = (1..=200).map(|port| format!("web=tcp/{port}")).collect();
    for pod in 0..20 {
        cluster = cluster.pod_with(
            &format!("a/p{pod}"),
            &format!("of={pod}"),
            &format!("10.0.1.{pod}"),
            &ports.join(" "),
        );
    }
    let mut heavy = kubernetes("a/heavy");
    let rule = |index| {
        let rule = allow().tcp("web").to([who(&format!("has(of) && of != 'x{index}'"))]);
        Rule { index, ..rule }
    };
    heavy.1.egress = Some((0..4_000).map(rule).collect());
    cluster = cluster.policy(heavy);
    let local = [name("a/p1"), name("z/z")].into();
    let mut compiler = Compiler::new();
    let image = compiler.compile(&cluster.model, &local);
    assert_eq!(*compiler.left_out(), [name("a/p1")].into());
    assert!(image.chain(&name("z/z"), Direction::Ingress).is_some());
}

#[test]
fn a_rule_of_many_peers_costs_as_much_as_as_many_rules() {
    let looks = [100, 200].map(|peers| {
        let mut random = Random(5);
        let mut rules = Vec::new();
        for index in 0..10 {
            let peer = |_| nets(&format!("{}/32", Ipv4Addr::from_bits(random.next())));
            let entities = (0..peers).map(peer).collect::<Vec<_>>();
            let mut rule = Rule { index, ..allow().tcp("80") };
            rule.source.entities = Some(entities);
            rules.push(rule);
        }
        let mut many = kubernetes("a/many");
        many.1.ingress = Some(rules);
        let cluster = Cluster::new().pod("a/a", "", "10.0.0.1").policy(many);
        let mut compiler = Compiler::new();
        compiler.tables.scale.looks = 1000;
        compiler.compile(&cluster.model, &cluster.all());
        compiler.looks()
    });
    // Each of the peers is a clause and has a row.
    assert!(looks[0] >= 2 * 10 * 100, "{looks:?}");
    assert!(looks[1] <= looks[0] * 5 / 2, "{looks:?}");
}
