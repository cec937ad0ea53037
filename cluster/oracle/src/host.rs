//! Host endpoints: the policy at an interface of a node.
//!
//! The order of the hooks, from Calico's pages "Host endpoints" and "Policy for hosts":
//! 1. `doNotTrack` policies, before connection tracking. A packet that one of them allows passes this interface without
//!    its other policies; a packet that none of them decides goes to the next hook.
//! 2. For ingress, `preDNAT` policies, on the original destination. Again, a packet that one of them allows passes, and
//!    a packet that none of them decides goes to the next hook: the end of a tier does not drop.
//! 3. For traffic of the host's own processes: all other policies tier by tier, then the profiles, then deny. For
//!    forwarded traffic: those of these policies that have `applyOnForward`. If there is none, the packet passes; if
//!    there are some and none allows it, it does not.
//!
//! Failsafe ports pass the first two hooks, and their local traffic passes the third. Policies that cannot be evaluated
//! deny before every hook, except for what a failsafe port lets pass. Forwarded traffic to a pod is also judged by the
//! pod's policies; [`Oracle::judge`] does that.

use std::net::IpAddr;

use super::crossing::Crossing;
use super::decide::{Outcome, Watch};
use super::direction::Direction;
use super::members::{Member, Role};
use super::oracle::Oracle;
use super::packet::Packet;
use super::place::{Chain, Place};
use super::policies::Policy;
use super::rules::Flow;
use super::verdict::{RuleName, Verdict, VerdictReason};
use manx_objects::object::Kind;

impl Oracle {
    /// Whether a packet passes an interface if all host endpoint policy is enforced. Replies are not judged.
    pub fn judge_host(&self, crossing: &Crossing<'_>) -> Verdict {
        let Some(endpoint) = self.host_endpoint(crossing) else {
            return self.ungoverned(crossing).into();
        };
        let mut through = Vec::new();
        for place in crossing.places() {
            let (decided, mut noted) = self.hook(crossing, endpoint, place, &mut ());
            through.append(&mut noted);
            if let Some(why) = decided {
                return Verdict { why, through };
            }
        }
        // The last place always decides.
        Verdict { why: VerdictReason::NotForwarded, through }
    }

    /// Whether a forwarded packet passes an interface that Manx shares with the kernel: only the policies with
    /// `applyOnForward` apply there.
    pub fn judge_shared(&self, crossing: &Crossing<'_>) -> Verdict {
        let Some(endpoint) = self.host_endpoint(crossing) else {
            return self.ungoverned(crossing).into();
        };
        let (decided, through) = self.hook(crossing, endpoint, Place::Forward, &mut ());
        Verdict { why: decided.unwrap_or(VerdictReason::NotForwarded), through }
    }

    /// The verdict of a host endpoint on a packet at one place, and the Log and Pass rules that matched. `None`: no
    /// verdict, and the next place follows.
    pub(super) fn hook(
        &self,
        crossing: &Crossing<'_>,
        endpoint: usize,
        place: Place,
        watch: &mut impl Watch,
    ) -> (Option<VerdictReason>, Vec<RuleName>) {
        let first = matches!(place, Place::Untracked | Place::PreDnat);
        let seen = if first { crossing.first() } else { crossing.last() };
        if place.has_failsafe() && self.hosts.is_failsafe(crossing, seen) {
            return ((!first).then_some(VerdictReason::Failsafe), Vec::new());
        }
        let selecting = self.selecting(endpoint);
        if let Some(why) = self.denied_by_broken(&selecting) {
            return (Some(why), Vec::new());
        }
        let flow = self.flow(crossing, endpoint, seen);
        if place == Place::Host {
            let Verdict { why, through } = self.decide(endpoint, &selecting, &flow, watch);
            return (Some(why), through);
        }
        let mut through = Vec::new();
        let why = match self.tiers(place.chain(), &selecting, &flow, &mut through, watch) {
            Outcome::Decided(why) => Some(why),
            Outcome::NobodyAsked | Outcome::Passed if first => None,
            Outcome::NobodyAsked => Some(VerdictReason::NoForwardPolicy),
            Outcome::Passed => Some(VerdictReason::NotForwarded),
        };
        (why, through)
    }

    /// The verdict without a host endpoint. No policy applies, unless the interface may belong to a host endpoint that
    /// is not valid: such a host endpoint denies what one without policies would deny, and everything that policies for
    /// forwarded traffic might deny.
    pub(super) fn ungoverned(&self, crossing: &Crossing<'_>) -> VerdictReason {
        if self.hosts.broken_endpoints.is_empty() {
            return VerdictReason::NoHostEndpoint;
        }
        if !crossing.forwarded && self.hosts.is_failsafe(crossing, crossing.last()) {
            VerdictReason::Failsafe
        } else if !crossing.forwarded || self.may_deny_forwarded(crossing.direction) {
            VerdictReason::InvalidHostEndpoints(self.hosts.broken_endpoints.clone())
        } else {
            VerdictReason::NoHostEndpoint
        }
    }

    /// Whether some policy may deny forwarded traffic of a host endpoint that it selects.
    pub(super) fn may_deny_forwarded(&self, direction: Direction) -> bool {
        let forward = [Chain::Forward, Chain::PreDnat, Chain::Untracked];
        self.policies.iter().any(|policy: &Policy| {
            policy.key.kind == Kind::GlobalNetworkPolicy
                && (policy.broken.is_some()
                    || (forward.iter().any(|chain| chain.asks(policy.hook))
                        && policy.rules(direction).is_some()))
        })
    }

    /// The host endpoint of the interface: one that names it, otherwise one with an address of the interface among its
    /// expected IPs, otherwise one for all interfaces. Of several, the first by name.
    pub(super) fn host_endpoint(&self, crossing: &Crossing<'_>) -> Option<usize> {
        let rank = |member: &Member| match member.interface.as_deref() {
            Some("*") => Some(2),
            Some(name) => (name == crossing.interface).then_some(0),
            None => {
                crossing.addresses.iter().any(|own| member.addresses.contains(own)).then_some(1)
            }
        };
        let members = self.members.list.iter().enumerate();
        members
            .filter(|(_, member)| {
                member.role == Role::HostEndpoint && member.node.as_deref() == Some(crossing.node)
            })
            .filter_map(|(index, member)| Some((rank(member)?, &member.name, index)))
            .min()
            .map(|(.., index)| index)
    }

    fn flow(
        &self,
        crossing: &Crossing<'_>,
        endpoint: usize,
        (destination, packet): (IpAddr, Packet),
    ) -> Flow<'_> {
        // A port name is the host endpoint's own only if the host itself is the end.
        let own = (!crossing.forwarded).then_some(endpoint);
        let at = |direction| own.filter(|_| crossing.direction == direction);
        Flow {
            members: &self.members.list,
            source: self.occupants_of(crossing.source, at(Direction::Egress)),
            destination: self.occupants_of(destination, at(Direction::Ingress)),
            packet,
            direction: crossing.direction,
        }
    }
}
