//! The senders and receivers of probes.

use std::fmt;

use manx_api::PodName;
use serde::{Deserialize, Serialize};

/// A sender and receiver of probes in a rig.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String")]
#[serde(from = "String")]
pub enum Prober {
    Pod(PodName),
    Node(String),
    /// The host that is not part of the cluster.
    Outside,
}

impl fmt::Display for Prober {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pod(pod) => pod.fmt(f),
            Self::Node(node) => write!(f, "node/{node}"),
            Self::Outside => f.write_str("outside"),
        }
    }
}

impl From<Prober> for String {
    fn from(prober: Prober) -> Self {
        prober.to_string()
    }
}

impl From<String> for Prober {
    /// Parses `outside`, `node/NAME`, `NAMESPACE/NAME`, or `NAME` in the namespace `default`. So a namespace with the
    /// name `node` cannot be named.
    fn from(text: String) -> Self {
        match text.split_once('/') {
            Some(("node", node)) => Self::Node(node.to_owned()),
            Some((namespace, name)) => {
                Self::Pod(PodName { namespace: namespace.to_owned(), name: name.to_owned() })
            }
            None if text == "outside" => Self::Outside,
            None => Self::Pod(PodName { namespace: "default".to_owned(), name: text }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_party_is_named_as_it_is_shown() {
        for text in ["shop/web", "node/worker-1", "outside"] {
            assert_eq!(Prober::from(text.to_owned()).to_string(), text);
        }
        assert_eq!(Prober::from("web".to_owned()).to_string(), "default/web");
    }
}
