//! The decision as a table of facts, and the facts of a real namespace.

use std::net::IpAddr;
use std::os::fd::AsFd;

use ipnet::IpNet;

use super::choose::{Choice, Known, choose};
use super::facts::{self, Destination, Facts, Interface};
use super::method::{Method, Wanted, method, wanted};
use crate::netlink::{Family, Peer, Route, Veth, in_netns};
use crate::netns::{self, sysctl};
use crate::testing::namespaces_allowed;

/// A server with bonds, VLANs, containers and tunnels, by index. The name of an interface that is down begins with `-`.
const SERVER: &[(&str, &[&str])] = &[
    ("lo", &["127.0.0.1/8", "10.255.0.7/32", "::1/128"]),
    ("eth0", &[]),
    ("eth1", &[]),
    ("bond0", &["192.0.2.7/24", "192.0.2.100/24", "2001:db8::7/64", "fe80::7/64"]),
    ("bond0.30", &["10.30.0.7/16", "fd00:30::7/64"]),
    ("-ens9", &["198.51.100.7/24"]),
    ("docker0", &["172.17.0.1/16"]),
    ("br-a1b2c3", &["172.18.0.1/16"]),
    ("tunl0", &["10.244.1.1/32"]),
    ("manx0", &["10.244.1.0/32"]),
];

/// A machine with one interface.
const PLAIN: &[(&str, &[&str])] =
    &[("lo", &["127.0.0.1/8"]), ("eth0", &["172.16.0.2/24", "fd00::2/64", "fe80::2/64"])];

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn facts(interfaces: &[(&str, &[&str])]) -> Facts {
    let one = |(name, addresses): &(&str, &[&str])| Interface {
        name: name.trim_start_matches('-').to_owned(),
        up: !name.starts_with('-'),
        addresses: addresses.iter().map(|it| net(it)).collect(),
    };
    Facts { interfaces: interfaces.iter().map(one).collect(), destinations: Vec::new() }
}

fn by(text: &str) -> Wanted {
    Wanted::Autodetect(method(text).unwrap())
}

fn says(choice: &Choice) -> String {
    match &choice.taken {
        Ok(found) => found.to_string(),
        Err(refusal) => refusal.to_string(),
    }
}

#[test]
fn each_method_takes_the_address_that_it_names_of_many() {
    let (server, plain) = (facts(SERVER), facts(PLAIN));
    let known = Known { internal_ip: Some(ip("192.0.2.7")), annotated: None };
    let known_v6 = Known { internal_ip: Some(ip("fd00:30::7")), annotated: None };
    for (facts, text, v4, v6) in [
        (&plain, "", "172.16.0.2/24 on eth0", "fd00::2/64 on eth0"),
        // The last interface comes first, as in Calico. Here that is a bridge of containers that is in no list.
        (&server, "first-found", "172.18.0.1/16 on br-a1b2c3", "fd00:30::7/64 on bond0.30"),
        (&server, "skip-interface=br-.*", "10.30.0.7/16 on bond0.30", "fd00:30::7/64 on bond0.30"),
        (
            &server,
            "skip-interface=br-.* , \\.\\d+$",
            "192.0.2.7/24 on bond0",
            "2001:db8::7/64 on bond0",
        ),
        // The method takes the first address of an interface with several, which is not a secondary one.
        (&server, "interface=^bond0$", "192.0.2.7/24 on bond0", "2001:db8::7/64 on bond0"),
        (
            &server,
            "interface=ens.*,bond0\\.30",
            "10.30.0.7/16 on bond0.30",
            "fd00:30::7/64 on bond0.30",
        ),
        // An address or interface that the method names is taken even if other methods skip it.
        (&server, "cidr=10.255.0.0/16,::/128", "10.255.0.7/32 on lo", ""),
        (
            &server,
            "cidr=10.30.0.0/15,fd00::/8",
            "10.30.0.7/16 on bond0.30",
            "fd00:30::7/64 on bond0.30",
        ),
        // docker0 and br-a1b2c3 are both in this net; docker0 is skipped because br-a1b2c3 remains.
        (
            &server,
            "cidr=172.16.0.0/12,2001::/16",
            "172.18.0.1/16 on br-a1b2c3",
            "2001:db8::7/64 on bond0",
        ),
        (&server, "kubernetes-internal-ip", "192.0.2.7/24 on bond0", "fd00:30::7/64 on bond0.30"),
    ] {
        let wanted = by(text);
        assert_eq!(says(&choose(&wanted, Family::V4, facts, &known)), v4, "{text}");
        let of_v6 = choose(&wanted, Family::V6, facts, &known_v6);
        if v6.is_empty() {
            assert!(of_v6.taken.is_err(), "{text}: {of_v6:?}");
        } else {
            assert_eq!(says(&of_v6), v6, "{text}");
        }
    }
}

#[test]
fn what_is_not_one_address_is_refused_with_what_was_found() {
    let server = facts(SERVER);
    let none = Known::default();
    let told =
        |text: &str| format!("{text}: {}", says(&choose(&by(text), Family::V4, &server, &none)));
    let texts = [
        "interface=eth\\d",
        "interface=bond0",
        "interface=ens9",
        "interface=manx0",
        "cidr=192.0.2.0/24,10.30.0.0/16",
        "cidr=203.0.113.0/24",
        "skip-interface=.*",
        "kubernetes-internal-ip",
        "can-reach=gateway.example",
    ];
    insta::assert_snapshot!(texts.map(told).join("\n"), @r"
    interface=eth\d: found 10.244.1.1/32 on tunl0, 172.18.0.1/16 on br-a1b2c3, 172.17.0.1/16 on docker0, 10.30.0.7/16 on bond0.30, 192.0.2.7/24 on bond0, 192.0.2.100/24 on bond0, 10.255.0.7/32 on lo, expected one of an interface by interface=eth\d: name another method, or give an interface that is up such an address
    interface=bond0: found 10.30.0.7/16 on bond0.30, 192.0.2.7/24 on bond0, 192.0.2.100/24 on bond0, expected an address of one interface: name it, as in interface=^bond0\.30$
    interface=ens9: found 10.244.1.1/32 on tunl0, 172.18.0.1/16 on br-a1b2c3, 172.17.0.1/16 on docker0, 10.30.0.7/16 on bond0.30, 192.0.2.7/24 on bond0, 192.0.2.100/24 on bond0, 10.255.0.7/32 on lo, expected one of an interface by interface=ens9: name another method, or give an interface that is up such an address
    interface=manx0: found 10.244.1.1/32 on tunl0, 172.18.0.1/16 on br-a1b2c3, 172.17.0.1/16 on docker0, 10.30.0.7/16 on bond0.30, 192.0.2.7/24 on bond0, 192.0.2.100/24 on bond0, 10.255.0.7/32 on lo, expected one of an interface by interface=manx0: name another method, or give an interface that is up such an address
    cidr=192.0.2.0/24,10.30.0.0/16: found 10.30.0.7/16 on bond0.30, 192.0.2.7/24 on bond0, 192.0.2.100/24 on bond0, expected an address of one interface: name it, as in interface=^bond0\.30$
    cidr=203.0.113.0/24: found 10.244.1.1/32 on tunl0, 172.18.0.1/16 on br-a1b2c3, 172.17.0.1/16 on docker0, 10.30.0.7/16 on bond0.30, 192.0.2.7/24 on bond0, 192.0.2.100/24 on bond0, 10.255.0.7/32 on lo, expected one by cidr=203.0.113.0/24: name another method, or give an interface that is up such an address
    skip-interface=.*: found 10.244.1.1/32 on tunl0, 172.18.0.1/16 on br-a1b2c3, 172.17.0.1/16 on docker0, 10.30.0.7/16 on bond0.30, 192.0.2.7/24 on bond0, 192.0.2.100/24 on bond0, 10.255.0.7/32 on lo, expected one of an interface that is none of containers' or tunnels' that skip-interface=.* leaves: name another method, or give an interface that is up such an address
    kubernetes-internal-ip: found no InternalIP of this family in the Node's status, expected one: have kubelet report it (--node-ip), or name another method
    can-reach=gateway.example: found no address of this family for the destination, expected one: name an address, or look at the node's DNS
    ");
}

#[test]
fn the_way_to_a_destination_decides_if_it_is_one() {
    let destination = |address: &str, source: Option<&str>| Destination {
        name: "gw".to_owned(),
        address: ip(address),
        source: source.map(ip),
    };
    let with = |destinations: &[Destination]| Facts {
        destinations: destinations.to_vec(),
        ..facts(SERVER)
    };
    let (wanted, none) = (by("can-reach=gw"), Known::default());
    let v4 = |facts: &Facts, known: &Known| says(&choose(&wanted, Family::V4, facts, known));
    let one = destination("203.0.113.1", Some("10.30.0.7"));
    let other = destination("203.0.113.2", Some("192.0.2.7"));
    assert_eq!(v4(&with(std::slice::from_ref(&one)), &none), "10.30.0.7/16 on bond0.30");
    let same = destination("203.0.113.9", Some("10.30.0.7"));
    let nowhere = destination("203.0.113.8", None);
    let all = with(&[one.clone(), same, nowhere.clone()]);
    assert_eq!(v4(&all, &none), "10.30.0.7/16 on bond0.30");
    let v6 = destination("2001:db8:1::1", Some("2001:db8::7"));
    let both = with(&[one.clone(), v6]);
    assert_eq!(says(&choose(&wanted, Family::V6, &both, &none)), "2001:db8::7/64 on bond0");
    let two = with(&[one, other]);
    let told = [v4(&two, &none), v4(&with(&[nowhere]), &none), v4(&with(&[]), &none)];
    insta::assert_snapshot!(told.join("\n"), @r"
    found that the kernel sends there from 10.30.0.7, 192.0.2.7, expected one address: name one of the destination's addresses
    found no route to 203.0.113.8, expected one: name a destination that this node reaches, or give it a route
    found no address of this family for the destination, expected one: name an address, or look at the node's DNS
    ");
    let before = Known { annotated: Some(net("192.0.2.7/24")), ..Known::default() };
    assert_eq!(v4(&two, &before), "192.0.2.7/24 on bond0");
}

#[test]
fn an_address_that_stands_stays_while_the_method_admits_it() {
    let server = facts(SERVER);
    let stands = |address: &str| Known { annotated: Some(net(address)), ..Known::default() };
    for (text, before, expected) in [
        ("first-found", "192.0.2.7/24", "192.0.2.7/24 on bond0"),
        ("first-found", "192.0.2.100/24", "192.0.2.100/24 on bond0"),
        ("interface=bond0", "10.30.0.7/16", "10.30.0.7/16 on bond0.30"),
        ("cidr=192.0.2.0/24,10.30.0.0/16", "192.0.2.7/32", "192.0.2.7/24 on bond0"),
        // The former address is gone, or another method is set.
        ("first-found", "192.0.2.9/24", "172.18.0.1/16 on br-a1b2c3"),
        ("first-found", "198.51.100.7/24", "172.18.0.1/16 on br-a1b2c3"),
        ("first-found", "172.17.0.1/16", "172.18.0.1/16 on br-a1b2c3"),
        ("interface=^bond0$", "10.30.0.7/16", "192.0.2.7/24 on bond0"),
    ] {
        let choice = choose(&by(text), Family::V4, &server, &stands(before));
        assert_eq!(says(&choice), expected, "{text}, {before}");
    }
}

#[test]
fn an_address_that_is_named_must_be_on_an_interface_and_may_have_a_length_of_its_own() {
    let server = facts(SERVER);
    let of = |family, text: &str| {
        let wanted = wanted(family, text, &Method::FirstFound).unwrap().unwrap();
        says(&choose(&wanted, family, &server, &Known::default()))
    };
    assert_eq!(of(Family::V4, "192.0.2.7"), "192.0.2.7/24 on bond0");
    assert_eq!(of(Family::V4, "192.0.2.7/32"), "192.0.2.7/32 on bond0");
    assert_eq!(of(Family::V4, "10.255.0.7"), "10.255.0.7/32 on lo");
    assert_eq!(of(Family::V6, "fd00:30::7"), "fd00:30::7/64 on bond0.30");
    insta::assert_snapshot!(of(Family::V6, "fd00:30::8"), @"found fd00:30::7/64 on bond0.30, 2001:db8::7/64 on bond0, expected fd00:30::8 on an interface: name another method, or give an interface that is up such an address");
}

#[test]
fn the_others_are_told_each_once_and_no_more_than_a_few() {
    let choice = choose(&by("interface=^bond0$"), Family::V4, &facts(SERVER), &Known::default());
    let others: Vec<String> = choice.others.iter().map(ToString::to_string).collect();
    insta::assert_snapshot!(others.join(", "), @"10.244.1.1/32 on tunl0, 172.18.0.1/16 on br-a1b2c3, 172.17.0.1/16 on docker0, 10.30.0.7/16 on bond0.30, 192.0.2.100/24 on bond0, 10.255.0.7/32 on lo");
    let many: Vec<IpNet> =
        (0..100).map(|host| IpNet::new(IpAddr::from([10, 0, 0, host]), 24).unwrap()).collect();
    let interface = Interface { name: "eth0".to_owned(), up: true, addresses: many };
    let facts = Facts { interfaces: vec![interface], destinations: Vec::new() };
    let choice = choose(&by(""), Family::V4, &facts, &Known::default());
    assert_eq!(choice.others.len(), super::MOST_TOLD);
    let refused = says(&choose(&by("interface=x"), Family::V4, &facts, &Known::default()));
    assert!(refused.contains("10.0.0.15/24 on eth0 and 84 more, expected"), "{refused}");
    // If two interfaces have the same address, it counts once, with the prefix length that names a net.
    let twice = self::facts(&[("eth0", &["10.0.0.5/24"]), ("eth1", &["10.0.0.5/32"])]);
    let choice = choose(&by("interface=eth"), Family::V4, &twice, &Known::default());
    assert_eq!((says(&choice), choice.others.len()), ("10.0.0.5/24 on eth0".to_owned(), 0));
}

#[test]
fn settings_read_as_they_are_written_or_say_what_was_expected() {
    for text in [
        "first-found",
        "kubernetes-internal-ip",
        "can-reach=8.8.8.8",
        "interface=eth.*,^ens\\d+$",
        "skip-interface=br-.*",
        "cidr=10.0.0.0/8,fd00::/8",
    ] {
        assert_eq!(method(text).unwrap().to_string(), text);
    }
    assert_eq!(method("interface= eth0 , eth1 ,").unwrap().to_string(), "interface=eth0,eth1");
    assert_eq!(method("cidr=10.0.0.7/8").unwrap().to_string(), "cidr=10.0.0.0/8");
    assert_eq!(method("can-reach=[fd00::1]").unwrap().to_string(), "can-reach=fd00::1");
    let wrong = ["firstfound", "interface=", "interface=(", "cidr=10.0.0.0", "cidr=", "can-reach="];
    let told = wrong.map(|text| format!("{text}: {}", method(text).unwrap_err()));
    insta::assert_snapshot!(told.join("\n"), @r#"
    firstfound: expected first-found, kubernetes-internal-ip, can-reach=DESTINATION, interface=REGEX[,REGEX...], skip-interface=REGEX[,REGEX...] or cidr=CIDR[,CIDR...]
    interface=: expected at least one expression after the =, such as eth.* or ^ens3$
    interface=(: "(" is no regular expression (unclosed group): expected one such as eth.* or ^ens3$
    cidr=10.0.0.0: "10.0.0.0" is no net: expected one such as 10.0.0.0/8
    cidr=: expected at least one net after the =, such as 10.0.0.0/8
    can-reach=: expected first-found, kubernetes-internal-ip, can-reach=DESTINATION, interface=REGEX[,REGEX...], skip-interface=REGEX[,REGEX...] or cidr=CIDR[,CIDR...]
    "#);
    let huge = format!("interface={}", "(a{1000}){1000}");
    assert!(method(&huge).is_err(), "an expression that is too large is refused");

    let read = |family, text: &str| {
        let read = wanted(family, text, &Method::FirstFound);
        read.map(|it| it.map(|it| it.to_string()))
    };
    for nothing in ["", "none", " none "] {
        assert_eq!(read(Family::V4, nothing), Ok(None));
    }
    assert_eq!(read(Family::V4, "autodetect"), Ok(Some("first-found".to_owned())));
    assert_eq!(read(Family::V4, "10.0.0.5/24"), Ok(Some("10.0.0.5/24".to_owned())));
    assert_eq!(read(Family::V6, "fd00::5"), Ok(Some("fd00::5".to_owned())));
    let told = [
        (Family::V4, "fd00::5"),
        (Family::V4, "10.0.0.5/33"),
        (Family::V4, "10.0.0.5/"),
        (Family::V6, "10.0.0.5"),
        (Family::V6, "auto"),
    ]
    .map(|(family, text)| format!("{text}: {}", read(family, text).unwrap_err()));
    insta::assert_snapshot!(told.join("\n"), @r"
    fd00::5: expected autodetect, none, or an address of this node such as 10.0.0.5/24, or the same without a length
    10.0.0.5/33: expected autodetect, none, or an address of this node such as 10.0.0.5/24, or the same without a length
    10.0.0.5/: expected autodetect, none, or an address of this node such as 10.0.0.5/24, or the same without a length
    10.0.0.5: expected autodetect, none, or an address of this node such as fd00::5/64, or the same without a length
    auto: expected autodetect, none, or an address of this node such as fd00::5/64, or the same without a length
    ");
}

/// In a namespace with several interfaces, each method chooses an address that the kernel has.
#[test]
fn in_a_namespace_the_kernels_addresses_and_routes_decide() {
    if !namespaces_allowed() {
        return;
    }
    let (node, other) = (netns::create().unwrap(), netns::create().unwrap());
    for (name, index) in [("docker0", 10), ("eth0", 11), ("eth1", 12), ("eth2", 13)] {
        let peer = Peer { name, netns: Some(other.as_fd()), mac: None, index: None };
        let veth = Veth { name, mac: None, index: Some(index), mtu: 1500, peer };
        in_netns(&node, async |netlink| netlink.add_veth(&veth).await).unwrap();
        in_netns(&other, async |netlink| netlink.set_up(netlink.existing(name).await?.index).await)
            .unwrap();
    }
    let text = |choice: &Choice| says(choice);
    in_netns(&node, async |netlink| {
        for (index, name, addresses) in [
            (10, "docker0", &["172.17.0.1/16"][..]),
            (11, "eth0", &["192.0.2.7/24", "192.0.2.8/24", "2001:db8::7/64"]),
            (12, "eth1", &["10.1.0.7/32", "fd00:1::7/64"]),
            (13, "eth2", &["10.2.0.7/24"]),
        ] {
            sysctl::make_ipv6_static(name)?;
            for address in addresses {
                netlink.add_address(index, net(address)).await?;
            }
            if name != "eth2" {
                netlink.set_up(index).await?;
            }
        }
        let to = Route::via(net("203.0.113.0/24"), ip("192.0.2.1"), 11);
        netlink.replace_route(&to).await?;
        let can_reach = method("can-reach=203.0.113.9").unwrap();
        let facts = facts::read(&netlink, [&can_reach]).await?;
        let v4 = |text: &str| choose(&by(text), Family::V4, &facts, &Known::default());
        // eth2 is down.
        assert_eq!(text(&v4("first-found")), "10.1.0.7/32 on eth1");
        assert_eq!(text(&v4("interface=^eth0$")), "192.0.2.7/24 on eth0");
        assert_eq!(text(&v4("can-reach=203.0.113.9")), "192.0.2.7/24 on eth0");
        let v6 = choose(&by("cidr=2001:db8::/32"), Family::V6, &facts, &Known::default());
        assert_eq!(text(&v6), "2001:db8::7/64 on eth0");
        // The interface is deleted.
        netlink.delete_link(12).await?;
        let facts = facts::read(&netlink, []).await?;
        let now = choose(&by("first-found"), Family::V4, &facts, &Known::default());
        assert_eq!(text(&now), "192.0.2.7/24 on eth0");
        let gone = choose(&by("interface=^eth1$"), Family::V4, &facts, &Known::default());
        assert!(gone.taken.is_err(), "{gone:?}");
        Ok(())
    })
    .unwrap();
}

/// Addresses that the kernel will remove by itself, or does not use yet, are never chosen.
#[test]
fn temporary_and_tentative_addresses_are_passed_over() {
    use rtnetlink::packet_route::AddressFamily;
    use rtnetlink::packet_route::address::{AddressAttribute, AddressFlags, AddressMessage};

    let lasts = |family, flags: AddressFlags, in_header: bool| {
        let mut message = AddressMessage::default();
        message.header.family = family;
        if in_header {
            let bits = u8::try_from(flags.bits()).unwrap();
            message.header.flags =
                rtnetlink::packet_route::address::AddressHeaderFlags::from_bits_retain(bits);
        } else {
            message.attributes.push(AddressAttribute::Flags(flags));
        }
        crate::netlink::is_lasting(&message)
    };
    for in_header in [true, false] {
        let lasts = |family, flags| lasts(family, flags, in_header);
        assert!(lasts(AddressFamily::Inet, AddressFlags::Secondary), "a secondary address of IPv4");
        assert!(!lasts(AddressFamily::Inet6, AddressFlags::Secondary), "a temporary one of IPv6");
        assert!(lasts(AddressFamily::Inet6, AddressFlags::Permanent));
        for passing in [AddressFlags::Deprecated, AddressFlags::Tentative, AddressFlags::Dadfailed]
        {
            assert!(!lasts(AddressFamily::Inet6, passing), "{passing:?}");
        }
    }
}
