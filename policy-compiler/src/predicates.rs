//! What is true of whom: predicates and questions, evaluated once for each member and each atom.

use std::collections::BTreeSet;

use ahash::AHashMap;
use ipnet::IpNet;

use crate::claim::Facts;
use crate::members::{Index, Members, Position, What};
use crate::model::{Family, ObjectName, Protocol};
use crate::resolve::{Predicate, PredicateId, Question, QuestionId, Resolved};

/// The predicates that are true of something, ascending.
pub(crate) type Truth = Box<[PredicateId]>;

/// The protocols and ports that a question may be answered with, each with the predicate that says whether it is.
pub(crate) type Answers = Box<[(Protocol, Option<u16>, PredicateId)]>;

/// Everything that is asked of addresses.
#[derive(Debug, Clone, Default)]
pub(crate) struct Predicates {
    /// The resolved predicates, and behind them one for each possible answer to a question.
    pub(crate) all: Vec<Predicate>,
    /// By question.
    pub(crate) answers: Vec<Answers>,
}

/// The predicates and, by position, what is true of each member.
pub(crate) fn evaluate(resolved: &Resolved, members: &Members) -> (Predicates, Vec<Truth>) {
    let mut evaluation = Evaluation {
        predicates: Predicates { all: resolved.predicates.clone(), answers: Vec::new() },
        truths: vec![Vec::new(); members.all.len()],
        members,
        index: Index::new(members),
    };
    let mut services: AHashMap<&ObjectName, Vec<Position>> = AHashMap::new();
    for (position, member) in members.all.iter().enumerate() {
        if let What::Service(_) = member.what {
            services.entry(&member.name).or_default().push(position);
        }
    }
    for (id, predicate) in (0..).zip(&resolved.predicates) {
        match predicate {
            Predicate::Members(selector) => {
                for position in evaluation.index.matching(selector) {
                    evaluation.truths[position].push(id);
                }
            }
            Predicate::Service(service) => {
                for position in services.get(service).into_iter().flatten() {
                    evaluation.truths[*position].push(id);
                }
            }
            Predicate::Family(_)
            | Predicate::Nets(_)
            | Predicate::NamesPort { .. }
            | Predicate::ServicePort { .. } => {}
        }
    }
    for question in &resolved.questions {
        evaluation.question(question, &services);
    }
    let sorted = |mut truth: Vec<PredicateId>| {
        truth.sort_unstable();
        truth.dedup();
        Truth::from(truth)
    };
    (evaluation.predicates, evaluation.truths.into_iter().map(sorted).collect())
}

struct Evaluation<'m> {
    predicates: Predicates,
    truths: Vec<Vec<PredicateId>>,
    members: &'m Members,
    index: Index<'m>,
}

impl Evaluation<'_> {
    fn question(&mut self, question: &Question, services: &AHashMap<&ObjectName, Vec<Position>>) {
        let mut true_of: Vec<(Position, (Protocol, Option<u16>))> = Vec::new();
        match question {
            Question::Named { selector, name } => {
                let meant = match selector {
                    Some(selector) => self.index.matching(selector),
                    None => (0..self.members.all.len()).collect(),
                };
                for position in meant {
                    let named = self.members.all[position].named_ports();
                    let named = named.filter(|port| port.name == *name);
                    true_of.extend(named.map(|port| (position, (port.protocol, Some(port.port)))));
                }
            }
            Question::Service(wanted) => {
                for position in services.get(wanted).into_iter().flatten() {
                    if let What::Service(some) = &self.members.all[*position].what {
                        true_of.extend(some.ports.iter().map(|port| (*position, *port)));
                    }
                }
            }
        }
        let mut answers: Vec<(Protocol, Option<u16>, PredicateId)> = Vec::new();
        let distinct: BTreeSet<_> = true_of.iter().map(|(_, port)| *port).collect();
        for (protocol, port) in distinct {
            let id = self.predicates.all.len() as PredicateId;
            self.predicates.all.push(match (question, port) {
                (Question::Named { selector, name }, Some(port)) => Predicate::NamesPort {
                    selector: selector.clone(),
                    name: name.clone(),
                    protocol,
                    port,
                },
                (Question::Service(service), port) => {
                    Predicate::ServicePort { service: service.clone(), protocol, port }
                }
                // Named ports have numbers.
                (Question::Named { .. }, None) => continue,
            });
            answers.push((protocol, port, id));
        }
        for (position, (protocol, port)) in true_of {
            let answer = answers.iter().find(|answer| (answer.0, answer.1) == (protocol, port));
            if let Some((_, _, id)) = answer {
                self.truths[position].push(*id);
            }
        }
        self.predicates.answers.push(answers.into());
    }
}

/// What is true of every address of an atom, families and nets; for the other nets they contain none of it (see the
/// identity module).
pub(crate) struct AtomTruths {
    by_net: AHashMap<IpNet, Vec<PredicateId>>,
}

impl AtomTruths {
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

    /// Every prefix in use.
    pub(crate) fn prefixes(&self) -> impl Iterator<Item = IpNet> + '_ {
        self.by_net.keys().copied()
    }

    /// What is true of an atom: what a prefix in use that contains it makes true.
    pub(crate) fn of(&self, atom: IpNet) -> Truth {
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
pub(crate) fn union<'t>(truths: impl Iterator<Item = &'t PredicateId>) -> Truth {
    let mut union: Vec<PredicateId> = truths.copied().collect();
    union.sort_unstable();
    union.dedup();
    union.into()
}

/// A truth and the answers that it gives.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Known<'a> {
    /// What is true, but for the family.
    pub(crate) truth: &'a [PredicateId],
    /// The family.
    pub(crate) family: Family,
    /// By question.
    pub(crate) answers: &'a [Answers],
}

impl Facts for Known<'_> {
    fn family(&self) -> Family {
        self.family
    }

    fn holds(&self, predicate: PredicateId) -> bool {
        predicate == self.family as PredicateId || self.truth.binary_search(&predicate).is_ok()
    }

    fn answers(&self, question: QuestionId) -> impl Iterator<Item = (Protocol, Option<u16>)> {
        let possible = self.answers.get(question as usize);
        let given = possible.into_iter().flatten().filter(|(_, _, id)| self.holds(*id));
        given.map(|(protocol, port, _)| (*protocol, *port))
    }
}

/// The family of a truth.
pub(crate) fn family(truth: &[PredicateId]) -> Option<Family> {
    Family::ALL.into_iter().find(|family| truth.binary_search(&(*family as u32)).is_ok())
}
