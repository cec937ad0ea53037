//! A block's affinity: the claim of one owner to one block.
//!
//! ```text
//!  none ──> pending ──> confirmed ──> pendingDeletion ──> none
//! ```
//!
//! - Pending: the owner wants the block, but it is not certain that it gets the block. Routes do not use a pending
//!   affinity.
//! - Confirmed: when the affinity was confirmed, the block's own [`owner`](crate::block::Block::owner) was the owner of
//!   the affinity.
//! - Pending deletion: the owner gives the block up. No other owner gets the block before the affinity is deleted.
//!
//! Law: at no moment are two affinities of one block confirmed. An affinity is confirmed only after the block was
//! written with this owner. A block is taken from its owner only after the affinity is no longer confirmed.

use std::fmt;

use ipnet::IpNet;

/// The owner of a block.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Owner {
    /// A node.
    Host(String),
    /// An owner that is not a node. The only one in use is `load-balancer`.
    Virtual(String),
}

impl Owner {
    /// Returns the owner of the blocks for the addresses of Services of type `LoadBalancer`.
    pub fn load_balancer() -> Self {
        Self::Virtual("load-balancer".to_owned())
    }

    /// Returns `spec.type` of the affinity.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Host(_) => "host",
            Self::Virtual(_) => "virtual",
        }
    }

    /// Returns `spec.node` of the affinity.
    pub fn name(&self) -> &str {
        match self {
            Self::Host(name) | Self::Virtual(name) => name,
        }
    }

    /// Returns the owner with this type and name. An absent type counts as `host`.
    pub fn new(kind: &str, name: &str) -> Option<Self> {
        match kind {
            "" | "host" => Some(Self::Host(name.to_owned())),
            "virtual" => Some(Self::Virtual(name.to_owned())),
            _ => None,
        }
    }

    /// Reads `spec.affinity` of a block.
    pub fn parse(text: &str) -> Option<Self> {
        let (kind, name) = text.split_once(':')?;
        if kind.is_empty() { None } else { Self::new(kind, name) }
    }
}

/// Writes the owner as in `spec.affinity` of a block: `host:node-1`.
impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.kind(), self.name())
    }
}

/// The state of an affinity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    Pending,
    Confirmed,
    PendingDeletion,
}

impl State {
    /// Returns the text for `spec.state`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Confirmed => "confirmed",
            Self::PendingDeletion => "pendingDeletion",
        }
    }

    /// Reads `spec.state`. The oldest objects have no state; it counts as confirmed.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "" => Some(Self::Confirmed),
            text => [Self::Pending, Self::Confirmed, Self::PendingDeletion]
                .into_iter()
                .find(|state| state.name() == text),
        }
    }
}

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Affinity {
    pub owner: Owner,
    pub cidr: IpNet,
    pub state: State,
}
