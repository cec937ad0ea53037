//! The attributes of a path, as values and on the wire.

use std::net::IpAddr;

use manx_bgp::path::{Attributes, Opaque, Origin, Segment};
use rustbgpd_wire::attribute::encode_path_attributes;
use rustbgpd_wire::constants::{attr_flags, attr_type};
use rustbgpd_wire::{
    Aggregator, AsPath, AsPathSegment, EncodeError, LargeCommunity, Origin as WireOrigin,
    PathAttribute,
};

/// The attributes that this module does not interpret, but whose form is checked on arrival. The partial bit says that a
/// router did not know an attribute (RFC 4271, 5), so it is set on all other passed-on attributes.
const KNOWN: [u8; 4] = [
    attr_type::EXTENDED_COMMUNITIES,
    attr_type::IPV6_ADDRESS_SPECIFIC_EXTENDED_COMMUNITY,
    attr_type::PMSI_TUNNEL,
    attr_type::ONLY_TO_CUSTOMER,
];

/// The flags that distinguish the classes of attributes: all except the flag for the size of the length field.
const CLASS: u8 = attr_flags::OPTIONAL | attr_flags::TRANSITIVE | attr_flags::PARTIAL;

/// Writes attributes. `is_four_octet` says that the peer supports four-octet autonomous systems (RFC 6793). An IPv6 next
/// hop is not written here: it belongs to the attribute with the prefixes (RFC 4760, 3).
///
/// # Errors
/// The attributes contain something that must not be sent: an `AS_SET` (RFC 9774), or the autonomous system 0 (RFC 7607).
pub(super) fn encode(
    attributes: &Attributes,
    is_four_octet: bool,
    out: &mut Vec<u8>,
) -> Result<(), EncodeError> {
    let Attributes { origin, as_path, next_hop, med, local_pref, .. } = attributes;
    let Attributes { communities, large_communities, originator, clusters, .. } = attributes;
    let mut on_wire = vec![
        PathAttribute::Origin(match origin {
            Origin::Igp => WireOrigin::Igp,
            Origin::Egp => WireOrigin::Egp,
            Origin::Incomplete => WireOrigin::Incomplete,
        }),
        PathAttribute::AsPath(AsPath { segments: as_path.iter().map(segment).collect() }),
    ];
    if let IpAddr::V4(next_hop) = next_hop {
        on_wire.push(PathAttribute::NextHop(*next_hop));
    }
    on_wire.extend(med.map(PathAttribute::Med));
    on_wire.extend(local_pref.map(PathAttribute::LocalPref));
    on_wire.extend(attributes.is_aggregate.then_some(PathAttribute::AtomicAggregate));
    if !communities.is_empty() {
        on_wire.push(PathAttribute::Communities(communities.clone()));
    }
    on_wire.extend(originator.map(PathAttribute::OriginatorId));
    if !clusters.is_empty() {
        on_wire.push(PathAttribute::ClusterList(clusters.clone()));
    }
    if !large_communities.is_empty() {
        let of = |&[system, one, two]: &[u32; 3]| LargeCommunity::new(system, one, two);
        let large = large_communities.iter().map(of).collect();
        on_wire.push(PathAttribute::LargeCommunities(large));
    }
    on_wire.extend(attributes.opaque.iter().filter_map(aggregator));
    encode_path_attributes(&on_wire, out, is_four_octet, false)?;
    let others = attributes.opaque.iter().filter(|it| it.code != attr_type::AGGREGATOR);
    others.for_each(|it| encode_opaque(it, out));
    Ok(())
}

/// Converts received attributes to values, without the prefixes in them. Returns `None` if a mandatory attribute is
/// missing.
pub(super) fn decode(on_wire: &[PathAttribute], next_hop: IpAddr) -> Option<Attributes> {
    let mut origin = None;
    let mut as_path = None;
    let mut attributes = Attributes::of_own(next_hop);
    for it in on_wire {
        match it {
            PathAttribute::Origin(it) => {
                origin = Some(match it {
                    WireOrigin::Igp => Origin::Igp,
                    WireOrigin::Egp => Origin::Egp,
                    WireOrigin::Incomplete => Origin::Incomplete,
                });
            }
            PathAttribute::AsPath(it) => {
                as_path = Some(it.segments.iter().map(segment_of).collect());
            }
            PathAttribute::Med(it) => attributes.med = Some(*it),
            PathAttribute::LocalPref(it) => attributes.local_pref = Some(*it),
            PathAttribute::AtomicAggregate => attributes.is_aggregate = true,
            PathAttribute::OriginatorId(it) => attributes.originator = Some(*it),
            PathAttribute::ClusterList(it) => attributes.clusters.clone_from(it),
            PathAttribute::Communities(it) | PathAttribute::CommunitiesPartial(it) => {
                attributes.communities = sorted(it.clone());
            }
            PathAttribute::LargeCommunities(it) | PathAttribute::LargeCommunitiesPartial(it) => {
                let of = |it: &LargeCommunity| [it.global_admin, it.local_data1, it.local_data2];
                attributes.large_communities = sorted(it.iter().map(of).collect());
            }
            PathAttribute::NextHop(_)
            | PathAttribute::MpReachNlri(_)
            | PathAttribute::MpUnreachNlri(_) => {}
            other => attributes.opaque.extend(opaque(other)),
        }
    }
    attributes.opaque.sort();
    (attributes.origin, attributes.as_path) = (origin?, as_path?);
    Some(attributes)
}

/// Sorts communities, which are a set: their order has no meaning.
fn sorted<T: Ord>(mut all: Vec<T>) -> Vec<T> {
    all.sort_unstable();
    all.dedup();
    all
}

fn segment(it: &Segment) -> AsPathSegment {
    match it {
        Segment::Sequence(systems) => AsPathSegment::AsSequence(systems.clone()),
        Segment::Set(systems) => AsPathSegment::AsSet(systems.clone()),
    }
}

fn segment_of(it: &AsPathSegment) -> Segment {
    match it {
        AsPathSegment::AsSequence(systems) => Segment::Sequence(systems.clone()),
        AsPathSegment::AsSet(systems) => Segment::Set(systems.clone()),
    }
}

/// An attribute that is passed on as it was received. Returns `None` for an attribute that is not passed on.
fn opaque(it: &PathAttribute) -> Option<Opaque> {
    let (flags, code, value) = match it {
        PathAttribute::Unknown(raw) => (raw.flags, raw.type_code, raw.data.to_vec()),
        // The length field follows the flags and the type code. It has one octet, or two if a flag says so.
        known => {
            let mut bytes = Vec::new();
            encode_path_attributes([known.clone()].as_slice(), &mut bytes, true, false).ok()?;
            let header = if bytes.first()? & attr_flags::EXTENDED_LENGTH == 0 { 3 } else { 4 };
            (*bytes.first()?, *bytes.get(1)?, bytes.get(header..)?.to_vec())
        }
    };
    let passed_on = attr_flags::OPTIONAL | attr_flags::TRANSITIVE;
    (flags & passed_on == passed_on).then_some(Opaque { flags: flags & CLASS, code, value })
}

/// The `AGGREGATOR`, whose form depends on the peer (RFC 6793, 4.2.2).
fn aggregator(it: &Opaque) -> Option<PathAttribute> {
    let Opaque { flags, code: attr_type::AGGREGATOR, value } = it else { return None };
    let [a, b, c, d, address @ ..] = value.as_slice() else { return None };
    let address: [u8; 4] = address.try_into().ok()?;
    let partial = flags & attr_flags::PARTIAL != 0;
    let asn = u32::from_be_bytes([*a, *b, *c, *d]);
    Some(PathAttribute::Aggregator(Aggregator { asn, router_id: address.into(), partial }))
}

fn encode_opaque(it: &Opaque, out: &mut Vec<u8>) {
    let partial = if KNOWN.contains(&it.code) { 0 } else { attr_flags::PARTIAL };
    let flags = it.flags & CLASS | partial;
    let Ok(length) = u16::try_from(it.value.len()) else { return };
    if let Ok(length) = u8::try_from(length) {
        out.extend([flags, it.code, length]);
    } else {
        out.extend([flags | attr_flags::EXTENDED_LENGTH, it.code]);
        out.extend(length.to_be_bytes());
    }
    out.extend_from_slice(&it.value);
}
