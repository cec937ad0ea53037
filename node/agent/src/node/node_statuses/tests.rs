use super::*;

fn request(classes: &str, period: Option<u64>) -> StatusRequest {
    StatusRequest {
        uid: "u-1".to_owned(),
        agent: classes.contains("Agent"),
        bgp: classes.contains("BGP"),
        routes: classes.contains("Routes"),
        period: period.map(Duration::from_secs),
    }
}

fn session(peer: &str, kind: PeerType, state: SessionState) -> SessionStatus {
    SessionStatus {
        peer: peer.parse().unwrap(),
        name: "n2".to_owned(),
        kind,
        system: 64512,
        state,
        since: SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000),
        last_error: None,
        established: None,
        counts: manx_bgp::table::Counts::default(),
        malformed: 0,
        unannounced: 0,
    }
}

fn route(prefix: &str, gateway: Option<&str>, origin: Origin, is_used: bool) -> KnownRoute {
    KnownRoute {
        prefix: prefix.parse().unwrap(),
        gateway: gateway.map(|it| it.parse().unwrap()),
        interface: gateway.map(|_| "eth0".to_owned()),
        origin,
        is_used,
    }
}

/// A node with a session of each kind, and a route of each origin.
fn snapshot() -> Snapshot {
    let at = |seconds: u64| SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000 + seconds);
    let router = "172.18.0.9".parse().unwrap();
    Snapshot {
        daemon: Some(Daemon {
            identifier: Some(Ipv4Addr::new(172, 18, 0, 2)),
            began: at(1),
            configured: at(2),
        }),
        sessions: vec![
            session("172.18.0.3", PeerType::Mesh, SessionState::Established),
            session("172.18.0.4", PeerType::Node, SessionState::Active),
            session("172.18.0.9", PeerType::Global, SessionState::Established),
            session("fd00::3", PeerType::Mesh, SessionState::OpenSent),
        ],
        routes: vec![
            route("10.244.1.0/26", None, Origin::Static, true),
            route("10.244.9.9/32", None, Origin::Direct, true),
            route(
                "198.51.100.0/24",
                Some("172.18.0.9"),
                Origin::Peer(PeerType::Global, router),
                true,
            ),
            route(
                "10.244.2.0/26",
                Some("172.18.0.3"),
                Origin::Peer(PeerType::Mesh, "172.18.0.3".parse().unwrap()),
                false,
            ),
            route(
                "fd00:2::/122",
                Some("fd00::3"),
                Origin::Peer(PeerType::Node, "fd00::3".parse().unwrap()),
                false,
            ),
        ],
        more_routes: Some([false; 2]),
    }
}

#[test]
fn a_status_has_calicos_form() {
    let all = status(&request("Agent BGP Routes", Some(10)), &snapshot());
    let classes = ["agent", "bgp", "routes"].map(|class| format!("{class}: {}", all[class]));
    insta::assert_snapshot!(classes.join("\n"), @r#"
    agent: {"birdV4":{"lastBootTime":"2023-11-14T22:13:21Z","lastReconfigurationTime":"2023-11-14T22:13:22Z","routerID":"172.18.0.2","state":"Ready","version":"manx v0.1.0"},"birdV6":{"lastBootTime":"2023-11-14T22:13:21Z","lastReconfigurationTime":"2023-11-14T22:13:22Z","routerID":"172.18.0.2","state":"Ready","version":"manx v0.1.0"}}
    bgp: {"numberEstablishedV4":2,"numberEstablishedV6":0,"numberNotEstablishedV4":1,"numberNotEstablishedV6":1,"peersV4":[{"peerIP":"172.18.0.3","since":"2023-11-14T22:13:20Z","state":"Established","type":"NodeMesh"},{"peerIP":"172.18.0.4","since":"2023-11-14T22:13:20Z","state":"Active","type":"NodePeer"},{"peerIP":"172.18.0.9","since":"2023-11-14T22:13:20Z","state":"Established","type":"GlobalPeer"}],"peersV6":[{"peerIP":"fd00::3","since":"2023-11-14T22:13:20Z","state":"OpenSent","type":"NodeMesh"}]}
    routes: {"routesV4":[{"destination":"10.244.1.0/26","gateway":"N/A","interface":"N/A","learnedFrom":{"sourceType":"Static"},"type":"FIB"},{"destination":"10.244.9.9/32","gateway":"N/A","interface":"N/A","learnedFrom":{"sourceType":"Direct"},"type":"FIB"},{"destination":"198.51.100.0/24","gateway":"172.18.0.9","interface":"eth0","learnedFrom":{"peerIP":"172.18.0.9","sourceType":"BGPPeer"},"type":"FIB"},{"destination":"10.244.2.0/26","gateway":"172.18.0.3","interface":"eth0","learnedFrom":{"peerIP":"172.18.0.3","sourceType":"NodeMesh"},"type":"RIB"}],"routesV6":[{"destination":"fd00:2::/122","gateway":"fd00::3","interface":"eth0","learnedFrom":{"peerIP":"fd00::3","sourceType":"BGPPeer"},"type":"RIB"}]}
    "#);
}

/// The API server would drop a field that Calico's definition does not contain, and refuse a value of another type.
#[test]
fn every_field_and_value_is_one_of_the_definition() {
    let manifest = include_str!("../../../../../deploy/manx.yaml");
    let (_, definition) =
        manifest.split_once("name: caliconodestatuses.projectcalico.org").unwrap();
    let (definition, _) = definition.split_once("\n- apiVersion:").unwrap_or((definition, ""));
    let all = status(&request("Agent BGP Routes", Some(10)), &snapshot());
    let (mut values, mut seen) = (vec![&all], 0);
    while let Some(value) = values.pop() {
        match value {
            Value::Object(members) => {
                for (name, value) in members {
                    assert!(definition.contains(&format!("{name}:")), "{name}");
                    let is_enum = ["state", "type", "sourceType"].contains(&name.as_str());
                    if let Some(text) = value.as_str().filter(|_| is_enum) {
                        assert!(definition.contains(text), "{name}: {text}");
                    }
                    values.push(value);
                    seen += 1;
                }
            }
            Value::Array(all) => values.extend(all),
            _ => {}
        }
    }
    assert!(seen > 40, "{seen}");
}

#[test]
fn a_class_that_is_not_asked_for_is_taken_away_and_a_node_without_bgp_says_so() {
    let none = Snapshot::default();
    let all = status(&request("Agent BGP Routes", Some(10)), &none);
    insta::assert_snapshot!(all, @r#"{"agent":{"birdV4":{"state":"NotReady"},"birdV6":{"state":"NotReady"}},"bgp":{"numberEstablishedV4":0,"numberEstablishedV6":0,"numberNotEstablishedV4":0,"numberNotEstablishedV6":0,"peersV4":[],"peersV6":[]},"routes":{"routesV4":[],"routesV6":[]}}"#);
    insta::assert_snapshot!(status(&request("", Some(10)), &none), @r#"{"agent":null,"bgp":null,"routes":null}"#);
}

#[test]
fn an_object_is_due_when_it_comes_when_it_changes_and_once_in_its_period() {
    let (start, mut reports) = (Instant::now(), NodeStatusReports::default());
    let mut at = |seconds: u64, objects: &[(&str, StatusRequest)]| -> Vec<String> {
        let all: BTreeMap<_, _> =
            objects.iter().map(|(name, request)| ((*name).to_owned(), request.clone())).collect();
        let due = reports.take_due(start + Duration::from_secs(seconds), || all);
        due.into_iter().map(|(name, _)| name).collect()
    };
    let (slow, fast, off) =
        (request("BGP", Some(30)), request("BGP", Some(10)), request("BGP", None));
    let both = [("a", slow.clone()), ("b", fast.clone()), ("c", off.clone())];
    assert_eq!(at(0, &both), ["a", "b"], "c is switched off");
    assert_eq!(at(0, &both), [""; 0], "it has just been looked");
    assert_eq!(at(9, &both), [""; 0]);
    assert_eq!(at(10, &both), ["b"]);
    assert_eq!(at(30, &both), ["a", "b"]);
    let changed = [("a", request("Routes", Some(30))), ("c", fast.clone())];
    assert_eq!(at(31, &changed), ["a", "c"]);
    assert_eq!(at(32, &[("a", off)]), [""; 0]);
    assert_eq!(at(33, &[("a", slow.clone())]), ["a"]);
    assert_eq!(at(34, &[]), [""; 0]);
    assert_eq!(at(35, &[("a", slow)]), ["a"], "it is another one");
}

#[test]
fn what_is_large_is_cut_and_people_are_told() {
    let mut large = snapshot();
    let peer = |at: u32| IpAddr::from(Ipv4Addr::from(0x0a00_0000 + at)).to_string();
    large.sessions =
        (0..600).map(|at| session(&peer(at), PeerType::Mesh, SessionState::Idle)).collect();
    large.more_routes = Some([false, true]);
    let mut reports = NodeStatusReports::default();
    assert_eq!(reports.warning(), None);
    reports.note_cut(&large);
    insta::assert_snapshot!(reports.warning().unwrap(), @"CalicoNodeStatus objects of this node hold a part: 600 peers of IPv4, 512 of them listed; more than 512 routes of IPv6, 512 of them listed; `manx node status` has all sessions");
    let status = status(&request("BGP", Some(10)), &large);
    assert_eq!(status["bgp"]["numberNotEstablishedV4"], 600, "all are counted");
    assert_eq!(status["bgp"]["peersV4"].as_array().unwrap().len(), MOST_PEERS);
    let fewer = Snapshot { more_routes: None, ..snapshot() };
    reports.note_cut(&fewer);
    assert!(reports.warning().is_some_and(|it| !it.contains("peers")), "routes were not looked at");
    reports.note_cut(&snapshot());
    assert_eq!(reports.warning(), None);
}
