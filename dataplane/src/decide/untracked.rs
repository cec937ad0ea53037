//! Policy before connection tracking (`doNotTrack`): of what it decides no flow is known, and the way back is asked about for
//! itself.

use manx_policy_compiler::image::{ChainId, Identity, Image};
use manx_policy_compiler::model::{Direction, Shown, Transport, Verdict};

use super::key::transport;
use super::known::passage;
use super::{Entrance, Glance, LastSource, Memory, Name, Passage, Settled, Way, connects, settled};
use crate::fate::DropReason;
use crate::flow::{FlowKey, Orientation, RuleCounters};
use crate::judge::{self, Judgement, NO_SLOT};
use crate::tables::{Tables, Via};

/// What the short way says of a packet that such policy may decide.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BeforeTracking<T> {
    /// It lets the packet through, and so does all that is asked behind it.
    Goes(T),
    /// It decides nothing: the packet is its flow's.
    Tracked,
    /// Ask [`decide`](super::decide()).
    Other,
}

/// Who is asked about the packets of one way before they are looked for among the flows: an interface of the node's, and if that
/// lets a packet through, the pod at the way's other end, if it is one. Both are in one direction, for nothing that connects
/// passes two interfaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Course {
    direction: Direction,
    interface: ChainId,
    pod: Option<ChainId>,
}

impl Course {
    fn of(tables: &Tables, way: Way) -> BeforeTracking<Self> {
        let [from, to] = [way.from, way.to].map(Via::decode);
        let asked = |via, direction| tables.host_policy.untracked(via, direction);
        let (direction, interface, other) =
            match (asked(from, Direction::Ingress), asked(to, Direction::Egress)) {
                (None, None) => return BeforeTracking::Tracked,
                (Some(arrives), None) => (Direction::Ingress, arrives, to),
                (None, Some(leaves)) => (Direction::Egress, leaves, from),
                (Some(_), Some(_)) => return BeforeTracking::Other,
            };
        if !connects(tables, from, to) {
            return BeforeTracking::Other;
        }
        let pod = match other {
            Via::Endpoint(index) => match tables.endpoint(index) {
                Some(pod) if direction == Direction::Ingress => Some(pod.ingress),
                Some(pod) => Some(pod.egress),
                None => return BeforeTracking::Other,
            },
            _ => None,
        };
        BeforeTracking::Goes(Self { direction, interface, pod })
    }

    /// Asks about a packet between two ends; what lets it through.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "as `between`")]
    fn ask(
        &self,
        image: &Image,
        [source, destination]: [Identity; 2],
        transport: Transport,
    ) -> BeforeTracking<RuleCounters> {
        let (own, peer) = match self.direction {
            Direction::Egress => (source, destination),
            Direction::Ingress => (destination, source),
        };
        let question = image.query(own, peer, transport);
        let Some(mut path) = image.path_of(self.interface, question) else {
            return BeforeTracking::Other;
        };
        if path.passes_on {
            return BeforeTracking::Tracked;
        }
        if path.verdict == Verdict::Allow
            && let Some(pod) = self.pod
        {
            match image.path_of(pod, question) {
                Some(its) => path = its,
                None => return BeforeTracking::Other,
            }
        }
        if path.verdict == Verdict::Deny {
            return BeforeTracking::Other;
        }
        BeforeTracking::Goes(match self.direction {
            Direction::Egress => RuleCounters { egress: path.slot, ingress: NO_SLOT },
            Direction::Ingress => RuleCounters { egress: NO_SLOT, ingress: path.slot },
        })
    }
}

/// The course of the way that was gone last: packets that come together often go one way. It is good in its tables.
#[derive(Debug, Clone, Copy)]
pub struct LastCourse {
    version: u64,
    way: Way,
    course: BeforeTracking<Course>,
}

impl Default for LastCourse {
    /// In whichever tables: nowhere is no interface.
    fn default() -> Self {
        let nowhere = Via::NoRoute.encode();
        Self {
            version: 0,
            way: Way { from: nowhere, to: nowhere },
            course: BeforeTracking::Tracked,
        }
    }
}

impl LastCourse {
    #[inline]
    fn of(&mut self, tables: &Tables, way: Way) -> &BeforeTracking<Course> {
        if self.way != way || self.version != tables.version {
            self.learn(tables, way);
        }
        &self.course
    }

    #[inline(never)]
    fn learn(&mut self, tables: &Tables, way: Way) {
        *self = Self { version: tables.version, way, course: Course::of(tables, way) };
    }
}

/// Decides a packet before its flow is looked for: no other decision than [`decide`](super::decide())'s, and nothing is left
/// behind.
#[inline]
pub fn untracked<'a>(
    tables: &'a Tables,
    memory: &mut Memory,
    glance: &Glance,
) -> BeforeTracking<Passage<'a>> {
    if !glance.is_plain {
        return BeforeTracking::Other;
    }
    let (way, rules) = match ask(tables, memory, glance) {
        BeforeTracking::Goes(goes) => goes,
        BeforeTracking::Tracked => return BeforeTracking::Tracked,
        BeforeTracking::Other => return BeforeTracking::Other,
    };
    match passage(tables, glance, way, rules) {
        Some(passage) => BeforeTracking::Goes(passage),
        None => BeforeTracking::Other,
    }
}

#[inline(never)]
fn ask(
    tables: &Tables,
    memory: &mut Memory,
    glance: &Glance,
) -> BeforeTracking<(Way, RuleCounters)> {
    if glance.name.key.is_v6() {
        return ask_v6(tables, memory, glance);
    }
    let Name { key, orientation, .. } = glance.name;
    between(tables, memory, glance.entrance, &key, orientation)
}

#[inline(never)]
fn ask_v6(
    tables: &Tables,
    memory: &mut Memory,
    glance: &Glance,
) -> BeforeTracking<(Way, RuleCounters)> {
    let Name { key, orientation, .. } = &glance.name;
    between(tables, memory, glance.entrance, key, *orientation)
}

#[inline(always)]
#[expect(clippy::inline_always, reason = "little is left of it where the family is known")]
fn between(
    tables: &Tables,
    memory: &mut Memory,
    entrance: Entrance,
    key: &FlowKey,
    orientation: Orientation,
) -> BeforeTracking<(Way, RuleCounters)> {
    let (from, to) = (key.source(orientation), key.destination(orientation));
    if !(from.0.is_forwardable() && to.0.is_forwardable()) {
        return BeforeTracking::Other;
    }
    let (way, ends) = memory.last_source.ends(tables, from.0, to.0);
    if !entrance.admits(way.from) {
        return BeforeTracking::Other;
    }
    let course = match memory.last_course.of(tables, way) {
        BeforeTracking::Goes(course) => course,
        BeforeTracking::Tracked => return BeforeTracking::Tracked,
        BeforeTracking::Other => return BeforeTracking::Other,
    };
    let shown = Shown::Ports { source: from.1, destination: to.1 };
    let transport = Transport { protocol: key.protocol(), shown };
    match course.ask(&tables.image, ends.identities, transport) {
        BeforeTracking::Goes(rules) => BeforeTracking::Goes((way, rules)),
        BeforeTracking::Tracked => BeforeTracking::Tracked,
        BeforeTracking::Other => BeforeTracking::Other,
    }
}

/// What becomes of a packet that such policy decides. `None`: it decides nothing, or there is none.
#[inline]
pub(super) fn before_tracking(
    tables: &Tables,
    memory: &mut Memory,
    glance: &Glance,
) -> Option<Settled> {
    if !tables.host_policy.has_untracked() {
        return None;
    }
    settle(tables, &mut memory.last_source, glance)
}

#[inline(never)]
fn settle(tables: &Tables, last_source: &mut LastSource, glance: &Glance) -> Option<Settled> {
    let Name { key, orientation, .. } = &glance.name;
    let [source, destination] = glance.name.addresses();
    if !(source.is_forwardable() && destination.is_forwardable()) {
        return Some(Settled::refused(DropReason::NotForwardable));
    }
    let (way, ends) = last_source.ends(tables, source, destination);
    if !glance.entrance.admits(way.from) {
        return Some(Settled::refused(glance.entrance.refusal()));
    }
    let transport = transport(key, *orientation);
    let judgement = match judge::untracked(tables, &ends, transport) {
        Err(denied) => denied,
        Ok(untracked) if !untracked.allows() => return None,
        Ok(_) if !connects(tables, ends.from, ends.to) => {
            Judgement::without_rules(Some(DropReason::NoRoute))
        }
        Ok(untracked) => judge::judge(tables, &ends, transport, untracked),
    };
    Some(settled(way, &judgement))
}

#[cfg(test)]
mod tests;
