//! Which objects of a running rig are to be deleted: all that are named, or none.

use std::collections::BTreeSet;

use crate::plan::objects::Objects;
use crate::plan::policy_word::{ObjectWordError, PolicyWord};
use manx_objects::object::{Kind, ObjectKey};

/// Why nothing is deleted.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum DeletionError {
    /// Names that do not name exactly one object.
    #[error("{}; nothing is deleted", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Names(Vec<ObjectWordError>),
    /// Objects that a running rig keeps.
    #[error(
        "a running rig keeps its nodes, pods, pools and namespaces, and so {}; nothing is deleted; build it again with `manx rig run`",
        .0.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
    )]
    Kept(Vec<ObjectKey>),
}

/// The objects that the names mean.
pub(super) fn find(
    objects: &Objects,
    words: &[PolicyWord],
) -> Result<BTreeSet<ObjectKey>, DeletionError> {
    let (mut keys, mut wrong) = (BTreeSet::new(), Vec::new());
    for word in words {
        match word.find_object(objects.0.keys()) {
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
