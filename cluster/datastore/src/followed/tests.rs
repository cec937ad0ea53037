//! The effect of events on the objects, without a server.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use manx_objects::State;
use manx_objects::contents::{Changes, Contents};
use manx_objects::object::{Kind, Object, ObjectKey};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::Followed;
use super::event::{Event, Reason};
use super::faults::Stale;
use super::objects::Objects;
use super::reading::{self, Reading};
use super::server::Server;

const KINDS: [Kind; 3] = [Kind::Pod, Kind::NetworkPolicy, Kind::CalicoNetworkPolicy];
const SERVER: Server = Server { name: "the server", kinds: &KINDS };

fn no_objects() -> Objects {
    Objects::new(SERVER.name, &KINDS)
}

fn read(kind: Kind, mut object: Value) -> Reading {
    object["apiVersion"] = (*kind.api_versions().last().unwrap()).into();
    object["kind"] = kind.name().into();
    let key = reading::key(kind, &object);
    reading::read(&Arc::from("https://192.0.2.1:6443/"), key, object.to_string())
}

fn pod(name: &str, labels: &Value, extra: &Value) -> Reading {
    let metadata = json!({ "namespace": "shop", "name": name, "labels": labels });
    read(Kind::Pod, json!({ "metadata": metadata, "status": extra }))
}

fn annotated(name: &str, addresses: &str) -> Reading {
    let annotations = json!({ "cni.projectcalico.org/podIPs": addresses });
    let metadata = json!({ "namespace": "shop", "name": name, "annotations": annotations });
    read(Kind::Pod, json!({ "metadata": metadata }))
}

fn policy(name: &str, spec: &Value) -> Reading {
    let metadata = json!({ "namespace": "shop", "name": name });
    read(Kind::NetworkPolicy, json!({ "metadata": metadata, "spec": spec }))
}

fn calico(name: &str, stored: Option<&str>) -> Reading {
    let mut metadata = json!({ "namespace": "shop", "name": name });
    if let Some(stored) = stored {
        let text = json!({ "name": stored }).to_string();
        metadata["annotations"] = json!({ "projectcalico.org/metadata": text });
    }
    read(Kind::CalicoNetworkPolicy, json!({ "metadata": metadata, "spec": {} }))
}

fn listed(objects: &mut Objects, readings: &[Reading]) -> Option<Changes> {
    objects.apply(KINDS.map(|kind| Event::Listed {
        kind,
        readings: readings.iter().filter(|it| it.key.kind == kind).cloned().collect(),
    }))
}

fn keys(changes: Option<Changes>) -> Vec<String> {
    match changes {
        Some(Changes::Objects(objects)) => objects.keys().map(ToString::to_string).collect(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn it_is_in_sync_when_every_kind_was_listed_and_not_before() {
    let mut objects = no_objects();
    for kind in [Kind::Pod, Kind::NetworkPolicy] {
        objects.apply([Event::Listed { kind, readings: Vec::new() }]);
        assert!(!objects.contents.in_sync);
    }
    let kind = Kind::CalicoNetworkPolicy;
    let changes = objects.apply([Event::Listed { kind, readings: Vec::new() }]);
    assert_eq!(changes, Some(Changes::Everything));
    assert!(objects.contents.in_sync);
}

/// A tenant's object that changes all the time must not delay others. So the next turn takes all events that have
/// arrived, and returns each object once.
#[test]
fn a_neighbours_change_comes_with_all_that_came_before_it() {
    const CHURN: usize = 1000;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (mut followed, events) = Followed::new(SERVER, None);
        for kind in KINDS {
            events.send(Event::Listed { kind, readings: Vec::new() }).await.unwrap();
        }
        assert_eq!(followed.next().await, Changes::Everything);
        let changed = |name: &str, n: usize| {
            let status = json!({ "podIP": format!("10.0.{}.{}", n / 250, n % 250) });
            Event::Changed(Box::new(pod(name, &json!({}), &status)))
        };
        for n in 0..CHURN {
            events.send(changed("restless", n)).await.unwrap();
        }
        events.send(changed("neighbour", CHURN)).await.unwrap();
        let changes = followed.next().await;
        assert_eq!(keys(Some(changes)), ["Pod shop/neighbour", "Pod shop/restless"]);
    });
}

#[test]
fn pods_with_annotations_that_are_not_done_come_and_go_like_others_and_a_check_warns_of_them() {
    let name = "qos.projectcalico.org/ingressPacketRate";
    let metadata = json!({ "namespace": "shop", "name": "web", "annotations": { name: "100" } });
    let limited = read(Kind::Pod, json!({ "metadata": metadata, "spec": {} }));
    let mut objects = Objects::followed(SERVER);
    listed(&mut objects, &[]);
    let changes = objects.apply([Event::Changed(Box::new(limited.clone()))]);
    assert_eq!(keys(changes), ["Pod shop/web"]);
    assert_eq!(objects.contents.problems, []);
    let Some(Object::Pod(pod)) = objects.contents.valid(&limited.key) else { panic!("a pod") };
    assert_eq!(pod.not_done[0].0, "qos.projectcalico.org/");
    assert_eq!(keys(objects.apply([Event::Gone(limited.key.clone())])), ["Pod shop/web"]);

    let mut checked = no_objects();
    listed(&mut checked, &[limited]);
    let [problem] = &checked.contents.problems[..] else { panic!("one problem") };
    assert!(problem.summary().contains(name), "{problem}");
}

#[test]
fn a_text_that_is_known_makes_no_change() {
    let mut objects = no_objects();
    let before = pod("web", &json!({"app": "web"}), &json!({"podIP": "10.0.0.1"}));
    listed(&mut objects, std::slice::from_ref(&before));
    let fingerprint = objects.contents.fingerprint;
    assert_eq!(objects.apply([Event::Changed(Box::new(before))]), None);
    assert_eq!(objects.contents.fingerprint, fingerprint);
    let other = pod("web", &json!({"app": "db"}), &json!({"podIP": "10.0.0.1"}));
    assert_eq!(keys(objects.apply([Event::Changed(Box::new(other))])), ["Pod shop/web"]);
    assert_ne!(objects.contents.fingerprint, fingerprint);
}

#[test]
fn an_object_that_becomes_invalid_is_there_closed_and_said() {
    let mut objects = no_objects();
    listed(&mut objects, &[policy("p", &json!({ "podSelector": {} }))]);
    let wrong = policy("p", &json!({ "podSelector": {}, "policyTypes": ["Sideways"] }));
    let key = wrong.key.clone();
    assert_eq!(objects.apply([Event::Changed(Box::new(wrong))]), Some(Changes::Everything));
    assert!(matches!(objects.contents.objects[&key].state, State::Invalid(_)));
    insta::assert_snapshot!(objects.contents.problems[0].summary(), @r#"https://192.0.2.1:6443/: NetworkPolicy shop/p: spec.policyTypes[0]: found the string "Sideways", expected Ingress or Egress"#);
    assert_eq!(objects.apply([Event::Gone(key)]), Some(Changes::Everything));
    assert_eq!(objects.contents.problems, []);
    assert!(objects.contents.objects.is_empty());
}

#[test]
fn a_name_of_calicos_own_counts_and_two_objects_of_one_name_are_neither() {
    let mut objects = no_objects();
    listed(&mut objects, &[calico("default.a", Some("a"))]);
    let key = |name: &str| ObjectKey {
        kind: Kind::CalicoNetworkPolicy,
        namespace: "shop".to_owned(),
        name: name.to_owned(),
    };
    assert!(objects.contents.valid(&key("a")).is_some());
    assert!(objects.contents.valid(&key("default.a")).is_none());
    objects.apply([Event::Changed(Box::new(calico("default.b", Some("a"))))]);
    assert!(matches!(objects.contents.objects[&key("a")].state, State::Invalid(_)));
    // The name now belongs to its own object again.
    objects.apply([Event::Gone(key("default.b"))]);
    objects.apply([Event::Changed(Box::new(calico("default.a", None)))]);
    assert!(objects.contents.valid(&key("a")).is_none());
    assert!(objects.contents.valid(&key("default.a")).is_some());
}

#[test]
fn faults_make_stale_and_cost_no_object() {
    let mut objects = no_objects();
    listed(&mut objects, &[policy("p", &json!({ "podSelector": {} }))]);
    assert_eq!(objects.stale(), None);
    let at = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
    let fault =
        |kind, reason: &str| Event::Fault { kind, fault: Some((at, reason.to_owned().into())) };
    let pods = Some(Kind::Pod);
    assert_eq!(objects.apply([fault(None, "no answer"), fault(pods, "forbidden")]), None);
    assert_eq!(objects.stale(), Some(Stale { since: at, reason: "no answer".to_owned() }));
    assert!(objects.contents.in_sync);
    assert_eq!(objects.contents.objects.len(), 1);
    objects.apply([None, pods].map(|kind| Event::Fault { kind, fault: None }));
    assert_eq!(objects.stale(), None);
}

#[test]
fn stale_is_one_sentence_for_all_kinds_with_one_cause() {
    let all = Kind::ALL;
    let mut objects = Objects::new(SERVER.name, &all);
    let at = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
    let fault = |kind, reason: Reason| Event::Fault { kind, fault: Some((at, reason)) };
    let mut stale = |faults: Vec<Event>| {
        objects.apply(faults);
        objects.stale().unwrap().reason
    };
    let forbidden = |kind: Kind| Reason {
        text: format!("{} is forbidden: User \"manx-node\" cannot list it", kind.name()),
        cause: "User \"manx-node\" cannot list".to_owned(),
    };
    let text = stale(all.map(|kind| fault(Some(kind), forbidden(kind))).into());
    insta::assert_snapshot!(text, @r#"Namespace, Node, Pod and 32 more: User "manx-node" cannot list"#);
    let single =
        all[..5].iter().map(|kind| fault(Some(*kind), format!("no {}", kind.name()).into()));
    let text = stale(single.collect());
    insta::assert_snapshot!(text, @r#"Endpoints, EndpointSlice, ServiceCIDR and 27 more: User "manx-node" cannot list; Namespace: no Namespace; Node: no Node; and 3 other causes"#);
    assert_eq!(
        stale(vec![fault(None, "no answer for 4 s".to_owned().into())]),
        "no answer for 4 s"
    );
    assert!(objects.is_behind(Kind::Tier));
    let recovered = |kind: Kind| Event::Fault { kind: Some(kind), fault: None };
    objects.apply([Event::Fault { kind: None, fault: None }, recovered(Kind::Pod)]);
    assert!(!objects.is_behind(Kind::Pod) && objects.is_behind(Kind::Tier));
}

#[test]
fn a_state_from_disk_is_whole_and_stale_until_every_kind_was_listed() {
    let mut objects = no_objects();
    let (kept, gone) = (json!({ "podSelector": {} }), json!({ "podSelector": {}, "ingress": [] }));
    let at = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
    objects.restore(at, vec![policy("kept", &kept), policy("gone", &gone)]);
    assert!(objects.contents.in_sync);
    assert_eq!(objects.stale().unwrap().since, at);
    let changes = listed(&mut objects, &[policy("kept", &kept)]);
    assert_eq!(keys(changes), ["NetworkPolicy shop/gone"]);
    assert_eq!(objects.stale(), None);
}

#[test]
fn a_state_from_disk_brings_nothing_back_that_was_listed_meanwhile() {
    let mut objects = no_objects();
    let newer = policy("p", &json!({ "podSelector": {}, "policyTypes": ["Egress"] }));
    let (key, readings) = (newer.key.clone(), vec![newer.clone()]);
    objects.apply([Event::Listed { kind: Kind::NetworkPolicy, readings }]);
    let older = policy("p", &json!({ "podSelector": {} }));
    let deleted = policy("q", &json!({ "podSelector": {} }));
    let at = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
    let kept = pod("web", &json!({}), &json!({ "podIP": "10.0.0.1" }));
    objects.restore(at, vec![older, deleted.clone(), kept.clone()]);
    assert_eq!(objects.contents.objects[&key].state, newer.entry.unwrap().state);
    assert!(!objects.contents.objects.contains_key(&deleted.key));
    assert!(objects.contents.objects.contains_key(&kept.key), "pods were not listed");
    assert_eq!(objects.stale().unwrap().since, at);
}

#[test]
fn a_pod_has_the_addresses_of_its_node_until_its_object_says_which() {
    let mut objects = no_objects();
    let bare = || pod("web", &json!({ "app": "web" }), &json!({ "phase": "Pending" }));
    let key = bare().key;
    let addresses = |objects: &Objects| match objects.contents.valid(&key) {
        Some(Object::Pod(pod)) => pod.pod_ips.clone(),
        other => panic!("{other:?}"),
    };
    let own = vec!["10.0.0.5".parse().unwrap()];
    listed(&mut objects, &[bare()]);
    assert_eq!(keys(objects.assign(key.clone(), Some(own.clone()))), ["Pod shop/web"]);
    assert_eq!(addresses(&objects), own);
    assert_eq!(objects.assign(key.clone(), Some(own.clone())), None);
    // The label has changed, and the pod still has no address.
    let labelled = pod("web", &json!({ "app": "db" }), &json!({ "phase": "Pending" }));
    assert_eq!(keys(objects.apply([Event::Changed(Box::new(labelled))])), ["Pod shop/web"]);
    assert_eq!(addresses(&objects), own);
    let said = pod("web", &json!({ "app": "db" }), &json!({ "podIPs": [{ "ip": "10.0.0.6" }] }));
    objects.apply([Event::Changed(Box::new(said))]);
    assert_eq!(addresses(&objects), ["10.0.0.6".parse::<IpAddr>().unwrap()]);
    assert_eq!(objects.assign(key.clone(), None), None, "the object's own stay");
    objects.apply([Event::Changed(Box::new(bare()))]);
    assert_eq!(addresses(&objects), Vec::<IpAddr>::new());
    // The address is assigned before the object is known, and withdrawn before its status has any.
    objects.apply([Event::Gone(key.clone())]);
    assert_eq!(objects.assign(key.clone(), Some(own.clone())), None);
    objects.apply([Event::Changed(Box::new(bare()))]);
    assert_eq!(addresses(&objects), own);
    assert_eq!(keys(objects.assign(key.clone(), None)), ["Pod shop/web"]);
    assert_eq!(addresses(&objects), Vec::<IpAddr>::new());
}

#[test]
fn an_annotation_of_the_agent_leaves_a_pod_its_addresses_and_one_of_somebody_else_none() {
    let mut objects = no_objects();
    let bare = pod("web", &json!({}), &json!({ "phase": "Pending" }));
    let key = bare.key.clone();
    let own = vec!["10.0.0.5".parse().unwrap(), "fd00::5".parse().unwrap()];
    listed(&mut objects, &[bare]);
    objects.assign(key.clone(), Some(own.clone()));
    for (noted, is_own) in [
        ("10.0.0.5/32,fd00::5/128", true),
        ("10.0.0.5/32", true),
        ("10.0.0.6/32", false),
        ("10.0.0.5/32,fd00::6/128", false),
    ] {
        objects.apply([Event::Changed(Box::new(annotated("web", noted)))]);
        let Some(Object::Pod(pod)) = objects.contents.valid(&key) else { panic!("{noted}") };
        assert_eq!(pod.pod_ips == own, is_own, "{noted}");
        assert_eq!(pod.pod_ips.is_empty(), !is_own, "{noted}");
    }
}

/// A step in the life of a server.
#[derive(Debug, Clone)]
enum Step {
    Put(Box<Reading>),
    Delete(ObjectKey),
    /// All objects are listed again.
    List,
}

fn any_reading() -> impl Strategy<Value = Reading> {
    let name = prop::sample::select(vec!["a", "b", "c"]);
    let variant = 0..3_usize;
    (name, variant, 0..3_usize).prop_map(|(name, variant, kind)| match kind {
        0 => {
            let extra = [json!({}), json!({"podIP": "10.0.0.1"}), json!({"podIP": "nonsense"})];
            pod(name, &json!({ "app": name }), &extra[variant])
        }
        1 => {
            let egress = json!({ "podSelector": {}, "policyTypes": ["Egress"] });
            policy(name, &[json!({ "podSelector": {} }), egress, json!({})][variant])
        }
        _ => calico(name, [None, Some("a"), Some("z")][variant]),
    })
}

fn any_steps() -> impl Strategy<Value = Vec<Vec<Step>>> {
    let step = prop_oneof![
        4 => any_reading().prop_map(|reading| Step::Put(Box::new(reading))),
        2 => any_reading().prop_map(|reading| Step::Delete(reading.key)),
        1 => Just(Step::List),
    ];
    prop::collection::vec(prop::collection::vec(step, 1..4), 1..12)
}

proptest! {
    /// Law: events lead to the same result as a list of the same objects, and the reported changes are exactly the
    /// differences.
    #[test]
    fn events_and_lists_agree_and_changes_are_exact(bursts in any_steps()) {
        let mut at_server = BTreeMap::<ObjectKey, Reading>::new();
        let mut objects = no_objects();
        listed(&mut objects, &[]);
        let mut seen = Contents::clone(&objects.contents);
        for burst in bursts {
            let mut events = Vec::new();
            for step in burst {
                match step {
                    Step::Put(reading) => {
                        at_server.insert(reading.key.clone(), Reading::clone(&reading));
                        events.push(Event::Changed(reading));
                    }
                    Step::Delete(key) => {
                        at_server.remove(&key);
                        events.push(Event::Gone(key));
                    }
                    Step::List => events.extend(KINDS.map(|kind| Event::Listed {
                        kind,
                        readings:
                            at_server.values().filter(|it| it.key.kind == kind).cloned().collect(),
                    })),
                }
            }
            let changes = objects.apply(events);
            let now = Contents::clone(&objects.contents);
            let mut fresh = no_objects();
            listed(&mut fresh, &at_server.values().cloned().collect::<Vec<_>>());
            prop_assert_eq!(&now, &*fresh.contents);
            match changes {
                // A different text may define the same object.
                None => prop_assert_eq!(&now, &Contents { fingerprint: now.fingerprint, ..seen }),
                Some(Changes::Everything) => {}
                Some(Changes::Objects(changed)) => {
                    prop_assert_eq!(&now.problems, &seen.problems);
                    for (key, before) in &changed {
                        prop_assert_eq!(before.as_ref(), seen.objects.get(key));
                        prop_assert_ne!(before.as_ref(), now.objects.get(key));
                    }
                    let same = |key: &&ObjectKey| !changed.contains_key(*key);
                    for key in now.objects.keys().chain(seen.objects.keys()).filter(same) {
                        prop_assert_eq!(seen.objects.get(key), now.objects.get(key));
                    }
                }
            }
            seen = now;
        }
    }
}
