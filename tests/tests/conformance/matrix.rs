//! The law of the matrix: every cell agrees with the oracle for every pair of pods of its two
//! parties, at and beside every boundary of the cell.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use manx_analysis::matrix::{KINDS, Matrix, OF_ICMP, OF_OTHERS, PacketSet, PartyKind, packet};
use manx_fixtures::generate;
use manx_objects::contents::Contents;
use manx_oracle::{Oracle, Party};
use manx_policy_compiler::model::{Family, ObjectName};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError};

use super::{config, counting_runner, every_api};

const NODES: &str = "
---
{apiVersion: v1, kind: Node, metadata: {name: node-1}, status: {addresses: [{type: InternalIP, address: 172.16.0.1}, {type: InternalIP, address: 'fd00::4:1'}]}}
---
{apiVersion: v1, kind: Node, metadata: {name: node-2}, status: {addresses: [{type: InternalIP, address: 192.0.2.3}]}}
---
{apiVersion: v1, kind: Node, metadata: {name: node-3}, status: {addresses: [{type: InternalIP, address: 172.16.0.3}]}}
---
{apiVersion: projectcalico.org/v3, kind: FelixConfiguration, metadata: {name: node.node-2}, spec: {defaultEndpointToHostAction: Drop}}
";

/// The kinds of the cells of all runs.
type Seen = RefCell<BTreeMap<&'static str, u32>>;

struct Law<'a> {
    matrix: &'a Matrix,
    oracle: &'a Oracle,
    text: &'a str,
    /// The party of each pod's address.
    of_pod: BTreeMap<(ObjectName, Option<IpAddr>), usize>,
    seen: &'a Seen,
}

impl<'a> Law<'a> {
    fn new(matrix: &'a Matrix, oracle: &'a Oracle, text: &'a str, seen: &'a Seen) -> Self {
        let mut of_pod = BTreeMap::new();
        for (index, party) in matrix.parties.iter().enumerate() {
            let address = match party.kind {
                PartyKind::Pod(_, address) => address,
                _ => None,
            };
            for pod in &party.pods {
                assert!(of_pod.insert((pod.clone(), address), index).is_none(), "{pod} twice");
            }
        }
        Self { matrix, oracle, text, of_pod, seen }
    }

    fn party(&self, party: &Party) -> usize {
        let Party::Pod { namespace, name, address } = party else { panic!("{party} is no pod") };
        let pod = ObjectName::new(namespace.as_str(), name.as_str());
        let by_address = self.of_pod.get(&(pod.clone(), Some(*address)));
        *by_address.or_else(|| self.of_pod.get(&(pod, None))).expect("every pod is in the matrix")
    }

    /// Compares a cell with the oracle for one pair.
    fn holds(&self, cell: (usize, usize), from: &Party, to: &Party) -> Result<(), TestCaseError> {
        let family = Family::from_address(from.address());
        let number = self.matrix.cell(cell.0, cell.1).and_then(|cell| match family {
            Family::V4 => cell.v4,
            Family::V6 => cell.v6,
        });
        prop_assert!(number.is_some(), "no cell for {from} -> {to}\n{}", self.text);
        let services = self.matrix.services(number.unwrap_or_default());
        for (kind, key) in boundaries(services) {
            let packet = packet(kind, key, family);
            let judged = self.oracle.judge(from, to, packet);
            prop_assert_eq!(
                services.contains(kind, key),
                judged.allowed(),
                "{} -> {}, {}: the cell is {}, the oracle: {}\n{}",
                from,
                to,
                packet,
                services,
                judged,
                self.text
            );
        }
        let seen = match services {
            all if all.is_all() => "all",
            none if none.is_none() => "none",
            _ => "some",
        };
        *self.seen.borrow_mut().entry(seen).or_default() += 1;
        Ok(())
    }

    fn every_pair(&self) -> Result<(), TestCaseError> {
        let pods: Vec<Party> = self.oracle.pods().collect();
        for from in &pods {
            for to in pods.iter().filter(|to| is_pair(from, to)) {
                self.holds((self.party(from), self.party(to)), from, to)?;
            }
        }
        // Nodes and addresses outside: one pair of each cell.
        for from in 0..self.matrix.parties.len() {
            for to in 0..self.matrix.parties.len() {
                for family in Family::ALL {
                    let cell = self.matrix.cell(from, to);
                    let number = cell.and_then(|cell| match family {
                        Family::V4 => cell.v4,
                        Family::V6 => cell.v6,
                    });
                    let parties = self.matrix.oracle_parties(from, to, family);
                    if let Some((source, destination)) = parties.filter(|_| number.is_some()) {
                        self.holds((from, to), &source, &destination)?;
                        let ends = [from, to].map(|party| &self.matrix.parties[party].kind);
                        for kind in ends {
                            let kind = match kind {
                                PartyKind::OwnNode => "own node",
                                PartyKind::Nodes(_) => "other node",
                                PartyKind::Nets(_) => "net",
                                PartyKind::Outside(_) => "outside",
                                PartyKind::Pod(_, Some(_)) => "an address of a pod",
                                PartyKind::Pod(..) | PartyKind::Workload { .. } => continue,
                            };
                            *self.seen.borrow_mut().entry(kind).or_default() += 1;
                        }
                    }
                }
            }
        }
        Ok(())
    }
}

fn is_pair(from: &Party, to: &Party) -> bool {
    let name = |party: &Party| match party {
        Party::Pod { namespace, name, .. } => (namespace.clone(), name.clone()),
        _ => panic!("{party} is no pod"),
    };
    name(from) != name(to) && from.address().is_ipv4() == to.address().is_ipv4()
}

/// The keys at, beside and between all boundaries of a cell, in every kind; and some that the generators' rules name.
fn boundaries(services: &PacketSet) -> Vec<(usize, u16)> {
    let mut keys = Vec::new();
    for kind in 0..KINDS.len() {
        let most = if kind == OF_OTHERS { u16::from(u8::MAX) } else { u16::MAX };
        let ends = services.0[kind].iter().flat_map(|(first, last)| [first, last]);
        let known: &[u16] = match kind {
            OF_ICMP => &[0x0800, 0x0301],
            OF_OTHERS => &[4, 47],
            _ => &[1, 53, 80, 443, 8080],
        };
        let ends = ends.chain([0, most]).chain(known.iter().copied());
        let around: BTreeSet<u16> =
            ends.flat_map(|key| [key.saturating_sub(1), key, key.saturating_add(1)]).collect();
        let is_other = |key: &u16| kind != OF_OTHERS || ![1, 6, 17, 58, 132].contains(key);
        keys.extend(
            around.into_iter().filter(|key| *key <= most && is_other(key)).map(|key| (kind, key)),
        );
    }
    keys
}

fn check(text: &str, seen: &Seen) -> Result<(), TestCaseError> {
    let contents = Contents::from_texts([("cluster.yaml", text)]);
    let matrix = Matrix::new(&contents);
    let oracle = Oracle::new(&contents.objects);
    prop_assert_eq!(
        matrix.pods,
        oracle
            .pods()
            .map(|pod| pod.to_string().split(' ').next().map(str::to_owned))
            .collect::<BTreeSet<_>>()
            .len()
    );
    Law::new(&matrix, &oracle, text, seen).every_pair()
}

#[test]
fn every_cell_is_what_the_oracle_says_of_every_pair() {
    let seen = Seen::default();
    let cases = config(2).cases;
    let result = counting_runner(Config { cases, ..config(1) })
        .run(&generate::cluster(), |cluster| {
            check(&format!("{}{NODES}", cluster.to_yaml()), &seen)
        });
    if let Err(error) = result {
        panic!("{error}");
    }
    enough(&seen, &["all", "none", "some", "own node", "other node", "net", "outside"]);
}

#[test]
fn every_cell_is_what_the_oracle_says_with_policies_of_every_api() {
    let seen = Seen::default();
    let cases = config(2).cases;
    let strategy = (every_api::cluster(), any::<bool>());
    let result = counting_runner(Config { cases, ..config(1) }).run(&strategy, |(text, apart)| {
        let mut text = text.replacen("spec: {service", "spec: {nodeName: node-1, service", 2);
        text = text.replace("spec: {service", "spec: {nodeName: node-2, service");
        if apart {
            // A pod whose addresses of one family are in different sets and nets.
            text = text.replace("{ip: 10.0.0.5}", "{ip: 10.0.0.5}, {ip: 192.0.2.9}");
        }
        check(&format!("{text}{NODES}"), &seen)
    });
    if let Err(error) = result {
        panic!("{error}");
    }
    let kinds = ["all", "none", "some", "own node", "other node", "net", "outside"];
    enough(&seen, &kinds);
    enough(&seen, &["an address of a pod"]);
}

fn enough(seen: &Seen, kinds: &[&str]) {
    let seen = seen.borrow();
    println!("{seen:?}");
    for kind in kinds {
        assert!(seen.get(kind).is_some_and(|count| *count > 40), "{kind}: too few in {seen:?}");
    }
}
