use manx_linux::autodetect::{Interface, Method, Wanted, method, wanted};

use super::*;

/// A Node `n1` with these annotations, as YAML.
fn objects(annotations: &str) -> Contents {
    let text = format!(
        "{{apiVersion: v1, kind: Node, metadata: {{name: n1, annotations: {{{annotations}}}}}, spec: {{podCIDR: 10.244.1.0/24}}, \
         status: {{addresses: [{{type: InternalIP, address: 172.18.0.2}}, {{type: InternalIP, address: 'fd18::2'}}]}}}}\n"
    );
    let contents = Contents::from_texts([("node.yaml", text.as_str())]);
    assert!(contents.problems.is_empty(), "{:?}", contents.problems);
    contents
}

fn annotated(v4: &str) -> Contents {
    objects(&format!("projectcalico.org/IPv4Address: {v4}"))
}

fn facts(interfaces: &[(&str, &[&str])]) -> Facts {
    let one = |(name, addresses): &(&str, &[&str])| Interface {
        name: (*name).to_owned(),
        up: true,
        addresses: addresses.iter().map(|it| it.parse().unwrap()).collect(),
    };
    Facts { interfaces: interfaces.iter().map(one).collect(), destinations: Vec::new() }
}

/// A node with two interfaces.
fn two() -> Facts {
    facts(&[("eth0", &["172.18.0.2/24", "fd18::2/64"]), ("eth1", &["10.0.0.2/24", "fd00::2/64"])])
}

fn by(v4: &str, v6: &str) -> NodeAddressSettings {
    let of = |text: &str| (!text.is_empty()).then(|| Wanted::Autodetect(method(text).unwrap()));
    [of(v4), of(v6)]
}

fn addresses(wanted: NodeAddressSettings, facts: Facts) -> NodeAddresses {
    NodeAddresses {
        node: "n1".to_owned(),
        wanted,
        writes: true,
        facts,
        written: None,
        started: None,
        told: None,
    }
}

fn written(pairs: &[(usize, &str)]) -> AddressAction {
    AddressAction::Write(
        pairs.iter().map(|(at, it)| (NODE_ADDRESSES[*at], (*it).to_owned())).collect(),
    )
}

#[test]
fn the_address_that_is_found_is_written_unless_the_object_has_it() {
    let both = addresses(by("interface=eth1", "interface=eth1"), two());
    assert_eq!(both.judge(&objects("")), written(&[(0, "10.0.0.2/24"), (1, "fd00::2/64")]));
    assert_eq!(both.judge(&annotated("10.0.0.2/24")), written(&[(1, "fd00::2/64")]));
    // The prefix length matters, because other nodes use it for CrossSubnet.
    let has =
        "projectcalico.org/IPv4Address: 10.0.0.2, projectcalico.org/IPv6Address: 'fd00::2/64'";
    assert_eq!(both.judge(&objects(has)), written(&[(0, "10.0.0.2/24")]));
    let has = has.replace("10.0.0.2,", "10.0.0.2/24,");
    assert_eq!(both.judge(&objects(&has)), AddressAction::Stands);
    // Without settings no address is wanted, whatever the object contains.
    let none = addresses([None, None], two());
    for contents in [objects(""), annotated("192.0.2.9/24")] {
        assert_eq!(none.judge(&contents), AddressAction::Stands);
    }
    let internal = addresses(by("kubernetes-internal-ip", "kubernetes-internal-ip"), two());
    assert_eq!(internal.judge(&objects("")), written(&[(0, "172.18.0.2/24"), (1, "fd18::2/64")]));
    let named = wanted(Family::V4, "10.0.0.2/32", &Method::FirstFound).unwrap();
    assert_eq!(addresses([named, None], two()).judge(&objects("")), written(&[(0, "10.0.0.2/32")]));
    // A missing or invalid Node is reported by its reader.
    assert_eq!(both.judge(&Contents::from_texts([])), AddressAction::Stands);
}

#[test]
fn what_is_not_found_is_waited_for_unless_the_object_has_an_address() {
    let lost = addresses(by("interface=eth9", ""), two());
    let AddressAction::Lacks(why) = lost.judge(&objects("")) else {
        panic!("an address was found")
    };
    let waits = waiting(&AddressAction::Lacks(why), &[]).unwrap();
    insta::assert_snapshot!(waits, @"it waits for an address of this node: IP, interface=eth9: found 10.0.0.2/24 on eth1, 172.18.0.2/24 on eth0, expected one of an interface by interface=eth9: name another method, or give an interface that is up such an address");
    assert_eq!(lost.judge(&annotated("192.0.2.9/24")), AddressAction::Stands);
    assert_eq!(waiting(&AddressAction::Stands, &[]), None);
    let refused = ["the annotations could not be written: forbidden".to_owned()];
    insta::assert_snapshot!(waiting(&written(&[(0, "10.0.0.2/24")]), &refused).unwrap(), @"it waits until the API server has 10.0.0.2/24 in the Node's annotations: the annotations could not be written: forbidden");
    // If one family lacks an address, a start waits, whatever the other family has.
    let half = addresses(by("interface=eth1", "interface=eth9"), two());
    assert!(matches!(half.judge(&objects("")), AddressAction::Lacks(_)));
}

#[test]
fn people_are_told_once_of_an_address_that_is_lost_and_once_of_its_return() {
    let (start, contents) = (Instant::now(), annotated("10.0.0.2/24"));
    let mut addresses = addresses(by("interface=eth1", ""), two());
    assert_eq!(addresses.news(&contents), None);
    let gone = facts(&[("eth0", &["172.18.0.2/24"])]);
    for first in [true, false] {
        assert_eq!(addresses.look(gone.clone(), &contents, start), None, "nothing is written");
        assert_eq!(addresses.news(&contents).is_some(), first);
    }
    let [status] = &addresses.status(&contents)[..1] else { panic!("IPv4 alone") };
    assert_eq!(status.address.as_deref(), Some("10.0.0.2/24"), "it stays");
    assert_eq!(status.interface, None);
    assert!(status.problem.as_ref().is_some_and(|it| it.contains("172.18.0.2/24 on eth0")));
    assert_eq!(addresses.look(two(), &contents, start), None);
    assert_eq!(addresses.news(&contents), Some(News::Over));
    assert_eq!(addresses.news(&contents), None);
}

#[test]
fn another_address_is_written_once_a_minute_at_most_and_ends_the_agent_when_the_object_has_it() {
    let (start, before) = (Instant::now(), annotated("10.0.0.2/24"));
    let mut addresses = addresses(by("interface=eth1", ""), two());
    addresses.started = Some("10.0.0.2".parse().unwrap());
    let moved = facts(&[("eth0", &["172.18.0.2/24"]), ("eth1", &["10.0.0.3/24"])]);
    let at = |seconds| start + Duration::from_secs(seconds);
    let wanted = BTreeMap::from([(NODE_ADDRESSES[0], "10.0.0.3/24".to_owned())]);
    assert_eq!(addresses.look(moved.clone(), &before, at(0)), Some(wanted.clone()));
    assert_eq!(addresses.look(moved.clone(), &before, at(59)), None);
    assert_eq!(addresses.look(moved.clone(), &before, at(60)), Some(wanted), "somebody undid it");
    assert_eq!(addresses.replaced(&before), None, "the object has the old one");
    let replaced = addresses.replaced(&annotated("10.0.0.3/24")).map(|(_, to)| to.to_string());
    assert_eq!(replaced.as_deref(), Some("10.0.0.3"));
    // Another prefix length, or an address that no interface has, is no reason to restart.
    assert_eq!(addresses.replaced(&annotated("10.0.0.2/32")), None);
    assert_eq!(addresses.replaced(&annotated("192.0.2.9/24")), None);
    addresses.wanted = [None, None];
    assert_eq!(addresses.replaced(&annotated("10.0.0.3/24")), None, "nobody has asked");
}

#[test]
fn a_gateway_is_behind_the_interface_in_whose_net_it_lies() {
    let addresses = addresses([None, None], two());
    let to = |address: &str| addresses.interface_to(address.parse().unwrap());
    assert_eq!(to("172.18.0.9"), Some("eth0"));
    assert_eq!(to("fd00::9"), Some("eth1"));
    assert_eq!(to("192.0.2.1"), None);
}

#[test]
fn a_directory_is_not_written_to_and_what_its_manifest_lacks_is_told() {
    let mut addresses = addresses(by("interface=eth1", ""), two());
    addresses.writes = false;
    assert_eq!(addresses.judge(&objects("")), AddressAction::Stands);
    let Some(News::Problem(told)) = addresses.news(&objects("")) else { panic!("nothing is told") };
    insta::assert_snapshot!(told, @"IP: found 10.0.0.2/24 on eth1, and the Node's manifest has none: write the annotation projectcalico.org/IPv4Address: 10.0.0.2/24, or take the setting away; a directory of manifests is not written to");
    assert_eq!(addresses.news(&annotated("10.0.0.2/24")), Some(News::Over));
}

#[test]
fn the_status_says_which_address_counts_by_what_and_which_there_are_besides() {
    let shown = |addresses: &NodeAddresses, contents: &Contents| {
        let all = addresses.status(contents);
        let one = |it: &NodeAddress| {
            let others: Vec<String> =
                it.others.iter().map(|it| format!("{} on {}", it.address, it.interface)).collect();
            format!(
                "{} {:?} {:?} {:?} {:?}: {}",
                it.family,
                it.address,
                it.source,
                it.interface,
                it.method,
                others.join(", ")
            )
        };
        all.iter().map(one).collect::<Vec<_>>().join("\n")
    };
    let detected = addresses(by("interface=eth1", ""), two());
    insta::assert_snapshot!(shown(&detected, &annotated("10.0.0.2/24")), @r#"
    IPv4 Some("10.0.0.2/24") Some("annotation projectcalico.org/IPv4Address") Some("eth1") Some("interface=eth1"): 172.18.0.2/24 on eth0
    IPv6 Some("fd18::2") Some("InternalIP") Some("eth0") None: fd00::2/64 on eth1
    "#);
    let by_object = addresses([None, None], two());
    insta::assert_snapshot!(shown(&by_object, &objects("")), @r#"
    IPv4 Some("172.18.0.2") Some("InternalIP") Some("eth0") None: 10.0.0.2/24 on eth1
    IPv6 Some("fd18::2") Some("InternalIP") Some("eth0") None: fd00::2/64 on eth1
    "#);
    let only_v4 = facts(&[("eth0", &["172.18.0.2/24"])]);
    let nothing = Contents::from_texts([]);
    assert_eq!(shown(&addresses([None, None], only_v4), &nothing), "");
}
