//! A block's affinity: the claim of one owner to one block.
//!
//! ```text
//!  none ──> pending ──> confirmed ──> pendingDeletion ──> none
//! ```
//!
//! - Pending: the owner wants the block, and has not made sure of it. It counts as none for routes.
//! - Confirmed: the block's own [`owner`](crate::block::Block::owner) was this one when it was confirmed.
//! - Pending deletion: the owner gives the block up. Nobody else has it before the affinity is gone.
//!
//! The law: no two affinities of one block are confirmed at any moment. An affinity is confirmed only after the block was
//! made with this owner, and a block is taken from its owner only after the affinity is no longer confirmed.

use std::fmt;

use ipnet::IpNet;

/// The owner of a block.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Owner {
    /// A node.
    Host(String),
    /// What is no node: `load-balancer`.
    Virtual(String),
}

impl Owner {
    /// The owner of the blocks whose addresses Services of type `LoadBalancer` get.
    pub fn load_balancer() -> Self {
        Self::Virtual("load-balancer".to_owned())
    }

    /// `spec.type` of the affinity.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Host(_) => "host",
            Self::Virtual(_) => "virtual",
        }
    }

    /// `spec.node` of the affinity.
    pub fn name(&self) -> &str {
        match self {
            Self::Host(name) | Self::Virtual(name) => name,
        }
    }

    /// The owner of this type and name; an absent type is `host`.
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

/// As `spec.affinity` of a block has it: `host:node-1`.
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
    /// As `spec.state` has it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Confirmed => "confirmed",
            Self::PendingDeletion => "pendingDeletion",
        }
    }

    /// Reads `spec.state`. The oldest objects have none and count as confirmed.
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
