//! Evaluates the policies that apply to an endpoint at one place and in one direction.
//!
//! The evaluation is the one in `decide`. Tests compare the verdicts with those of the compiled tables, which are also
//! compiled for a single place.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::decide::{Outcome, Watch};
use super::direction::Direction;
use super::matching::in_net;
use super::members::Role;
use super::oracle::Oracle;
use super::packet::Packet;
use super::place::Place;
use super::profiles::Profile;
use super::rules::{Flow, Occupants, Rule};
use super::selecting::Placed;
use super::staged::{Collector, Staged};
use super::verdict::{Verdict, VerdictReason};
use manx_objects::object::ObjectKey;
use manx_objects::object::calico::Failsafe;

/// An endpoint at one place and in one direction, with the policies that apply to it there. It is called an end for
/// short.
#[derive(Debug, Clone)]
pub struct EnforcementPoint<'o> {
    pub(super) place: Place,
    pub(super) direction: Direction,
    /// The endpoint's member. `None` if there is no valid endpoint of this name. Nothing passes then, except some
    /// packets at an invalid host endpoint (`unreadable`).
    pub(super) member: Option<usize>,
    /// The policies that select the endpoint.
    selecting: Vec<Placed>,
    /// The indexes of those policies in `selecting` that apply at this place and in this direction, in order. Staged
    /// policies are included.
    pub(super) asked: Vec<usize>,
    /// The policies in `selecting` that cannot be evaluated, so that all traffic of the endpoint is denied.
    pub(super) broken: Vec<usize>,
    /// Whether this is an invalid host endpoint, so that it is not known which policies select it.
    pub(super) unreadable: bool,
    /// The rules that may be evaluated: first the rules of policies, then the rules of profiles.
    pub(super) rules: Vec<&'o Rule>,
    /// The failsafe ports that are open here.
    pub(super) failsafe: Vec<Failsafe>,
}

impl EnforcementPoint<'_> {
    fn is_failsafe(&self, flow: &Flow<'_>) -> bool {
        let Some((_, port)) = flow.packet.ports() else { return false };
        self.failsafe.iter().any(|safe| {
            safe.protocol == flow.packet.protocol
                && safe.port == port
                && safe.net.is_none_or(|net| in_net(net, flow.peer().address))
        })
    }
}

impl Oracle {
    /// Returns the end of a pod at [`Place::Pod`], or the end of a host endpoint at any other place. A host endpoint
    /// has an empty namespace.
    pub fn end(
        &self,
        namespace: &str,
        name: &str,
        place: Place,
        direction: Direction,
    ) -> EnforcementPoint<'_> {
        let role = if place == Place::Pod { Role::Pod } else { Role::HostEndpoint };
        let member = self.members.named(role, namespace, name);
        let unreadable =
            role == Role::HostEndpoint && self.hosts.broken_endpoints.iter().any(|it| it == name);
        let mut end = EnforcementPoint {
            place,
            direction,
            member,
            selecting: member.map(|member| self.selecting(member)).unwrap_or_default(),
            asked: Vec::new(),
            broken: Vec::new(),
            unreadable,
            rules: Vec::new(),
            failsafe: Vec::new(),
        };
        if place.has_failsafe() {
            let node = member.and_then(|member| self.members.list[member].node.as_deref());
            end.failsafe = self.hosts.failsafe(node.unwrap_or_default(), direction);
        }
        let Some(member) = member else { return end };
        let speaks = |index: &usize| {
            let policy = &self.policies[*index];
            place.chain().asks(policy.hook) && policy.rules(direction).is_some()
        };
        end.asked = end.selecting.iter().map(|it| it.policy).filter(speaks).collect();
        end.broken = self.broken(&end.selecting);
        let of_policies = end.asked.iter().filter_map(|it| self.policies[*it].rules(direction));
        end.rules = of_policies.flatten().collect();
        let member = &self.members.list[member];
        if place == Place::Host {
            for profile in &member.profiles {
                if let Profile::Rules(rules) = self.profiles.find(profile, direction) {
                    end.rules.extend(rules);
                }
            }
        }
        end
    }

    /// Returns the addresses of an end.
    pub fn addresses(&self, end: &EnforcementPoint<'_>) -> BTreeSet<IpAddr> {
        end.member.map(|member| self.members.list[member].addresses.clone()).unwrap_or_default()
    }

    /// Returns the first enforced policy that applies at an end.
    pub fn first_asked(&self, end: &EnforcementPoint<'_>) -> Option<&ObjectKey> {
        let mut asked = end.asked.iter().map(|index| &self.policies[*index]);
        asked.find(|policy| !policy.staged).map(|policy| &policy.key)
    }

    /// Returns the verdict of one end on packets between two addresses, and the effects that staged policies would have
    /// had. `local` is the end's own address. For forwarded traffic, it is the address on the end's side.
    pub fn judge_end(
        &self,
        end: &EnforcementPoint<'_>,
        local: IpAddr,
        peer: IpAddr,
        packets: impl IntoIterator<Item = Packet>,
    ) -> Vec<(Verdict, Vec<Staged>)> {
        let (own, peer) = (self.occupants_at(end, local), self.occupants_of(peer, None));
        let unknown = self.unknown(end, local, peer.address);
        let (source, destination) = match end.direction {
            Direction::Ingress => (peer, own),
            Direction::Egress => (own, peer),
        };
        let (members, direction) = (&self.members.list[..], end.direction);
        let packet = Packet::bare(0);
        let mut flow = Flow { members, source, destination, packet, direction };
        let one = |packet| {
            flow.packet = packet;
            let mut staged = Vec::new();
            let verdict = match (&unknown, end.member) {
                (Some(unknown), _) => unknown.clone().into(),
                (None, Some(member)) => {
                    self.judge_at(end, member, &flow, &mut Collector::new(direction, &mut staged))
                }
                (None, None) => self.at_unreadable(end, &flow).into(),
            };
            (verdict, staged)
        };
        packets.into_iter().map(one).collect()
    }

    /// Returns the reason why nothing passes between two addresses, independently of the policies.
    pub(super) fn unknown(
        &self,
        end: &EnforcementPoint<'_>,
        local: IpAddr,
        peer: IpAddr,
    ) -> Option<VerdictReason> {
        let member = end.member.map(|member| &self.members.list[member]);
        let has = |address| member.is_some_and(|member| member.addresses.contains(&address));
        if (member.is_none() && !end.unreadable) || (end.place == Place::Pod && !has(local)) {
            return Some(VerdictReason::NoEndpoint);
        }
        let invalid = [local, peer].iter().any(|it| self.members.invalid_addresses.contains(it));
        invalid.then_some(VerdictReason::InvalidPeer)
    }

    /// Returns the members that have the end's own address. At a pod these are only the pod itself and network sets,
    /// even if another pod still has the address. For forwarded traffic, the port names of the host are not used.
    pub(super) fn occupants_at(&self, end: &EnforcementPoint<'_>, local: IpAddr) -> Occupants {
        let mut occupants =
            self.occupants_of(local, end.member.filter(|_| end.place != Place::Forward));
        if end.place == Place::Pod {
            occupants.holders.retain(|holder| {
                Some(*holder) == end.member || self.members.list[*holder].role == Role::NetworkSet
            });
        }
        occupants
    }

    fn judge_at(
        &self,
        end: &EnforcementPoint<'_>,
        member: usize,
        flow: &Flow<'_>,
        watch: &mut impl Watch,
    ) -> Verdict {
        if end.is_failsafe(flow) {
            return VerdictReason::Failsafe.into();
        }
        if matches!(end.place, Place::Pod | Place::Host) {
            return self.decide(member, &end.selecting, flow, watch);
        }
        if let Some(why) = self.denied_by_broken(&end.selecting) {
            return why.into();
        }
        let mut through = Vec::new();
        let why = match self.tiers(end.place.chain(), &end.selecting, flow, &mut through, watch) {
            Outcome::Decided(why) => why,
            Outcome::Passed if end.place == Place::Forward => VerdictReason::NotForwarded,
            Outcome::NobodyAsked | Outcome::Passed => VerdictReason::NoForwardPolicy,
        };
        Verdict { why, through }
    }

    /// Returns the verdict at an invalid host endpoint.
    fn at_unreadable(&self, end: &EnforcementPoint<'_>, flow: &Flow<'_>) -> VerdictReason {
        let denies = match end.place {
            Place::Host if end.is_failsafe(flow) => return VerdictReason::Failsafe,
            Place::Host => true,
            Place::Forward => self.may_deny_forwarded(flow.direction),
            Place::Pod | Place::PreDnat | Place::Untracked => false,
        };
        if denies {
            VerdictReason::InvalidHostEndpoints(self.hosts.broken_endpoints.clone())
        } else {
            VerdictReason::NoForwardPolicy
        }
    }
}
