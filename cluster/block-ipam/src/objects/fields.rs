//! The fields of the objects.
//!
//! Objects come from several versions of Calico. A field that older versions lack has the meaning that its absence had
//! then. Fields that newer versions add are kept. If the meaning of an object is not certain, reading it is an error,
//! and nothing is decided from it.
//!
//! Source: the `CustomResourceDefinition`s of Calico 3.33.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use ipnet::IpNet;
use manx_datastore::ServedKind;
use manx_objects::object::Kind;
use serde_json::{Map, Value, json};

use super::names::labels_of;
use crate::addresses::size;
use crate::affinity::{Affinity, Owner, State};
use crate::block::{Allocation, Attributes, Block, MOST_ADDRESSES, Time};
use crate::config::Config;
use crate::handle::Handle;
use crate::store::Record;

/// The API version of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// The version `crd.projectcalico.org/v1`.
    V1,
    /// The version `projectcalico.org/v3`.
    V3,
}

impl Version {
    pub(super) fn of(api_version: &str) -> Self {
        if api_version.starts_with("projectcalico.org/") { Self::V3 } else { Self::V1 }
    }

    /// Returns the name of the field that contains [`Allocation::alternate`].
    const fn alternate(self) -> &'static str {
        match self {
            Self::V1 => "alternateOwnerAttrs",
            Self::V3 => "alternate",
        }
    }

    /// Returns the value of `spec.deleted` for a kind. It is a text in affinities of version 1, and otherwise a
    /// boolean.
    fn deleted(self, kind: ServedKind, is_deleted: bool) -> Value {
        match self {
            Self::V1 if kind == Kind::BlockAffinity.into() => is_deleted.to_string().into(),
            Self::V1 | Self::V3 => is_deleted.into(),
        }
    }
}

/// Writes the fields of a record into an object. Other fields stay as they are.
pub(super) fn write(record: &Record, version: Version, mut object: Value) -> Value {
    let (kind, fields) = match record {
        Record::Block(block) => (ServedKind::IpamBlock, block_fields(block, version)),
        Record::Affinity(affinity) => {
            let Affinity { owner, cidr, state } = affinity;
            for (key, value) in labels_of(owner, *cidr) {
                object["metadata"]["labels"][key] = value.into();
            }
            let fields = json!({
                "state": state.name(),
                "node": owner.name(),
                "type": owner.kind(),
                "cidr": cidr.to_string(),
            });
            (Kind::BlockAffinity.into(), fields)
        }
        Record::Handle(Handle { id, blocks }) => {
            let blocks: Map<String, Value> =
                blocks.iter().map(|(cidr, count)| (cidr.to_string(), (*count).into())).collect();
            (ServedKind::IpamHandle, json!({ "handleID": id, "block": blocks }))
        }
    };
    let Value::Object(fields) = fields else { return object };
    for (field, value) in fields {
        object["spec"][field.as_str()] = value;
    }
    object["spec"]["deleted"] = version.deleted(kind, false);
    without_nulls(&mut object["spec"]);
    object
}

/// Marks an object as deleted, which is the first step of a deletion.
pub(super) fn mark_deleted(version: Version, kind: ServedKind, mut object: Value) -> Value {
    object["spec"]["deleted"] = version.deleted(kind, true);
    object
}

/// Removes null values, because the API server refuses them if the schema has a type for the field.
fn without_nulls(spec: &mut Value) {
    if let Value::Object(fields) = spec {
        fields.retain(|_, value| !value.is_null());
    }
}

/// Returns the record of an object, or `None` if the object is marked as deleted.
pub(super) fn read(kind: ServedKind, object: &Value) -> Result<Option<Record>, String> {
    let spec = &object["spec"];
    let is_deleted = match &spec["deleted"] {
        Value::Null => false,
        Value::Bool(is_deleted) => *is_deleted,
        Value::String(text) if text.is_empty() => false,
        Value::String(text) => {
            text.parse().map_err(|_| wrong("spec.deleted", &spec["deleted"], "true or false"))?
        }
        other => return Err(wrong("spec.deleted", other, "true or false")),
    };
    if is_deleted {
        return Ok(None);
    }
    let record = match kind {
        ServedKind::IpamBlock => Record::Block(block(spec)?),
        ServedKind::IpamHandle => Record::Handle(handle(spec)?),
        _ => Record::Affinity(affinity(spec)?),
    };
    Ok(Some(record))
}

fn wrong(field: &str, found: &Value, expected: &str) -> String {
    let found = match found {
        Value::Null => "nothing".to_owned(),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "a mapping".to_owned(),
        other => other.to_string(),
    };
    format!("{field}: found {found}, expected {expected}")
}

fn text<'a>(spec: &'a Value, field: &str) -> Result<&'a str, String> {
    let found = &spec[field];
    found.as_str().ok_or_else(|| wrong(&format!("spec.{field}"), found, "a text"))
}

fn cidr(spec: &Value) -> Result<IpNet, String> {
    let parsed = text(spec, "cidr")?.parse::<IpNet>();
    parsed.map_err(|_| wrong("spec.cidr", &spec["cidr"], "a net as 10.65.0.0/26"))
}

fn affinity(spec: &Value) -> Result<Affinity, String> {
    let kind = spec["type"].as_str().unwrap_or_default();
    let owner = Owner::new(kind, text(spec, "node")?)
        .ok_or_else(|| wrong("spec.type", &spec["type"], "host or virtual"))?;
    let states = "pending, confirmed or pendingDeletion";
    let state = State::parse(spec["state"].as_str().unwrap_or_default())
        .ok_or_else(|| wrong("spec.state", &spec["state"], states))?;
    Ok(Affinity { owner, cidr: cidr(spec)?.trunc(), state })
}

fn handle(spec: &Value) -> Result<Handle, String> {
    let id = text(spec, "handleID")?.to_owned();
    let mut blocks = BTreeMap::new();
    for (cidr, count) in spec["block"].as_object().into_iter().flatten() {
        let expected = "the number of addresses of a net";
        let field = format!("spec.block.{cidr}");
        let net: IpNet = cidr.parse().map_err(|_| wrong(&field, count, expected))?;
        let number = count.as_u64().and_then(|it| u32::try_from(it).ok());
        let number = number.ok_or_else(|| wrong(&field, count, expected))?;
        if number > 0 {
            blocks.insert(net.trunc(), number);
        }
    }
    Ok(Handle { id, blocks })
}

/// Returns the fields of a block. The attributes of a block are in a list, and each allocated address refers to one of
/// them by index.
fn block_fields(block: &Block, version: Version) -> Value {
    let Block { cidr, owner, claimed_at, allocations, free, sequence } = block;
    let mut attributes: Vec<Value> = Vec::new();
    let mut places: Vec<Value> = vec![Value::Null; size(*cidr) as usize];
    let mut sequences = Map::new();
    for (at, allocation) in allocations {
        let Allocation { handle, owner, alternate, released_at, sequence } = allocation;
        let mut written = json!({});
        if let Some(handle) = handle {
            written["handle_id"] = handle.as_str().into();
        }
        for (field, all) in [("secondary", owner), (version.alternate(), alternate)] {
            if !all.is_empty() {
                written[field] = json!(all);
            }
        }
        if let Some(then) = released_at {
            written["releasedAt"] = moment(*then).into();
        }
        let place = attributes.iter().position(|it| *it == written).unwrap_or_else(|| {
            attributes.push(written);
            attributes.len() - 1
        });
        if let Some(it) = places.get_mut(*at as usize) {
            *it = place.into();
        }
        if *sequence > 0 {
            sequences.insert(at.to_string(), (*sequence).into());
        }
    }
    json!({
        "cidr": cidr.to_string(),
        "affinity": owner.as_ref().map(Owner::to_string),
        "affinityClaimTime": claimed_at.map(moment),
        "allocations": places,
        "unallocated": free,
        "attributes": attributes,
        "sequenceNumber": sequence,
        "sequenceNumberForAllocation": sequences,
        // Calico's schema requires this field, but nothing reads it.
        "strictAffinity": false,
    })
}

fn block(spec: &Value) -> Result<Block, String> {
    let cidr = cidr(spec)?.trunc();
    let size = size(cidr);
    if size == MOST_ADDRESSES && u32::from(cidr.max_prefix_len() - cidr.prefix_len()) > 12 {
        return Err(format!("spec.cidr: found {cidr}, expected a net of at most {size} addresses"));
    }
    let owner = match spec["affinity"].as_str() {
        None | Some("") => None,
        Some(text) => Some(Owner::parse(text).ok_or_else(|| {
            wrong("spec.affinity", &spec["affinity"], "host:NODE or virtual:NAME")
        })?),
    };
    let places = spec["allocations"].as_array().map(Vec::as_slice).unwrap_or_default();
    if places.len() != size as usize {
        let found = places.len();
        return Err(format!("spec.allocations: found {found} entries, expected {size}"));
    }
    let sequences = &spec["sequenceNumberForAllocation"];
    let mut allocations = BTreeMap::new();
    for (at, place) in (0..size).zip(places) {
        if place.is_null() {
            continue;
        }
        let field = format!("spec.allocations[{at}]");
        let attribute = place.as_u64().and_then(|it| spec["attributes"].get(it as usize));
        let attribute =
            attribute.ok_or_else(|| wrong(&field, place, "a place in spec.attributes"))?;
        let sequence = sequences[at.to_string().as_str()].as_u64().unwrap_or_default();
        allocations.insert(at, Allocation { sequence, ..allocation(attribute)? });
    }
    Ok(Block {
        cidr,
        owner,
        claimed_at: time(&spec["affinityClaimTime"], "spec.affinityClaimTime")?,
        free: free(spec, size, &allocations),
        allocations,
        sequence: spec["sequenceNumber"].as_u64().unwrap_or_default(),
    })
}

/// Returns the indexes of the free addresses, in order. Contradictions in the object are corrected: an allocated
/// address is not free, and an address that is neither allocated nor listed as free is added at the end.
fn free(spec: &Value, size: u32, allocations: &BTreeMap<u32, Allocation>) -> VecDeque<u32> {
    let listed = spec["unallocated"].as_array().into_iter().flatten();
    let listed = listed.filter_map(|it| u32::try_from(it.as_u64()?).ok());
    let mut seen = BTreeSet::new();
    let is_free = |at: &u32| *at < size && !allocations.contains_key(at) && seen.insert(*at);
    listed.chain(0..size).filter(is_free).collect()
}

fn allocation(attribute: &Value) -> Result<Allocation, String> {
    Ok(Allocation {
        handle: attribute["handle_id"].as_str().map(ToOwned::to_owned),
        owner: attributes(&attribute["secondary"]),
        alternate: [Version::V1, Version::V3]
            .map(|version| attributes(&attribute[version.alternate()]))
            .into_iter()
            .flatten()
            .collect(),
        released_at: time(&attribute["releasedAt"], "spec.attributes[].releasedAt")?,
        sequence: 0,
    })
}

fn attributes(found: &Value) -> Attributes {
    let texts = found.as_object().into_iter().flatten();
    texts.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect()
}

/// Returns a time in the form of Kubernetes (RFC 3339, whole seconds).
pub fn moment(Time(nanos): Time) -> String {
    manx_datastore::time::written(nanos)
}

fn time(found: &Value, field: &str) -> Result<Option<Time>, String> {
    let Some(text) = found.as_str().filter(|it| !it.is_empty()) else { return Ok(None) };
    let expected = "a time as 2026-11-29T01:02:03Z";
    let nanos = manx_datastore::time::read(text).ok_or_else(|| wrong(field, found, expected))?;
    Ok(Some(Time(nanos)))
}

/// Reads `spec` of `IPAMConfig` and `IPAMConfiguration`.
pub(super) fn config(spec: &Value) -> Result<Config, String> {
    let standard = Config::default();
    let flag = |field: &str, absent: bool| match &spec[field] {
        Value::Null => Ok(absent),
        Value::Bool(is_set) => Ok(*is_set),
        other => Err(wrong(&format!("spec.{field}"), other, "true or false")),
    };
    let number = |field: &str| match &spec[field] {
        Value::Null => Ok(0),
        other => other
            .as_u64()
            .and_then(|it| u32::try_from(it).ok())
            .ok_or_else(|| wrong(&format!("spec.{field}"), other, "a number")),
    };
    Ok(Config {
        strict_affinity: flag("strictAffinity", standard.strict_affinity)?,
        claims_blocks: flag("autoAllocateBlocks", standard.claims_blocks)?,
        max_blocks: number("maxBlocksPerHost")?,
        cooldown: Duration::from_secs(number("ipCooldownSeconds")?.into()),
    })
}

/// Returns `spec` of `IPAMConfig` and `IPAMConfiguration`. The schema of `IPAMConfig` requires both booleans.
pub(super) fn write_config(config: &Config) -> Value {
    let Config { strict_affinity, claims_blocks, max_blocks, cooldown } = config;
    let mut spec = json!({
        "strictAffinity": strict_affinity,
        "autoAllocateBlocks": claims_blocks,
    });
    if *max_blocks > 0 {
        spec["maxBlocksPerHost"] = (*max_blocks).into();
    }
    if !cooldown.is_zero() {
        spec["ipCooldownSeconds"] = cooldown.as_secs().into();
    }
    spec
}

/// Reads `spec` of an `IPReservation`.
pub(super) fn reserved(spec: &Value) -> Result<Vec<IpNet>, String> {
    let field = "spec.reservedCIDRs";
    let read = |it: &Value| {
        let text = it.as_str().unwrap_or_default();
        let net = text.parse::<IpNet>().ok();
        let net = net.or_else(|| Some(IpNet::from(text.parse::<std::net::IpAddr>().ok()?)));
        net.map(|net| net.trunc()).ok_or_else(|| wrong(field, it, "an address or a net"))
    };
    spec["reservedCIDRs"].as_array().into_iter().flatten().map(read).collect()
}
