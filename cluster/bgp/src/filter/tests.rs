use std::net::IpAddr;

use proptest::prelude::*;

use super::*;

fn contents(filters: &[(&str, &str)]) -> Contents {
    let texts = filters.iter().map(|(name, spec)| {
        format!(
            "{{apiVersion: projectcalico.org/v3, kind: BGPFilter, metadata: {{name: {name}}}, spec: {{{spec}}}}}\n---\n"
        )
    });
    let text: String = texts.collect();
    Contents::from_texts([("filters.yaml", text.as_str())])
}

fn filters(specs: &[&str]) -> Filters {
    let names: Vec<String> = (0..specs.len()).map(|at| format!("f{at}")).collect();
    let named: Vec<(&str, &str)> =
        names.iter().map(String::as_str).zip(specs.iter().copied()).collect();
    let contents = contents(&named);
    assert!(contents.problems.is_empty(), "{:?}", contents.problems);
    let (filters, problems) = Filters::new(&contents, &names, "tor");
    assert!(problems.is_empty());
    filters
}

/// The attributes of a path through these systems, with a priority.
fn attributes(systems: &[u32], priority: u32) -> Attributes {
    let mut attributes = Attributes::of_own(IpAddr::from([192, 0, 2, 1]));
    if !systems.is_empty() {
        attributes.as_path = vec![Segment::Sequence(systems.to_vec())];
    }
    attributes.local_pref = Some(local_pref(priority));
    attributes
}

fn route<'a>(prefix: &str, attributes: &'a Attributes) -> Route<'a> {
    Route { prefix: prefix.parse().unwrap(), attributes, is_from_peer: true, interface: None }
}

/// The decision of filters, as one word.
fn word(action: &FilterAction<'_>) -> &'static str {
    match action {
        FilterAction::Accept(Cow::Borrowed(_)) => "accept",
        FilterAction::Accept(Cow::Owned(_)) => "change",
        FilterAction::Reject => "reject",
        FilterAction::Unmatched => "next",
    }
}

fn import(filters: &Filters, prefix: &str) -> &'static str {
    let attributes = attributes(&[65000], 1024);
    word(&filters.judge(Direction::Import, &route(prefix, &attributes), false))
}

#[test]
fn calicos_match_operators() {
    let filters = filters(&[
        "importV4: [{action: Accept, matchOperator: In, cidr: 44.0.0.0/16}, {action: Reject, matchOperator: NotIn, cidr: 44.1.0.0/16}, {action: Accept, matchOperator: Equal, cidr: 44.1.2.0/24}, {action: Reject, matchOperator: NotEqual, cidr: 44.1.3.0/24}]",
    ]);
    for (prefix, expected) in [
        ("44.0.0.0/16", "accept"),
        ("44.0.5.0/26", "accept"),
        ("44.0.0.0/15", "reject"),
        ("44.2.0.0/16", "reject"),
        ("44.1.2.0/24", "accept"),
        ("44.1.2.0/25", "reject"),
        ("44.1.3.0/24", "next"),
        // The other family has no rules.
        ("fd00::/64", "next"),
    ] {
        assert_eq!(import(&filters, prefix), expected, "{prefix}");
    }
    // The other direction has no rules either.
    let attributes = attributes(&[], 1024);
    let action = filters.judge(Direction::Export, &route("44.2.0.0/16", &attributes), false);
    assert_eq!(word(&action), "next");
}

#[test]
fn calicos_match_of_source_and_interface() {
    let filters = filters(&[
        "exportV4: [{action: Accept, matchOperator: NotIn, cidr: 77.0.0.0/16, interface: eth0}, {action: Reject, matchOperator: In, cidr: 77.1.0.0/16, source: RemotePeers}, {action: Accept, source: RemotePeers}, {action: Reject}]",
    ]);
    let attributes = attributes(&[], 1024);
    for (prefix, is_from_peer, interface, expected) in [
        ("77.5.0.0/24", false, Some("eth0"), "accept"),
        ("77.0.1.0/24", false, Some("eth0"), "reject"),
        ("77.5.0.0/24", false, None, "reject"),
        ("77.1.1.0/24", true, None, "reject"),
        ("77.2.1.0/24", true, None, "accept"),
    ] {
        let route = Route { is_from_peer, interface, ..route(prefix, &attributes) };
        let action = filters.judge(Direction::Export, &route, true);
        assert_eq!(word(&action), expected, "{prefix}");
    }
}

#[test]
fn prefix_lengths() {
    for (rule, within, without) in [
        (
            "cidr: 10.0.0.0/8, matchOperator: In, prefixLength: {min: 16, max: 24}",
            &["10.0.0.0/16", "10.1.2.0/24", "10.1.0.0/20"][..],
            &["10.0.0.0/8", "10.0.0.0/15", "10.1.2.0/25", "11.0.0.0/16"][..],
        ),
        (
            "cidr: 10.0.0.0/8, matchOperator: In, prefixLength: {max: 16}",
            &["10.0.0.0/8", "10.5.0.0/16"],
            &["10.5.0.0/17", "0.0.0.0/0"],
        ),
        (
            "cidr: 10.0.0.0/8, matchOperator: In, prefixLength: {min: 4}",
            &["10.0.0.0/8", "10.0.0.1/32"],
            &["0.0.0.0/4", "8.0.0.0/7"],
        ),
        (
            "cidr: 10.0.0.0/8, matchOperator: NotIn, prefixLength: {min: 26}",
            &["10.0.0.0/25", "11.0.0.0/32"],
            &["10.0.0.0/26", "10.0.0.1/32"],
        ),
        ("cidr: 0.0.0.0/0, matchOperator: Equal", &["0.0.0.0/0"], &["0.0.0.0/1"]),
    ] {
        let filters = filters(&[&format!("importV4: [{{action: Accept, {rule}}}]")]);
        for (prefixes, expected) in [(within, "accept"), (without, "next")] {
            for prefix in prefixes {
                assert_eq!(import(&filters, prefix), expected, "{rule}: {prefix}");
            }
        }
    }
    let of_v6 = filters(&[
        "importV6: [{action: Accept, cidr: 'fd00::/8', matchOperator: In, prefixLength: {min: 48, max: 64}}]",
    ]);
    assert_eq!(import(&of_v6, "fd00::/64"), "accept");
    assert_eq!(import(&of_v6, "fd00::/65"), "next");
}

#[test]
fn each_condition_alone() {
    let mut from = attributes(&[65000, 65001], 512);
    from.communities = vec![0xfde8_0064];
    from.large_communities = vec![[65000, 1, 2]];
    let route = Route {
        prefix: "10.0.0.0/26".parse().unwrap(),
        attributes: &from,
        is_from_peer: true,
        interface: Some("eth0"),
    };
    let own = Route { is_from_peer: false, interface: None, ..route };
    for (rule, of_route, of_own) in [
        ("source: RemotePeers", true, false),
        ("interface: eth0", true, false),
        ("interface: 'e*0'", true, false),
        ("interface: '*'", true, false),
        ("interface: 'eth'", false, false),
        ("interface: '*.cali'", false, false),
        ("peerType: iBGP", true, true),
        ("peerType: eBGP", false, false),
        ("communities: {values: ['65000:100']}", true, true),
        ("communities: {values: ['65000:101']}", false, false),
        ("communities: {values: ['65000:1:2']}", true, true),
        ("communities: {values: ['65000:1:3']}", false, false),
        ("asPathPrefix: [65000]", true, true),
        ("asPathPrefix: [65000, 65001]", true, true),
        ("asPathPrefix: [65001]", false, false),
        ("asPathPrefix: [65000, 65001, 65002]", false, false),
        ("priority: 512", true, true),
        ("priority: 1024", false, false),
        // All conditions must hold.
        ("priority: 512, asPathPrefix: [65000], source: RemotePeers", true, false),
        ("priority: 512, peerType: eBGP", false, false),
    ] {
        let filters = filters(&[&format!("exportV4: [{{action: Accept, {rule}}}]")]);
        for (route, expected) in [(route, of_route), (own, of_own)] {
            let action = filters.judge(Direction::Export, &route, true);
            assert_eq!(word(&action) == "accept", expected, "{rule}");
        }
    }
    // A route without a `LOCAL_PREF` has no priority.
    let without = Attributes { local_pref: None, ..from.clone() };
    let route = Route { attributes: &without, ..own };
    let filters = filters(&["exportV4: [{action: Accept, priority: 1}]"]);
    assert_eq!(word(&filters.judge(Direction::Export, &route, true)), "next");
}

#[test]
fn calicos_communities_and_operations() {
    let filters = filters(&[
        "importV4: [{action: Accept, communities: {values: ['65000:100']}, operations: [{setPriority: {value: 256}}]}, {action: Reject}], \
         exportV4: [{action: Accept, communities: {values: ['65000:42']}, operations: [{addCommunity: {value: '65001:200'}}, {prependASPath: {prefix: [65000]}}]}, {action: Reject}]",
    ]);
    let mut from = attributes(&[64999], 1024);
    assert_eq!(import(&filters, "10.0.0.0/26"), "reject");
    from.communities = vec![0xfde8_0064];
    let FilterAction::Accept(taken) =
        filters.judge(Direction::Import, &route("10.0.0.0/26", &from), true)
    else {
        panic!("it is accepted")
    };
    assert_eq!(*taken, Attributes { local_pref: Some(2_147_483_391), ..from.clone() });
    from.communities = vec![0xfde8_002a, 0xffff_0000];
    let FilterAction::Accept(told) =
        filters.judge(Direction::Export, &route("10.0.0.0/26", &from), true)
    else {
        panic!("it is accepted")
    };
    let expected = Attributes {
        communities: vec![0xfde8_002a, 0xfde9_00c8, 0xffff_0000],
        as_path: vec![Segment::Sequence(vec![65000, 64999])],
        ..from.clone()
    };
    assert_eq!(*told, expected);
}

#[test]
fn a_path_begins_with_what_is_prepended_in_its_order() {
    let own = attributes(&[], 1024);
    let long = attributes(&[7; 250], 1024);
    let mut of_set = own.clone();
    of_set.as_path = vec![Segment::Set(vec![5, 6])];
    let filters = filters(&[
        "exportV4: [{action: Accept, operations: [{prependASPath: {prefix: [1, 2, 3, 4, 5, 6]}}, {prependASPath: {prefix: [9]}}]}]",
    ]);
    for (before, segments) in [(&own, vec![7]), (&long, vec![7, 250]), (&of_set, vec![7, 2])] {
        let FilterAction::Accept(told) =
            filters.judge(Direction::Export, &route("10.0.0.0/26", before), false)
        else {
            panic!("it is accepted")
        };
        let systems: Vec<u32> = told.systems().collect();
        assert_eq!(systems[..7], [9, 1, 2, 3, 4, 5, 6]);
        assert_eq!(systems[7..], before.systems().collect::<Vec<_>>());
        let lengths = told.as_path.iter().map(|it| match it {
            Segment::Sequence(systems) | Segment::Set(systems) => systems.len(),
        });
        assert_eq!(lengths.collect::<Vec<_>>(), segments);
        assert!(begins_with(&told.as_path, &[9, 1, 2]));
    }
    assert!(begins_with(&of_set.as_path, &[6]) && !begins_with(&of_set.as_path, &[5, 6]));
}

#[test]
fn filters_are_asked_in_order_and_the_first_rule_that_matches_decides() {
    let rejects = "importV4: [{action: Reject, cidr: 10.0.0.0/8, matchOperator: In}]";
    let accepts = "importV4: [{action: Accept, cidr: 10.0.0.0/16, matchOperator: In}]";
    for (specs, expected) in [
        (&[rejects, accepts][..], ["reject", "reject", "next"]),
        (&[accepts, rejects], ["accept", "reject", "next"]),
        (&["", accepts], ["accept", "next", "next"]),
        (&[], ["next"; 3]),
    ] {
        let filters = filters(specs);
        let found = ["10.0.0.0/24", "10.1.0.0/24", "11.0.0.0/24"].map(|it| import(&filters, it));
        assert_eq!(found, expected, "{specs:?}");
    }
}

#[test]
fn a_filter_that_is_missing_or_not_valid_closes_all() {
    let contents = contents(&[
        ("open", "importV4: [{action: Accept}], exportV4: [{action: Accept}]"),
        ("broken", "importV4: [{action: Accept, cdir: 10.0.0.0/8}]"),
    ]);
    for (name, found) in [("broken", "one that is not valid"), ("gone", "none")] {
        let names = ["open", name].map(str::to_owned);
        let (filters, problems) = Filters::new(&contents, &names, "tor");
        assert_eq!(
            problems,
            [format!(
                "BGPFilter {name}: found {found}, expected the filter of peer tor, so no route goes to this peer and none is taken from it: correct the BGPFilter, or the filters of the BGPPeer"
            )]
        );
        assert!(filters.is_closed());
        let attributes = attributes(&[], 1024);
        for direction in [Direction::Import, Direction::Export] {
            for prefix in ["10.0.0.0/26", "fd00::/64"] {
                let action = filters.judge(direction, &route(prefix, &attributes), true);
                assert_eq!(action, FilterAction::Reject, "{name} {direction:?} {prefix}");
            }
        }
    }
}

#[test]
fn patterns() {
    for (pattern, like, unlike) in [
        ("", &[""][..], &["a"][..]),
        ("*", &["", "a", "tunl0"], &[]),
        ("*.cali", &["vxlan.cali", ".cali", "a.cali.cali"], &["vxlan.calico", "cali"]),
        ("a*b*c", &["abc", "aXbbYc", "abcbc"], &["ab", "acb", "abcd"]),
        ("tunl0", &["tunl0"], &["tunl", "tunl00"]),
    ] {
        assert!(like.iter().all(|name| is_like(name, pattern)), "{pattern}");
        assert!(!unlike.iter().any(|name| is_like(name, pattern)), "{pattern}");
    }
}

/// One of a few overlapping nets, of either family.
fn nets() -> impl Strategy<Value = IpNet> {
    (any::<bool>(), 0_u8..=6, 0_u8..64).prop_map(|(is_v4, length, bits)| {
        let first = bits << 2;
        let net = if is_v4 {
            IpNet::new(IpAddr::from([first, 0, 0, 0]), length)
        } else {
            IpNet::new(IpAddr::from([u16::from(first) << 8, 0, 0, 0, 0, 0, 0, 0]), length)
        };
        net.unwrap().trunc()
    })
}

fn any_rule() -> impl Strategy<Value = FilterRule> {
    let operators =
        [NetOperator::Equal, NetOperator::NotEqual, NetOperator::In, NetOperator::NotIn];
    let lengths = (prop::option::of(0_u8..7), prop::option::of(0_u8..7));
    let net = (nets(), prop::sample::select(operators.to_vec()), lengths);
    let net = net.prop_map(|(cidr, operator, (shortest, longest))| NetMatch {
        cidr,
        operator,
        shortest,
        longest,
    });
    let others = (any::<bool>(), prop::option::of(any::<bool>()), any::<bool>());
    (prop::option::of(net), prop::collection::vec(1_u32..3, 0..3), others).prop_map(
        |(net, path_begins, (from_peers, internal_peer, accepts))| FilterRule {
            net,
            from_peers,
            interface: None,
            internal_peer,
            community: None,
            path_begins,
            priority: None,
            accepts,
            operations: Vec::new(),
        },
    )
}

/// Whether a prefix is in a net, bit by bit.
fn bits_agree(net: IpNet, prefix: IpNet) -> bool {
    let bits = |net: IpNet| match net.network() {
        IpAddr::V4(address) => u128::from(address.to_bits()) << 96,
        IpAddr::V6(address) => address.to_bits(),
    };
    let is_same = |at: u8| (bits(net) ^ bits(prefix)) >> (127 - at) & 1 == 0;
    net.addr().is_ipv4() == prefix.addr().is_ipv4()
        && prefix.prefix_len() >= net.prefix_len()
        && (0..net.prefix_len()).all(is_same)
}

proptest! {
    /// The deciding rule is the first of all rules that would match if it were a filter's only rule. An independent test of
    /// the bits decides whether a rule's net matches.
    #[test]
    fn the_first_rule_that_matches_alone_decides(
        parts in prop::collection::vec(prop::collection::vec(any_rule(), 0..4), 0..4),
        prefix in nets(),
        systems in prop::collection::vec(1_u32..3, 0..3),
        (is_from_peer, is_internal) in (any::<bool>(), any::<bool>()),
    ) {
        let attributes = attributes(&systems, 1024);
        let route = Route { prefix, attributes: &attributes, is_from_peer, interface: None };
        let of = |parts: &[Vec<FilterRule>]| Filters {
            filters: parts
                .iter()
                .map(|rules| {
                    Arc::new(BgpFilter {
                        import_v4: rules.clone(),
                        import_v6: rules.clone(),
                        ..BgpFilter::default()
                    })
                })
                .collect(),
            is_closed: false,
        };
        let judge = |parts: &[Vec<FilterRule>]| {
            word(&of(parts).judge(Direction::Import, &route, is_internal))
        };
        let alone = parts.iter().flatten().map(|rule| judge(&[vec![rule.clone()]]));
        let first = alone.into_iter().find(|word| *word != "next").unwrap_or("next");
        prop_assert_eq!(judge(&parts), first);
        for net in parts.iter().flatten().filter_map(|rule| rule.net) {
            let length = prefix.prefix_len();
            let is_of_length = net.shortest.is_none_or(|it| it <= length)
                && net.longest.is_none_or(|it| length <= it);
            let agrees = bits_agree(net.cidr, prefix)
                && is_of_length
                && (matches!(net.operator, NetOperator::In | NetOperator::NotIn)
                    || length == net.cidr.prefix_len());
            let is_negated = matches!(net.operator, NetOperator::NotIn | NetOperator::NotEqual);
            prop_assert_eq!(is_in(net, prefix), agrees != is_negated);
        }
    }
}
