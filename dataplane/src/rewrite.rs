//! The changes to a flow's packets: data that the decision returns, and that one place applies.

mod translation;

use crate::parse::decrement_ttl;
use crate::tables::NextHopPair;

pub use translation::Translation;

/// The changes to a packet that is forwarded, but for its [`Translation`], which few have. The fast path, the slow path,
/// later fragments and ICMP errors get both from the decision on their flow; the pipeline applies them when it forwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rewrite {
    /// The hop limit (TTL) goes down by one.
    pub decrements_ttl: bool,
}

impl Rewrite {
    /// The changes to packets between two next hops. The node and Manx are one router, so a packet between them makes
    /// no hop.
    #[inline]
    pub fn between(pair: NextHopPair) -> Self {
        Self { decrements_ttl: !pair.from.is_of_node() && !pair.to.is_of_node() }
    }

    /// Changes a packet, from its IP header on. The checksums over the changed bytes are adjusted.
    #[inline]
    pub fn apply(self, bytes: &mut [u8]) {
        if self.decrements_ttl {
            decrement_ttl(bytes);
        }
    }
}
