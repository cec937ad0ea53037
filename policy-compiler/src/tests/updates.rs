//! A pod that is added, removed or changed in the image in use.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::Arc;

use ipnet::IpNet;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use proptest::test_runner::{Config, TestRunner};

use super::build::*;
use super::generate::{endpoint, model, some_local};
use crate::compile::Compiler;
use crate::compile::PodChange;
use crate::image::Image;
use crate::model::*;
use crate::reference::prove;
use crate::resolve::{List, LocalName};
use crate::rows::Thresholds;

/// A compiler, with the image that it keeps up to date.
pub(super) struct Kept {
    pub(super) compiler: Compiler,
    pub(super) image: Image,
    pub(super) model: Model,
    pub(super) local: BTreeSet<LocalName>,
}

impl Kept {
    pub(super) fn of(model: Model, local: BTreeSet<LocalName>) -> Self {
        let mut compiler = Compiler::new();
        // Here two threads compile with precomputed lists, while a compilation from nothing uses one thread and
        // precomputes nothing.
        compiler.tables.scale = Thresholds { rows: 0, rules: 0, ..Thresholds::default() };
        let image = compiler.compile(&model, &local);
        Self { compiler, image, model, local }
    }

    /// Adds a pod to the model, or removes one. Returns whether the image could be changed in place.
    pub(super) fn pod(&mut self, name: &ObjectName, pod: Option<&Endpoint>) -> bool {
        let in_place = self.change(name, pod, true);
        if !in_place {
            self.image = self.compiler.compile(&self.model, &self.local);
        }
        in_place
    }

    /// Adds a pod to the model, or removes one, without a new image. Unless `at_once` is true, the change is for the
    /// next image.
    fn change(&mut self, name: &ObjectName, pod: Option<&Endpoint>, at_once: bool) -> bool {
        let before = self.model.endpoints.get(name).cloned();
        match pod {
            Some(pod) => self.model.endpoints.insert(name.clone(), Arc::new(pod.clone())),
            None => self.model.endpoints.remove(name),
        };
        let change = PodChange { name, before: before.as_deref(), after: pod };
        if !at_once {
            self.compiler.defer(&self.model, change);
            return false;
        }
        self.compiler.update(&self.image, &self.model, change)
    }

    /// Adds a policy to the model, or removes one. Returns whether the image's address tables were reused.
    pub(super) fn policy(&mut self, name: &PolicyName, policy: Option<Policy>) -> bool {
        match policy {
            Some(policy) => self.model.policies.insert(name.clone(), Arc::new(policy)),
            None => self.model.policies.remove(name),
        };
        let before = Arc::clone(&self.image.peers);
        self.image = self.compiler.compile(&self.model, &self.local);
        Arc::ptr_eq(&before, &self.image.peers)
    }

    #[track_caller]
    pub(super) fn is_as_from_nothing(&self) {
        let fresh = Compiler::new().compile(&self.model, &self.local);
        assert_eq!(self.image.canonical_hash(), fresh.canonical_hash(), "{:#?}", self.model);
        for name in &self.local {
            assert_eq!(self.image.revision(name), fresh.revision(name));
        }
        if let Err(counterexample) = prove(&self.model, &self.local, &self.image) {
            panic!("{counterexample}\n{:#?}", self.model);
        }
    }
}

#[test]
fn after_any_stream_of_pods_an_image_is_as_one_made_from_nothing() {
    let change = || {
        let name = (select(&["blue", "red"][..]), select(&["a", "b", "c", "d", "e"][..]));
        let name = name.prop_map(|(namespace, name)| ObjectName::new(namespace, name));
        (name, prop::option::weighted(0.7, endpoint()))
    };
    let (in_place, all) = (Cell::new(0), Cell::new(0));
    let config = Config { cases: 48, failure_persistence: None, ..Config::default() };
    TestRunner::new(config)
        .run(&(model(), vec(change(), 1..12)), |(model, changes)| {
            let local = some_local(&model).into_iter().take(2).collect();
            let mut kept = Kept::of(model, local);
            for (name, pod) in changes {
                in_place.set(in_place.get() + usize::from(kept.pod(&name, pod.as_ref())));
                all.set(all.get() + 1);
                kept.is_as_from_nothing();
            }
            Ok(())
        })
        .unwrap();
    let (in_place, all) = (in_place.get(), all.get());
    assert!(in_place * 4 > all, "{in_place} of {all} in place: the law is hardly asked");
    assert!(in_place < all, "not one took another image");
}

#[test]
fn after_any_stream_of_pods_and_policies_an_image_is_as_one_made_from_nothing() {
    let pod = (select(&["blue", "red"][..]), select(&["a", "b", "c", "d"][..]));
    let pod = (pod, prop::option::weighted(0.7, endpoint())).prop_map(Ok);
    let policy = (any::<Index>(), any::<bool>()).prop_map(Err);
    let change = prop_oneof![1 => pod, 2 => policy];
    let (again, all) = (Cell::new(0), Cell::new(0));
    let config = Config { cases: 48, failure_persistence: None, ..Config::default() };
    TestRunner::new(config)
        .run(&(model(), vec(change, 1..12)), |(model, changes)| {
            let policies: Vec<_> =
                model.policies.iter().map(|(name, it)| (name.clone(), Arc::clone(it))).collect();
            let mut kept = Kept::of(model.clone(), some_local(&model));
            for change in changes {
                match change {
                    Ok(((namespace, name), pod)) => {
                        kept.pod(&ObjectName::new(namespace, name), pod.as_ref());
                    }
                    Err(_) if policies.is_empty() => {}
                    // An existing policy is removed, or its directions are exchanged. A removed policy is added again.
                    Err((at, turned)) => {
                        let (name, policy) = at.get(&policies);
                        let is_there = kept.model.policies.contains_key(name);
                        let mut next = Policy::clone(policy);
                        if turned {
                            let rules = [&mut next.ingress, &mut next.egress];
                            rules.into_iter().flatten().for_each(|rules| rules.reverse());
                        }
                        let next = Some(next).filter(|_| turned || !is_there);
                        again.set(again.get() + usize::from(kept.policy(name, next)));
                        all.set(all.get() + 1);
                    }
                }
                kept.is_as_from_nothing();
            }
            Ok(())
        })
        .unwrap();
    let (again, all) = (again.get(), all.get());
    assert!(again * 4 > all, "{again} of {all} used again: the law is hardly asked");
}

#[test]
fn a_policy_that_asks_nothing_new_uses_addresses_again() {
    let mut kept = cluster();
    let Draft(name, another) =
        kubernetes("shop/another").selects("app == 'db'").ingress([deny()]).egress([]);
    assert!(kept.policy(&name, Some(another)));
    kept.is_as_from_nothing();
    assert!(kept.pod(&super::build::name("shop/web2"), Some(&pod("app=web", "10.0.1.9"))));
    assert!(kept.policy(&name, None));
    kept.is_as_from_nothing();
    // This CIDR was not used by any policy before.
    let Draft(name, asks) = kubernetes("shop/asks")
        .selects("app == 'db'")
        .ingress([allow().from([nets("10.0.0.0/8")])]);
    assert!(!kept.policy(&name, Some(asks)));
    kept.is_as_from_nothing();
}

impl Kept {
    /// Adds a policy to the model. Returns whether a list without this policy stays the same.
    fn asks(&mut self, policy: Draft) -> bool {
        let before = self.lists();
        let Draft(name, policy) = policy;
        self.policy(&name, Some(policy));
        self.is_as_from_nothing();
        self.lists().iter().any(|list| before.iter().any(|other| Arc::ptr_eq(list, other)))
    }

    pub(super) fn lists(&self) -> Vec<Arc<List>> {
        self.image.chains.iter().map(|chain| Arc::clone(&chain.list)).collect()
    }
}

#[test]
fn a_policy_that_asks_for_another_label_leaves_others_alone() {
    let from = |selector: &str| {
        kubernetes("shop/asks").selects("app == 'db'").ingress([allow().from([who(selector)])])
    };
    let mut kept = cluster();
    kept.model.network_sets.insert(name("/set"), Arc::new(set("kind=set", "192.0.2.1 10.0.1.1")));
    kept.model.network_sets.insert(name("/wide"), Arc::new(set("kind=wide", "192.0.2.0/24")));
    kept.image = kept.compiler.compile(&kept.model, &kept.local);
    // The selectors are true of no member, of one on another node, of a local pod, of two with the same address, and of
    // all.
    for selector in ["new == 'x'", "app == 'cache'", "app == 'db'", "kind == 'set'", "has(app)"] {
        assert!(kept.asks(from(selector)), "{selector}");
    }
    assert!(kept.pod(&name("shop/web2"), Some(&pod("app=web kind=set", "10.0.1.9"))));
    kept.is_as_from_nothing();
    for selector in ["kind == 'set' && has(app)", "!has(app)"] {
        assert!(kept.asks(from(selector)), "{selector}");
    }
}

const SELECTORS: &[&str] = &[
    "app == 'x'",
    "app == 'y'",
    "tier == 'x'",
    "has(tier) && app != 'x'",
    "!has(app)",
    "pcns.app == 'x'",
    "pcsa.tier == 'x' || app == 'y'",
    "projectcalico.org/namespace == 'red'",
    "projectcalico.org/namespace == 'blue' && app in {'x', 'y'}",
    "app starts with 'x'",
    "nobody == 'x'",
];

#[test]
fn after_any_stream_of_pods_and_policies_that_ask_anew_an_image_is_as_one_made_from_nothing() {
    let pod = (select(&["blue", "red"][..]), select(&["a", "b", "c", "d"][..]));
    let pod = (pod, prop::option::weighted(0.7, endpoint())).prop_map(Ok);
    let names = select(&["blue/p", "red/q", "blue/r"][..]);
    let policy = (names, select(SELECTORS), prop::option::weighted(0.8, select(SELECTORS)));
    let change = prop_oneof![1 => pod, 2 => policy.prop_map(Err)];
    let (answered, all) = (Cell::new(0), Cell::new(0));
    let config = Config { cases: 64, failure_persistence: None, ..Config::default() };
    TestRunner::new(config)
        .run(&(model(), vec(change, 1..12)), |(model, changes)| {
            let local = some_local(&model);
            let mut kept = Kept::of(model, local);
            for change in changes {
                match change {
                    Ok(((namespace, name), pod)) => {
                        kept.pod(&ObjectName::new(namespace, name), pod.as_ref());
                    }
                    Err((name, selects, from)) => {
                        let rules = from.map(|from| allow().from([who(from)]));
                        let draft = kubernetes(name).selects(selects);
                        let Draft(name, mut policy) = draft.ingress([]).egress([deny()]);
                        policy.ingress = Some(rules.into_iter().collect());
                        let before = kept.lists();
                        let stood = kept.policy(&name, from.map(|_| policy));
                        let is_kept = |list| before.iter().any(|other| Arc::ptr_eq(other, list));
                        let keeps = !stood && kept.lists().iter().any(is_kept);
                        answered.set(answered.get() + usize::from(keeps));
                        all.set(all.get() + 1);
                    }
                }
                kept.is_as_from_nothing();
            }
            Ok(())
        })
        .unwrap();
    let (answered, all) = (answered.get(), all.get());
    assert!(answered * 100 > all, "{answered} of {all} answered: the law is hardly asked");
}

#[test]
fn a_policy_that_changes_leaves_other_lists_alone() {
    let mut kept = cluster();
    let db = name("shop/db");
    let lists = |kept: &Kept| {
        let chains = Direction::ALL.map(|direction| kept.image.chain(&db, direction).unwrap());
        chains.map(|chain| Arc::clone(&kept.image.describe(chain).unwrap().list))
    };
    let before = lists(&kept);
    let Draft(policy, drops) = kubernetes("shop/db").selects("app == 'db'").ingress([deny()]);
    assert!(kept.policy(&policy, Some(drops)));
    kept.is_as_from_nothing();
    let [ingress, egress] = lists(&kept);
    assert!(!Arc::ptr_eq(&before[0], &ingress) && Arc::ptr_eq(&before[1], &egress));
}

#[test]
fn what_the_end_of_a_tier_of_staged_policies_would_deny_follows_every_change() {
    let mut kept = cluster();
    let db = name("shop/db");
    let tier = |default_action| Tier { order: Order::new(1.0).unwrap(), default_action };
    let set_tier = |kept: &mut Kept, action| {
        kept.model.tiers.insert("kept".to_owned(), tier(action));
        kept.image = kept.compiler.compile(&kept.model, &kept.local);
        kept.is_as_from_nothing();
    };
    let set = |kept: &mut Kept, Draft(name, says): Draft, there: bool| {
        kept.policy(&name, there.then_some(says));
        kept.is_as_from_nothing();
    };
    // The staged policies whose tier's end is noted.
    let ends = |kept: &Kept| {
        let chain = kept.image.chain(&db, Direction::Ingress).unwrap();
        let [own, peer] = ["10.0.0.1", "203.0.113.1"].map(|it| kept.image.identity(ip(it)));
        let path = kept.image.classify(chain, own, peer, Transport::bare(6));
        let noted = &kept.image.path(path).decision.noted;
        let ends = noted.iter().filter(|it| it.rule().is_none());
        ends.map(|it| it.policy().name.clone()).collect::<Vec<_>>().join(" ")
    };
    let staged = |name| staged(name).tier("kept");
    set_tier(&mut kept, DefaultAction::Deny);
    set(&mut kept, staged("a").ingress([log()]), true);
    assert_eq!(ends(&kept), "a");
    // The tier exists by now, and nothing else about it changes.
    set(&mut kept, staged("b").ingress([]), true);
    assert_eq!(ends(&kept), "a b");
    set(&mut kept, staged("b").ingress([allow()]), true);
    assert_eq!(ends(&kept), "a");
    set(&mut kept, staged("b").ingress([]), true);
    assert_eq!(ends(&kept), "a b");
    set(&mut kept, global("c").tier("kept").ingress([allow()]), true);
    assert_eq!(ends(&kept), "");
    set(&mut kept, staged("b").ingress([log()]), true);
    assert_eq!(ends(&kept), "");
    set(&mut kept, global("c").tier("kept").ingress([allow()]), false);
    assert_eq!(ends(&kept), "a b");
    set_tier(&mut kept, DefaultAction::Pass);
    assert_eq!(ends(&kept), "");
    set_tier(&mut kept, DefaultAction::Deny);
    set(&mut kept, staged("a").ingress([]), false);
    assert_eq!(ends(&kept), "b");
    set(&mut kept, staged("b").ingress([]), false);
    assert_eq!(ends(&kept), "");
}

#[test]
fn rows_that_nobody_uses_any_more_are_left_out() {
    let mut kept = cluster();
    let in_use = kept.image.counts().rows;
    for port in 1..100 {
        let allows = allow().tcp(&port.to_string()).from([who("app == 'web'")]);
        let Draft(name, policy) = kubernetes("shop/db").selects("app == 'db'").ingress([allows]);
        assert!(kept.policy(&name, Some(policy)));
        kept.is_as_from_nothing();
        assert!(kept.image.counts().rows < in_use * 4 + 20, "{:?}", kept.image.counts());
    }
}

#[test]
fn what_did_not_fit_fits_again_when_a_policy_says_less() {
    let budget = 2048;
    let mut kept = cluster();
    kept.compiler = Compiler::with_budget(budget);
    let says = |rules: u16| {
        let rule = |port: u16| allow().tcp(&(port * 2).to_string()).from([who("app == 'web'")]);
        let Draft(name, mut policy) = kubernetes("shop/db").selects("app == 'db'").ingress([]);
        policy.ingress = Some((1..=rules).map(rule).collect());
        (name, policy)
    };
    for (rules, fits) in [(1, true), (500, false), (1, true)] {
        let (name, policy) = says(rules);
        kept.policy(&name, Some(policy));
        assert_eq!(kept.image.counts().linear == 0, fits, "{rules}");
        let tables = &kept.compiler.tables;
        assert!(tables.partitions.bytes() + tables.builder.bytes() <= budget || !fits, "{rules}");
        assert!(tables.partitions.bytes() == 0 || fits, "{rules}");
    }
    kept.is_as_from_nothing();
}

#[test]
fn what_changed_behind_the_compilers_back_is_made_anew() {
    let mut kept = cluster();
    let name = PolicyName::new(PolicyKind::Kubernetes, "shop", "db");
    kept.model.namespaces.insert("shop".to_owned(), labels("team=a"));
    assert!(!kept.policy(&name, None));
    assert!(kept.policy(&name, None));
    kept.is_as_from_nothing();
}

#[test]
fn after_any_stream_of_pods_policies_and_attachments_an_image_is_as_one_made_from_nothing() {
    let names = || {
        let name = (select(&["blue", "red"][..]), select(&["a", "b", "c", "d"][..]));
        name.prop_map(|(namespace, name)| ObjectName::new(namespace, name))
    };
    let some = prop_oneof![
        (names(), prop::option::weighted(0.8, endpoint()), any::<bool>()).prop_map(Change::Pod),
        (names(), any::<bool>()).prop_map(Change::Local),
        any::<Index>().prop_map(Change::Policy),
    ];
    let (kept_lists, all) = (Cell::new(0), Cell::new(0));
    let config = Config { cases: 64, failure_persistence: None, ..Config::default() };
    TestRunner::new(config)
        .run(&(model(), vec(some, 1..12)), |(model, changes)| {
            let policies: Vec<_> =
                model.policies.iter().map(|(name, it)| (name.clone(), Arc::clone(it))).collect();
            let local = some_local(&model);
            let mut kept = Kept::of(model, local);
            // Several changes are collected for one image.
            let mut is_behind = false;
            for change in changes {
                let before = kept.lists();
                let attaches = matches!(change, Change::Local(_));
                let is_pod = matches!(change, Change::Pod(_));
                match change {
                    Change::Pod((name, pod, stays_behind)) => {
                        is_behind |= !kept.change(&name, pod.as_ref(), !is_behind);
                        if is_behind && stays_behind {
                            continue;
                        }
                    }
                    Change::Local((name, true)) => _ = kept.local.insert(name),
                    Change::Local((name, false)) => _ = kept.local.remove(&name),
                    Change::Policy(_) if policies.is_empty() => {}
                    Change::Policy(at) => {
                        let (name, policy) = at.get(&policies);
                        if kept.model.policies.remove(name).is_none() {
                            kept.model.policies.insert(name.clone(), Arc::clone(policy));
                        }
                    }
                }
                if is_behind || !is_pod {
                    kept.image = kept.compiler.compile(&kept.model, &kept.local);
                    is_behind = false;
                }
                kept.is_as_from_nothing();
                let is_kept = |list| before.iter().any(|other| Arc::ptr_eq(other, list));
                let keeps = attaches && kept.lists().iter().any(is_kept);
                kept_lists.set(kept_lists.get() + usize::from(keeps));
                all.set(all.get() + usize::from(attaches));
            }
            Ok(())
        })
        .unwrap();
    let (kept_lists, all) = (kept_lists.get(), all.get());
    assert!(kept_lists * 4 > all, "{kept_lists} of {all} kept: the law is hardly asked");
}

/// A change of the law above.
#[derive(Debug, Clone)]
enum Change {
    /// A pod changes or is removed. `true` means that it does not get its own image, even if it needs one.
    Pod((ObjectName, Option<Endpoint>, bool)),
    /// A pod is attached, or detached.
    Local((ObjectName, bool)),
    /// A policy is removed or added again.
    Policy(Index),
}

#[test]
fn what_only_local_ends_ask_follows_a_pod_that_is_attached_and_detached() {
    let to_web = |entity| {
        let mut rule = allow().tcp("80");
        rule.destination.entities = Some(vec![entity]);
        rule
    };
    let cluster = Cluster::new()
        .namespace("shop", "")
        .pod("shop/db", "app=db", "10.0.0.1")
        .pod("shop/web", "app=web", "10.0.0.2")
        .policy(global("web").ingress([to_web(who("app == 'web'"))]));
    let mut kept = Kept::of(cluster.model, BTreeSet::from([name("shop/db")]));
    let list = kept.lists();
    for _ in 0..2 {
        kept.local.insert(name("shop/web"));
        kept.image = kept.compiler.compile(&kept.model, &kept.local);
        kept.is_as_from_nothing();
        let chain = |pod| kept.image.chain(&name(pod), Direction::Ingress).unwrap();
        assert_ne!(chain("shop/web"), chain("shop/db"), "the rule is about one of them");
        assert!(kept.lists().iter().all(|it| list.iter().any(|other| Arc::ptr_eq(it, other))));
        kept.local.remove(&name("shop/web"));
        kept.image = kept.compiler.compile(&kept.model, &kept.local);
        kept.is_as_from_nothing();
    }
}

/// A local pod that accepts web's packets, and pods on other nodes.
pub(super) fn cluster() -> Kept {
    let cluster = Cluster::new()
        .namespace("shop", "")
        .pod("shop/db", "app=db", "10.0.0.1")
        .pod("shop/web", "app=web", "10.0.1.1")
        .pod_with("shop/cache", "app=cache", "10.0.1.2", "http=tcp/80")
        .policy(
            kubernetes("shop/db")
                .selects("app == 'db'")
                .ingress([allow().from([who("app == 'web'")])]),
        )
        .policy(
            kubernetes("shop/out")
                .selects("app == 'db'")
                .egress([allow().tcp("http").to([who("app == 'cache'")])]),
        );
    Kept::of(cluster.model, BTreeSet::from([name("shop/db")]))
}

pub(super) fn set(text: &str, nets: &str) -> NetworkSet {
    let net = |net: &str| net.parse().unwrap_or_else(|_| IpNet::from(ip(net)));
    let nets = nets.split_whitespace().map(net).collect();
    NetworkSet { labels: labels(text), nets }
}

pub(super) fn pod(text: &str, addresses: &str) -> Endpoint {
    let addresses = addresses.split_whitespace().map(ip).collect();
    Endpoint { labels: labels(text).into(), addresses, ..Endpoint::default() }
}

#[test]
fn a_pod_elsewhere_comes_moves_and_goes_in_place() {
    let mut kept = cluster();
    let it = name("shop/web2");
    let web = kept.image.identity(ip("10.0.1.1"));
    let unlabelled = kept.image.identity(ip("10.0.1.9"));
    for (labels, addresses) in [
        ("app=web", "10.0.1.9"),
        ("app=web", "10.9.9.9 10.0.1.9"),
        ("app=web", "10.9.9.9"),
        ("app=other", "10.9.9.9"),
        ("app=web", "10.9.9.9"),
    ] {
        assert!(kept.pod(&it, Some(&pod(labels, addresses))), "{labels} {addresses}");
        kept.is_as_from_nothing();
        for address in ["10.0.1.9", "10.9.9.9"] {
            let is = labels == "app=web" && addresses.contains(address);
            let expected = if is { web } else { unlabelled };
            assert_eq!(
                kept.image.identity(ip(address)),
                expected,
                "{labels} {addresses}: {address}"
            );
        }
    }
    assert!(kept.pod(&it, None));
    kept.is_as_from_nothing();
    assert_eq!(kept.image.identity(ip("10.9.9.9")), unlabelled);
}

#[test]
fn of_two_alike_at_one_address_the_other_stays() {
    let mut kept = cluster();
    assert!(kept.pod(&name("shop/web2"), Some(&pod("app=web", "10.0.1.1"))));
    assert!(kept.pod(&name("shop/web"), None));
    kept.is_as_from_nothing();
    assert!(kept.pod(&name("shop/web2"), None));
    kept.is_as_from_nothing();
}

#[test]
fn what_takes_another_image_is_refused() {
    let refused = |change: &str, pod: &Endpoint| {
        let mut kept = cluster();
        assert!(!kept.pod(&name(change), Some(pod)), "{change}");
        kept.is_as_from_nothing();
    };
    refused("shop/db", &pod("app=db", "10.0.0.2"));
    refused("shop/new", &pod("app=web", "10.0.0.1"));
    refused("shop/new", &pod("app=web", "fd00::1"));
    // No other pod is a cache with http at port 8080.
    let http = NamedPort { name: "http".to_owned(), protocol: Protocol::Tcp, port: 8080 };
    let cache = pod("app=cache", "10.0.1.3");
    refused("shop/new", &Endpoint { named_ports: BTreeSet::from([http]), ..cache });
    // No other pod is a cache without http.
    refused("shop/new", &pod("app=cache", "10.0.1.3"));
}

#[test]
fn a_port_that_nobody_names_any_more_takes_another_image() {
    let mut kept = cluster();
    let http = NamedPort { name: "http".to_owned(), protocol: Protocol::Tcp, port: 80 };
    let cache = pod("app=cache", "10.0.1.3");
    let another = Endpoint { named_ports: BTreeSet::from([http]), ..cache };
    assert!(kept.pod(&name("shop/another"), Some(&another)));
    assert!(kept.pod(&name("shop/cache"), None));
    kept.is_as_from_nothing();
    assert!(!kept.pod(&name("shop/another"), None));
    kept.is_as_from_nothing();
}

#[test]
fn an_image_that_is_not_the_last_is_left_alone() {
    let mut kept = cluster();
    let older = std::mem::replace(&mut kept.image, kept.compiler.compile(&kept.model, &kept.local));
    let (it, web) = (name("shop/web2"), pod("app=web", "10.0.1.9"));
    let change = PodChange { name: &it, before: None, after: Some(&web) };
    assert!(!kept.compiler.update(&older, &kept.model, change));
    assert!(!kept.compiler.update(&kept.image, &kept.model, change), "until another is made");
}

#[test]
fn what_no_rule_asks_any_more_is_not_part_of_what_is_true_of_each_address_of_a_pod() {
    let mut from_red = allow();
    from_red.source.entities = Some(vec![who("projectcalico.org/namespace == 'red'")]);
    // One of its two addresses is in a set of namespace red.
    let cluster = Cluster::new()
        .pod("blue/a", "", "fd00::3 fd00::4")
        .network_set("red/n", "", "fd00::/126")
        .policy(
            kubernetes("blue/p")
                .selects("projectcalico.org/namespace == 'blue'")
                .egress([from_red]),
        )
        .policy(global("p").egress([allow().to([nets("0.0.0.0/0 ::/0")])]));
    let mut kept = Kept::of(cluster.model, BTreeSet::from([name("blue/a")]));
    assert!(kept.policy(&PolicyName::new(PolicyKind::Global, "", "p"), None), "made anew");
    kept.is_as_from_nothing();
}
