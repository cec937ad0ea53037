//! Namespaces.

use super::cursor::{Cursor, Findings};
use super::metadata::Metadata;
use super::object::Namespace;

/// The label that the API server puts on every namespace.
pub const NAMESPACE_NAME: &str = "kubernetes.io/metadata.name";
/// Reads a namespace.
pub(super) fn namespace(
    root: &Cursor<'_>,
    name: &str,
    metadata: Metadata,
    out: &mut Findings,
) -> Namespace {
    root.mapping(out, &["apiVersion", "kind", "metadata"], &["spec", "status"]);
    let mut labels = metadata.labels;
    labels.insert(NAMESPACE_NAME.to_owned(), name.to_owned());
    Namespace { labels }
}
