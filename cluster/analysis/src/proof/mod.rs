//! Proves that compiled tables agree with the oracle, which reads the objects themselves.
//!
//! The import, the resolution and the compiler turn objects into tables; the oracle shares no code with them. The
//! comparison is made for each endpoint, direction and own address. It covers every peer, and every packet on either
//! side of every boundary that the oracle or the tables have, including fragments without ports, in both families. It
//! compares the verdict, its reason, the Pass and Log rules before it, and the effects that staged policies would have
//! had. It does not cover decisions that are made outside the tables: a node always reaches its own pods, and a pod
//! always reaches itself.
//!
//! Equal cases are compared once. Cases are equal if the inputs of the oracle's rules are equal
//! ([`manx_oracle::AddressClass`]) and the tables look them up in the same row.

mod judge;
pub mod node;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use manx_policy_compiler::check::{Counterexample, Expected, prove_by};
use manx_policy_compiler::image::Image;
use manx_policy_compiler::model::{Direction, L4Header, Protocol, Verdict};
use manx_policy_compiler::resolve::{LocalName, Stage};

use self::judge::{ByObjects, packet, side};
use manx_api::proof::{Judged, Refutation};
use manx_oracle::{Oracle, Party};

pub use manx_policy_compiler::check::{Depth, Proof};

/// Compares the tables of these endpoints (pods and host endpoints) with the oracle. At [`Depth::Every`], equal cases
/// are compared again, too. `progress` is called with the number of ends that are done and the total number.
pub fn prove(
    oracle: &Oracle,
    local: &BTreeSet<LocalName>,
    image: &Image,
    depth: Depth,
    progress: impl FnMut(usize, usize),
) -> Result<Proof, Box<Refutation>> {
    let judge = ByObjects::new(oracle, depth);
    prove_by(&judge, local, image, depth, progress)
        .map_err(|found| Box::new(refutation(oracle, &found)))
}

fn refutation(oracle: &Oracle, found: &Counterexample) -> Refutation {
    let Counterexample { endpoint, stage, direction, local, peer, transport, .. } = found;
    let (from, to) = match direction {
        Direction::Ingress => (*peer, *local),
        Direction::Egress => (*local, *peer),
    };
    let holders = oracle.pods().filter(|pod| pod.address() == *peer);
    let asked = packet(*transport);
    let pod = Party::Pod {
        namespace: endpoint.namespace.clone(),
        name: endpoint.name.clone(),
        address: *local,
    };
    let steps = (*stage == Stage::Pod)
        .then(|| oracle.explain_side(side(*direction), &pod, &Party::Address(*peer), asked));
    let answer = |expected: &Expected| Judged {
        allowed: expected.verdict() == Some(Verdict::Allow),
        why: match expected.verdict() {
            Some(_) => expected.to_string(),
            None => "nothing that tables could say".to_owned(),
        },
    };
    let has_ports = Protocol::from_number(transport.protocol).is_some();
    Refutation {
        endpoint: endpoint.to_string(),
        stage: (*stage != Stage::Pod).then(|| format!("{stage:?}").to_lowercase()),
        direction: direction.to_string(),
        from,
        to,
        peer: holders.map(|pod| pod.to_string()).collect(),
        protocol: transport.protocol,
        ports: match transport.l4 {
            L4Header::Ports { source, destination } => Some((source, destination)),
            L4Header::Nothing | L4Header::Icmp { .. } => None,
        },
        icmp: match transport.l4 {
            L4Header::Icmp { kind, code } => Some((kind, code)),
            L4Header::Nothing | L4Header::Ports { .. } => None,
        },
        fragment: has_ports && transport.l4 == L4Header::Nothing,
        packet: asked.to_string(),
        tables: Judged { allowed: found.verdict == Verdict::Allow, ..answer(&found.found) },
        objects: answer(&found.expected),
        steps,
    }
}
