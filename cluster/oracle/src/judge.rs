//! The verdict on a connection, and on each side of it.

use super::decide::Watch;
use super::direction::Direction;
use super::members::Role;
use super::oracle::Oracle;
use super::packet::Packet;
use super::party::{Party, is_same_pod};
use super::rules::Flow;
use super::verdict::{Judgement, Verdict, VerdictReason};

impl Oracle {
    /// Returns whether a new connection from `from` to `to` passes. The two addresses must be of one family, because
    /// packets between different families do not exist.
    pub fn judge(&self, from: &Party, to: &Party, packet: Packet) -> Judgement {
        if is_same_pod(from, to) {
            return Judgement {
                egress: VerdictReason::Itself.into(),
                ingress: VerdictReason::Itself.into(),
            };
        }
        let egress = self.side(Direction::Egress, from, to, packet, &mut ());
        let ingress = self.side(Direction::Ingress, to, from, packet, &mut ());
        Judgement { egress, ingress }
    }

    /// Returns the verdict of the policies of `local` on traffic with `peer`.
    pub(super) fn side(
        &self,
        direction: Direction,
        local: &Party,
        peer: &Party,
        packet: Packet,
        watch: &mut impl Watch,
    ) -> Verdict {
        if !matches!(local, Party::Pod { .. }) {
            return self.at_no_pod(direction, local, peer).into();
        }
        let Some(endpoint) = self.endpoint(local) else { return VerdictReason::NoEndpoint.into() };
        if direction == Direction::Ingress
            && let Party::Node { name, .. } = peer
            && self.members.list[endpoint].node.as_ref() == Some(name)
        {
            return VerdictReason::OwnNode.into();
        }
        // An address that an invalid pod also has cannot be judged, even if the end is another pod.
        if [local, peer].iter().any(|end| self.members.invalid_addresses.contains(&end.address())) {
            return VerdictReason::InvalidPeer.into();
        }
        let mut local = self.occupants_of(local.address(), Some(endpoint));
        // At the pod's own end, only this pod and network sets count, even if another pod still has the address.
        local.holders.retain(|holder| {
            *holder == endpoint || self.members.list[*holder].role == Role::NetworkSet
        });
        let peer = self.occupants_of(peer.address(), None);
        let (source, destination) = match direction {
            Direction::Ingress => (peer, local),
            Direction::Egress => (local, peer),
        };
        let members = &self.members.list;
        let flow = Flow { members, source, destination, packet, direction };
        self.decide(endpoint, &self.selecting(endpoint), &flow, watch)
    }

    /// Returns the verdict at an end that is not an endpoint. Nothing passes from or to the addresses of a pod that is
    /// not an endpoint because the pod, its namespace or its service account is invalid. A node accepts or drops the
    /// packets that its own pods send to it; host endpoint policy does not apply to these packets.
    /// [`Oracle::judge_host`] judges all other packets at a node's interfaces.
    fn at_no_pod(&self, direction: Direction, local: &Party, peer: &Party) -> VerdictReason {
        if direction == Direction::Ingress
            && let Party::Node { name, .. } = local
            && let Some(pod) = self.endpoint(peer)
            && self.members.list[pod].node.as_ref() == Some(name)
        {
            return VerdictReason::EndpointToHost { accepted: self.hosts.accepts_pods(name) };
        }
        if let Party::Address(address) = local
            && self.members.closed_addresses.contains(address)
        {
            return VerdictReason::NoEndpoint;
        }
        VerdictReason::NoPod
    }
}
