//! Few hosts of a /24 that differ from all others, in some bytes of a line of the cache.
//!
//! First stands the last byte of each, then the value of each and that of all others, two bytes for one. So a /24 with few
//! hosts costs a lookup one line, which it shares with others. Nothing is written there any more once lookups are made.

use std::sync::Arc;

/// So many hosts at most: their last bytes are compared at once.
pub(super) const MOST: usize = 8;

const LINE: usize = 64;

/// Among so many bytes from the first host's on every value begins.
const REACH: usize = 32;

/// A lookup has these before it.
const WINDOW: usize = REACH + 1;

/// Bytes of so many hosts, with their values and that of all others.
const fn bytes_of(hosts: usize) -> usize {
    hosts + 2 * (hosts + 1)
}

/// See the module.
#[derive(Debug, Clone, Default)]
pub(super) struct PackedHosts(Arc<Vec<u8>>);

impl PackedHosts {
    /// Of a key's value among so many hosts, from a byte on, what stands for it; 0 where nothing is.
    #[inline]
    pub(super) fn lookup(&self, first: usize, hosts: usize, key: u8) -> u16 {
        let Some(bytes) = self.0.get(first..first + WINDOW) else { return 0 };
        let Some(keys) = bytes.first_chunk() else { return 0 };
        // Behind the last host come all others.
        let at = first_zero(u64::from_le_bytes(*keys) ^ (u64::from(key) * BYTES)).min(hosts);
        let value = (hosts + 2 * at) % REACH;
        u16::from_le_bytes([bytes[value], bytes[value + 1]])
    }

    pub(super) fn bytes(&self) -> usize {
        self.0.len()
    }
}

/// [`PackedHosts`] as they are laid.
#[derive(Default)]
pub(super) struct PackedHostsBuilder(Vec<u8>);

impl PackedHostsBuilder {
    /// With room for so many hosts, were each in a /24 of its own: what is in one line stays there as long as nothing is moved.
    pub(super) fn with_room(hosts: usize) -> Self {
        Self(Vec::with_capacity(hosts * bytes_of(1) * 2 + WINDOW))
    }

    /// Where the next is put at the latest.
    pub(super) fn next(&self) -> usize {
        self.0.len() + LINE
    }

    /// The first byte of hosts and values that are put there; behind their values comes that of all others.
    pub(super) fn add(&mut self, keys: &[u8], values: &[u16]) -> usize {
        let Self(bytes) = self;
        let size = bytes_of(keys.len()).max(MOST);
        let place = (bytes.as_ptr().addr() + bytes.len()) % LINE;
        if place + size > LINE {
            bytes.resize(bytes.len() + LINE - place, 0);
        }
        let first = bytes.len();
        bytes.extend_from_slice(keys);
        bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        first
    }

    pub(super) fn done(self) -> PackedHosts {
        let Self(mut bytes) = self;
        if !bytes.is_empty() {
            bytes.resize(bytes.len() + WINDOW, 0);
        }
        PackedHosts(Arc::new(bytes))
    }
}

/// One in each byte.
pub(super) const BYTES: u64 = u64::MAX / 0xff;

/// Which byte is the first, from the lowest on, that is zero; 8: none.
#[inline]
pub(super) const fn first_zero(bytes: u64) -> usize {
    // Below the first zero nothing borrows; what is said of bytes above it may be wrong.
    let zeroes = bytes.wrapping_sub(BYTES) & !bytes & (BYTES << 7);
    zeroes.trailing_zeros() as usize / 8
}
