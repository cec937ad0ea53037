use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::Mutex;
use std::time::Duration;

use futures_util::future::join_all;
use manx_objects::object::Kind;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use serde_json::json;

use super::super::fake::{Answer, Fake, status};
use super::*;
use crate::pool::{DefaultPool, make_first};

const POOLS: &str = "/apis/projectcalico.org/v3/ippools";

fn run<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.unwrap().block_on(test)
}

fn server() -> Fake {
    let server = Fake::start();
    server.world().define("IPPool", "ippools", true);
    server
}

async fn writer(server: &Fake) -> Writer {
    let endpoint = Some(format!("http://{}", server.address));
    Writer::open(&Access { endpoint, ..Access::default() }).await.unwrap()
}

fn key() -> ServedKey {
    ServedKey::new(Kind::IpPool, "", "p")
}

fn tokens(value: &Value) -> Vec<String> {
    let all = value["spec"]["tokens"].as_array().into_iter().flatten();
    all.map(|it| it.as_str().unwrap().to_owned()).collect()
}

/// The outcomes of the tokens that one writer tried to write.
#[derive(Debug, Default)]
struct TokenOutcomes {
    written: Vec<String>,
    refused: Vec<String>,
    unknown: Vec<String>,
    revisions: Vec<Revision>,
}

/// Adds tokens to the object, one in each write. Each token is tried once. The pause is the number of milliseconds
/// between reading the object and writing it.
async fn add_tokens(writer: &Writer, name: usize, pauses: &[u64]) -> TokenOutcomes {
    let mut outcomes = TokenOutcomes::default();
    for (at, pause) in pauses.iter().enumerate() {
        let token = format!("{name}-{at}");
        let found = writer.get(&key()).await;
        tokio::time::sleep(Duration::from_millis(*pause)).await;
        let written = match found {
            Ok(None) => writer.create(&key(), json!({ "spec": { "tokens": [token] } })).await,
            Ok(Some((mut value, revision))) => {
                let mut all = tokens(&value);
                all.push(token.clone());
                value["spec"]["tokens"] = all.into();
                writer.compare_and_swap(&key(), &revision, value).await
            }
            Err(error) => Err(error),
        };
        match written {
            Ok(revision) => {
                outcomes.written.push(token);
                outcomes.revisions.push(revision);
            }
            Err(WriteError::Conflict) => outcomes.refused.push(token),
            Err(WriteError::Unreachable(_)) => outcomes.unknown.push(token),
            Err(error) => panic!("{error}"),
        }
    }
    outcomes
}

/// Law: with concurrent writers, each write is either visible or refused, never lost. A write without an answer is
/// visible once or not at all.
#[test]
fn each_write_is_seen_or_refused_and_never_lost() {
    let pauses = prop::collection::vec(prop::collection::vec(0..6_u64, 1..8), 1..5);
    let troubles = prop::collection::vec(0..12_u8, 0..40);
    let config = ProptestConfig { cases: 24, failure_persistence: None, ..Default::default() };
    let seen = Cell::new([0; 3]);
    let ran = TestRunner::new(config).run(&(pauses, troubles), |(pauses, troubles)| {
        let (outcomes, last) = write_at_once(&pauses, troubles);
        let there: BTreeSet<&String> = last.iter().collect();
        prop_assert_eq!(there.len(), last.len(), "none twice: {:?}", last);
        for TokenOutcomes { written, refused, .. } in &outcomes {
            prop_assert!(written.iter().all(|it| there.contains(it)), "{outcomes:?} {last:?}");
            prop_assert!(!refused.iter().any(|it| there.contains(it)), "{outcomes:?} {last:?}");
        }
        let known = outcomes.iter().flat_map(|it| it.written.iter().chain(&it.unknown));
        let known: BTreeSet<&String> = known.collect();
        prop_assert!(there.is_subset(&known), "{outcomes:?} {last:?}");
        let revisions: Vec<&Revision> = outcomes.iter().flat_map(|it| &it.revisions).collect();
        for (at, revision) in revisions.iter().enumerate() {
            prop_assert!(!revisions[..at].contains(revision), "{outcomes:?}");
        }
        for TokenOutcomes { written, refused, unknown, .. } in &outcomes {
            let [a, b, c] = seen.get();
            seen.set([a + written.len(), b + refused.len(), c + unknown.len()]);
        }
        Ok(())
    });
    ran.unwrap();
    assert!(seen.get().iter().all(|count| *count > 0), "written, refused, unknown: {seen:?}");
}

/// Runs one writer for each list of pauses; it adds tokens. Requests for the object meet these troubles, in order.
/// Returns the outcomes that the writers know, and the tokens that exist at the end.
fn write_at_once(pauses: &[Vec<u64>], troubles: Vec<u8>) -> (Vec<TokenOutcomes>, Vec<String>) {
    let server = server();
    let troubles = Mutex::new(troubles.into_iter());
    server.world().rule = Box::new(move |asked| {
        if !asked.path.starts_with(POOLS) {
            return None;
        }
        match troubles.lock().unwrap().next()? {
            0 => Some(Answer::Close),
            1 => Some(Answer::Lost),
            2 => Some(Answer::Json(503, status(503, "etcdserver: leader changed"))),
            _ => None,
        }
    });
    run(async {
        let each = pauses
            .iter()
            .enumerate()
            .map(async |(name, pauses)| add_tokens(&writer(&server).await, name, pauses).await);
        let outcomes = join_all(each).await;
        server.world().rule = Box::new(|_| None);
        let last = writer(&server).await.get(&key()).await.unwrap();
        (outcomes, last.map_or(Vec::new(), |(value, _)| tokens(&value)))
    })
}

#[test]
fn what_is_not_written_says_why() {
    run(async {
        let server = server();
        let writer = writer(&server).await;
        assert!(writer.get(&key()).await.unwrap().is_none());
        let first =
            writer.create(&key(), json!({ "spec": { "cidr": "10.0.0.0/8" } })).await.unwrap();
        let again = writer.create(&key(), json!({})).await;
        assert!(matches!(again, Err(WriteError::Conflict)), "{again:?}");
        let (value, revision) = writer.get(&key()).await.unwrap().unwrap();
        assert_eq!(revision, first);
        let [(listed, _, revision)] = &writer.list(Kind::IpPool.into(), "").await.unwrap()[..]
        else {
            panic!()
        };
        assert_eq!((listed, revision), (&key(), &first));
        let second = writer.compare_and_swap(&key(), &first, value.clone()).await.unwrap();
        let late = writer.compare_and_swap(&key(), &first, value.clone()).await;
        assert!(matches!(late, Err(WriteError::Conflict)), "{late:?}");
        server.world().clear(POOLS);
        let gone = writer.compare_and_swap(&key(), &second, value.clone()).await;
        assert!(matches!(gone, Err(WriteError::Gone)), "{gone:?}");
        let tier = ServedKey { kind: Kind::Tier.into(), ..key() };
        let unknown = writer.create(&tier, json!({})).await;
        assert!(
            matches!(unknown, Err(WriteError::NotServed(ServedKind::Read(Kind::Tier)))),
            "{unknown:?}"
        );
        server.world().rule = Box::new(|asked| {
            (asked.method == "POST").then(|| Answer::Json(403, status(403, "forbidden here")))
        });
        let refused = writer.create(&key(), value).await.unwrap_err();
        assert!(matches!(refused, WriteError::Refused(_)));
        assert_eq!(refused.to_string(), "forbidden here");
    });
}

#[test]
fn the_first_pool_is_made_once_whoever_comes_and_is_an_object_of_the_served_version() {
    run(async {
        let server = server();
        let pools = pools();
        let (one, other) = (writer(&server).await, writer(&server).await);
        let (one, other) =
            tokio::join!(make_first(&one, &pools[..1]), make_first(&other, &pools[..1]));
        assert_eq!(one.unwrap().len() + other.unwrap().len(), 1);
        let writer = writer(&server).await;
        assert_eq!(make_first(&writer, &pools[..1]).await.unwrap(), []);
        // The other family has no pool yet.
        assert_eq!(make_first(&writer, &pools).await.unwrap(), pools[1..]);
        assert_eq!(make_first(&writer, &pools).await.unwrap(), []);
        let posts: Vec<String> = ["default-ipv4-ippool", "default-ipv6-ippool"]
            .map(|name| {
                let of = |it: &&super::super::fake::Request| {
                    it.method == "POST" && it.body["metadata"]["name"] == name
                };
                server.world().asked.iter().find(of).unwrap().body.to_string()
            })
            .into();
        insta::assert_snapshot!(posts.join("\n"), @r#"
        {"apiVersion":"projectcalico.org/v3","kind":"IPPool","metadata":{"name":"default-ipv4-ippool"},"spec":{"cidr":"10.0.0.0/16","ipipMode":"Always","natOutgoing":true}}
        {"apiVersion":"projectcalico.org/v3","kind":"IPPool","metadata":{"name":"default-ipv6-ippool"},"spec":{"blockSize":120,"cidr":"fd00::/48","disableBGPExport":true,"natOutgoing":false,"nodeSelector":"rack == 'a'"}}
        "#);
    });
}

#[test]
fn no_pool_is_made_beside_one_that_cannot_be_read() {
    run(async {
        let server = server();
        let writer = writer(&server).await;
        writer.create(&key(), json!({ "spec": { "cidr": 7 } })).await.unwrap();
        assert_eq!(make_first(&writer, &pools()).await.unwrap(), []);
    });
}

#[test]
fn a_first_pool_is_one_that_agents_can_read() {
    for pool in pools() {
        assert_eq!(pool.problem(), None);
    }
    let both = DefaultPool { vxlan: "Always", ..pools().remove(0) };
    let small = DefaultPool { block_size: Some(33), ..pools().remove(0) };
    let unread = DefaultPool { node_selector: Some("rack ==".to_owned()), ..pools().remove(0) };
    let problems = [both, small, unread].map(|it| it.problem().unwrap());
    insta::assert_snapshot!(problems.join("\n"), @"
    spec.vxlanMode: a pool has IPIP or VXLAN, not both
    spec.blockSize: found the number 33, expected a length of IPv4 blocks from 20 to 32
    spec.nodeSelector: has no effect without --ipam calico: a pod's address comes from its node's podCIDRs, so nobody outside of the cluster can tell by it what is selected here; spec.nodeSelector: is no selector: found the end at character 8, expected a value in quotes
    ");
}

/// Returns one pool of each family.
fn pools() -> Vec<DefaultPool> {
    let v4 = DefaultPool {
        cidr: "10.0.0.0/16".parse().unwrap(),
        ipip: "Always",
        vxlan: "Never",
        nat_outgoing: true,
        block_size: None,
        node_selector: None,
        hidden_from_peers: false,
    };
    let v6 = DefaultPool {
        cidr: "fd00::/48".parse().unwrap(),
        ipip: "Never",
        nat_outgoing: false,
        block_size: Some(120),
        node_selector: Some("rack == 'a'".to_owned()),
        hidden_from_peers: true,
        ..v4.clone()
    };
    vec![v4, v6]
}

#[test]
fn an_object_is_deleted_by_whoever_has_seen_its_last_value() {
    run(async {
        let server = server();
        let writer = writer(&server).await;
        let first = writer.create(&key(), json!({ "spec": {} })).await.unwrap();
        let second = writer.compare_and_swap(&key(), &first, json!({ "spec": {} })).await.unwrap();
        let late = writer.delete(&key(), &first).await;
        assert!(matches!(late, Err(WriteError::Conflict)), "{late:?}");
        assert!(writer.get(&key()).await.unwrap().is_some());
        // The server deletes the object, but its answer is lost. The second delete has nothing to do.
        server.world().rule = Box::new(|it| (it.method == "DELETE").then_some(Answer::Lost));
        let lost = writer.delete(&key(), &second).await;
        assert!(matches!(lost, Err(WriteError::Unreachable(_))), "{lost:?}");
        server.world().rule = Box::new(|_| None);
        assert!(writer.get(&key()).await.unwrap().is_none());
        writer.delete(&key(), &second).await.unwrap();
        // An object that was created again is another object, even if the server starts its versions again.
        let third = writer.create(&key(), json!({ "spec": {} })).await.unwrap();
        assert_ne!(third.uid, second.uid);
        let other = Revision { uid: second.uid, ..third.clone() };
        let of_another = writer.delete(&key(), &other).await;
        assert!(matches!(of_another, Err(WriteError::Conflict)), "{of_another:?}");
        writer.delete(&key(), &third).await.unwrap();
        let asked = server.world().asked.iter().rfind(|it| it.method == "DELETE").cloned();
        let named = json!({ "resourceVersion": third.version, "uid": third.uid });
        assert_eq!(asked.unwrap().body["preconditions"], named);
    });
}

#[test]
fn a_status_is_written_if_the_object_is_still_the_one_that_was_read() {
    run(async {
        let server = Fake::start();
        server.world().rule = Box::new(|asked| {
            (asked.method == "PATCH").then(|| {
                match asked.body["metadata"]["resourceVersion"].as_str() {
                    Some("7") => {
                        let metadata =
                            json!({ "name": "web", "resourceVersion": "8", "uid": "u-1" });
                        Answer::Json(200, json!({ "metadata": metadata }))
                    }
                    Some("gone") => Answer::Json(404, status(404, "there is none")),
                    _ => Answer::Json(409, status(409, "there is another")),
                }
            })
        });
        let writer = writer(&server).await;
        let service = ServedKey::new(Kind::Service, "shop", "web");
        let at = |version: &str| Revision { version: version.to_owned(), uid: None };
        let fields = json!({ "loadBalancer": { "ingress": [{ "ip": "192.0.2.7" }] } });
        let second = writer.write_status(&service, &at("7"), fields.clone()).await.unwrap();
        assert_eq!(second.version(), "8");
        let asked = server.world().asked.iter().rfind(|it| it.method == "PATCH").cloned().unwrap();
        assert_eq!(asked.path, "/api/v1/namespaces/shop/services/web/status");
        insta::assert_snapshot!(asked.body, @r#"{"metadata":{"resourceVersion":"7"},"status":{"loadBalancer":{"ingress":[{"ip":"192.0.2.7"}]}}}"#);
        let late = writer.write_status(&service, &at("6"), fields.clone()).await;
        assert!(matches!(late, Err(WriteError::Conflict)), "{late:?}");
        let gone = writer.write_status(&service, &at("gone"), fields).await;
        assert!(matches!(gone, Err(WriteError::Gone)), "{gone:?}");
    });
}

#[test]
fn a_watch_tells_of_all_objects_and_then_of_changes_until_the_server_ends_it() {
    run(async {
        const SERVICES: &str = "/api/v1/services";
        let server = Fake::start();
        let service = |name: &str| json!({ "metadata": { "namespace": "shop", "name": name } });
        server.world().put(SERVICES, service("a"));
        let writer = writer(&server).await;
        let seen = Mutex::new(Vec::new());
        let watch = writer.watch(Kind::Service.into(), |key, object| {
            assert_eq!(object["metadata"]["name"], key.name.as_str());
            seen.lock().unwrap().push(key.to_string());
        });
        let tell = async {
            while seen.lock().unwrap().is_empty() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            server.world().put(SERVICES, service("b"));
            while seen.lock().unwrap().len() < 2 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            server.world().rule = Box::new(|_| Some(Answer::Close));
        };
        let (watched, ()) = tokio::join!(watch, tell);
        watched.unwrap();
        assert_eq!(*seen.lock().unwrap(), ["Service shop/a", "Service shop/b"]);
        server.world().rule = Box::new(|_| Some(Answer::Json(403, status(403, "forbidden here"))));
        let refused = writer.watch(Kind::Service.into(), |_, _| {}).await.unwrap_err();
        assert_eq!(refused.to_string(), "forbidden here");
    });
}

#[test]
fn a_list_has_what_its_selector_matches() {
    run(async {
        let server = server();
        for (name, label) in [("a", "one"), ("b", "two"), ("c", "one")] {
            let labels = json!({ "example.com/host": label });
            let object = json!({ "metadata": { "labels": labels }, "spec": {} });
            writer(&server)
                .await
                .create(&ServedKey { name: name.to_owned(), ..key() }, object)
                .await
                .unwrap();
        }
        for (selector, expected) in [
            ("", vec!["a", "b", "c"]),
            ("example.com/host=one", vec!["a", "c"]),
            ("example.com/host=three", vec![]),
        ] {
            let all = writer(&server).await.list(Kind::IpPool.into(), selector).await.unwrap();
            let names: Vec<&str> = all.iter().map(|(key, ..)| key.name.as_str()).collect();
            assert_eq!(names, expected, "{selector}");
        }
        let asked = server.world().asked.clone();
        let lists = asked.iter().filter(|it| it.method == "GET" && it.path == POOLS);
        assert_eq!(lists.filter(|it| it.query.contains("labelSelector")).count(), 2);
    });
}

/// The objects of Calico's IPAM are in the stored version, and have the kind's name in that version.
#[test]
fn objects_of_ipam_are_of_the_version_that_the_server_stores() {
    let all = [
        (ServedKind::IpamBlock, ["IPAMBlock", "IPAMBlock"], ["ipamblocks", "ipamblocks"]),
        (ServedKind::IpamHandle, ["IPAMHandle", "IPAMHandle"], ["ipamhandles", "ipamhandles"]),
        (
            ServedKind::IpamConfig,
            ["IPAMConfiguration", "IPAMConfig"],
            ["ipamconfigurations", "ipamconfigs"],
        ),
        (
            ServedKind::IpReservation,
            ["IPReservation", "IPReservation"],
            ["ipreservations", "ipreservations"],
        ),
    ];
    assert_eq!(all.map(|(kind, ..)| kind), ServedKind::IPAM);
    let versions = ["projectcalico.org/v3", "crd.projectcalico.org/v1"];
    run(async {
        for (served, used) in [(vec![0], 0), (vec![1], 1), (vec![0, 1], 1)] {
            let server = Fake::start();
            for (_, names, plurals) in all {
                for at in &served {
                    server.world().serve_in(versions[*at], names[*at], plurals[*at]);
                }
            }
            let writer = writer(&server).await;
            for (kind, names, plurals) in all {
                assert_eq!(writer.api_version(kind).await.unwrap(), versions[used]);
                let key = ServedKey::new(kind, "", "default");
                let revision = writer.create(&key, json!({ "spec": {} })).await.unwrap();
                let (value, _) = writer.get(&key).await.unwrap().unwrap();
                assert_eq!(value["apiVersion"], versions[used]);
                assert_eq!(value["kind"], names[used]);
                let revision = writer.compare_and_swap(&key, &revision, value).await.unwrap();
                assert_eq!(writer.list(kind, "").await.unwrap()[0].0, key);
                writer.delete(&key, &revision).await.unwrap();
                let path = format!("/apis/{}/{}/default", versions[used], plurals[used]);
                assert!(
                    server.world().asked.iter().any(|it| it.method == "DELETE" && it.path == path)
                );
            }
        }
        let server = Fake::start();
        let missing = writer(&server).await.api_version(ServedKind::IpamConfig).await.unwrap_err();
        assert_eq!(missing.to_string(), "the server serves no IPAMConfiguration");
    });
}

#[test]
fn an_object_that_is_gone_is_not_replaced_and_not_taken_for_changed() {
    run(async {
        let server = server();
        let writer = writer(&server).await;
        let revision = writer.create(&key(), json!({ "spec": {} })).await.unwrap();
        // The object contains its uid, which a server treats as a precondition.
        let (value, _) = writer.get(&key()).await.unwrap().unwrap();
        assert!(value["metadata"]["uid"].is_string());
        writer.delete(&key(), &revision).await.unwrap();
        let gone = writer.compare_and_swap(&key(), &revision, value).await;
        assert!(matches!(gone, Err(WriteError::Gone)), "{gone:?}");
    });
}
