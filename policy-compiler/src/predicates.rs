//! What is true of whom: predicates and questions, evaluated once for each member and each atom.
//!
//! What only the rules' local ends ask is not evaluated for pods of other nodes: nobody asks it of them.

use std::collections::BTreeSet;
use std::sync::Arc;

use ahash::{AHashMap, AHashSet};
use ipnet::IpNet;

use crate::claim::Facts;
use crate::grouped::Grouped;
use crate::index::SelectorIndex;
use crate::members::{MemberObject, Members, Position};
use crate::model::{Family, ObjectName, Protocol};
use crate::resolve::{
    LocalName, PortSet, PortSetId, Predicate, PredicateId, Resolved, Stage, Terms, Vocabulary,
};

/// The predicates that are true of something, ascending; shared by all that hold it.
pub(crate) type PredicateSet = Arc<[PredicateId]>;

/// The protocols and ports that a question may be answered with, each with the predicate that says whether it is.
pub(crate) type PossiblePorts = Box<[(Protocol, u16, PredicateId)]>;

/// Everything that is asked of addresses.
#[derive(Debug, Clone, Default)]
pub(crate) struct Predicates {
    /// The resolved predicates, and behind them one for each possible answer to a question.
    pub(crate) all: Vec<Predicate>,
    /// By question.
    pub(crate) possible_ports: Vec<PossiblePorts>,
}

impl Predicates {
    /// Which of all are in use, given which of those that were resolved are.
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

/// What is true of each member.
#[derive(Debug, Default)]
pub(crate) struct MemberPredicates(Grouped);

impl MemberPredicates {
    /// Sorts pairs, for each member's position ascending by predicate as a rule, by position.
    fn from_pairs(members: usize, pairs: &[(u32, PredicateId)]) -> Self {
        let mut all = Grouped::from_pairs(members, pairs.iter().copied());
        all.sort_each();
        Self(all)
    }

    /// Of how many members each predicate is true.
    pub(crate) fn counts(&self, predicates: usize) -> Vec<u32> {
        let mut counts = vec![0; predicates];
        for predicate in self.0.all() {
            counts[*predicate as usize] += 1;
        }
        counts
    }

    /// What is true of a member, ascending.
    pub(crate) fn member(&self, position: Position) -> &[PredicateId] {
        self.0.group(position)
    }
}

/// Which predicates and questions rules ask.
#[derive(Debug, Default)]
pub(crate) struct TermsInUse {
    pub(crate) predicates: Vec<bool>,
    pub(crate) port_sets: Vec<bool>,
}

impl TermsInUse {
    /// Those that are asked of those who are not local endpoints, too.
    pub(crate) fn of_peers(resolved: &Resolved, vocabulary: &Vocabulary) -> Self {
        Self::collect(resolved, vocabulary, false)
    }

    /// All that are asked, and the families.
    pub(crate) fn of_either_end(resolved: &Resolved, vocabulary: &Vocabulary) -> Self {
        let mut all = Self::collect(resolved, vocabulary, true);
        for family in Family::ALL {
            all.predicates[family as usize] = true;
        }
        all
    }

    fn collect(resolved: &Resolved, vocabulary: &Vocabulary, local: bool) -> Self {
        let mut all = Self {
            predicates: vec![false; vocabulary.predicates.len()],
            port_sets: vec![false; vocabulary.port_sets.len()],
        };
        for list in &resolved.lists {
            all.add_terms(&list.peer);
            // The local end of a host endpoint's packets may be any address.
            if local || list.list.stage != Stage::Pod {
                all.add_terms(&list.local);
            }
        }
        all
    }

    fn add_terms(&mut self, asked: &Terms) {
        asked.predicates.iter().for_each(|it| self.predicates[*it as usize] = true);
        asked.port_sets.iter().for_each(|it| self.port_sets[*it as usize] = true);
    }
}

/// The predicates and what is true of each member.
pub(crate) fn evaluate<'m>(
    vocabulary: &Vocabulary,
    asked: &TermsInUse,
    members: &'m Members<'m>,
    local: &BTreeSet<LocalName>,
) -> (Predicates, MemberPredicates) {
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
        evaluation.predicate(id, predicate, asked.predicates[id as usize]);
    }
    for (question, asked) in vocabulary.port_sets.iter().zip(&asked.port_sets) {
        evaluation.port_set(question, *asked);
    }
    let truths = MemberPredicates::from_pairs(members.all.len(), &evaluation.pairs);
    (evaluation.predicates, truths)
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
            | Predicate::Nets(_)
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
                    // Only endpoints name ports.
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
        let mut answers: Vec<(Protocol, u16, PredicateId)> = Vec::new();
        let distinct: BTreeSet<_> = having.iter().map(|(_, port)| *port).collect();
        for (protocol, port) in distinct {
            let id = self.predicates.all.len() as PredicateId;
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
            answers.push((protocol, port, id));
        }
        for (position, (protocol, port)) in having {
            let answer = answers.iter().find(|answer| (answer.0, answer.1) == (protocol, port));
            if let Some((_, _, id)) = answer {
                self.pairs.push((position as u32, *id));
            }
        }
        self.predicates.possible_ports.push(answers.into());
    }
}

/// Whether a member is a local endpoint or none at all.
fn is_near(members: &Members<'_>, local: &AHashSet<Position>, position: Position) -> bool {
    local.contains(&position) || !members.all[position].is_endpoint()
}

/// What is true of every address of an atom, families and nets; for the other nets they contain none of it (see the
/// identity module).
#[derive(Debug)]
pub(crate) struct AtomPredicates {
    by_net: AHashMap<IpNet, Vec<PredicateId>>,
}

impl AtomPredicates {
    pub(crate) fn new(predicates: &[Predicate]) -> Self {
        let mut by_net: AHashMap<IpNet, Vec<PredicateId>> = AHashMap::new();
        for (id, predicate) in (0..).zip(predicates) {
            match predicate {
                Predicate::Family(family) => {
                    by_net.entry(family.everything()).or_default().push(id);
                }
                Predicate::Nets(nets) => {
                    for net in nets {
                        by_net.entry(net.trunc()).or_default().push(id);
                    }
                }
                _ => {}
            }
        }
        Self { by_net }
    }

    /// From now on a net makes another predicate true; whether it was no prefix in use before.
    pub(crate) fn add(&mut self, net: IpNet, predicate: PredicateId) -> bool {
        let here = self.by_net.entry(net).or_default();
        here.push(predicate);
        here.len() == 1
    }

    /// Every prefix in use.
    pub(crate) fn prefixes(&self) -> impl Iterator<Item = IpNet> + '_ {
        self.by_net.keys().copied()
    }

    /// What is true of an atom: what a prefix in use that contains it makes true.
    pub(crate) fn predicate_set(&self, atom: IpNet) -> PredicateSet {
        let mut truth = Vec::new();
        let mut net = Some(atom);
        while let Some(here) = net {
            truth.extend(self.by_net.get(&here).into_iter().flatten());
            net = here.supernet();
        }
        truth.sort_unstable();
        truth.dedup();
        truth.into()
    }
}

/// The union of truths.
pub(crate) fn union<'t>(truths: impl Iterator<Item = &'t PredicateId>) -> PredicateSet {
    let mut union: Vec<PredicateId> = truths.copied().collect();
    union.sort_unstable();
    union.dedup();
    union.into()
}

/// A truth and the answers that it gives.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AddressFacts<'a> {
    /// What is true, but for the family.
    pub(crate) predicates: &'a [PredicateId],
    /// The family.
    pub(crate) family: Family,
    /// By question.
    pub(crate) possible_ports: &'a [PossiblePorts],
}

impl Facts for AddressFacts<'_> {
    fn family(&self) -> Family {
        self.family
    }

    fn holds(&self, predicate: PredicateId) -> bool {
        predicate == self.family as PredicateId || self.predicates.binary_search(&predicate).is_ok()
    }

    fn ports(&self, question: PortSetId) -> impl Iterator<Item = (Protocol, u16)> {
        let possible = self.possible_ports.get(question as usize);
        let given = possible.into_iter().flatten().filter(|(_, _, id)| self.holds(*id));
        given.map(|(protocol, port, _)| (*protocol, *port))
    }
}

/// The family of a truth.
pub(crate) fn family(truth: &[PredicateId]) -> Option<Family> {
    Family::ALL.into_iter().find(|family| truth.binary_search(&(*family as u32)).is_ok())
}
