//! Network sets that are added, changed and removed, and CIDRs that rules use for the first time, in the image in use.

use std::cell::Cell;
use std::sync::Arc;

use ipnet::IpNet;
use proptest::collection::{btree_set, vec};
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{Config, TestRunner};

use super::build::*;
use super::generate::{endpoint, model, some_local};
use super::updates::{Kept, cluster, pod, set};
use crate::compile::Compiler;
use crate::model::*;

impl Kept {
    /// Adds a network set to the model, or removes one. Returns whether any list of policies stays the same.
    fn set(&mut self, name: &ObjectName, set: Option<NetworkSet>) -> bool {
        match set {
            Some(set) => self.model.network_sets.insert(name.clone(), Arc::new(set)),
            None => self.model.network_sets.remove(name),
        };
        self.stands(|kept| kept.image = kept.compiler.compile(&kept.model, &kept.local))
    }

    /// Whether any list of policies stays the same during a change.
    fn stands(&mut self, change: impl FnOnce(&mut Self)) -> bool {
        let before = self.lists();
        change(self);
        self.lists().iter().any(|list| before.iter().any(|other| Arc::ptr_eq(list, other)))
    }
}

/// A cluster with some policies, so that some list stays the same, and one policy that allows packets from the given
/// entities.
fn asking<const N: usize>(from: [Entity; N]) -> Kept {
    let mut kept = cluster();
    let from = allow().tcp("443").from(from);
    let Draft(name, policy) = kubernetes("shop/asks").selects("app == 'db'").ingress([from]);
    kept.policy(&name, Some(policy));
    kept
}

#[test]
fn a_set_comes_changes_and_goes_and_lists_stand() {
    let mut kept = asking([who("kind == 'set'")]);
    let it = name("/it");
    for (labels, nets) in [
        ("kind=set", "192.0.2.1"),
        ("kind=set", "192.0.2.0/24 10.0.1.1"),
        ("kind=set", "192.0.2.0/28 192.0.2.64/26"),
        ("kind=other", "192.0.2.0/28 192.0.2.64/26"),
        ("kind=set", "192.0.2.0/28 192.0.2.64/26"),
        // This set is around the local pod and others, and contains the pod's own address.
        ("kind=set", "10.0.0.0/8"),
        ("kind=set", "10.0.0.1"),
    ] {
        assert!(kept.set(&it, Some(set(labels, nets))), "{labels} {nets}");
        kept.is_as_from_nothing();
    }
    // This adds a second set at the same prefixes.
    assert!(kept.set(&name("shop/it"), Some(set("kind=set", "10.0.0.1 192.0.2.0/28"))));
    kept.is_as_from_nothing();
    assert!(kept.set(&it, None));
    kept.is_as_from_nothing();
    assert!(kept.pod(&name("shop/web2"), Some(&pod("app=web", "10.0.1.9"))));
    assert!(kept.set(&name("shop/it"), None));
    kept.is_as_from_nothing();
}

#[test]
fn a_set_changes_nobodys_addresses_but_its_own() {
    let mut kept = asking([who("kind == 'set'")]);
    let others = ["10.0.1.1", "10.0.1.2", "192.0.3.1"].map(ip);
    let before = others.map(|address| kept.image.identity(address));
    assert!(kept.set(&name("/it"), Some(set("kind=set", "192.0.2.0/24"))));
    assert_eq!(others.map(|address| kept.image.identity(address)), before);
    assert_ne!(kept.image.identity(ip("192.0.2.77")), kept.image.identity(ip("192.0.3.77")));
    assert!(kept.set(&name("/it"), None));
    assert_eq!(kept.image.identity(ip("192.0.2.77")), kept.image.identity(ip("192.0.3.77")));
}

#[test]
fn a_set_of_ipv6_networks_comes_changes_and_goes_and_lists_stand() {
    let mut kept = asking([who("kind == 'set'")]);
    for nets in ["2001:db8::/32", "2001:db8::/33 2001:db8::1", "2001:db8::1 10.0.1.1", "::/0"] {
        assert!(kept.set(&name("/it"), Some(set("kind=set", nets))), "{nets}");
        kept.is_as_from_nothing();
    }
    assert!(kept.set(&name("/it"), None));
    kept.is_as_from_nothing();
    // This is a set that no policy uses.
    assert!(kept.set(&name("/other"), Some(set("kind=other", "2001:db8::/32"))));
    kept.is_as_from_nothing();
}

#[test]
fn a_cidr_that_nobody_had_asked_for_leaves_lists_alone() {
    let mut kept = cluster();
    let nets = ["10.0.0.0/8", "10.0.0.1/32", "192.0.2.0/24", "192.0.2.128/25", "10.0.0.0/16"];
    for (at, net) in nets.into_iter().enumerate() {
        let asks = kubernetes("shop/asks").selects("app == 'db'");
        let Draft(name, policy) = asks.ingress([allow().from([super::build::nets(net)])]);
        assert!(kept.stands(|kept| _ = kept.policy(&name, Some(policy))), "{net}");
        kept.is_as_from_nothing();
        let web = pod("app=web", &format!("10.0.{at}.9"));
        assert!(kept.pod(&super::build::name("shop/web2"), Some(&web)), "{net}");
        kept.is_as_from_nothing();
    }
}

#[test]
fn sets_that_nobody_has_any_more_do_not_pile_up() {
    let mut kept = asking([who("kind == 'set'"), who("has(kind) && kind != 'set'")]);
    let most = kept.image.counts().classes * 2 + 1024;
    for at in 0..30 {
        let nets = format!("192.0.2.{at} 198.51.{at}.0/24");
        kept.set(&name("/it"), Some(set(if at % 2 == 0 { "kind=set" } else { "kind=x" }, &nets)));
        assert!(kept.image.counts().classes <= most);
    }
    kept.is_as_from_nothing();
}

/// No prefix inside a new net is left out. A prefix may have several entries, which matters for the count of prefixes.
#[test]
fn a_net_around_many_prefixes_leaves_none_of_them_out() {
    // The numbers reach from few enough to be handled one by one to too many.
    for pods in (1_150..1_250).step_by(7) {
        let mut cluster = Cluster::new().pod("shop/db", "app=db", "10.255.0.1");
        for at in 0..pods {
            let address = format!("10.0.{}.{}", at / 250, at % 250 + 1);
            cluster = cluster.pod(&format!("shop/p{at}"), "app=web", &address);
        }
        let ask = |name, entity| {
            kubernetes(name).selects("app == 'db'").ingress([allow().tcp("80").from([entity])])
        };
        // The addresses of some pods are also nets of rules.
        let hosts = (1..40).map(|low| format!("10.0.0.{low}/32")).collect::<Vec<_>>().join(" ");
        cluster = cluster
            .policy(ask("shop/web", who("app == 'web'")))
            .policy(ask("shop/hosts", nets(&hosts)));
        let mut kept = Kept::of(cluster.model, [name("shop/db")].into());
        let Draft(policy, wide) = ask("shop/wide", nets("10.0.0.0/8"));
        kept.policy(&policy, Some(wide));
        let fresh = Compiler::new().compile(&kept.model, &kept.local);
        assert_eq!(kept.image.canonical_hash(), fresh.canonical_hash(), "{pods}");
    }
}

const SELECTORS: &[&str] = &[
    "app == 'x'",
    "app == 'y'",
    "has(tier) && app != 'x'",
    "!has(app)",
    "projectcalico.org/namespace == 'red'",
    "nobody == 'x'",
];

const NETS: &[&str] = &[
    "10.0.0.0/24",
    "10.0.0.0/28",
    "10.0.0.8/29",
    "10.0.0.4/30",
    "10.0.0.3/32",
    "10.0.0.5/32",
    "192.0.2.0/24",
    "0.0.0.0/0",
    "fd00::/126",
];

#[derive(Debug, Clone)]
enum Event {
    Pod(&'static str, &'static str, Option<Endpoint>),
    Set(&'static str, Option<NetworkSet>),
    /// The selector of the policy's endpoints, and the peers that it allows.
    Policy(&'static str, &'static str, Option<Entity>),
}

fn event() -> impl Strategy<Value = Event> {
    let pod = (select(&["blue", "red"][..]), select(&["a", "b", "c", "d"][..]));
    let pod = (pod, prop::option::weighted(0.7, endpoint()));
    let labels = select(&["app=x", "app=y", "tier=x", "app=y tier=y", ""][..]);
    let parsed = |net: &str| net.parse::<IpNet>().unwrap();
    // IPv6 is rare, but not so rare that no stream has an IPv6 set.
    let some = || prop_oneof![3 => select(&NETS[..7]), 1 => select(NETS)];
    let nets = btree_set(some().prop_map(parsed), 0..4);
    let set = (labels, nets)
        .prop_map(|(text, nets)| NetworkSet { labels: super::build::labels(text), nets });
    let set = (select(&["/n", "red/n", "blue/m"][..]), prop::option::weighted(0.7, set));
    let from = prop_oneof![
        select(SELECTORS).prop_map(who),
        some().prop_map(super::build::nets),
        (some(), select(SELECTORS)).prop_map(|(net, selector)| Entity {
            selector: who(selector).selector,
            ..super::build::nets(net)
        }),
    ];
    let policy = (select(&["blue/p", "red/q", "blue/r"][..]), select(SELECTORS));
    let policy = (policy, prop::option::weighted(0.8, from));
    prop_oneof![
        2 => pod.prop_map(|((namespace, name), pod)| Event::Pod(namespace, name, pod)),
        4 => set.prop_map(|(name, set)| Event::Set(name, set)),
        3 => policy.prop_map(|((name, selects), from)| Event::Policy(name, selects, from)),
    ]
}

#[test]
fn after_any_stream_of_sets_cidrs_pods_and_policies_an_image_is_as_one_made_from_nothing() {
    let [sets, policies] = [const { Cell::new((0, 0)) }; 2];
    let count = |cell: &Cell<(u32, u32)>, stands: bool| {
        cell.set((cell.get().0 + u32::from(stands), cell.get().1 + 1));
    };
    let config = Config { cases: 96, failure_persistence: None, ..Config::default() };
    TestRunner::new(config)
        .run(&(model(), vec(event(), 1..12)), |(model, events)| {
            let local = some_local(&model);
            let mut kept = Kept::of(model, local);
            for event in events {
                match event {
                    Event::Pod(namespace, name, pod) => {
                        kept.pod(&ObjectName::new(namespace, name), pod.as_ref());
                    }
                    Event::Set(set, it) => count(&sets, kept.set(&name(set), it)),
                    Event::Policy(policy, selects, from) => {
                        let rules = from.iter().map(|from| allow().from([from.clone()]));
                        let draft = kubernetes(policy).selects(selects);
                        let Draft(name, mut policy) = draft.ingress([]).egress([deny()]);
                        policy.ingress = Some(rules.collect());
                        let policy = from.map(|_| policy);
                        count(&policies, kept.stands(|kept| _ = kept.policy(&name, policy)));
                    }
                }
                kept.is_as_from_nothing();
            }
            Ok(())
        })
        .unwrap();
    let (sets, policies) = (sets.get(), policies.get());
    assert!(sets.0 * 3 > sets.1, "{sets:?}: sets are hardly followed");
    assert!(policies.0 * 5 > policies.1, "{policies:?}: policies are hardly answered");
}
