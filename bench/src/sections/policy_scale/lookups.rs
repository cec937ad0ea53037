//! The cost of a lookup in an image, and of a decision by the linear reference.

use std::collections::BTreeSet;
use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use manx_policy_compiler::image::{ChainId, Identity, Image};
use manx_policy_compiler::model::{Direction, Model, ObjectName, Protocol, Transport};
use manx_policy_compiler::reference::{Packet, Reference};
use manx_policy_compiler::resolve::Stage;

use super::shapes::shuffled;

/// The number of lookups in the image.
const LOOKUPS: u32 = 2_000_000;
/// The number of lookups of one run. Runs are short, so that few of them are interrupted.
const LOOKUPS_OF_A_RUN: u32 = 10_000;
/// The number of lookups by the reference.
const REFERENCES: usize = 50;

/// A packet to look up: its chain, the address of its peer, and its protocol and ports.
type Lookup = (ChainId, u32, Transport);

/// The nanoseconds per lookup (address, class, row and path), for each run. No lookup needs the result of another one,
/// so the CPU may overlap them.
pub(super) fn by_image(image: &Image, local: &BTreeSet<ObjectName>, peers: &[u32]) -> Vec<f64> {
    let chains: Vec<_> =
        local.iter().filter_map(|name| image.chain(name, Direction::Ingress)).collect();
    let own = image.identity_v4(peers[0]);
    let of_run = |run| {
        let lookup = |index| {
            let at = shuffled(index, peers.len());
            let port = 8080 + (at % 1100) as u16;
            (chains[at % chains.len()], peers[at], Transport::ports(Protocol::Tcp, 49_152, port))
        };
        let lookups: Vec<Lookup> =
            (run * LOOKUPS_OF_A_RUN..(run + 1) * LOOKUPS_OF_A_RUN).map(lookup).collect();
        time(image, own, &lookups).as_secs_f64() * 1e9 / f64::from(LOOKUPS_OF_A_RUN)
    };
    (0..LOOKUPS / LOOKUPS_OF_A_RUN).map(of_run).collect()
}

/// The time of these lookups.
fn time(image: &Image, own: Identity, lookups: &[Lookup]) -> Duration {
    let start = Instant::now();
    let mut sum = 0;
    for (chain, peer, transport) in lookups {
        let path = image.classify(*chain, own, image.identity_v4(*peer), *transport);
        sum += u64::from(path.0);
    }
    black_box(sum);
    start.elapsed()
}

/// The nanoseconds per lookup by the reference. The policies of the endpoint are found before the measurement.
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
        black_box(decision);
    }
    start.elapsed().as_secs_f64() * 1e9 / REFERENCES as f64
}
