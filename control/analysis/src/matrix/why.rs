//! Why: what decides at either end of a cell, and the oracle's explanation of a packet of it.

use std::collections::BTreeMap;
use std::net::IpAddr;

use manx_api::trace::Trace;
use manx_calculation::import::policy_name;
use manx_objects::contents::Contents;
use manx_oracle::{Oracle, Packet, Party as OracleParty};
use manx_policy_compiler::image::Lookups;
use manx_policy_compiler::model::{Direction, Family, ObjectName, PolicyName, Reason, Verdict};

use super::cells::{Pair, pair};
use super::groups::End;
use super::parties::PartyKind;
use super::services::Services;
use super::Matrix;

/// What decides at one end, for the packets of each rule.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SideWhy {
    /// The packets.
    pub services: Services,
    /// Whether they pass here.
    pub allowed: bool,
    /// What decides.
    pub reason: String,
}

/// What decides at both ends, in one family.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Why {
    /// At the source.
    pub egress: Vec<SideWhy>,
    /// At the destination.
    pub ingress: Vec<SideWhy>,
}

/// Where each policy is defined.
#[derive(Debug)]
pub(super) struct Places(BTreeMap<PolicyName, String>);

impl Places {
    pub(super) fn new(contents: &Contents) -> Self {
        let policies = contents.objects.iter().filter_map(|(key, stored)| {
            Some((policy_name(key)?, stored.place.to_string()))
        });
        Self(policies.collect())
    }

    /// A reason with the place of its policy.
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
            Reason::Unknown(_) => "an address of a pod that is not valid, or of one of these".to_owned(),
            other => format!("{other}{place}"),
        }
    }
}

impl Matrix {
    /// What decides between two parties, in a family that both have.
    pub fn why(&self, from: usize, to: usize, family: Family) -> Option<Why> {
        self.cell(from, to)?;
        self.why_between(self.group(from), self.group(to), family)
    }

    /// What decides between two groups.
    pub fn why_between(&self, from: usize, to: usize, family: Family) -> Option<Why> {
        let (from, to) = (self.groups.get(from)?, self.groups.get(to)?);
        let whole = |allowed, reason: &str| {
            vec![SideWhy { services: Services::all(), allowed, reason: reason.to_owned() }]
        };
        let no_pod = || whole(true, "no policy of pods applies: it is no pod");
        Some(match pair(&self.node_kinds, family, from, to)? {
            Pair::OwnNode => {
                Why { egress: no_pod(), ingress: whole(true, "a node always reaches its own pods") }
            }
            Pair::Dropped => Why {
                egress: no_pod(),
                ingress: whole(
                    false,
                    "the node accepts nothing from its own pods (defaultEndpointToHostAction)",
                ),
            },
            Pair::Policy(from, to) => Why {
                egress: self.side(Direction::Egress, &from, &to).unwrap_or_else(no_pod),
                ingress: self.side(Direction::Ingress, &to, &from).unwrap_or_else(no_pod),
            },
        })
    }

    /// What the chain of `local` decides, by reason; what it allows comes first.
    fn side(&self, direction: Direction, local: &End, peer: &End) -> Option<Vec<SideWhy>> {
        let chain = local.chain(direction)?;
        let (family, source) = (local.family(), Packet::EPHEMERAL);
        let (local, peer) = (local.identity, peer.identity);
        let decisions = self.image.decisions(chain, local, peer, family, source);
        let mut reasons: BTreeMap<(bool, String), Vec<_>> = BTreeMap::new();
        let runs = decisions.ports.iter().chain([&decisions.icmp, &decisions.others]).flatten();
        for run in runs {
            let path = self.image.path(run.path);
            let text = self.places.text(&path.decision.reason);
            let key = (path.verdict != Verdict::Allow, text);
            reasons.entry(key).or_default().push(run.path);
        }
        let side = |((denied, reason), paths): ((bool, String), Vec<_>)| SideWhy {
            services: Services::from_decisions(&decisions, |path| paths.contains(&path)),
            allowed: !denied,
            reason,
        };
        Some(reasons.into_iter().map(side).collect())
    }

    /// The places of both ends in the tables: pairs with equal places and equal verdicts have one [`Why`].
    pub fn why_key(&self, from: usize, to: usize, family: Family) -> Option<[Option<Lookups>; 2]> {
        let (from, to) = (self.groups.get(from)?, self.groups.get(to)?);
        let place = |direction, local: &End, peer: &End| {
            Some(self.image.lookups(local.chain(direction)?, local.identity, peer.identity))
        };
        Some(match pair(&self.node_kinds, family, from, to)? {
            Pair::OwnNode => [None, None],
            Pair::Dropped => [None, Some(Lookups::Nowhere)],
            Pair::Policy(from, to) => {
                [place(Direction::Egress, &from, &to), place(Direction::Ingress, &to, &from)]
            }
        })
    }

    /// The oracle's explanations of a cell: of a packet that passes, and of one that does not, if there are such.
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

    /// One pair of a cell, as the oracle names them.
    pub fn oracle_parties(
        &self,
        from: usize,
        to: usize,
        family: Family,
    ) -> Option<(OracleParty, OracleParty)> {
        // The first pod of each; of one party the first and the second.
        let second = usize::from(from == to);
        let (source, destination) = (self.pod(from, 0, family), self.pod(to, second, family));
        let of = |party: usize, pod: &Option<OracleParty>, other: &Option<OracleParty>| {
            pod.clone().or_else(|| self.no_pod(party, other.as_ref()?, family))
        };
        Some((of(from, &source, &destination)?, of(to, &destination, &source)?))
    }

    /// A pod of a party.
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

    /// A node or an address outside, as the other end of a pod.
    fn no_pod(&self, party: usize, pod: &OracleParty, family: Family) -> Option<OracleParty> {
        let OracleParty::Pod { namespace, name, .. } = pod else { return None };
        let pod = ObjectName::new(namespace.as_str(), name.as_str());
        let own = self.cluster.pods_by_node.get(&pod);
        let node = match &self.parties.get(party)?.kind {
            PartyKind::OwnNode => own?,
            PartyKind::Nodes(names) => names.iter().find(|name| Some(*name) != own)?,
            _ => {
                let end = self.groups.get(self.group(party))?.ends[family as usize]?;
                return Some(OracleParty::Address(end.address));
            }
        };
        let mut addresses = self.cluster.nodes.get(node)?.internal_ips.iter();
        let address = *addresses.find(|address| Family::from_address(**address) == family)?;
        Some(OracleParty::Node { name: node.clone(), address })
    }
}
