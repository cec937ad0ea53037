//! Decoding an encoded update gives the same update, and no message is longer than negotiated.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use manx_bgp::path::{Attributes, Opaque, Origin, Segment, Update};
use proptest::collection::{btree_set, vec};
use proptest::option;
use proptest::prelude::*;
use rustbgpd_wire::{
    Message, NotificationCode, UpdateMessage, decode_message, peek_message_length,
};

use super::decode::{Decoded, decode};
use super::encode::{encode, encode_end_of_rib};
use super::encoding::{Encoding, Family};
use super::written::Written;

/// An encoding without special options.
fn plain(family: Family) -> Encoding {
    Encoding { family, is_four_octet: true, is_internal: true, limit: 4096 }
}

/// The encoded messages, each with its length.
fn messages(written: BytesMut, limit: u16) -> Vec<(usize, UpdateMessage)> {
    let mut rest = written.freeze();
    let mut all = Vec::new();
    while let Some(length) = peek_message_length(&rest, limit).unwrap() {
        let mut one = rest.split_to(length.into());
        let Message::Update(update) = decode_message(&mut one, limit).unwrap() else {
            panic!("no UPDATE")
        };
        all.push((length.into(), update));
    }
    assert!(rest.is_empty());
    all
}

/// Decodes messages into one update. If there are several attributes, the last ones count.
fn read(written: BytesMut, encoding: Encoding) -> Update {
    let mut all = Update::default();
    for (_, message) in messages(written, encoding.limit) {
        let Decoded::Routes { updates, fault: None } = decode(&message, encoding).unwrap() else {
            panic!("{message:?} is wrong")
        };
        for Update { withdrawn, announced, attributes } in updates {
            all.withdrawn.extend(withdrawn);
            all.announced.extend(announced);
            all.attributes = attributes.or(all.attributes);
        }
    }
    all
}

fn prefix(family: Family) -> BoxedStrategy<IpNet> {
    match family {
        Family::V4 => (any::<u32>(), 0..=32u8)
            .prop_map(|(it, length)| Ipv4Net::new(it.into(), length).unwrap().trunc().into())
            .boxed(),
        Family::V6 => (any::<u128>(), 0..=128u8)
            .prop_map(|(it, length)| Ipv6Net::new(it.into(), length).unwrap().trunc().into())
            .boxed(),
    }
}

fn next_hop(family: Family) -> BoxedStrategy<IpAddr> {
    match family {
        Family::V4 => (0..0xffffu32).prop_map(|it| Ipv4Addr::from(0x0a00_0000 + it).into()).boxed(),
        Family::V6 => any::<u64>()
            .prop_map(|it| Ipv6Addr::from((0xfd00 << 112) + u128::from(it)).into())
            .boxed(),
    }
}

/// An attribute that is passed on: one with a known form, or any other.
fn opaque() -> impl Strategy<Value = Opaque> {
    prop_oneof![
        (1..=u32::MAX, any::<[u8; 4]>(), any::<bool>()).prop_map(|(system, address, partial)| {
            let value = [system.to_be_bytes(), address].concat();
            Opaque { flags: if partial { 0xe0 } else { 0xc0 }, code: 7, value }
        }),
        vec(any::<[u8; 8]>(), 1..40).prop_map(|it| Opaque {
            flags: 0xc0,
            code: 16,
            value: it.concat()
        }),
        (200..=250u8, vec(any::<u8>(), 0..300)).prop_map(|(code, value)| Opaque {
            flags: 0xe0,
            code,
            value
        }),
    ]
}

prop_compose! {
    fn attributes(family: Family)(
        origin in prop_oneof![Just(Origin::Igp), Just(Origin::Egp), Just(Origin::Incomplete)],
        as_path in option::of(vec(1..=u32::MAX, 1..=255)),
        next_hop in next_hop(family),
        med in option::of(any::<u32>()),
        local_pref in option::of(any::<u32>()),
        communities in btree_set(any::<u32>(), 0..80),
        large_communities in btree_set(any::<[u32; 3]>(), 0..30),
        originator in option::of(any::<u32>()),
        clusters in vec(any::<u32>(), 0..4),
        is_aggregate in any::<bool>(),
        opaque in vec(opaque(), 0..3),
    ) -> Attributes {
        let mut seen = BTreeSet::new();
        let mut opaque: Vec<_> = opaque.into_iter().filter(|it| seen.insert(it.code)).collect();
        opaque.sort();
        Attributes {
            origin,
            as_path: as_path.map(Segment::Sequence).into_iter().collect(),
            next_hop,
            med,
            local_pref,
            communities: communities.into_iter().collect(),
            large_communities: large_communities.into_iter().collect(),
            originator: originator.map(Ipv4Addr::from),
            clusters: clusters.into_iter().map(Ipv4Addr::from).collect(),
            is_aggregate,
            opaque,
        }
    }
}

prop_compose! {
    fn update(family: Family)(
        withdrawn in vec(prefix(family), 0..2000),
        announced in vec(prefix(family), 0..2000),
        attributes in attributes(family),
    ) -> Update {
        let attributes = (!announced.is_empty()).then(|| Arc::new(attributes));
        Update { withdrawn, announced, attributes }
    }
}

fn case() -> impl Strategy<Value = (Encoding, Update)> {
    let families = prop_oneof![Just(Family::V4), Just(Family::V6)];
    let limits = prop_oneof![Just(4096), Just(65535)];
    (families, any::<bool>(), limits).prop_flat_map(|(family, is_four_octet, limit)| {
        let encoding = Encoding { family, is_four_octet, is_internal: true, limit };
        (Just(encoding), update(family))
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn what_is_written_is_read_again_and_no_message_is_too_long((encoding, update) in case()) {
        let mut written = BytesMut::new();
        prop_assert_eq!(encode(&update, encoding, &mut Written::default(), &mut written), 0);
        let all = messages(written.clone(), encoding.limit);
        let bytes: usize = all.iter().map(|(length, _)| length).sum();
        // All messages are full, except the last of each kind.
        prop_assert!(all.len() <= 2 + 2 * bytes / usize::from(encoding.limit - 2600));
        prop_assert_eq!(read(written, encoding), update);
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in vec(any::<u8>(), 0..200), family in any::<bool>()) {
        let family = if family { Family::V4 } else { Family::V6 };
        let mut bytes = Bytes::from(bytes);
        let length = bytes.len();
        if let Ok(message) = UpdateMessage::decode(&mut bytes, length) {
            let _ = decode(&message, plain(family));
        }
    }
}

fn routes(written: BytesMut) -> UpdateMessage {
    messages(written, 4096).remove(0).1
}

#[test]
fn the_end_is_read_again() {
    for family in [Family::V4, Family::V6] {
        let mut written = BytesMut::new();
        encode_end_of_rib(plain(family), &mut written);
        assert_eq!(decode(&routes(written), plain(family)), Ok(Decoded::EndOfRib));
    }
}

fn one_route() -> UpdateMessage {
    let announced: Vec<IpNet> = vec!["192.0.2.0/24".parse().unwrap()];
    let attributes = Some(Arc::new(Attributes::of_own("10.0.0.1".parse().unwrap())));
    let mut written = BytesMut::new();
    let update = Update { announced, attributes, ..Update::default() };
    assert_eq!(encode(&update, plain(Family::V4), &mut Written::default(), &mut written), 0);
    routes(written)
}

fn withdrawn_for(message: &UpdateMessage) -> String {
    let Ok(Decoded::Routes { updates, fault: Some(fault) }) = decode(message, plain(Family::V4))
    else {
        panic!("{message:?} is right")
    };
    let [Update { withdrawn, announced, attributes: None }] = &updates[..] else {
        panic!("{updates:?}")
    };
    assert_eq!((withdrawn.len(), announced.len()), (1, 0));
    fault
}

/// RFC 7606: the prefixes can be found, so the session may stay.
#[test]
fn a_malformed_attribute_withdraws_the_routes_and_is_named() {
    let right = one_route();
    let origin = right.path_attributes.windows(3).position(|it| it == [0x40, 1, 1]).unwrap();
    let mut wrong = right.clone();
    let mut attributes = right.path_attributes.to_vec();
    attributes[origin + 3] = 9;
    wrong.path_attributes = attributes.into();
    assert_eq!(
        withdrawn_for(&wrong),
        "attribute 1: UPDATE attribute error (subcode 6): invalid ORIGIN value 9"
    );
    let mut missing = right.clone();
    let attributes = &right.path_attributes;
    missing.path_attributes = [&attributes[..origin], &attributes[origin + 4..]].concat().into();
    assert_eq!(withdrawn_for(&missing), "attribute 1: Missing Well-known Attribute");
    let mut loopback = right.clone();
    let mut attributes = right.path_attributes.to_vec();
    let next_hop = attributes.windows(4).position(|it| it == [10, 0, 0, 1]).unwrap();
    attributes[next_hop] = 127;
    loopback.path_attributes = attributes.into();
    assert_eq!(withdrawn_for(&loopback), "attribute 3: Invalid NEXT_HOP Attribute");
}

#[test]
fn prefixes_that_cannot_be_read_end_the_session() {
    let mut wrong = one_route();
    wrong.nlri = Bytes::from_static(&[33, 1, 2, 3, 4, 5]);
    let notification = decode(&wrong, plain(Family::V4)).unwrap_err();
    assert_eq!((notification.code, notification.subcode), (NotificationCode::UpdateMessage, 10));
}

#[test]
fn prefixes_of_another_family_are_not_taken() {
    let Ok(Decoded::Routes { updates, fault }) = decode(&one_route(), plain(Family::V6)) else {
        panic!("the session would end")
    };
    assert_eq!(updates, []);
    assert_eq!(fault.unwrap(), "prefixes of a family that the session does not carry");
}

/// RFC 8654, 4: the routes that the peer has must not stay valid.
#[test]
fn routes_whose_attributes_fit_into_no_message_are_withdrawn() {
    let mut attributes = Attributes::of_own("10.0.0.1".parse().unwrap());
    attributes.opaque = vec![Opaque { flags: 0xe0, code: 200, value: vec![0; 4090] }];
    let announced: Vec<IpNet> = vec!["192.0.2.0/24".parse().unwrap()];
    let attributes = Some(Arc::new(attributes));
    let update = Update { announced: announced.clone(), attributes, ..Update::default() };
    let mut written = BytesMut::new();
    assert_eq!(encode(&update, plain(Family::V4), &mut Written::default(), &mut written), 1);
    let expected = Update { withdrawn: announced, ..Update::default() };
    assert_eq!(read(written, plain(Family::V4)), expected);
    let mut written = BytesMut::new();
    let extended = Encoding { limit: 65535, ..plain(Family::V4) };
    assert_eq!(encode(&update, extended, &mut Written::default(), &mut written), 0);
    assert_eq!(read(written, extended), update);
}
