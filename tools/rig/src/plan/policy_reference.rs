//! A user's reference to a policy: `NAME`, `NAMESPACE/NAME`, `KIND/NAME` or `KIND/NAMESPACE/NAME`, as long as it is
//! unique.
//!
//! The kind is written as in manifests, in upper or lower case. If two APIs have a kind of that name, the API's group
//! follows it, as with kubectl: `NetworkPolicy.projectcalico.org/shop/web`.

use std::fmt;

use manx_objects::object::{Kind, ObjectKey};

/// A reference to a policy, as its text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyReference(String);

/// The reason why a reference does not name exactly one policy.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum PolicyReferenceError {
    /// No policy has that name.
    #[error("there is no such policy; enforced policies here: {}", or_none(.0))]
    Unknown(Vec<String>),
    /// Several policies have that name.
    #[error("{} policies have that name; write one of: {}", .0.len(), .0.join(", "))]
    Ambiguous(Vec<String>),
}

/// The reason why a reference with a kind does not name exactly one object.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ObjectReferenceError {
    /// There is no such object.
    #[error("there is no {0}")]
    Unknown(String),
    /// The kind is missing, or Manx does not read it.
    #[error(
        "{0} has no kind that Manx reads: expected KIND/NAME or KIND/NAMESPACE/NAME, e.g. NetworkPolicy/shop/web, or a file"
    )]
    Kind(String),
    /// Several objects have the name.
    #[error("{reference} names several objects; write one of: {}", .names.join(", "))]
    Ambiguous {
        /// The reference as written.
        reference: String,
        /// The names of the objects.
        names: Vec<String>,
    },
}

fn or_none(names: &[String]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

impl From<&str> for PolicyReference {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl fmt::Display for PolicyReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl PolicyReference {
    /// The enforced policy in `keys` that the reference names. Staged policies are ignored, because no verdict depends
    /// on them.
    pub fn find<'k>(
        &self,
        keys: impl Iterator<Item = &'k ObjectKey>,
    ) -> Result<ObjectKey, PolicyReferenceError> {
        let policies: Vec<&ObjectKey> = keys.filter(|key| key.kind.enforced_policy()).collect();
        let meant: Vec<&ObjectKey> =
            policies.iter().copied().filter(|key| self.names(key)).collect();
        let full = |keys: &[&ObjectKey]| keys.iter().map(|key| full_name(key)).collect();
        match meant[..] {
            [one] => Ok(one.clone()),
            [] => Err(PolicyReferenceError::Unknown(full(&policies))),
            _ => Err(PolicyReferenceError::Ambiguous(full(&meant))),
        }
    }

    /// The object in `keys`, of any kind, that the reference names. The reference must begin with the kind.
    pub fn find_object<'k>(
        &self,
        keys: impl Iterator<Item = &'k ObjectKey>,
    ) -> Result<ObjectKey, ObjectReferenceError> {
        let reference = self.0.clone();
        let kind = match self.0.split('/').collect::<Vec<_>>()[..] {
            [kind, _] | [kind, _, _] if Kind::ALL.iter().any(|it| is_kind(kind, *it)) => kind,
            _ => return Err(ObjectReferenceError::Kind(reference)),
        };
        let meant: Vec<&ObjectKey> =
            keys.filter(|key| is_kind(kind, key.kind) && self.names(key)).collect();
        match meant[..] {
            [one] => Ok(one.clone()),
            [] => Err(ObjectReferenceError::Unknown(reference)),
            _ => {
                let names = meant.iter().map(|key| full_name(key)).collect();
                Err(ObjectReferenceError::Ambiguous { reference, names })
            }
        }
    }

    fn names(&self, key: &ObjectKey) -> bool {
        match self.0.split('/').collect::<Vec<_>>()[..] {
            [name] => name == key.name,
            [first, name] => {
                name == key.name && (first == key.namespace || is_kind(first, key.kind))
            }
            [kind, namespace, name] => {
                name == key.name && namespace == key.namespace && is_kind(kind, key.kind)
            }
            _ => false,
        }
    }
}

fn group(kind: Kind) -> &'static str {
    kind.api_versions().first().and_then(|version| version.split('/').next()).unwrap_or_default()
}

fn is_kind(word: &str, kind: Kind) -> bool {
    word.eq_ignore_ascii_case(kind.name())
        || word.eq_ignore_ascii_case(&format!("{}.{}", kind.name(), group(kind)))
}

/// The unique name of an object. It contains the API group if the kind's name alone is ambiguous.
pub fn full_name(key: &ObjectKey) -> String {
    let ObjectKey { kind, namespace, name } = key;
    let twice = Kind::ALL.iter().filter(|other| other.name() == kind.name()).count() > 1;
    let group = if twice { format!(".{}", group(*kind)) } else { String::new() };
    let namespace = if namespace.is_empty() { String::new() } else { format!("{namespace}/") };
    format!("{}{group}/{namespace}{name}", kind.name())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(kind: Kind, namespace: &str, name: &str) -> ObjectKey {
        ObjectKey { kind, namespace: namespace.to_owned(), name: name.to_owned() }
    }

    fn keys() -> [ObjectKey; 9] {
        [
            key(Kind::NetworkPolicy, "shop", "web"),
            key(Kind::CalicoNetworkPolicy, "shop", "web"),
            key(Kind::NetworkPolicy, "shop", "db"),
            key(Kind::NetworkPolicy, "blog", "db"),
            key(Kind::GlobalNetworkPolicy, "", "banned"),
            key(Kind::ClusterNetworkPolicy, "", "banned"),
            key(Kind::StagedGlobalNetworkPolicy, "", "staged"),
            key(Kind::Pod, "shop", "pod"),
            key(Kind::Pod, "shop", "db"),
        ]
    }

    fn find(word: &str) -> Result<String, PolicyReferenceError> {
        let keys = keys();
        PolicyReference::from(word).find(keys.iter()).map(|key| full_name(&key))
    }

    #[test]
    fn a_policy_is_named_by_as_much_as_tells_it_from_others() {
        for (word, meant) in [
            ("blog/db", "NetworkPolicy.networking.k8s.io/blog/db"),
            ("networkpolicy/shop/db", "NetworkPolicy.networking.k8s.io/shop/db"),
            ("GlobalNetworkPolicy/banned", "GlobalNetworkPolicy/banned"),
            (
                "NetworkPolicy.projectcalico.org/shop/web",
                "NetworkPolicy.projectcalico.org/shop/web",
            ),
            (
                "NetworkPolicy.networking.k8s.io/shop/web",
                "NetworkPolicy.networking.k8s.io/shop/web",
            ),
        ] {
            assert_eq!(find(word).as_deref(), Ok(meant), "{word}");
        }
    }

    #[test]
    fn a_name_of_several_or_of_none_says_what_there_is() {
        let said = |word: &str| find(word).unwrap_err().to_string();
        insta::assert_snapshot!(said("NetworkPolicy/shop/web"), @"2 policies have that name; write one of: NetworkPolicy.networking.k8s.io/shop/web, NetworkPolicy.projectcalico.org/shop/web");
        insta::assert_snapshot!(said("banned"), @"2 policies have that name; write one of: GlobalNetworkPolicy/banned, ClusterNetworkPolicy/banned");
        let unknown = said("staged");
        assert!(
            unknown.starts_with("there is no such policy; enforced policies here: NetworkPolicy")
        );
        assert!(!unknown.contains("staged") && !unknown.contains("Pod"), "{unknown}");
        assert_eq!(unknown, said("shop/pod"));
        assert_eq!(unknown, said("a/b/c/d"));
    }

    #[test]
    fn an_object_is_named_with_its_kind() {
        let find = |word: &str| PolicyReference::from(word).find_object(keys().iter());
        for (word, meant) in [
            ("pod/db", "Pod/shop/db"),
            ("Pod/shop/db", "Pod/shop/db"),
            ("StagedGlobalNetworkPolicy/staged", "StagedGlobalNetworkPolicy/staged"),
        ] {
            assert_eq!(find(word).map(|key| full_name(&key)).as_deref(), Ok(meant), "{word}");
        }
        for key in keys() {
            assert_eq!(find(&full_name(&key)), Ok(key));
        }
        let said = |word: &str| find(word).unwrap_err().to_string();
        insta::assert_snapshot!(said("Pod/blog/db"), @"there is no Pod/blog/db");
        insta::assert_snapshot!(said("NetworkPolicy/db"), @"NetworkPolicy/db names several objects; write one of: NetworkPolicy.networking.k8s.io/shop/db, NetworkPolicy.networking.k8s.io/blog/db");
        insta::assert_snapshot!(said("shop/db"), @"shop/db has no kind that Manx reads: expected KIND/NAME or KIND/NAMESPACE/NAME, e.g. NetworkPolicy/shop/web, or a file");
        for word in ["db", "policies.yaml", "Pod/a/b/c", "Shop/db"] {
            assert_eq!(find(word), Err(ObjectReferenceError::Kind(word.to_owned())));
        }
    }
}
