//! The objects of a running rig that a request deletes: all of the named ones, or none.

use std::collections::BTreeSet;

use crate::plan::objects::Objects;
use crate::plan::policy_reference::{ObjectReferenceError, PolicyReference};
use manx_objects::object::{Kind, ObjectKey};

/// The reason why nothing is deleted.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum DeletionError {
    /// Names that do not name exactly one object.
    #[error("{}; nothing is deleted", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Names(Vec<ObjectReferenceError>),
    /// Objects that cannot be deleted while a rig runs.
    #[error(
        "a running rig keeps its nodes, pods, pools and namespaces, and so {}; nothing is deleted; build it again with `manx rig run`",
        .0.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
    )]
    Kept(Vec<ObjectKey>),
}

/// The objects that the references name.
pub(super) fn find(
    objects: &Objects,
    references: &[PolicyReference],
) -> Result<BTreeSet<ObjectKey>, DeletionError> {
    let (mut keys, mut wrong) = (BTreeSet::new(), Vec::new());
    for reference in references {
        match reference.find_object(objects.0.keys()) {
            Ok(key) => _ = keys.insert(key),
            Err(error) => wrong.push(error),
        }
    }
    if !wrong.is_empty() {
        return Err(DeletionError::Names(wrong));
    }
    let is_kept = |key: &&ObjectKey| {
        matches!(key.kind, Kind::Node | Kind::Pod | Kind::IpPool | Kind::Namespace)
    };
    let kept: Vec<ObjectKey> = keys.iter().filter(is_kept).cloned().collect();
    if kept.is_empty() { Ok(keys) } else { Err(DeletionError::Kept(kept)) }
}
