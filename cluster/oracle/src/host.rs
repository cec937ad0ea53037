//! Host endpoints: the policy at an interface of a node.
//!
//! The order of the hooks is described in Calico's pages "Host endpoints" and "Policy for hosts":
//! 1. First, `doNotTrack` policies apply, before connection tracking. If one of them allows a packet, it passes this
//!    interface without any other policy. If none of them decides, the packet continues to the next hook.
//! 2. Then, for ingress only, `preDNAT` policies apply to the original destination. If one of them allows a packet, it
//!    passes. If none of them decides, the packet continues to the next hook, because the end of a tier does not drop
//!    here.
//! 3. For traffic of the host's own processes, all other policies apply tier by tier, then the profiles. If none of
//!    them decides, the packet is denied. For forwarded traffic, only those of these policies apply that have
//!    `applyOnForward`. If there is no such policy, the packet passes. If there are some, the packet passes only if one
//!    of them allows it.
//!
//! Failsafe ports pass the first two hooks, and traffic of the host's own processes on failsafe ports passes the third.
//! Policies that cannot be evaluated deny before every hook, except for packets that a failsafe port allows. Forwarded
//! traffic to a pod is also judged by the pod's policies, in [`Oracle::judge`].

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
    /// Returns whether a packet passes an interface on which all host endpoint policy is enforced. Replies are not
    /// judged.
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

    /// Returns whether a forwarded packet passes an interface that Manx shares with the kernel. Only the policies with
    /// `applyOnForward` apply there.
    pub fn judge_shared(&self, crossing: &Crossing<'_>) -> Verdict {
        let Some(endpoint) = self.host_endpoint(crossing) else {
            return self.ungoverned(crossing).into();
        };
        let (decided, through) = self.hook(crossing, endpoint, Place::Forward, &mut ());
        Verdict { why: decided.unwrap_or(VerdictReason::NotForwarded), through }
    }

    /// Returns the verdict of a host endpoint on a packet at one place, and the Log and Pass rules that matched.
    /// Returns `None` if there is no verdict, so that the next place follows.
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

    /// Returns the verdict for an interface without a host endpoint. No policy applies, unless the interface may belong
    /// to an invalid host endpoint. An invalid host endpoint denies everything that a host endpoint without policies
    /// denies, and everything that policies for forwarded traffic might deny.
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

    /// Returns whether some policy may deny forwarded traffic of a host endpoint that the policy selects.
    pub(super) fn may_deny_forwarded(&self, direction: Direction) -> bool {
        let forward = [Chain::Forward, Chain::PreDnat, Chain::Untracked];
        self.policies.iter().any(|policy: &Policy| {
            policy.key.kind == Kind::GlobalNetworkPolicy
                && (policy.broken.is_some()
                    || (forward.iter().any(|chain| chain.asks(policy.hook))
                        && policy.rules(direction).is_some()))
        })
    }

    /// Returns the host endpoint of the interface. It is the one that names the interface, or else one whose expected
    /// IPs contain an address of the interface, or else one for all interfaces. If there are several, the first by name
    /// is used.
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
        // The port names of the host endpoint count only if the host itself is an end of the packet.
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
