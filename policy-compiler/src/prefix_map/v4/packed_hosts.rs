//! A /24 in which few hosts have values of their own, stored in some bytes of a cache line.
//!
//! The last byte of each host comes first, then the value of each host and the value of all others, in two bytes each.
//! So a lookup in a /24 with few hosts reads a single line, which several /24 share. The bytes do not change after the
//! first lookup.

use std::sync::Arc;

/// The largest number of packed hosts in a /24. Their last bytes fit one 64-bit word, and are compared at once.
pub(super) const MOST: usize = 8;

const LINE: usize = 64;

/// Every value begins at most this many bytes after the first host's byte.
const REACH: usize = 32;

/// A lookup reads only this many bytes.
const WINDOW: usize = REACH + 1;

/// The number of bytes for this many hosts, with their values and the value of all others.
const fn bytes_of(hosts: usize) -> usize {
    hosts + 2 * (hosts + 1)
}

/// The packed hosts of all /24 that are stored in this form.
#[derive(Debug, Clone, Default)]
pub(super) struct PackedHosts(Arc<Vec<u8>>);

impl PackedHosts {
    /// The value of a key, in two bytes, in the /24 whose data starts at index `first` and has `hosts` hosts. It is 0,
    /// which stands for the default, if the index is too large.
    #[inline]
    pub(super) fn lookup(&self, first: usize, hosts: usize, key: u8) -> u16 {
        let Some(bytes) = self.0.get(first..first + WINDOW) else { return 0 };
        let Some(keys) = bytes.first_chunk() else { return 0 };
        // If no host has this key, `at` is the place after the last host, where the value of all other hosts is.
        let at = first_zero(u64::from_le_bytes(*keys) ^ (u64::from(key) * BYTES)).min(hosts);
        let value = (hosts + 2 * at) % REACH;
        u16::from_le_bytes([bytes[value], bytes[value + 1]])
    }

    pub(super) fn bytes(&self) -> usize {
        self.0.len()
    }
}

/// Builds [`PackedHosts`].
#[derive(Default)]
pub(super) struct PackedHostsBuilder(Vec<u8>);

impl PackedHostsBuilder {
    /// Reserves enough memory for `hosts` hosts, even if each of them is in a different /24. The memory must not move
    /// afterwards: each /24 is placed within one cache line, which depends on the address of the memory.
    pub(super) fn with_room(hosts: usize) -> Self {
        Self(Vec::with_capacity(hosts * bytes_of(1) * 2 + WINDOW))
    }

    /// An upper bound of the index at which the next /24 starts.
    pub(super) fn next(&self) -> usize {
        self.0.len() + LINE
    }

    /// Adds a /24: `keys` are the last bytes of its hosts, and `values` are the hosts' values followed by the value of
    /// all others. Returns the index of its first byte.
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

/// A one in each byte.
pub(super) const BYTES: u64 = u64::MAX / 0xff;

/// The index of the lowest byte that is zero; 8 if there is none.
#[inline]
pub(super) const fn first_zero(bytes: u64) -> usize {
    // No byte below the first zero byte borrows, so the lowest marked byte is the first zero byte. Bytes above it may
    // be marked wrongly, which does not matter.
    let zeroes = bytes.wrapping_sub(BYTES) & !bytes & (BYTES << 7);
    zeroes.trailing_zeros() as usize / 8
}
