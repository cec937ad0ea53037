//! The rows: the node, its packets, and the goal in cycles per packet.

use super::cluster::Rules;
use super::node::Shape;
use super::packets::station::Pace;

/// The packets of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Traffic {
    /// Established flows from the client to pods of other nodes, without a tunnel.
    Plain(u32),
    /// Like `Plain`, with the node's address as their source (masquerading). There are no replies.
    Outward(u32),
    /// Established flows to the other pod of the node, so that the policies of both pods apply.
    Near(u32),
    /// Established flows to pods behind a tunnel.
    Encapsulated(u32),
    /// The replies of pods behind tunnels.
    Decapsulated(u32),
    /// Every packet opens a new flow.
    New(DecidingRule),
    /// Packets of this many flows. A rule allows them before connection tracking, so that no flow is stored.
    Untracked(u32, DecidingRule),
}

/// The rule that allows a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DecidingRule {
    /// The last rule, which allows the pods.
    Last,
    /// Any other rule. Each rule allows a network, and packets go to addresses all over it.
    Any,
}

pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) what: &'static str,
    pub(crate) rules: Rules,
    pub(crate) nodes: u32,
    pub(crate) traffic: Traffic,
    pub(crate) pace: Pace,
    /// Whether its ports carry Ethernet frames instead of packets.
    pub(crate) ethernet: bool,
    /// Whether the source of packets that leave the node is translated.
    pub(crate) translates: bool,
    /// The goal in cycles per packet.
    pub(crate) goal: Option<u32>,
}

const fn row(
    name: &'static str,
    what: &'static str,
    rules: Rules,
    traffic: Traffic,
    goal: u32,
) -> Row {
    let (pace, goal) = (Pace::DEVICE, Some(goal));
    let (ethernet, translates) = (false, false);
    Row { name, what, rules, nodes: 1, traffic, pace, ethernet, translates, goal }
}

const fn established(name: &'static str, what: &'static str, traffic: Traffic, goal: u32) -> Row {
    row(name, what, Rules::Pods(101), traffic, goal)
}

/// A row with at most `vector` packets per batch.
const fn vector(name: &'static str, what: &'static str, vector: usize, goal: u32) -> Row {
    let pace = Pace { vector, ..Pace::DEVICE };
    Row { pace, ..established(name, what, Traffic::Plain(1000), goal) }
}

const fn untracked(name: &'static str, what: &'static str, rules: Rules, goal: u32) -> Row {
    row(name, what, rules, Traffic::Untracked(100_000, DecidingRule::Any), goal)
}

const NEW: Traffic = Traffic::New(DecidingRule::Last);
const NEW_ANY: Traffic = Traffic::New(DecidingRule::Any);

/// All rows, in the order of the report.
pub(crate) const ROWS: &[Row] = &[
    established("flows-1k", "established, 1,000 flows", Traffic::Plain(1000), 80),
    Row {
        pace: Pace { ring: 0, ..Pace::DEVICE },
        ..established(
            "flows-1k-hot",
            "established, 1,000 flows, in the same 32 buffers again and again",
            Traffic::Plain(1000),
            80,
        )
    },
    Row {
        ethernet: true,
        goal: None,
        ..established(
            "ethernet-1k",
            "established, 1,000 flows, in Ethernet frames",
            Traffic::Plain(1000),
            0,
        )
    },
    established("flows-100k", "established, 100,000 flows", Traffic::Plain(100_000), 110),
    established("flows-1m", "established, 1,000,000 flows", Traffic::Plain(1_000_000), 170),
    established("both-1k", "policy of both ends, 1,000 flows", Traffic::Near(1000), 110),
    established("both-100k", "policy of both ends, 100,000 flows", Traffic::Near(100_000), 180),
    vector("vector-1", "1,000 flows, one packet at a time", 1, 300),
    vector("vector-8", "1,000 flows, 8 packets at a time", 8, 120),
    row("new-1", "each packet a new flow, 1 rule", Rules::Pods(1), NEW, 350),
    row("new-1k", "each packet a new flow, the last of 1,000 rules", Rules::Pods(1000), NEW, 350),
    row(
        "new-10k",
        "each packet a new flow, the last of 10,000 rules",
        Rules::Pods(10_000),
        NEW,
        350,
    ),
    row(
        "new-1k-any",
        "each packet a new flow, any of 1,000 rules",
        Rules::Pods(1000),
        NEW_ANY,
        350,
    ),
    row(
        "new-10k-any",
        "each packet a new flow, any of 10,000 rules",
        Rules::Pods(10_000),
        NEW_ANY,
        350,
    ),
    row("set-1k", "each packet a new flow, set of 1,000", Rules::Set(1000), NEW, 350),
    row("set-10k", "each packet a new flow, set of 10,000", Rules::Set(10_000), NEW, 350),
    row(
        "stateless-1k",
        "untracked, the last of 1,000 rules, one mask",
        Rules::Untracked(1000, false),
        Traffic::Untracked(1000, DecidingRule::Last),
        100,
    ),
    untracked(
        "stateless-100-any",
        "untracked, any of 100 rules, one mask",
        Rules::Untracked(100, false),
        100,
    ),
    untracked(
        "stateless-1k-any",
        "untracked, any of 1,000 rules, one mask",
        Rules::Untracked(1000, false),
        100,
    ),
    untracked(
        "stateless-10k-any",
        "untracked, any of 10,000 rules, one mask",
        Rules::Untracked(10_000, false),
        100,
    ),
    untracked(
        "masks-10k-any",
        "untracked, any of 10,000 rules, many masks",
        Rules::Untracked(10_000, true),
        110,
    ),
    Row {
        translates: true,
        goal: None,
        ..established(
            "outward-1k",
            "the source is translated, 1,000 flows",
            Traffic::Outward(1000),
            0,
        )
    },
    Row {
        translates: true,
        goal: None,
        ..row(
            "outward-new-1k",
            "each packet a new flow whose source is translated, the last of 1,000 rules",
            Rules::Pods(1000),
            NEW,
            0,
        )
    },
    established("encap-1k", "IPIP put on, 1,000 flows", Traffic::Encapsulated(1000), 95),
    established("encap-100k", "IPIP put on, 100,000 flows", Traffic::Encapsulated(100_000), 150),
    established(
        "decap-1",
        "IPIP taken off, 1 tunnel, 1,000 flows",
        Traffic::Decapsulated(1000),
        90,
    ),
    Row {
        nodes: 100,
        ..established(
            "decap-100",
            "IPIP taken off, 100 tunnels, 1,000 flows",
            Traffic::Decapsulated(1000),
            90,
        )
    },
];

impl Row {
    /// The row with this name.
    pub(crate) fn find(name: &str) -> Option<&'static Self> {
        ROWS.iter().find(|row| row.name == name)
    }

    /// The number of flows.
    pub(crate) fn flows(&self) -> u32 {
        match self.traffic {
            Traffic::Plain(flows)
            | Traffic::Outward(flows)
            | Traffic::Near(flows)
            | Traffic::Encapsulated(flows)
            | Traffic::Decapsulated(flows)
            | Traffic::Untracked(flows, _) => flows,
            Traffic::New(_) => u32::MAX,
        }
    }

    /// The size of the flow table.
    pub(crate) fn table_size(&self) -> usize {
        let least = Shape::default().flows;
        match self.traffic {
            Traffic::New(_) | Traffic::Untracked(..) => least,
            _ => least.max((self.flows() as usize).next_power_of_two()),
        }
    }

    /// The node of the row.
    pub(crate) fn shape(&self) -> Shape {
        let Self { rules, nodes, ethernet, translates, .. } = *self;
        Shape { rules, nodes, flows: self.table_size(), ethernet, translates }
    }
}
