//! The rows: the kind of packets, the number of workers and the device of the attacker's pod.

use manx_api::Device;

use super::packets::Kind;

pub(super) struct Row {
    /// The name of the row on the command line.
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) workers: usize,
    /// How the pods are attached.
    pub(super) device: Device,
}

const fn one(name: &'static str, kind: Kind) -> Row {
    Row { name, kind, workers: 1, device: Device::Tun }
}

const fn two(name: &'static str, kind: Kind) -> Row {
    Row { workers: 2, ..one(name, kind) }
}

/// All rows, in the order of the report.
pub(super) const ROWS: [Row; 19] = [
    one("fair-small", Kind::Small),
    one("fair-new", Kind::New),
    one("fair-denied", Kind::Denied),
    one("fair-fragments", Kind::Fragments),
    one("fair-segments", Kind::Segments),
    one("fair-udp-segments", Kind::SegmentsUdp),
    one("fair-ttl", Kind::Ttl),
    one("fair-too-big", Kind::TooBig),
    one("fair-super", Kind::Super),
    two("fair-two-small", Kind::Small),
    two("fair-two-new", Kind::New),
    two("fair-two-denied", Kind::Denied),
    two("fair-two-fragments", Kind::Fragments),
    two("fair-two-segments", Kind::Segments),
    two("fair-two-udp-segments", Kind::SegmentsUdp),
    two("fair-two-ttl", Kind::Ttl),
    two("fair-two-too-big", Kind::TooBig),
    two("fair-two-super", Kind::Super),
    Row { device: Device::Veth, ..two("fair-veth-segments", Kind::Segments) },
];

impl Row {
    /// The heading of its figures.
    pub(super) fn head(&self) -> &'static str {
        match (self.workers, self.device) {
            (1, _) => "A neighbour beside an attacker, one worker",
            (_, Device::Tun) => "A neighbour beside an attacker, two workers",
            (_, Device::Tap) => "A neighbour beside an attacker, two workers, by TAP",
            (_, Device::Veth) => "A neighbour beside an attacker, two workers, by veth",
        }
    }

    /// A description of the row.
    pub(super) fn description(&self) -> String {
        format!("{}: {}", self.head(), self.kind.description())
    }
}
