//! Evaluates packets in test clusters, written as tables.
//!
//! A question is a line `ENDPOINT[@STAGE] < PEER PACKET` (ingress) or `ENDPOINT > PEER PACKET` (egress). A packet is
//! `tcp 80`, `udp 5000-53` (source and destination), `sctp` (no ports shown), `icmp 8/0`, `icmp6 128/0` or `proto 50`.

use std::fmt::Write as _;

use super::build::{Cluster, ip, name, protocol};
use crate::compile::Compiler;
use crate::image::Image;
use crate::model::*;
use crate::reference::prove;
use crate::reference::{Packet, Reference};
use crate::resolve::{LocalName, Stage};

impl Cluster {
    /// Checks a table of lines `QUESTION = ANSWER`. The rows, the rules evaluated one by one, and the reference must
    /// all give these answers. The images are also proved, and so is one whose rows are walked over.
    #[track_caller]
    pub(super) fn says(&self, table: &str) {
        let rows = self.image();
        let linear = Compiler::with_budget(0).compile(&self.model, &self.all());
        prove(&self.model, &self.all(), &linear).unwrap();
        let mut walking = Compiler::new();
        walking.tables.scale.looks = 0;
        prove(&self.model, &self.all(), &walking.compile(&self.model, &self.all())).unwrap();
        let reference = Reference::new(&self.model);
        let lines = table.lines().map(str::trim).filter(|line| !line.is_empty());
        let lines: Vec<(&str, &str)> = lines.map(|line| line.split_once(" = ").unwrap()).collect();
        assert!(!lines.is_empty());
        let expected: Vec<String> = lines
            .iter()
            .map(|(question, answer)| format!("{} = {answer}", question.trim()))
            .collect();
        let mut by_reference = Vec::new();
        let mut by_rows = Vec::new();
        for (question, answer) in &lines {
            let question = question.trim();
            let at = Asked::parse(&self.model, question);
            let decision = match reference.policies(&at.endpoint, at.stage, at.direction) {
                Some(policies) => {
                    reference.judge_by(&policies, &at.endpoint, at.stage, at.direction, &at.packet)
                }
                None => Reason::Unknown(at.direction).into(),
            };
            by_reference.push(format!("{question} = {}", shown(&decision)));
            let found = at.decided(&rows);
            by_rows.push(format!("{question} = {}", shown(&found)));
            assert_eq!(
                at.decided(&linear).reason,
                decision.reason,
                "rule by rule: {question} = {answer}"
            );
        }
        assert_eq!(by_reference.join("\n"), expected.join("\n"), "reference, then the test");
        assert_eq!(by_rows.join("\n"), expected.join("\n"), "rows, then the test");
    }
}

/// The verdict, the reason for it, and the rules that were noted before.
fn shown(decision: &Decision) -> String {
    let verdict = match decision.reason.verdict() {
        Verdict::Allow => "allow",
        Verdict::Deny => "deny",
    };
    let mut text = format!("{verdict}: {}", decision.reason);
    for noted in &decision.noted {
        write!(text, "; {:?} {noted}", noted.action()).unwrap();
    }
    text
}

struct Asked {
    endpoint: LocalName,
    stage: Stage,
    direction: Direction,
    packet: Packet,
}

impl Asked {
    fn parse(model: &Model, text: &str) -> Self {
        let mut words = text.split_whitespace();
        let endpoint = words.next().unwrap();
        let (endpoint, stage) = endpoint.split_once('@').unwrap_or((endpoint, "pod"));
        let stage = match stage {
            "pod" => Stage::Pod,
            "host" => Stage::Host,
            "forward" => Stage::Forward,
            "prednat" => Stage::PreDnat,
            "untracked" => Stage::Untracked,
            other => panic!("{other} is no stage"),
        };
        let direction = match words.next().unwrap() {
            "<" => Direction::Ingress,
            ">" => Direction::Egress,
            other => panic!("{other} is no direction"),
        };
        let peer = ip(words.next().unwrap());
        let transport = transport(words.next().unwrap(), words.next());
        let endpoint = name(endpoint);
        let pod = model.endpoints.get(&endpoint).map(|pod| &pod.addresses);
        let host = model.host_endpoints.get(&endpoint.name).map(|host| &host.addresses);
        let mut own = pod.or(host).into_iter().flatten().copied();
        let local = own.find(|own| Family::from_address(*own) == Family::from_address(peer));
        // A host endpoint without addresses receives packets to any address.
        let local = local.unwrap_or_else(|| match Family::from_address(peer) {
            Family::V4 => ip("198.51.100.200"),
            Family::V6 => ip("2001:db8:ffff::"),
        });
        let packet = Packet { local, peer, transport };
        Self { endpoint, stage, direction, packet }
    }

    fn decided(&self, image: &Image) -> Decision {
        let Some(chain) = image.chain_at(&self.endpoint, self.stage, self.direction) else {
            return Reason::Unknown(self.direction).into();
        };
        let Packet { local, peer, transport } = self.packet;
        let (local, peer) = (image.identity(local), image.identity(peer));
        let path = image.path(image.classify(chain, local, peer, transport));
        assert_eq!(path.verdict, path.decision.reason.verdict());
        Decision { reason: path.decision.reason.clone(), noted: path.decision.noted.clone() }
    }
}

fn transport(kind: &str, rest: Option<&str>) -> Transport {
    if let Some(protocol) = protocol(kind) {
        let Some(rest) = rest else { return Transport::bare(protocol.number()) };
        let (source, destination) = rest.split_once('-').unwrap_or(("49152", rest));
        return Transport::ports(protocol, source.parse().unwrap(), destination.parse().unwrap());
    }
    let icmp = match kind {
        "icmp" => ICMP,
        "icmp6" => ICMPV6,
        "proto" => return Transport::bare(rest.unwrap().parse().unwrap()),
        other => panic!("{other} is no protocol"),
    };
    let Some(rest) = rest else { return Transport::bare(icmp) };
    let (kind, code) = rest.split_once('/').unwrap();
    Transport::icmp(icmp, kind.parse().unwrap(), code.parse().unwrap())
}
