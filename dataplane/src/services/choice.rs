//! The backend of a new connection.

use super::affinity::SessionAffinities;
use super::consistent::heaviest;
use super::table::{Backend, Frontend};
use crate::wire::address::Address;

/// Chooses the backend of a new connection of the client with this address and port: the backend to which the client
/// has an affinity, else any backend, all with the same chance. `chance` is a random number. Without it, all nodes
/// choose the same backend for the client. `None`: there is no backend.
pub fn choose(
    frontend: &Frontend,
    affinities: &SessionAffinities,
    client: (Address, u16),
    chance: Option<u32>,
    now: u32,
) -> Option<Backend> {
    let (address, _) = client;
    let kept = affinities.backend(frontend, address, now);
    let chosen = || {
        let Some(chance) = chance else { return heaviest(frontend, client) };
        let at = (u64::from(chance) * frontend.backends.len() as u64) >> u32::BITS;
        frontend.backends.get(at as usize).copied()
    };
    let backend = kept.or_else(chosen)?;
    if frontend.affinity.is_some() {
        affinities.note(frontend, address, backend, now);
    }
    Some(backend)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::net::Ipv4Addr;

    use proptest::prelude::*;

    use super::*;

    fn frontend(id: u64, backends: u32, affinity: Option<u32>) -> Frontend {
        let backend = |n| Backend { address: Ipv4Addr::from_bits(n).into(), port: 80 };
        let backends = (0..backends).map(backend).collect();
        Frontend { id, backends, affinity, ..Frontend::default() }
    }

    fn client(n: u32) -> (Address, u16) {
        (Ipv4Addr::from_bits(0x0a00_0000 + n).into(), 5000)
    }

    proptest! {
        /// Each backend gets the same share of all random numbers, except for a difference of one number.
        #[test]
        fn every_backend_has_the_same_chance(count in 1u32..200) {
            let (frontend, affinities) = (frontend(1, count, None), SessionAffinities::new().unwrap());
            let mut firsts = BTreeMap::new();
            // The choice grows with the number, so the first number of each backend determines all shares.
            for backend in 0..count {
                let first = (u64::from(backend) << 32).div_ceil(count.into()) as u32;
                for chance in [first, first.wrapping_sub(1)] {
                    let found = choose(&frontend, &affinities, client(1), Some(chance), 0).unwrap();
                    firsts.entry(found).or_insert_with(Vec::new).push(chance);
                }
            }
            prop_assert_eq!(firsts.len(), count as usize);
            prop_assert!(firsts.values().all(|it| it.len() == 2));
            let shares: Vec<_> = firsts.values().map(|it| it.iter().max().unwrap() - it.iter().min().unwrap()).collect();
            let (least, most) = (shares.iter().min().unwrap(), shares.iter().max().unwrap());
            prop_assert!(most - least <= 1, "{least} to {most}");
        }

        /// A client keeps its backend while the backend exists and each connection follows the last one within the
        /// timeout.
        #[test]
        fn a_client_keeps_its_backend_until_its_timeout(
            steps in prop::collection::vec((0u32..5, 0u64..3, any::<u32>(), 0u32..15, 1u32..6), 1..60),
        ) {
            let affinities = SessionAffinities::new().unwrap();
            let mut last = BTreeMap::new();
            let mut now = 100;
            for (n, id, chance, wait, count) in steps {
                now += wait;
                let frontend = frontend(id, count, Some(10));
                let found = choose(&frontend, &affinities, client(n), Some(chance), now).unwrap();
                prop_assert!(frontend.backends.contains(&found));
                if let Some((kept, at)) = last.insert((n, id), (found, now))
                    && now - at < 10
                    && frontend.backends.contains(&kept)
                {
                    prop_assert_eq!(found, kept);
                } else {
                    let without = Frontend { affinity: None, ..frontend };
                    prop_assert_eq!(choose(&without, &affinities, client(n), Some(chance), now), Some(found));
                }
            }
        }
    }

    #[test]
    fn a_crowd_of_clients_takes_no_more_room() {
        let (frontend, affinities) =
            (frontend(1, 7, Some(1000)), SessionAffinities::new().unwrap());
        for n in 0..300_000 {
            assert!(choose(&frontend, &affinities, client(n), Some(n), n / 1000).is_some());
        }
        let kept = |n: &u32| affinities.backend(&frontend, client(*n).0, 300).is_some();
        let remembered = (0..300_000).filter(kept).count();
        assert!((60_000..=65_536).contains(&remembered), "{remembered}");
        let none = Frontend { backends: Box::default(), ..frontend };
        assert_eq!(choose(&none, &affinities, client(0), Some(7), 300), None);
    }
}
