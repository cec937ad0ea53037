//! The changes to a flow's packets. The decision returns them as data, and one place applies them.

mod translation;

use crate::parse::decrement_ttl;
use crate::tables::NextHopPair;

pub use translation::Translation;

/// The changes to a forwarded packet, except for its [`Translation`], which few packets have. The fast path, the slow
/// path, later fragments and ICMP errors get both from the decision on their flow; the pipeline applies them when it
/// forwards the packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rewrite {
    /// Whether the hop limit (TTL) is decremented.
    pub decrements_ttl: bool,
}

impl Rewrite {
    /// The changes to packets between two next hops. The node and Manx count as one router, so a packet between them
    /// makes no hop.
    #[inline]
    pub fn between(pair: NextHopPair) -> Self {
        Self { decrements_ttl: !pair.from.is_of_node() && !pair.to.is_of_node() }
    }

    /// Changes a packet, which is given from its IP header on. The checksums over the changed bytes are adjusted.
    #[inline]
    pub fn apply(self, bytes: &mut [u8]) {
        if self.decrements_ttl {
            decrement_ttl(bytes);
        }
    }
}
