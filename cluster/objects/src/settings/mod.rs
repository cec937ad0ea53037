//! The effect in Manx of each field of Calico's kinds, and of Calico's annotations.
//!
//! The table in this module is the only place where these effects are defined. The reader takes the fields of a kind
//! and its warnings from the table, so that `manx policy check`, `manx status` and Events say the same.
//! `docs/settings.md` is generated from the table, and a test compares the two.
//!
//! - A field that changes what is allowed, protected or reachable, and that Manx does not implement, is
//!   [`Effect::NotDone`]: it causes a warning, unless its value needs no effect.
//! - A field that only tunes how Calico works is [`Effect::Quiet`].
//! - A field without a row is reported as unknown, because a later version of Calico may give it a meaning.
//!
//! Source: Calico's API reference and custom resource definitions, 3.30 to 3.33.

mod bgp;
mod effect;
mod felix;
mod kinds;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::LazyLock;

use super::cursor::{Cursor, Findings};
use super::object::{Kind, Pairs};
use super::problem::Cause;
use super::tree::Value;
use effect::Row;
pub use effect::{Effect, NotDone, Unless};

/// The rows of a kind, in parts that several kinds share.
type Rows = &'static [&'static [Row]];

/// The fields of the `spec` of each of Calico's kinds.
const SPECS: &[(Kind, Rows)] = &[
    (Kind::FelixConfiguration, &[felix::ROWS]),
    (Kind::IpPool, &[kinds::IP_POOL]),
    (Kind::BlockAffinity, &[kinds::BLOCK_AFFINITY]),
    (Kind::BgpConfiguration, &[bgp::CONFIGURATION]),
    (Kind::BgpPeer, &[bgp::PEER]),
    (Kind::BgpFilter, &[bgp::FILTER]),
    (Kind::GlobalNetworkPolicy, &[kinds::POLICY, kinds::GLOBAL, kinds::EARLY]),
    (Kind::CalicoNetworkPolicy, &[kinds::POLICY]),
    (
        Kind::StagedGlobalNetworkPolicy,
        &[kinds::POLICY, kinds::GLOBAL, kinds::STAGED, kinds::STAGED_EARLY],
    ),
    (Kind::StagedNetworkPolicy, &[kinds::POLICY, kinds::STAGED]),
    (Kind::Tier, &[kinds::TIER]),
    (Kind::GlobalNetworkSet, &[kinds::NETWORK_SET]),
    (Kind::NetworkSet, &[kinds::NETWORK_SET]),
    (Kind::HostEndpoint, &[kinds::HOST_ENDPOINT]),
    (Kind::Profile, &[kinds::PROFILE]),
];

/// Calico's annotations, by kind. A name that ends in `/` stands for all annotations with this prefix
/// that have no row of their own.
const ANNOTATIONS: &[(Kind, Rows)] = &[
    (Kind::Pod, &[kinds::ADDRESSES, kinds::POD, kinds::QOS, kinds::EGRESS]),
    (Kind::Namespace, &[kinds::ADDRESSES, kinds::EGRESS]),
    (Kind::HostEndpoint, &[kinds::QOS]),
    (Kind::Service, &[kinds::SERVICE]),
];

/// A field's name and its effect.
type Field = (&'static str, Effect);
/// Fields by kind and name.
type Index = BTreeMap<(Kind, &'static str), Field>;

static SPEC_INDEX: LazyLock<Index> = LazyLock::new(|| index(SPECS));
static ANNOTATION_INDEX: LazyLock<Index> = LazyLock::new(|| index(ANNOTATIONS));

fn index(table: &[(Kind, Rows)]) -> Index {
    let of_kind = |(kind, rows): &(Kind, Rows)| {
        let kind = *kind;
        fields(rows).map(move |field| ((kind, field.0), field))
    };
    table.iter().flat_map(of_kind).collect()
}

fn fields(rows: Rows) -> impl Iterator<Item = Field> {
    let rows = rows.iter().copied().flatten();
    rows.flat_map(|(names, effect)| names.iter().map(|name| (*name, *effect)))
}

/// Returns whether `spec` is a mapping, and reports an error if it is not. Warns of fields that Manx does not
/// implement, and of unknown fields.
pub(super) fn tell(spec: &Cursor<'_>, kind: Kind, out: &mut Findings) -> bool {
    let known = || SPEC_INDEX.keys().filter(move |key| key.0 == kind).map(|key| key.1).collect();
    spec.entries(out, |name, at, field, out| match SPEC_INDEX.get(&(kind, name)) {
        Some((_, effect)) => tell_field(field, *effect, out),
        None => field.unknown(out, at, known),
    });
    matches!(spec.node.value, Value::Mapping(_))
}

/// Warns of annotations that Manx does not implement. Their types are checked elsewhere.
pub(super) fn tell_annotations(metadata: &Cursor<'_>, kind: Kind, out: &mut Findings) {
    let Some(annotations) = metadata.field("annotations") else { return };
    if !matches!(annotations.node.value, Value::Mapping(_)) {
        return;
    }
    annotations.entries(out, |name, _, field, out| {
        if let Some((_, effect)) = annotation(kind, name) {
            tell_field(field, effect, out);
        }
    });
}

/// Returns the row of an annotation and the row's name, which is the annotation's full name or its prefix.
fn annotation(kind: Kind, name: &str) -> Option<Field> {
    let prefix = name.find('/').map_or("", |slash| &name[..=slash]);
    let row = |name| ANNOTATION_INDEX.get(&(kind, name)).copied();
    row(name).or_else(|| row(prefix))
}

/// Returns the annotations that Manx does not implement: for each, the name of its row, and the missing part.
pub(super) fn annotations_not_done(
    annotations: &Pairs,
    kind: Kind,
) -> Vec<(&'static str, &'static str)> {
    let mut not_done: Vec<_> = annotations
        .iter()
        .filter_map(|(name, text)| match annotation(kind, name)? {
            (row, Effect::NotDone(it)) if !it.unless.holds(&Value::String(text.into())) => {
                Some((row, it.message))
            }
            _ => None,
        })
        .collect();
    not_done.dedup();
    not_done.shrink_to_fit();
    not_done
}

fn tell_field(field: &Cursor<'_>, effect: Effect, out: &mut Findings) {
    if let Effect::NotDone(NotDone { code, unless, message, help }) = effect
        && !unless.holds(&field.node.value)
    {
        field.warning(out, Cause::NotDone { code, message, help });
    }
}

/// Returns the message about an environment variable that Felix would take as a setting (such as
/// `FELIX_WIREGUARDENABLED`) and that the agent itself does not use. Returns `None` if nothing is missing.
pub fn of_variable(name: &str, value: &str) -> Option<&'static str> {
    let name = name.strip_prefix("FELIX_")?;
    let field = fields(&[felix::ROWS]).find(|(field, _)| field.eq_ignore_ascii_case(name));
    let value = match (value.to_ascii_lowercase().as_str(), value.parse()) {
        ("true", _) => Value::Boolean(true),
        ("false", _) => Value::Boolean(false),
        (_, Ok(number)) => Value::Integer(number),
        _ => Value::String(value.into()),
    };
    match field {
        Some((_, Effect::NotDone(not_done))) if not_done.unless.holds(&value) => None,
        Some((_, Effect::NotDone(not_done))) => Some(not_done.message),
        Some((_, Effect::Quiet(_))) => None,
        Some((_, Effect::Heeded(_))) => {
            Some("is not heeded as a variable: set it in the FelixConfiguration named default")
        }
        None => Some("is not known to this version of Manx: it may promise what is not done"),
    }
}

/// Returns the consequence, for users, of using a kind of Calico that Manx does not read. Returns `None` for other
/// kinds.
pub(super) fn unread(kind: &str, api_version: &str) -> Option<&'static str> {
    let is_calicos = Kind::FelixConfiguration.api_versions().contains(&api_version);
    let row = kinds::UNREAD.iter().find(|(name, _)| is_calicos && *name == kind);
    row.map(|(_, help)| *help)
}
