//! The rows: which routes are announced by which peers, and what Manx is compared with.

use std::time::Duration;

use super::device::Kind;
use super::scenario::Shape;

/// A row of this section.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Row {
    /// The name of the row on the command line.
    pub(super) name: &'static str,
    /// The heading of its figures.
    pub(super) head: &'static str,
    pub(super) shape: Shape,
    /// The program that Manx is compared with.
    pub(super) beside: Kind,
    /// The estimated time of a round for both sides.
    pub(super) round: Duration,
}

const CLIENTS: &str =
    "BGP: a route reflector with 1,000 clients; each announces a block and gets all others'";
const MESH: &str =
    "BGP: 100 speakers in full mesh, each with a peer that announces a block and gets all others'";
const TABLE: &str = "BGP: a router announces 1,000,000 prefixes, and nobody else gets them";
const ANNOUNCED: &str = "BGP: a router announces 1,000,000 prefixes, and one peer gets all";
const OVERLAP: &str =
    "BGP: 100 routers announce the same 10,000 prefixes, and one peer gets the best";

/// All rows, in order.
pub(super) const ROWS: [Row; 10] = [
    row("bgp-clients-bird", CLIENTS, Shape::Clients, Kind::Bird, 12),
    row("bgp-clients-gobgp", CLIENTS, Shape::Clients, Kind::GoBgp, 40),
    row("bgp-mesh-bird", MESH, Shape::Mesh, Kind::Bird, 30),
    row("bgp-mesh-gobgp", MESH, Shape::Mesh, Kind::GoBgp, 60),
    row("bgp-table-bird", TABLE, Shape::Table, Kind::Bird, 8),
    row("bgp-table-gobgp", TABLE, Shape::Table, Kind::GoBgp, 15),
    row("bgp-announced-bird", ANNOUNCED, Shape::Announced, Kind::Bird, 10),
    row("bgp-announced-gobgp", ANNOUNCED, Shape::Announced, Kind::GoBgp, 30),
    row("bgp-overlap-bird", OVERLAP, Shape::Overlap, Kind::Bird, 10),
    row("bgp-overlap-gobgp", OVERLAP, Shape::Overlap, Kind::GoBgp, 30),
];

const fn row(
    name: &'static str,
    head: &'static str,
    shape: Shape,
    beside: Kind,
    seconds: u64,
) -> Row {
    Row { name, head, shape, beside, round: Duration::from_secs(seconds) }
}
