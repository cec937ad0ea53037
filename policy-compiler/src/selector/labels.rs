//! Labels, and the reserved keys of inherited labels.

use std::collections::BTreeMap;

/// Something that has labels.
pub trait LabelSource {
    /// The value of a label. `None` if it is absent.
    fn label(&self, key: &str) -> Option<&str>;
}

/// The label keys and values of one object.
pub type Labels = BTreeMap<String, String>;

/// The label that names a member's namespace.
pub const NAMESPACE: &str = "projectcalico.org/namespace";

/// A label that every pod has, with the value [`KUBERNETES`], and that no other member has.
pub const ORCHESTRATOR: &str = "projectcalico.org/orchestrator";

/// The value of [`ORCHESTRATOR`].
pub const KUBERNETES: &str = "k8s";

/// The label that names a pod's service account.
pub const SERVICE_ACCOUNT: &str = "projectcalico.org/serviceaccount";

/// The prefix of keys: under `pcns.KEY`, a selector sees the label `KEY` of the member's namespace.
pub const NAMESPACE_PREFIX: &str = "pcns.";

/// The prefix of keys: under `pcsa.KEY`, a selector sees the label `KEY` of the member's service account.
pub const SERVICE_ACCOUNT_PREFIX: &str = "pcsa.";

/// Whether a key is reserved for inherited labels. Selectors ignore an object's own label under
/// such a key.
pub(crate) fn is_reserved(key: &str) -> bool {
    let prefixes = [NAMESPACE_PREFIX, SERVICE_ACCOUNT_PREFIX];
    [NAMESPACE, ORCHESTRATOR, SERVICE_ACCOUNT].contains(&key)
        || prefixes.iter().any(|prefix| key.starts_with(prefix))
}
