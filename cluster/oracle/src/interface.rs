//! The steps of the evaluation at a node's interface: each place where host endpoint policy applies, and its result.
//!
//! The evaluation is the one in [`Oracle::judge_host`], with an observer that records the steps. If a node shares its
//! uplink with the kernel, only `applyOnForward` policies are enforced, on forwarded traffic. All other host endpoint
//! policies are not enforced.

use manx_api::trace::{InterfaceTrace, SideTrace, StageTrace};

use super::crossing::Crossing;
use super::explain::Writer;
use super::members::{Member, Role};
use super::oracle::Oracle;
use super::party::Party;
use super::place::Place;
use super::staged::{Collector, Staged};
use super::verdict::Verdict;

impl Oracle {
    /// Explains [`Oracle::judge_host`] and [`Oracle::judge_shared`], and returns the effects that staged policies would
    /// have had at the places where policy is enforced. Returns `None` if the interface cannot belong to any host
    /// endpoint.
    pub fn explain_host(&self, crossing: &Crossing<'_>) -> Option<(InterfaceTrace, Vec<Staged>)> {
        let mut interface = InterfaceTrace {
            node: crossing.node.to_owned(),
            interface: crossing.interface.to_owned(),
            host_endpoint: None,
            allowed: !crossing.forwarded || self.judge_shared(crossing).allows(),
            intended: self.judge_host(crossing).allows(),
            stages: Vec::new(),
        };
        let mut staged = Vec::new();
        let Some(endpoint) = self.host_endpoint(crossing) else {
            if !self.has_host_endpoints(crossing.node) {
                return None;
            }
            let place = if crossing.forwarded { Place::Forward } else { Place::Host };
            let verdict = Verdict::from(self.ungoverned(crossing));
            let side = self.side_trace(&verdict, Writer::new(crossing.direction));
            interface.stages.push(stage_trace(place, true, side));
            return Some((interface, staged));
        };
        interface.host_endpoint = Some(self.members.list[endpoint].name.clone());
        for place in crossing.places() {
            // After a place has decided, later places are not evaluated. `Place::Forward` is the exception: it is
            // always evaluated, because an interface that the node shares with the kernel enforces only this place.
            if place != Place::Forward && interface.stages.iter().any(|stage| stage.decides) {
                continue;
            }
            let mut writer = Writer::new(crossing.direction);
            let (decided, through) = self.hook(crossing, endpoint, place, &mut writer);
            match decided {
                Some(why) => {
                    let side = self.side_trace(&Verdict { why, through }, writer);
                    interface.stages.push(stage_trace(place, true, side));
                }
                None if writer.has_steps() => {
                    interface.stages.push(stage_trace(place, false, writer.undecided()));
                }
                None => {}
            }
            if place == Place::Forward {
                let mut collector = Collector::new(crossing.direction, &mut staged);
                self.hook(crossing, endpoint, place, &mut collector);
            }
        }
        Some((interface, staged))
    }

    /// Returns whether a host endpoint of this node exists, or may exist.
    fn has_host_endpoints(&self, node: &str) -> bool {
        let is_its = |member: &Member| {
            member.role == Role::HostEndpoint && member.node.as_deref() == Some(node)
        };
        !self.hosts.broken_endpoints.is_empty() || self.members.list.iter().any(is_its)
    }

    /// Returns the node of a party.
    pub fn node<'a>(&'a self, party: &'a Party) -> Option<&'a str> {
        match party {
            Party::Pod { .. } => self.members.list[self.endpoint(party)?].node.as_deref(),
            Party::Node { name, .. } => Some(name),
            Party::Address(_) => None,
        }
    }
}

fn stage_trace(place: Place, decides: bool, side: SideTrace) -> StageTrace {
    let stage = match place {
        Place::Untracked => "doNotTrack",
        Place::PreDnat => "preDNAT",
        Place::Forward => "applyOnForward",
        Place::Pod | Place::Host => "normal",
    };
    StageTrace { stage: stage.to_owned(), enforced: place == Place::Forward, decides, side }
}
