use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use manx_datastore::memory::MemoryWrites;
use manx_datastore::{ServedKey, ServedKind};
use manx_objects::object::{Kind, PoolUse};
use manx_policy_compiler::selector::Selector;
use serde_json::{Value, json};

use super::ledger::{Ledger, Subject, release_strays};
use super::reconcile::{Reconciled, reconcile};
use super::terms::Terms;
use super::wish::AssignIps;
use crate::affinity::Owner;
use crate::assign::{Error, Request, assign};
use crate::block::{Attributes, Rest, Time};
use crate::check::check;
use crate::config::Config;
use crate::garbage::{Garbage, Look, Settings, take};
use crate::laws::now_or_never as done;
use crate::memory::pool;
use crate::objects::Objects;
use crate::pool::Pool;
use crate::records::Records;
use crate::store::StoreError;

const NOW: Time = Time(1_764_378_000_000_000_000);

/// A cluster with the namespaces `shop` and `other`.
struct World {
    objects: Objects<MemoryWrites>,
    pools: Vec<Pool>,
    ledger: Ledger,
    most: Option<usize>,
    uids: u32,
}

fn balanced(cidr: &str, block_size: u8) -> Pool {
    Pool { uses: vec![PoolUse::LoadBalancer], ..pool(cidr, block_size) }
}

fn key(name: &str) -> ServedKey {
    let (namespace, name) = name.split_once('/').unwrap_or(("shop", name));
    ServedKey::new(Kind::Service, namespace, name)
}

impl World {
    fn new(version: &'static str, pools: &[Pool]) -> Self {
        let writes = MemoryWrites::new(version);
        for name in ["shop", "other"] {
            let labels = json!({ "kubernetes.io/metadata.name": name });
            let namespace = json!({ "metadata": { "labels": labels } });
            writes.put(ServedKey::new(Kind::Namespace, "", name), namespace);
        }
        let objects = Objects::new(writes);
        Self { objects, pools: pools.to_vec(), ledger: Ledger::default(), most: None, uids: 0 }
    }

    /// Creates a Service of type `LoadBalancer` with these annotations. An existing one with this name is replaced by a
    /// new object.
    fn make(&mut self, name: &str, annotations: &Value) {
        self.uids += 1;
        let uid = format!("uid-{}", self.uids);
        self.put(
            name,
            json!({
                "metadata": { "uid": uid, "annotations": annotations },
                "spec": { "type": "LoadBalancer", "ipFamilies": ["IPv4"] },
            }),
        );
    }

    fn put(&self, name: &str, object: Value) {
        self.objects.writes().put(key(name), object);
    }

    fn change(&self, name: &str, change: impl FnOnce(&mut Value)) {
        let mut object = self.object(name);
        change(&mut object);
        self.put(name, object);
    }

    fn annotate(&self, name: &str, annotations: &Value) {
        self.change(name, |it| it["metadata"]["annotations"] = annotations.clone());
    }

    fn object(&self, name: &str) -> Value {
        self.objects.writes().object(&key(name)).unwrap()
    }

    fn terms(&self) -> Result<Terms, StoreError> {
        done(Terms::read(&self.objects, self.pools.clone(), None, self.most))
    }

    fn try_reconcile(&mut self, subject: &Subject) -> Result<Reconciled, Error> {
        let terms = self.terms().unwrap();
        done(reconcile(&self.objects, subject, &terms, &mut self.ledger, NOW))
    }

    fn reconcile(&mut self, name: &str) -> Reconciled {
        let subject = Subject::of(&self.object(name));
        let reconciled = self.try_reconcile(&subject).unwrap();
        let again = self.try_reconcile(&subject).unwrap();
        let quiet = Reconciled { told: vec![], released: vec![], ..reconciled.clone() };
        let without = |it: Reconciled| Reconciled { metadata: None, ..it };
        assert_eq!(without(again), without(quiet), "a second time changes nothing");
        reconciled
    }

    /// Reconciles a Service and returns its trouble.
    fn trouble(&mut self, name: &str) -> String {
        self.reconcile(name).trouble.map(|it| it.to_string()).unwrap_or_default()
    }

    fn remove(&mut self, name: &str) -> Reconciled {
        let subject = Subject::of(&self.object(name));
        self.objects.writes().remove(&key(name));
        self.try_reconcile(&subject).unwrap()
    }

    /// Returns the addresses in the status of a Service.
    fn status(&self, name: &str) -> Vec<String> {
        let object = self.object(name);
        let entries = object["status"]["loadBalancer"]["ingress"].as_array().cloned();
        let text = |it: Value| it["ip"].as_str().or(it["hostname"].as_str()).unwrap().to_owned();
        entries.unwrap_or_default().into_iter().map(text).collect()
    }

    /// Returns the allocated addresses, with the Services in their attributes.
    fn allocated(&self) -> Vec<(String, String)> {
        let records = done(Records::read(&self.objects)).unwrap();
        let users = done(crate::garbage::UserSource::all(&self.objects)).unwrap();
        let all = records.allocated(&users).into_iter();
        let all = all.filter(|it| it.allocation.released_at.is_none());
        all.map(|it| (it.address.to_string(), crate::block::describe(it.allocation))).collect()
    }

    fn is_sound(&self) {
        let records = done(Records::read(&self.objects)).unwrap();
        let users = done(crate::garbage::UserSource::all(&self.objects)).unwrap();
        assert_eq!(check(&records, &self.pools, &users).findings, []);
    }
}

fn ips(texts: &[&str]) -> Vec<IpAddr> {
    texts.iter().map(|it| it.parse().unwrap()).collect()
}

#[test]
fn a_service_gets_an_address_and_gives_it_back_in_both_versions_of_the_api() {
    for version in ["crd.projectcalico.org/v1", "projectcalico.org/v3"] {
        let mut world = World::new(version, &[balanced("192.0.2.0/30", 30)]);
        world.make("web", &json!({}));
        let reconciled = world.reconcile("web");
        assert_eq!(reconciled.has, reconciled.told);
        assert_eq!(world.status("web"), ["192.0.2.0"]);
        let expected = ("192.0.2.0".to_owned(), "Service shop/web".to_owned());
        assert_eq!(world.allocated(), [expected]);
        world.is_sound();
        let all = world.objects.writes().objects();
        let affinity = ServedKey::new(Kind::BlockAffinity, "", "load-balancer-192-0-2-0-30");
        let affinity = &all[&affinity]["spec"];
        assert_eq!(
            (&affinity["type"], &affinity["node"]),
            (&json!("virtual"), &json!("load-balancer"))
        );
        assert_eq!(affinity["state"], "confirmed");
        let block = &all[&ServedKey::new(ServedKind::IpamBlock, "", "192-0-2-0-30")]["spec"];
        assert_eq!(block["affinity"], "virtual:load-balancer");
        let attribute = &block["attributes"][0];
        let owner = &attribute["secondary"];
        assert_eq!(
            (&owner["namespace"], &owner["service"], &owner["type"]),
            (&json!("shop"), &json!("web"), &json!("LoadBalancer"))
        );
        assert!(attribute["handle_id"].as_str().unwrap().starts_with("lb-"));

        let released = world.remove("web").released;
        assert_eq!(released, ips(&["192.0.2.0"]));
        assert_eq!(world.allocated(), []);
        let left = world.objects.writes().objects();
        assert!(!left.keys().any(|key| key.kind == ServedKind::IpamHandle));
        assert!(world.ledger.subjects().next().is_none());
        world.is_sound();
    }
}

#[test]
fn a_service_that_is_made_anew_is_another_one() {
    let mut world = World::new("projectcalico.org/v3", &[balanced("192.0.2.0/30", 30)]);
    world.make("web", &json!({}));
    let first = Subject::of(&world.object("web"));
    world.reconcile("web");
    world.make("web", &json!({}));
    assert_eq!(world.reconcile("web").has, ips(&["192.0.2.1"]), "the first one is not free yet");
    assert_eq!(world.try_reconcile(&first).unwrap().released, ips(&["192.0.2.0"]));
    assert_eq!(world.status("web"), ["192.0.2.1"]);
    assert_eq!(world.allocated().len(), 1);
    world.is_sound();
}

#[test]
fn a_named_address_is_given_or_refused_with_the_reason() {
    let pools = [balanced("192.0.2.0/29", 30), balanced("fd00:1::/124", 126)];
    let mut world = World::new("projectcalico.org/v3", &pools);
    let node =
        json!({ "status": { "addresses": [{ "type": "InternalIP", "address": "192.0.2.6" }] } });
    world.objects.writes().put(ServedKey::new(Kind::Node, "", "n1"), node);
    let named =
        |address: &str| json!({ "projectcalico.org/loadBalancerIPs": format!("[\"{address}\"]") });
    world.make("web", &named("192.0.2.5"));
    assert_eq!(world.reconcile("web").has, ips(&["192.0.2.5"]));
    world.make("other/thief", &named("192.0.2.5"));
    assert_eq!(world.trouble("other/thief"), "address 192.0.2.5 is taken by Service shop/web");
    assert_eq!(world.status("other/thief"), [""; 0]);
    for (address, expected) in [
        ("192.0.2.6", "address 192.0.2.6 is that of Node n1: name another"),
        (
            "192.0.2.9",
            "address 192.0.2.9 lies in no IPPool that is for it: expected one with allowedUses [LoadBalancer] that is not \
             disabled, and whose namespaceSelector matches",
        ),
        (
            "fd00:1::1",
            "address fd00:1::1 is named, and the Service has no IPv6 cluster IP (spec.ipFamilies): name another",
        ),
        (
            "192.0.2",
            "annotation projectcalico.org/loadBalancerIPs of the Service: found \"[\\\"192.0.2\\\"]\", expected a JSON list \
             of addresses, as [\"10.65.0.7\"]",
        ),
    ] {
        world.annotate("other/thief", &named(address));
        assert_eq!(world.trouble("other/thief"), expected);
        // A request that cannot be met does not take the current address away.
        world.annotate("web", &named(address));
        assert_eq!(world.trouble("web"), expected);
        assert_eq!(world.status("web"), ["192.0.2.5"]);
    }
    world.annotate("web", &named("192.0.2.3"));
    let reconciled = world.reconcile("web");
    assert_eq!((reconciled.told, reconciled.released), (ips(&["192.0.2.3"]), ips(&["192.0.2.5"])));
    assert_eq!(world.status("web"), ["192.0.2.3"]);
    world.annotate("other/thief", &named("192.0.2.5"));
    assert_eq!(world.trouble("other/thief"), "");
    world.is_sound();
}

#[test]
fn pools_count_by_use_mode_name_and_namespace_and_a_named_one_too() {
    let of_shop = Selector::parse("kubernetes.io/metadata.name == 'shop'").unwrap();
    let named = |name: &str, pool: Pool| Pool { name: name.to_owned(), ..pool };
    let pools = [
        named("a-shop", Pool { namespaces: Some(of_shop), ..balanced("192.0.2.0/30", 30) }),
        named("b-manual", Pool { is_manual: true, ..balanced("192.0.2.16/30", 30) }),
        named("c-all", balanced("192.0.2.32/30", 30)),
        named("d-off", Pool { is_disabled: true, ..balanced("192.0.2.48/30", 30) }),
        named("pods", pool("10.65.0.0/26", 26)),
    ];
    let mut world = World::new("projectcalico.org/v3", &pools);
    let by_pool = |name: &str| json!({ "projectcalico.org/ipv4pools": format!("[\"{name}\"]") });
    for (name, annotations, expected) in [
        ("web", json!({}), "192.0.2.0"),
        ("other/web", json!({}), "192.0.2.32"),
        ("manual", by_pool("b-manual"), "192.0.2.16"),
        ("net", by_pool("192.0.2.32/30"), "192.0.2.33"),
    ] {
        world.make(name, &annotations);
        assert_eq!(world.trouble(name), "", "{name}");
        assert_eq!(world.status(name), [expected], "{name}");
    }
    for (name, pool) in [("x", "pods"), ("x", "d-off"), ("x", "none"), ("other/x", "a-shop")] {
        world.make(name, &by_pool(pool));
        let trouble = world.trouble(name);
        assert!(trouble.starts_with(&format!("the pool {pool:?} does not exist, ")), "{trouble}");
        assert_eq!(trouble.contains("a-shop ("), name == "x", "{trouble}");
        assert_eq!(world.status(name), [""; 0]);
    }
    let address = json!({ "projectcalico.org/loadBalancerIPs": "[\"192.0.2.2\"]" });
    world.make("other/x", &address);
    assert!(
        world.trouble("other/x").starts_with("address 192.0.2.2 lies in no IPPool that is for it")
    );
    // Without the annotation, the Service has no right to a manual pool.
    world.annotate("manual", &json!({}));
    assert_eq!(world.reconcile("manual").released, ips(&["192.0.2.16"]));
    assert_eq!(world.status("manual"), ["192.0.2.1"]);
    // Disabling a pool takes no address away, but removing the pool does.
    world.pools[2].is_disabled = true;
    assert!(world.reconcile("net").released.is_empty());
    world.pools.remove(2);
    assert_eq!(world.reconcile("net").released, ips(&["192.0.2.33"]));
    let reconciled = world.reconcile("other/web");
    assert_eq!(reconciled.released, ips(&["192.0.2.32"]));
    assert!(reconciled.trouble.unwrap().to_string().starts_with("no IPv4 IPPool is for it: "));
    assert_eq!(world.status("other/web"), [""; 0]);
    let terms = world.terms().unwrap();
    let rest = Rest { now: NOW, cooldown: std::time::Duration::ZERO };
    let strays = done(release_strays(&world.objects, |it| terms.has_block(it), rest)).unwrap();
    assert_eq!(strays, ["192.0.2.32/30".parse().unwrap()]);
    world.is_sound();
}

#[test]
fn families_are_those_of_the_cluster_ips() {
    let pools = [balanced("192.0.2.0/30", 30), balanced("fd00:1::/126", 126)];
    let mut world = World::new("projectcalico.org/v3", &pools);
    world.make("web", &json!({}));
    world.change("web", |it| it["spec"]["ipFamilies"] = json!(["IPv6", "IPv4"]));
    assert_eq!(world.reconcile("web").has.len(), 2);
    assert_eq!(world.status("web"), ["192.0.2.0", "fd00:1::"]);
    world.change("web", |it| it["spec"]["ipFamilies"] = json!(["IPv6"]));
    assert_eq!(world.reconcile("web").released, ips(&["192.0.2.0"]));
    assert_eq!(world.status("web"), ["fd00:1::"]);
    // If only one of two families is available, the Service gets an address of that family.
    world.pools.remove(1);
    world.make("both", &json!({}));
    world.change("both", |it| it["spec"]["ipFamilies"] = json!(["IPv4", "IPv6"]));
    assert!(world.trouble("both").starts_with("no IPv6 IPPool is for it"));
    assert_eq!(world.status("both").len(), 1);
    world.is_sound();
}

#[test]
fn what_is_not_ours_is_left_alone_and_what_was_ours_is_taken_back() {
    let mut world = World::new("projectcalico.org/v3", &[balanced("192.0.2.0/30", 30)]);
    let ingress = json!({ "loadBalancer": { "ingress": [{ "ip": "203.0.113.9" }, { "hostname": "a.example" }] } });
    for (name, class) in [("class", json!("example.com/lb")), ("web", Value::Null)] {
        world.make(name, &json!({}));
        world.change(name, |it| {
            it["spec"]["loadBalancerClass"] = class;
            it["status"] = ingress.clone();
        });
    }
    assert_eq!(
        world.reconcile("class"),
        Reconciled {
            metadata: Some(world.object("class")["metadata"].clone()),
            ..Reconciled::default()
        }
    );
    assert_eq!(world.status("class"), ["203.0.113.9", "a.example"]);
    world.reconcile("web");
    assert_eq!(world.status("web"), ["192.0.2.0"], "the status is this controller's");
    for change in [
        |it: &mut Value| it["spec"]["type"] = json!("ClusterIP"),
        |it: &mut Value| it["spec"]["loadBalancerClass"] = json!("example.com/lb"),
    ] {
        world.make("web", &json!({}));
        let had = world.reconcile("web").has;
        world.change("web", change);
        world.change("web", |it| {
            let entries = it["status"]["loadBalancer"]["ingress"].as_array_mut().unwrap();
            entries.push(json!({ "ip": "203.0.113.9" }));
        });
        assert_eq!(world.reconcile("web").released, had);
        assert_eq!(world.status("web"), ["203.0.113.9"]);
    }
    // If there is no pool at all, this is not reported, except for a Service that requests this controller.
    world.pools.clear();
    world.make("web", &json!({}));
    let reconciled = world.reconcile("web");
    assert!(reconciled.trouble.is_none() && reconciled.lacks, "it gets one when there is a pool");
    world.change("web", |it| it["spec"]["loadBalancerClass"] = json!("calico"));
    assert!(world.trouble("web").starts_with("no IPv4 IPPool is for it"));
}

#[test]
fn only_requested_services_get_addresses_if_the_cluster_says_so() {
    let mut world = World::new("projectcalico.org/v3", &[balanced("192.0.2.0/30", 30)]);
    world.make("web", &json!({}));
    world.reconcile("web");
    let configuration = ServedKey::new(ServedKind::KubeControllersConfiguration, "", "default");
    let say = |text: &str| json!({ "spec": { "controllers": { "loadBalancer": { "assignIPs": text } } } });
    world.objects.writes().put(configuration.clone(), say("RequestedServicesOnly"));
    assert_eq!(world.reconcile("web").released, ips(&["192.0.2.0"]));
    assert_eq!(world.status("web"), [""; 0]);
    world.change("web", |it| it["spec"]["loadBalancerClass"] = json!("calico"));
    assert_eq!(world.reconcile("web").has.len(), 1);
    let pools = world.pools.clone();
    let all = done(Terms::read(&world.objects, pools, Some(AssignIps::AllServices), None)).unwrap();
    assert_eq!(all.assigns, AssignIps::AllServices, "a setting of the command counts first");
    world.objects.writes().put(configuration, say("Some"));
    assert_eq!(
        world.terms().unwrap_err().to_string(),
        "KubeControllersConfiguration default is damaged: spec.controllers.loadBalancer.assignIPs: found \"Some\", expected \
         AllServices or RequestedServicesOnly"
    );
}

#[test]
fn a_status_without_the_address_gets_it_again_and_one_of_others_is_taken_over_if_it_is_free() {
    let mut world = World::new("projectcalico.org/v3", &[balanced("192.0.2.0/30", 30)]);
    world.make("web", &json!({}));
    world.reconcile("web");
    world.change("web", |it| it["status"] = json!({}));
    let reconciled = world.reconcile("web");
    assert_eq!((reconciled.told, reconciled.released), (ips(&["192.0.2.0"]), vec![]));
    assert_eq!(world.status("web"), ["192.0.2.0"]);
    // These statuses are as another controller has left them, or an administrator who has lost records.
    let named =
        |ip: &str| json!({ "loadBalancer": { "ingress": [{ "ip": ip, "ipMode": "VIP" }] } });
    world.make("free", &json!({}));
    world.change("free", |it| it["status"] = named("192.0.2.3"));
    assert_eq!(world.reconcile("free").has, ips(&["192.0.2.3"]));
    assert_eq!(world.object("free")["status"], named("192.0.2.3"), "it is as it was");
    world.make("taken", &json!({}));
    world.change("taken", |it| it["status"] = named("192.0.2.0"));
    assert_eq!(world.reconcile("taken").has, ips(&["192.0.2.1"]));
    assert_eq!(world.status("taken"), ["192.0.2.1"]);
    world.make("last", &json!({}));
    world.reconcile("last");
    world.make("none", &json!({}));
    world.change("none", |it| it["status"] = named("192.0.2.0"));
    assert_eq!(
        world.trouble("none"),
        "no free address in 192.0.2.0/30: add an IPPool, or delete Services that need none"
    );
    assert_eq!(world.status("none"), [""; 0], "the address is another Service's");
    world.is_sound();
}

#[test]
fn a_namespace_that_makes_many_services_leaves_the_others_their_addresses() {
    let mut world = World::new("projectcalico.org/v3", &[balanced("192.0.2.0/28", 29)]);
    world.most = Some(3);
    let names: Vec<String> = (0..20).map(|at| format!("web-{at}")).collect();
    for name in &names {
        world.make(name, &json!({}));
    }
    let with_address = names.iter().filter(|name| !world.reconcile(name).has.is_empty()).count();
    assert_eq!(with_address, 3);
    assert_eq!(
        world.trouble("web-19"),
        "the Services of namespace shop have 3 IPv4 addresses, as many as they may (--balancer-limit): delete one that needs \
         none"
    );
    let named = json!({ "projectcalico.org/loadBalancerIPs": "[\"192.0.2.9\"]" });
    world.annotate("web-19", &named);
    assert!(world.trouble("web-19").starts_with("the Services of namespace shop have 3"));
    world.make("other/web", &json!({}));
    assert_eq!(world.reconcile("other/web").has.len(), 1);
    // A Service with an address may change it, and a Service that is removed makes room for another one.
    world.annotate("web-0", &named);
    assert_eq!(world.reconcile("web-0").has, ips(&["192.0.2.9"]));
    world.remove("web-0");
    assert_eq!(world.trouble("web-19"), "");
    // A restarted controller counts in the same way.
    world.ledger = done(Ledger::read(&world.objects)).unwrap();
    assert!(world.trouble("web-18").starts_with("the Services of namespace shop have 3"));
    world.is_sound();
}

#[test]
fn the_pool_alone_is_the_bound_and_each_address_has_one_service() {
    // The pool has 32 blocks, which are more than a node may have.
    let mut world = World::new("crd.projectcalico.org/v1", &[balanced("192.0.2.0/27", 32)]);
    let mut seen = BTreeSet::new();
    for at in 0..33 {
        let name = format!("web-{at}");
        world.make(&name, &json!({}));
        let has = world.reconcile(&name).has;
        assert_eq!(has.is_empty(), at == 32, "{at}");
        assert!(has.into_iter().all(|address| seen.insert(address)));
    }
    assert_eq!(seen.len(), 32);
    world.is_sound();
}

#[test]
fn the_garbage_collector_leaves_services_their_addresses() {
    let mut world = World::new("projectcalico.org/v3", &[balanced("192.0.2.0/30", 30)]);
    world.make("web", &json!({}));
    world.reconcile("web");
    let before = world.allocated();
    let mut garbage = Garbage::default();
    let settings = Settings { grace: std::time::Duration::from_secs(10), limit: 100 };
    let rest = Rest { now: NOW, cooldown: std::time::Duration::ZERO };
    for round in 0..5_u64 {
        let look = done(Look::read(&world.objects, &world.objects)).unwrap();
        let at = std::time::Duration::from_secs(round * 100);
        for step in garbage.plan(&look, settings, at, rest).steps {
            done(take(&world.objects, &world.objects, &step, rest)).unwrap();
        }
    }
    assert_eq!(world.allocated(), before);
    assert_eq!(world.status("web"), ["192.0.2.0"]);
    world.is_sound();
}

#[test]
fn a_handle_of_another_is_never_released() {
    let mut world = World::new("projectcalico.org/v3", &[balanced("192.0.2.0/29", 29)]);
    world.make("web", &json!({}));
    world.reconcile("web");
    // In the blocks for load balancers, these addresses were allocated by hand or by an unknown program: they name no
    // Service, or have a handle of another form.
    let owner = Owner::load_balancer();
    let config = Config::default();
    let attributes = |pairs: &[(&str, &str)]| -> Attributes {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    };
    let full = [("namespace", "shop"), ("service", "gone"), ("type", "LoadBalancer")];
    for (handle, attributes) in [
        ("k8s-pod-network.1", attributes(&full)),
        ("lb-2", attributes(&full[..2])),
        ("lb-3", attributes(&[full[0], full[2]])),
        ("lb-4", attributes(&full)),
    ] {
        let request = Request {
            owner: &owner,
            handle,
            attributes: &attributes,
            reserved: &[],
            config: &config,
            now: NOW,
        };
        let pools: Vec<&Pool> = world.pools.iter().collect();
        done(assign(&world.objects, &pools, request)).unwrap();
    }
    world.ledger = done(Ledger::read(&world.objects)).unwrap();
    let subjects: Vec<Subject> = world.ledger.subjects().collect();
    let handles: BTreeMap<_, _> = subjects.iter().map(|it| (&it.name, &it.handle)).collect();
    assert_eq!(handles.len(), 2, "{handles:?}");
    assert_eq!(handles[&"gone".to_owned()], "lb-4");
    for subject in &subjects {
        let released = world.try_reconcile(subject).unwrap().released.len();
        assert_eq!(released, usize::from(subject.name == "gone"));
    }
    assert_eq!(world.allocated().len(), 4);
}
