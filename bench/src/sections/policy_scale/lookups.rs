//! The cost of a lookup in an image, and by the linear reference.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use manx_policy_compiler::image::Lookup as BatchLookup;
use manx_policy_compiler::image::{ChainId, Identity, Image, PathId};
use manx_policy_compiler::model::{Direction, Model, ObjectName, Protocol, Transport};
use manx_policy_compiler::reference::{Packet, Reference};
use manx_policy_compiler::resolve::Stage;

use super::shapes::shuffled;

/// The number of lookups in the image.
const LOOKUPS: u32 = 2_000_000;
/// The number of lookups of one run. Runs are short, so that few of them are interrupted.
const LOOKUPS_OF_A_RUN: u32 = 10_000;
/// The number of packets of a batch.
const BATCH: usize = 64;
/// The number of lookups by the reference.
const REFERENCES: usize = 50;

/// A packet to look up: its chain, the address of its peer, and its protocol and ports.
type Lookup = (ChainId, u32, Transport);

/// The nanoseconds of a lookup (address, class, row and path), of each run: one by one, where one lookup does not wait
/// for the other, and in batches.
pub(super) fn by_image(
    image: &Image,
    local: &BTreeSet<ObjectName>,
    peers: &[u32],
) -> [Vec<f64>; 2] {
    let chains: Vec<_> =
        local.iter().filter_map(|name| image.chain(name, Direction::Ingress)).collect();
    let own = image.identity_v4(peers[0]);
    let (mut single, mut batched) = (Vec::new(), Vec::new());
    for run in 0..LOOKUPS / LOOKUPS_OF_A_RUN {
        let lookup = |index| {
            let at = shuffled(index, peers.len());
            let port = 8080 + (at % 1100) as u16;
            (chains[at % chains.len()], peers[at], Transport::ports(Protocol::Tcp, 49_152, port))
        };
        let lookups: Vec<Lookup> =
            (run * LOOKUPS_OF_A_RUN..(run + 1) * LOOKUPS_OF_A_RUN).map(lookup).collect();
        let (time, sum) = time_single(image, own, &lookups);
        single.push(time);
        let (time, sum_of_batches) = time_batches(image, own, &lookups);
        batched.push(time);
        assert_eq!(sum, sum_of_batches, "batches find the same paths");
    }
    let nanoseconds = |run: Duration| run.as_secs_f64() * 1e9 / f64::from(LOOKUPS_OF_A_RUN);
    [single, batched].map(|runs| runs.into_iter().map(nanoseconds).collect())
}

/// The time of these lookups one by one, and the sum of the paths.
fn time_single(image: &Image, own: Identity, lookups: &[Lookup]) -> (Duration, u64) {
    let start = Instant::now();
    let mut sum = 0;
    for (chain, peer, transport) in lookups {
        let path = image.classify(*chain, own, image.identity_v4(*peer), *transport);
        sum += u64::from(path.0);
    }
    (start.elapsed(), sum)
}

/// The time of these lookups in batches, and the sum of the paths.
fn time_batches(image: &Image, own: Identity, lookups: &[Lookup]) -> (Duration, u64) {
    let addresses: Vec<u32> = lookups.iter().map(|(_, peer, _)| *peer).collect();
    let mut asked: Vec<BatchLookup> = lookups
        .iter()
        .map(|(chain, _, transport)| BatchLookup {
            chain: *chain,
            local: own,
            peer: Identity::UNKNOWN,
            transport: *transport,
        })
        .collect();
    let mut identities = [Identity::UNKNOWN; BATCH];
    let mut found = [PathId::default(); BATCH];
    let mut sum = 0;
    let start = Instant::now();
    for (addresses, asked) in addresses.chunks(BATCH).zip(asked.chunks_mut(BATCH)) {
        image.identities_v4(addresses, &mut identities);
        asked.iter_mut().zip(identities).for_each(|(asked, peer)| asked.peer = peer);
        image.classify_all(asked, &mut found);
        sum += found[..asked.len()].iter().map(|path| u64::from(path.0)).sum::<u64>();
    }
    (start.elapsed(), sum)
}

/// The nanoseconds of a lookup by the reference. The policies of the endpoint are found before.
pub(super) fn by_reference(model: &Model, local: &BTreeSet<ObjectName>, peers: &[u32]) -> f64 {
    let reference = Reference::new(model);
    let Some((name, policies, address)) = local.iter().find_map(|name| {
        let policies = reference.policies(name, Stage::Pod, Direction::Ingress)?;
        Some((name, policies, *model.endpoints.get(name)?.addresses.first()?))
    }) else {
        return f64::NAN;
    };
    let start = Instant::now();
    for index in 0..REFERENCES {
        let peer = IpAddr::V4(Ipv4Addr::from_bits(peers[shuffled(index as u32, peers.len())]));
        let transport = Transport::ports(Protocol::Tcp, 49_152, 8080);
        let packet = Packet { local: address, peer, transport };
        let decision = reference.judge_by(&policies, name, Stage::Pod, Direction::Ingress, &packet);
        std::hint::black_box(decision);
    }
    start.elapsed().as_secs_f64() * 1e9 / REFERENCES as f64
}
