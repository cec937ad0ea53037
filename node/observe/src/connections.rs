//! The connections of a listening socket, and the choice of the one that ends when there are too many.

use std::collections::VecDeque;
use std::net::IpAddr;

use tokio::task::AbortHandle;

/// The source of a connection. It is an IPv4 address, an IPv6 prefix of 64 bits (one host may have all of its addresses),
/// or a process of the node at a unix socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Source(Option<IpAddr>);

impl Source {
    /// A process of the node.
    pub(crate) const LOCAL: Self = Self(None);

    pub(crate) fn of(address: IpAddr) -> Self {
        Self(Some(match address.to_canonical() {
            IpAddr::V6(it) => IpAddr::V6((it.to_bits() >> 64 << 64).into()),
            v4 @ IpAddr::V4(_) => v4,
        }))
    }
}

/// The connections, in the order of their opening. They end when this value is dropped.
#[derive(Default)]
pub(crate) struct Connections(VecDeque<(Source, AbortHandle)>);

impl Connections {
    /// Makes room for one more connection from a source. If there are `most`, the source that would have the most loses its
    /// oldest connection. So a flood from one source ends no connection of others.
    pub(crate) fn make_room(&mut self, most: usize, source: Source) {
        self.0.retain(|(_, connection)| !connection.is_finished());
        if self.0.len() < most {
            return;
        }
        let sources = self.0.iter().map(|(it, _)| *it).collect::<Vec<_>>();
        if let Some(at) = victim(&sources, source)
            && let Some((_, connection)) = self.0.remove(at)
        {
            connection.abort();
        }
    }

    pub(crate) fn add(&mut self, source: Source, connection: AbortHandle) {
        self.0.push_back((source, connection));
    }
}

/// Chooses the connection that ends for one more from `new`. `sources` lists the connections' sources, the oldest
/// first. The result is the oldest connection of the source that would then have the most connections. If several
/// sources have the same number, `new` is chosen if it is one of them, and otherwise the source with the oldest
/// connection.
fn victim(sources: &[Source], new: Source) -> Option<usize> {
    let count = |source: Source| {
        let others = sources.iter().filter(|it| **it == source).count();
        (others + usize::from(source == new), source == new)
    };
    // `max_by_key` returns the last of equal elements, so the search goes from the newest to the oldest.
    (0..sources.len()).rev().max_by_key(|at| count(sources[*at]))
}

impl Drop for Connections {
    fn drop(&mut self) {
        self.0.iter().for_each(|(_, connection)| connection.abort());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(text: &str) -> Source {
        Source::of(text.parse().unwrap())
    }

    #[test]
    fn one_host_is_one_source() {
        assert_eq!(source("fd00::1"), source("fd00::2:0:0:1"));
        assert_ne!(source("fd00::1"), source("fd00:0:0:1::1"));
        assert_eq!(source("::ffff:10.0.0.1"), source("10.0.0.1"));
        assert_ne!(source("10.0.0.1"), source("10.0.0.2"));
    }

    #[test]
    fn a_crowd_ends_its_own_oldest_connections_alone() {
        let [crowd, balancer, other] = ["10.0.0.1", "10.0.0.2", "10.0.0.3"].map(source);
        let full = [balancer, crowd, crowd, crowd];
        assert_eq!(victim(&full, crowd), Some(1));
        assert_eq!(victim(&full, balancer), Some(1));
        assert_eq!(victim(&full, other), Some(1));
        // Among sources with equally many, the new connection's own source loses one, or else the source of the oldest
        // connection.
        assert_eq!(victim(&[crowd, balancer, crowd], balancer), Some(1));
        assert_eq!(victim(&[crowd, balancer], other), Some(0));
        assert_eq!(victim(&[Source::LOCAL; 3], Source::LOCAL), Some(0));
        assert_eq!(victim(&[], crowd), None);
    }
}
