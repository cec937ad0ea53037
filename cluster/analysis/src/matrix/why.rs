//! The reasons for a cell at each of its ends, and the oracle's explanation of one packet of the cell.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use manx_api::trace::Trace;
use manx_calculation::import::policy_name;
use manx_objects::contents::Contents;
use manx_oracle::{Oracle, Packet, Party as OracleParty};
use manx_policy_compiler::image::{ChainId, Lookups, PathId};
use manx_policy_compiler::model::{Direction, Family, ObjectName, PolicyName, Reason, Verdict};

use super::Matrix;
use super::cells::{Pair, pair};
use super::groups::End;
use super::packet_set::PacketSet;
use super::parties::PartyKind;

/// The reasons at the ends of many cells, as texts with numbers. Each entry of the tables is read only once.
#[derive(Debug, Default)]
pub struct Whys {
    texts: Vec<String>,
    numbers: HashMap<String, usize>,
    of_place: HashMap<(Family, Lookups), usize>,
}

impl Whys {
    /// Returns the numbers of the reasons for a pair of groups: the reason at the source, and the reason at the
    /// destination. Returns `None` if the matrix has no such pair.
    pub fn numbers(
        &mut self,
        matrix: &Matrix,
        from: usize,
        to: usize,
        family: Family,
    ) -> Option<[usize; 2]> {
        let (from, to) = (matrix.groups.get(from)?, matrix.groups.get(to)?);
        let ends = match pair(&matrix.node_kinds, family, from, to)? {
            Pair::OwnNode => [NO_POD, "a node always reaches its own pods"],
            Pair::Dropped => {
                [NO_POD, "the node accepts nothing from its own pods (defaultEndpointToHostAction)"]
            }
            Pair::Policy(from, to) => {
                let egress = self.side(matrix, Direction::Egress, &from, &to);
                return Some([egress, self.side(matrix, Direction::Ingress, &to, &from)]);
            }
        };
        Some(ends.map(|text| self.intern(text.to_owned())))
    }

    /// Returns the text of a reason's number.
    pub fn text(&self, number: usize) -> &str {
        self.texts.get(number).map_or("", String::as_str)
    }

    fn side(&mut self, matrix: &Matrix, direction: Direction, local: &End, peer: &End) -> usize {
        let Some(chain) = local.chain(direction) else { return self.intern(NO_POD.to_owned()) };
        let place = matrix.image.lookups(chain, local.identity, peer.identity);
        if let Some(known) = self.of_place.get(&(local.family(), place)) {
            return *known;
        }
        let number = self.intern(matrix.reasons(chain, local, peer));
        self.of_place.insert((local.family(), place), number);
        number
    }

    fn intern(&mut self, text: String) -> usize {
        let next = self.texts.len();
        let number = *self.numbers.entry(text.clone()).or_insert(next);
        if number == next {
            self.texts.push(text);
        }
        number
    }
}

/// The reason at an end that is not a pod.
const NO_POD: &str = "no policy of pods applies: it is no pod";

/// The file and line of each policy.
#[derive(Debug)]
pub(super) struct Places(BTreeMap<PolicyName, String>);

impl Places {
    pub(super) fn new(contents: &Contents) -> Self {
        let policies = contents
            .objects
            .iter()
            .filter_map(|(key, stored)| Some((policy_name(key)?, stored.place.to_string())));
        Self(policies.collect())
    }

    /// Returns the text of a reason, with the place of its policy.
    fn text(&self, reason: &Reason) -> String {
        let policy = match reason {
            Reason::Rule(rule, _) => Some(&*rule.policy),
            Reason::Isolated(_, policy) | Reason::Broken(_, policy) => Some(policy),
            _ => None,
        };
        let place = policy.and_then(|policy| self.0.get(policy));
        let place = place.map(|place| format!(" ({place})")).unwrap_or_default();
        match reason {
            Reason::Rule(rule, Verdict::Allow) => format!("allowed by {rule}{place}"),
            Reason::Rule(rule, Verdict::Deny) => format!("denied by {rule}{place}"),
            Reason::Unknown(_) => {
                "an address of a pod that is not valid, or of one of these".to_owned()
            }
            other => format!("{other}{place}"),
        }
    }
}

impl Matrix {
    /// Returns the services of a chain for each reason. Reasons that allow come first.
    fn reasons(&self, chain: ChainId, local: &End, peer: &End) -> String {
        let (family, source) = (local.family(), Packet::EPHEMERAL);
        let decisions = self.image.decisions(chain, local.identity, peer.identity, family, source);
        let mut reasons: BTreeMap<(bool, String), Vec<PathId>> = BTreeMap::new();
        let runs = decisions.ports.iter().chain([&decisions.icmp, &decisions.others]).flatten();
        for run in runs {
            let path = self.image.path(run.path);
            let text = self.places.text(&path.decision.reason);
            reasons.entry((path.verdict != Verdict::Allow, text)).or_default().push(run.path);
        }
        if reasons.len() == 1 {
            return reasons.into_keys().map(|(_, reason)| reason).collect();
        }
        let texts = reasons.into_iter().map(|((_, reason), paths)| {
            let services = PacketSet::from_decisions(&decisions, |path| paths.contains(&path));
            format!("{services}: {reason}")
        });
        texts.collect::<Vec<_>>().join("; ")
    }

    /// Returns the oracle's explanations of a cell: for a packet that passes, and for a packet that does not. An
    /// explanation is left out if there is no such packet.
    pub fn explain(&self, oracle: &Oracle, from: usize, to: usize) -> Vec<Trace> {
        let Some(cell) = self.cell(from, to) else { return Vec::new() };
        let mut families = Family::ALL.into_iter().zip([cell.v4, cell.v6]);
        let Some((family, Some(number))) = families.find(|(_, it)| it.is_some()) else {
            return Vec::new();
        };
        let Some((source, destination)) = self.oracle_parties(from, to, family) else {
            return Vec::new();
        };
        let services = self.services(number);
        let packets = [services.example(family), services.complement().example(family)];
        let explain = |packet| oracle.explain((&source, None), (&destination, None), packet);
        packets.into_iter().flatten().map(explain).collect()
    }

    /// Returns one pair of ends of a cell, in the oracle's terms.
    pub fn oracle_parties(
        &self,
        from: usize,
        to: usize,
        family: Family,
    ) -> Option<(OracleParty, OracleParty)> {
        // The pair consists of the first pod of each party. If both parties are the same, it consists of the first and
        // the second pod.
        let second = usize::from(from == to);
        let (source, destination) = (self.pod(from, 0, family), self.pod(to, second, family));
        let of = |party: usize, pod: &Option<OracleParty>, other: &Option<OracleParty>| {
            pod.clone().or_else(|| self.no_pod(party, other.as_ref()?, family))
        };
        Some((of(from, &source, &destination)?, of(to, &destination, &source)?))
    }

    /// Returns a pod of a party.
    fn pod(&self, party: usize, index: usize, family: Family) -> Option<OracleParty> {
        let party = self.parties.get(party)?;
        let pod = party.pods.get(index)?;
        let of_family = |address: &&IpAddr| Family::from_address(**address) == family;
        let address = match party.kind {
            PartyKind::Pod(_, Some(address)) => address,
            _ => *self.cluster.model.endpoints.get(pod)?.addresses.iter().find(of_family)?,
        };
        let ObjectName { namespace, name } = pod.clone();
        Some(OracleParty::Pod { namespace, name, address })
    }

    /// Returns a node, or an address outside the cluster, as the other end of a pod.
    fn no_pod(&self, party: usize, pod: &OracleParty, family: Family) -> Option<OracleParty> {
        let OracleParty::Pod { namespace, name, .. } = pod else { return None };
        let pod = ObjectName::new(namespace.as_str(), name.as_str());
        let own = self.cluster.pods_by_node.get(&pod).map(|node| &**node);
        let node = match &self.parties.get(party)?.kind {
            PartyKind::OwnNode => own?,
            PartyKind::Nodes(names) => {
                names.iter().map(String::as_str).find(|name| Some(*name) != own)?
            }
            _ => {
                let end = self.groups.get(self.group(party))?.ends[family as usize]?;
                return Some(OracleParty::Address(end.address));
            }
        };
        let mut addresses = self.cluster.nodes.get(node)?.internal_ips.iter();
        let address = *addresses.find(|address| Family::from_address(**address) == family)?;
        Some(OracleParty::Node { name: node.to_owned(), address })
    }
}
