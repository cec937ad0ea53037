//! The report of `manx ipam check -o FILE`, which `manx ipam release` uses to release unused
//! addresses.
//!
//! It has the fields of the report of `calicoctl ipam check`, and some more.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::Path;

use manx_block_ipam::affinity::Owner;
use manx_block_ipam::check::{AddressState, Allocated, Checked, Finding, Kind};
use manx_block_ipam::objects::Known;
use manx_block_ipam::store::Record;
use serde::{Deserialize, Serialize};

use super::cluster::{Information, Seen};
use crate::Error;

/// See the module.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Report {
    /// The program that wrote the report.
    #[serde(default)]
    pub(super) version: String,
    #[serde(default, rename = "clusterGUID")]
    pub(super) cluster_guid: String,
    #[serde(default)]
    pub(super) datastore_locked: bool,
    #[serde(default)]
    pub(super) cluster_information_revision: String,
    #[serde(default)]
    pub(super) cluster_type: String,
    /// The allocations of each address.
    pub(super) allocations: BTreeMap<IpAddr, Vec<Allocation>>,
    /// The handles without addresses.
    #[serde(default)]
    pub(super) leaked_handles: Vec<LeakedHandle>,
    #[serde(default)]
    pub(super) problems: Vec<Problem>,
}

/// An allocated address.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Allocation {
    pub(super) ip: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) handle: String,
    pub(super) sequence_number: Option<u64>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) pod: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) namespace: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) node: String,
    #[serde(rename = "type", skip_serializing_if = "String::is_empty")]
    pub(super) kind: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) creation_timestamp: String,
    /// False: the address is unused, so it may be released.
    pub(super) in_use: bool,
    /// Whether the address is released and in its cooldown.
    #[serde(skip_serializing_if = "is_false")]
    pub(super) cooling: bool,
    #[serde(skip_serializing_if = "is_false")]
    pub(super) borrowed: bool,
    pub(super) owners: Option<Vec<String>>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
const fn is_false(it: &bool) -> bool {
    !*it
}

/// A handle without addresses, as it was at the time of the report.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct LeakedHandle {
    #[serde(rename = "ID")]
    pub(super) id: String,
    #[serde(rename = "UID")]
    pub(super) uid: Option<String>,
    #[serde(rename = "Revision")]
    pub(super) revision: String,
}

impl LeakedHandle {
    pub(super) fn new(id: &str, known: &Known) -> Self {
        let revision = known.revision();
        Self {
            id: id.to_owned(),
            uid: revision.uid().map(ToOwned::to_owned),
            revision: revision.version().to_owned(),
        }
    }
}

/// A finding.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Problem {
    pub(super) kind: String,
    /// What was found, and what was expected.
    pub(super) text: String,
    pub(super) remedy: String,
}

impl Report {
    /// Makes a report. `handles` are the handles in the datastore.
    pub(super) fn new(
        seen: &Seen,
        checked: &Checked,
        information: Option<Information>,
        handles: &[(Record, Known)],
    ) -> Self {
        let information = information.unwrap_or_default();
        let unused: BTreeSet<IpAddr> = checked.findings.iter().filter_map(unused).collect();
        let mut allocations = BTreeMap::<IpAddr, Vec<Allocation>>::new();
        for it in seen.records.allocated(&seen.users) {
            let in_use = !unused.contains(&it.address);
            allocations.entry(it.address).or_default().push(allocation(&it, in_use));
        }
        let without_addresses = checked.findings.iter().filter_map(|it| match it {
            Finding::HandleWithoutAddresses { handle } => Some(handle.id.as_str()),
            _ => None,
        });
        let without_addresses: BTreeSet<&str> = without_addresses.collect();
        let leaked = handles.iter().filter_map(|(record, known)| match record {
            Record::Handle(handle) if without_addresses.contains(handle.id.as_str()) => {
                Some(LeakedHandle::new(&handle.id, known))
            }
            _ => None,
        });
        let problem = |finding: &Finding| Problem {
            kind: kind_name(finding.kind()).to_owned(),
            text: finding.to_string(),
            remedy: finding.kind().remedy().to_owned(),
        };
        Self {
            version: format!("manx {}", env!("CARGO_PKG_VERSION")),
            cluster_guid: information.guid,
            datastore_locked: information.is_locked,
            cluster_information_revision: information.revision,
            cluster_type: information.kind,
            allocations,
            leaked_handles: leaked.collect(),
            problems: checked.findings.iter().map(problem).collect(),
        }
    }

    /// Reads a report.
    pub(super) fn read(file: &Path) -> Result<Self, Error> {
        let wrong = |found: &dyn std::fmt::Display| {
            Error::Invalid(format!(
                "report {}: {found}; expected what manx ipam check -o FILE or calicoctl ipam check -o FILE has written",
                file.display()
            ))
        };
        let text = std::fs::read_to_string(file).map_err(|error| wrong(&error))?;
        serde_json::from_str(&text).map_err(|error| wrong(&error))
    }
}

const fn unused(finding: &Finding) -> Option<IpAddr> {
    match finding {
        Finding::Unused { address, .. } => Some(*address),
        _ => None,
    }
}

fn allocation(it: &Allocated<'_>, in_use: bool) -> Allocation {
    let of = |key: &str| it.allocation.owner.get(key).cloned().unwrap_or_default();
    // Calico names the block's owner if nothing says which node has the address.
    let node = match (of("node"), &it.block.owner) {
        (node, Some(Owner::Host(owner))) if node.is_empty() => owner.clone(),
        (node, _) => node,
    };
    Allocation {
        ip: it.address.to_string(),
        handle: it.allocation.handle.clone().unwrap_or_default(),
        sequence_number: Some(it.allocation.sequence),
        pod: of("pod"),
        namespace: of("namespace"),
        node,
        kind: of("type"),
        creation_timestamp: of("timestamp"),
        in_use,
        cooling: it.state == AddressState::Resting,
        borrowed: it.borrower().is_some(),
        owners: Some(it.users.iter().map(ToString::to_string).collect()),
    }
}

/// The name of a kind of finding for programs.
const fn kind_name(kind: Kind) -> &'static str {
    match kind {
        Kind::Unused => "unused",
        Kind::NotAllocated => "not-allocated",
        Kind::InNoPool => "in-no-pool",
        Kind::UsedTwice => "used-twice",
        Kind::OtherUser => "other-user",
        Kind::HandleWithoutAddresses => "handle-without-addresses",
        Kind::HandleMissing => "handle-missing",
        Kind::HandleCountsTooFew => "handle-counts-too-few",
        Kind::OwnersDiffer => "owners-differ",
        Kind::WithoutAffinity => "without-affinity",
        Kind::Overlap => "overlap",
    }
}
