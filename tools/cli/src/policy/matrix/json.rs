//! The matrix for programs.

use std::collections::BTreeMap;

use serde::Serialize;

use super::shown::Shown;
use crate::Error;
use crate::output;
use manx_analysis::matrix::{LeftOut, Matrix, PacketSet, Party, PartyKind};

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Report<'a> {
    /// The source port of the packets.
    source_port: u16,
    parties: Vec<PartyReport>,
    /// The services to which cells refer.
    services: Vec<ServicesReport>,
    cells: Vec<CellReport>,
    left_out: Vec<LeftOutReport>,
    notes: &'a [String],
}

/// A party. Its name contains only its first members. All members are in the list of their kind.
#[derive(Serialize)]
struct PartyReport {
    name: String,
    kind: &'static str,
    namespace: String,
    pods: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    nodes: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    nets: Vec<String>,
    /// At most one address of each family, as an example of the addresses that no object names.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    addresses: Vec<String>,
}

/// A pod that is left out of the parties.
#[derive(Serialize)]
struct LeftOutReport {
    pod: String,
    why: &'static str,
}

/// Services as ranges, which include both ends.
#[derive(Serialize)]
struct ServicesReport {
    ports: String,
    tcp: Vec<(u16, u16)>,
    udp: Vec<(u16, u16)>,
    sctp: Vec<(u16, u16)>,
    /// ICMP type × 256 + code.
    icmp: Vec<(u16, u16)>,
    /// Numbers of other protocols.
    protocols: Vec<(u16, u16)>,
}

/// The services that each source of `from` reaches at each destination of `to`, except a pod at itself.
#[derive(Serialize)]
struct CellReport {
    from: Vec<String>,
    to: Vec<String>,
    ports: String,
    /// Indexes of services; absent: the family has no such pair.
    #[serde(skip_serializing_if = "Option::is_none")]
    ipv4: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ipv6: Option<usize>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    why: Vec<String>,
}

pub(super) fn render(shown: &Shown<'_>) -> Result<String, Error> {
    let matrix = shown.matrix;
    let mut numbers: BTreeMap<u32, usize> = BTreeMap::new();
    let mut services = Vec::new();
    let mut number = |wire: u32| {
        *numbers.entry(wire).or_insert_with(|| {
            services.push(ServicesReport::new(matrix.services(wire)));
            services.len() - 1
        })
    };
    let mut cells = Vec::new();
    let (blocks, whys) = shown.view.blocks(shown.why);
    for block in blocks {
        for line in block.lines.iter().chain(&block.none) {
            cells.push(CellReport {
                from: shown.names(&block.sources),
                to: shown.names(&line.destinations),
                ports: matrix.text(line.cell),
                ipv4: line.cell.v4.map(&mut number),
                ipv6: line.cell.v6.map(&mut number),
                why: Shown::whys(line, &whys),
            });
        }
    }
    let report = Report {
        source_port: Matrix::source_port(),
        parties: matrix.parties.iter().map(PartyReport::new).collect(),
        services,
        cells,
        left_out: matrix.left_out.iter().map(LeftOutReport::new).collect(),
        notes: &shown.notes,
    };
    output::versioned_json(&report)
}

impl PartyReport {
    fn new(party: &Party) -> Self {
        fn texts<T: ToString>(all: &[T]) -> Vec<String> {
            all.iter().map(T::to_string).collect()
        }
        let mut report = Self {
            name: party.to_string(),
            kind: "",
            namespace: party.namespace().to_owned(),
            pods: texts(&party.pods),
            nodes: Vec::new(),
            nets: Vec::new(),
            addresses: Vec::new(),
        };
        report.kind = match &party.kind {
            PartyKind::Workload { .. } => "workload",
            PartyKind::Pod(..) => "pod",
            PartyKind::OwnNode => "own-node",
            PartyKind::Nodes(nodes) => {
                report.nodes.clone_from(nodes);
                "nodes"
            }
            PartyKind::Nets(nets) => {
                report.nets = texts(nets);
                "nets"
            }
            PartyKind::Outside(addresses) => {
                report.addresses = texts(addresses);
                "outside"
            }
        };
        report
    }
}

impl LeftOutReport {
    fn new(left_out: &LeftOut) -> Self {
        Self { pod: left_out.pod.to_string(), why: left_out.why }
    }
}

impl ServicesReport {
    fn new(services: &PacketSet) -> Self {
        let [tcp, udp, sctp, icmp, protocols] =
            services.0.each_ref().map(|keys| keys.iter().collect::<Vec<_>>());
        // The ranges of other protocols end at 255.
        let within = |(first, last): (u16, u16)| (first, last.min(u8::MAX.into()));
        let protocols = protocols.into_iter().map(within).collect();
        Self { ports: services.to_string(), tcp, udp, sctp, icmp, protocols }
    }
}
