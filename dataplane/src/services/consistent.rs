//! Chooses the same backend on every node: rendezvous hashing.
//!
//! A router may choose the node by which a connection enters, and may later choose another node. That node has to
//! choose the same backend. Each backend gets a weight, which is computed from the client and the backend, and the
//! heaviest one is chosen (Thaler and Ravishankar, "Using name-based mappings to increase hit rates", 1998). So the
//! choice depends on no order, no history and no random number. If a backend is removed, only its own clients get
//! another one.
//!
//! A lookup in a table like Maglev's (Eisenbud and others, "Maglev", 2016) takes constant time, but the table has to be
//! computed and stored for each port of each service. `docs/decisions.md` has the figures.

use super::table::{Backend, Frontend};
use crate::wire::address::Address;

/// The largest number of backends that are weighed for a connection. If there are more, the backends after a place in
/// their sorted list are weighed, and the client determines the place. A backend that is removed then also shifts the
/// places of others by one.
pub const MOST_WEIGHED: usize = 48;

/// The backend of a client's connection, from the client's address and port. With session affinity the port does not
/// count, because all connections of a client have one backend.
#[inline(never)]
pub(super) fn heaviest(frontend: &Frontend, (address, port): (Address, u16)) -> Option<Backend> {
    let port = if frontend.affinity.is_some() { 0 } else { port };
    let client = client_hash(frontend.id, address, port);
    let backends = &*frontend.backends;
    if backends.len() <= MOST_WEIGHED {
        return heavier(None, backends, client).map(|(_, backend)| *backend);
    }
    let first = ((u128::from(client) * backends.len() as u128) >> u64::BITS) as usize;
    let (before, from) = backends.split_at(first);
    let from = &from[..from.len().min(MOST_WEIGHED)];
    let of_from = heavier(None, from, client);
    let wrapped = &before[..MOST_WEIGHED - from.len()];
    heavier(of_from, wrapped, client).map(|(_, backend)| *backend)
}

/// The heaviest backend among `heaviest` and `backends`, with its weight.
fn heavier<'a>(
    mut heaviest: Option<(u64, &'a Backend)>,
    backends: &'a [Backend],
    client: u64,
) -> Option<(u64, &'a Backend)> {
    for backend in backends {
        let weight = weight(backend, client);
        if heaviest.is_none_or(|(other, _)| weight > other) {
            heaviest = Some((weight, backend));
        }
    }
    heaviest
}

// The numbers below are the same in every version, so that nodes with different versions choose the same backend. They
// are not secret. A client that knows them can choose the backend of its own connections by their source ports, just as
// it can by opening more connections.

/// A hash of a client and a service's port.
fn client_hash(service: u64, address: Address, port: u16) -> u64 {
    let bits = address.to_bits();
    let words = [(bits >> u64::BITS) as u64, bits as u64, port.into()];
    words.into_iter().fold(mix(service), |hash, word| mix(hash ^ word))
}

/// The weight of a backend for a client.
#[inline]
fn weight(backend: &Backend, client: u64) -> u64 {
    let bits = backend.address.to_bits();
    let name = bits as u64 ^ ((bits >> u64::BITS) as u64).rotate_left(32);
    let mixed = ((name ^ u64::from(backend.port) << 40) ^ client).wrapping_mul(FACTORS[0]);
    (mixed ^ mixed >> 32).wrapping_mul(FACTORS[1])
}

/// Odd numbers without a pattern, from the golden ratio and from the mixer "variant 13" (Stafford, "Better bit mixing",
/// 2011).
const FACTORS: [u64; 3] = [0x9e37_79b9_7f4a_7c15, 0xbf58_476d_1ce4_e5b9, 0x94d0_49bb_1331_11eb];

/// The mixer "variant 13".
fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ bits >> 30).wrapping_mul(FACTORS[1]);
    bits = (bits ^ bits >> 27).wrapping_mul(FACTORS[2]);
    bits ^ bits >> 31
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::net::Ipv4Addr;

    use proptest::prelude::*;
    use proptest::sample::subsequence;

    use super::*;

    fn v4(n: u32) -> Backend {
        Backend { address: Ipv4Addr::from_bits(0x0af4_0000 + n).into(), port: 8080 }
    }

    fn frontend(backends: impl IntoIterator<Item = Backend>) -> Frontend {
        let backends: BTreeSet<Backend> = backends.into_iter().collect();
        Frontend { id: 7, backends: backends.into_iter().collect(), ..Frontend::default() }
    }

    /// The n-th of many clients. Addresses and ports are consecutive, as in real networks.
    fn client(n: u32) -> (Address, u16) {
        (Ipv4Addr::from_bits(0xc000_0200 + n % 64).into(), (1024 + n / 64) as u16)
    }

    fn chosen(of: &Frontend, clients: u32) -> Vec<Backend> {
        (0..clients).map(|it| heaviest(of, client(it)).unwrap()).collect()
    }

    /// The share of clients that get another backend, in thousandths.
    fn moved(before: &Frontend, after: &Frontend) -> u32 {
        const CLIENTS: u32 = 20_000;
        let both = chosen(before, CLIENTS).into_iter().zip(chosen(after, CLIENTS));
        both.filter(|(before, after)| before != after).count() as u32 * 1000 / CLIENTS
    }

    proptest! {
        /// The choice does not depend on the history of other nodes: a client keeps its backend whichever others are
        /// added or removed, while all are weighed.
        #[test]
        fn a_client_moves_only_if_its_backend_goes_or_the_new_one_is_its(
            all in prop::collection::btree_set(0u32..500, 1..=MOST_WEIGHED),
            one in any::<prop::sample::Index>(),
            clients in 0u32..3000,
        ) {
            let one = *all.iter().nth(one.index(all.len())).unwrap();
            let with = frontend(all.iter().map(|it| v4(*it)));
            let without = frontend(all.iter().filter(|it| **it != one).map(|it| v4(*it)));
            for n in clients..clients + 20 {
                let before = heaviest(&with, client(n)).unwrap();
                let after = heaviest(&without, client(n));
                prop_assert_eq!(after.is_none(), all.len() == 1);
                prop_assert!(before == v4(one) || after == Some(before));
            }
        }

        /// Every backend gets its share, whatever addresses and ports the backends have.
        #[test]
        fn every_backend_gets_its_share(
            backends in prop_oneof![
                (1u32..20).prop_map(|count| (0..count).map(v4).collect::<Vec<_>>()),
                (40u32..120).prop_map(|count| (0..count).map(|it| v4(it * 256)).collect()),
                subsequence((0..64).collect::<Vec<u32>>(), 2..30).prop_map(|all| all.into_iter().map(v4).collect()),
                (2u16..20).prop_map(|count| (0..count).map(|it| Backend { port: 8000 + it, ..v4(1) }).collect()),
                (2u128..70).prop_map(|count| (0..count).map(|it| Backend {
                    address: Address::v6((0xfd00 << 112 | it << 64 | (it % 3)).to_be_bytes()), port: 80,
                }).collect()),
            ],
            id in any::<u64>(),
        ) {
            const EACH: u32 = 500;
            let frontend = Frontend { id, ..frontend(backends) };
            let count = frontend.backends.len() as u32;
            let mut shares: BTreeMap<Backend, u32> = BTreeMap::new();
            for backend in chosen(&frontend, count * EACH) {
                *shares.entry(backend).or_default() += 1;
            }
            // Six standard deviations of a fair choice are allowed.
            let slack = 6.0 * f64::from(EACH).sqrt();
            prop_assert_eq!(shares.len() as u32, count);
            for share in shares.values() {
                prop_assert!((f64::from(*share) - f64::from(EACH)).abs() < slack, "{} of {}", share, EACH);
            }
        }
    }

    /// This checks the figures of `docs/services.md`.
    #[test]
    fn few_clients_move_when_a_backend_goes() {
        for (count, expected) in [(10, 100), (48, 21), (100, 28), (1000, 15)] {
            let before = frontend((0..count).map(v4));
            let without = |gone| frontend((0..count).filter(|it| *it != gone).map(v4));
            let each = (0..10).map(|tenth| moved(&before, &without(tenth * count / 10)));
            let share = each.sum::<u32>() / 10;
            assert!(share.abs_diff(expected) <= 3, "{share} of 1000 with {count}");
        }
    }

    #[test]
    fn the_choice_is_the_same_in_every_version() {
        let chosen = |of: &Frontend| {
            [0, 1, 2, 3, 1000].map(|n| {
                let chosen = heaviest(of, client(n));
                of.backends.iter().position(|it| Some(*it) == chosen).unwrap()
            })
        };
        assert_eq!(chosen(&frontend((0..10).map(v4))), [2, 8, 0, 8, 8]);
        assert_eq!(chosen(&frontend((0..300).map(v4))), [236, 54, 245, 184, 174]);
    }

    #[test]
    fn with_affinity_a_client_has_one_backend_whatever_its_port() {
        let frontend = Frontend { affinity: Some(60), ..frontend((0..40).map(v4)) };
        let (address, _) = client(5);
        let all: BTreeSet<_> =
            (1024..1200).map(|port| heaviest(&frontend, (address, port))).collect();
        assert_eq!(all.len(), 1);
        assert_eq!(heaviest(&Frontend::default(), client(1)), None);
    }
}
