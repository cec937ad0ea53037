//! What a flow does to its packets: data that the decision gives, and that one place applies.

use crate::parse::decrement_ttl;
use crate::tables::NextHopPair;

/// What is changed in a packet that goes on. The fast path, the slow path, later fragments and ICMP errors get it from
/// the decision on their flow; the pipeline applies it where it forwards.
///
/// It follows from the flow's two next hops alone. What a translation changes follows from the flow's
/// [second key](crate::flow::SecondKey); nothing is translated yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rewrite {
    /// The hop limit (TTL) goes down by one.
    pub decrements_ttl: bool,
}

impl Rewrite {
    /// What a flow between two next hops does. The node and Manx are one router, so a packet between them makes no hop.
    #[inline]
    pub fn between(pair: NextHopPair) -> Self {
        Self { decrements_ttl: !pair.from.is_of_node() && !pair.to.is_of_node() }
    }

    /// Changes a packet, from its IP header on. The checksums that cover what changes are adjusted.
    #[inline]
    pub fn apply(self, bytes: &mut [u8]) {
        if self.decrements_ttl {
            decrement_ttl(bytes);
        }
    }
}
