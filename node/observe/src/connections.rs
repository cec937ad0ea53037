//! The connections of a listening socket, and which one ends when there are too many.

use std::collections::VecDeque;
use std::net::IpAddr;

use tokio::task::AbortHandle;

/// Who has opened a connection: an address of IPv4, a net of 64 bits of IPv6 (one host may have all addresses of it), or a
/// process of the node by a socket of the unix domain.
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

/// The connections, in the order of their opening. They end with this.
#[derive(Default)]
pub(crate) struct Connections(VecDeque<(Source, AbortHandle)>);

impl Connections {
    /// Makes room for one more from a source: of `most`, the source that has most with it loses its oldest one. So a crowd
    /// from one place ends no connection of others.
    pub(crate) fn make_room(&mut self, most: usize, source: Source) {
        self.0.retain(|(_, connection)| !connection.is_finished());
        if self.0.len() < most {
            return;
        }
        let sources = self.0.iter().map(|(it, _)| *it).collect::<Vec<_>>();
        if let Some(at) = given_up(&sources, source)
            && let Some((_, connection)) = self.0.remove(at)
        {
            connection.abort();
        }
    }

    pub(crate) fn add(&mut self, source: Source, connection: AbortHandle) {
        self.0.push_back((source, connection));
    }
}

/// Which of the connections from these sources, the oldest first, is given up for one more from `new`: the oldest one of the
/// source that has most then, rather of `new` itself.
fn given_up(sources: &[Source], new: Source) -> Option<usize> {
    let count = |source: Source| {
        let others = sources.iter().filter(|it| **it == source).count();
        (others + usize::from(source == new), source == new)
    };
    // Of equal ones the last counts, so they are looked at from the newest on.
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
        assert_eq!(given_up(&full, crowd), Some(1));
        assert_eq!(given_up(&full, balancer), Some(1));
        assert_eq!(given_up(&full, other), Some(1));
        // Of those that have as many, the newcomer itself, and else the oldest one.
        assert_eq!(given_up(&[crowd, balancer, crowd], balancer), Some(1));
        assert_eq!(given_up(&[crowd, balancer], other), Some(0));
        assert_eq!(given_up(&[Source::LOCAL; 3], Source::LOCAL), Some(0));
        assert_eq!(given_up(&[], crowd), None);
    }
}
