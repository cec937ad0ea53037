//! Evaluates predicates and port sets, once for each member.
//!
//! Terms that only the local ends of rules use are not evaluated for pods of other nodes.

use std::collections::{BTreeMap, BTreeSet};

use ahash::{AHashMap, AHashSet};

use super::members::{MemberObject, Members, Position};
use super::selector_index::SelectorIndex;
use super::terms_in_use::TermsInUse;
use super::truths::{TooMany, Truths};
use crate::common::Grouped;
use crate::model::{ObjectName, Protocol};
use crate::resolve::{LocalName, PortSet, PossiblePorts, Predicate, PredicateId, Vocabulary};

/// All predicates of an image.
#[derive(Debug, Clone, Default)]
pub(crate) struct Predicates {
    /// The resolved predicates, followed by one predicate for each possible port of a port set.
    pub(crate) all: Vec<Predicate>,
    /// The possible ports of each port set.
    pub(crate) possible_ports: Vec<PossiblePorts>,
}

impl Predicates {
    /// For each predicate, whether it is in use, either itself or through a port set. `asked` are the terms in use.
    pub(crate) fn in_use(&self, asked: &TermsInUse) -> Box<[bool]> {
        let mut in_use = asked.predicates.clone();
        in_use.resize(self.all.len(), false);
        for (answers, asked) in self.possible_ports.iter().zip(&asked.port_sets) {
            for (_, _, id) in answers {
                in_use[*id as usize] = *asked;
            }
        }
        in_use.into()
    }
}

/// The predicate set of each member.
#[derive(Debug, Default)]
pub(crate) struct MemberPredicates(Grouped);

impl MemberPredicates {
    /// Sorts pairs by the member's position. The predicates of one member are usually in ascending
    /// order already.
    fn from_pairs(members: usize, pairs: &[(u32, PredicateId)]) -> Self {
        let mut all = Grouped::from_pairs(members, pairs.iter().copied());
        all.sort_each();
        Self(all)
    }

    /// For each predicate, the number of members that match it.
    pub(crate) fn counts(&self, predicates: usize) -> Vec<u32> {
        let mut counts = vec![0; predicates];
        for predicate in self.0.all() {
            counts[*predicate as usize] += 1;
        }
        counts
    }

    /// The predicates of a member, in ascending order.
    pub(crate) fn member(&self, position: Position) -> &[PredicateId] {
        self.0.group(position)
    }
}

/// Evaluates all terms for all members. Returns all predicates, and the predicate set of each member.
pub(crate) fn evaluate<'m>(
    vocabulary: &Vocabulary,
    asked: &TermsInUse,
    members: &'m Members<'m>,
    local: &BTreeSet<LocalName>,
    truths: &mut Truths,
) -> Result<(Predicates, MemberPredicates), TooMany> {
    let local: AHashSet<Position> = local.iter().filter_map(|it| members.endpoint(it)).collect();
    let mut evaluation = Evaluation {
        predicates: Predicates { all: vocabulary.predicates.clone(), possible_ports: Vec::new() },
        pairs: Vec::with_capacity(members.all.len()),
        members,
        local,
        services: AHashMap::new(),
        index: SelectorIndex::new(members),
    };
    for (position, member) in members.all.iter().enumerate().skip(members.services) {
        if let MemberObject::Service(name, _) = member.object {
            evaluation.services.entry(name).or_default().push(position);
        }
    }
    for (id, predicate) in (0..).zip(&vocabulary.predicates) {
        let before = evaluation.pairs.len();
        evaluation.predicate(id, predicate, asked.predicates[id as usize]);
        truths.count(evaluation.pairs.len() - before)?;
    }
    for (question, asked) in vocabulary.port_sets.iter().zip(&asked.port_sets) {
        let before = evaluation.pairs.len();
        evaluation.port_set(question, *asked);
        truths.count(evaluation.pairs.len() - before)?;
    }
    let of_members = MemberPredicates::from_pairs(members.all.len(), &evaluation.pairs);
    Ok((evaluation.predicates, of_members))
}

struct Evaluation<'m> {
    predicates: Predicates,
    pairs: Vec<(u32, PredicateId)>,
    members: &'m Members<'m>,
    local: AHashSet<Position>,
    services: AHashMap<&'m ObjectName, Vec<Position>>,
    index: SelectorIndex<'m>,
}

impl Evaluation<'_> {
    fn predicate(&mut self, id: PredicateId, predicate: &Predicate, of_peers: bool) {
        let Self { pairs, index, members, local, services, .. } = self;
        match predicate {
            Predicate::Members(selector) => index.matching(selector, |position| {
                if of_peers || is_near(members, local, position) {
                    pairs.push((position as u32, id));
                }
            }),
            Predicate::Service(service) => {
                let positions = services.get(service).into_iter().flatten();
                pairs.extend(positions.map(|position| (*position as u32, id)));
            }
            Predicate::Family(_)
            | Predicate::Net(_)
            | Predicate::NamesPort { .. }
            | Predicate::ServicePort { .. } => {}
        }
    }

    fn port_set(&mut self, question: &PortSet, of_peers: bool) {
        let Self { index, members, local, services, .. } = self;
        let mut having: Vec<(Position, (Protocol, u16))> = Vec::new();
        match question {
            PortSet::Named { selector, name } => {
                let mut ask = |position: Position| {
                    let named = members.all[position].named_ports();
                    let named = named.filter(|port| port.name == *name);
                    having.extend(named.map(|port| (position, (port.protocol, port.port))));
                };
                match selector {
                    Some(selector) => index.matching(selector, |position| {
                        if of_peers || is_near(members, local, position) {
                            ask(position);
                        }
                    }),
                    None if of_peers => (0..members.all.len()).for_each(ask),
                    // Only endpoints give names to ports, so other members need not be searched.
                    None => local.iter().copied().for_each(ask),
                }
            }
            PortSet::Service(wanted) => {
                for position in services.get(wanted).into_iter().flatten() {
                    if let MemberObject::Service(_, some) = members.all[*position].object {
                        having.extend(some.ports.iter().map(|port| (*position, *port)));
                    }
                }
            }
        }
        let mut answers: BTreeMap<(Protocol, u16), PredicateId> =
            having.iter().map(|(_, port)| (*port, 0)).collect();
        for ((protocol, port), answer) in &mut answers {
            let (protocol, port) = (*protocol, *port);
            *answer = self.predicates.all.len() as PredicateId;
            self.predicates.all.push(match question {
                PortSet::Named { selector, name } => Predicate::NamesPort {
                    selector: selector.clone(),
                    name: name.clone(),
                    protocol,
                    port,
                },
                PortSet::Service(service) => {
                    Predicate::ServicePort { service: service.clone(), protocol, port }
                }
            });
        }
        let pairs = having.iter().filter_map(|(at, port)| Some((*at as u32, *answers.get(port)?)));
        self.pairs.extend(pairs);
        let ports = answers.into_iter().map(|((protocol, port), id)| (protocol, port, id));
        self.predicates.possible_ports.push(ports.collect());
    }
}

/// Whether a member is a local endpoint or is not an endpoint.
fn is_near(members: &Members<'_>, local: &AHashSet<Position>, position: Position) -> bool {
    local.contains(&position) || !members.all[position].is_endpoint()
}
