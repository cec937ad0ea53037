//! The linear reference as a judge. Its key of a local end is the end itself, so two local ends never count as the
//! same.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::boundaries::{atoms_of, bounds_of};
use super::linear::{Packet, Policies, Reference, Signature};
use crate::check::{Atoms, Bounds, Expected, Judge, Witnesses};
use crate::model::{Decision, Direction, Policy, Reason, Transport};
use crate::resolve::{LocalName, Stage};

/// An endpoint, with its policies if it is in the model.
pub struct ReferenceEnd<'m> {
    endpoint: LocalName,
    stage: Stage,
    direction: Direction,
    policies: Option<Policies<'m>>,
}

impl<'m> Judge for Reference<'m> {
    type LocalEnd = ReferenceEnd<'m>;
    type Key = (LocalName, Stage, Direction, IpAddr);
    type AddressClass = Option<Signature>;

    fn local_end(
        &self,
        endpoint: &LocalName,
        stage: Stage,
        direction: Direction,
    ) -> ReferenceEnd<'m> {
        let policies = self.policies(endpoint, stage, direction);
        ReferenceEnd { endpoint: endpoint.clone(), stage, direction, policies }
    }

    fn addresses(&self, end: &ReferenceEnd<'m>, _: &Witnesses) -> BTreeSet<IpAddr> {
        let pod = self.model().endpoints.get(&end.endpoint).map(|pod| &pod.addresses);
        let host = self.model().host_endpoints.get(&end.endpoint.name).map(|host| &host.addresses);
        pod.or(host).into_iter().flatten().copied().collect()
    }

    fn atoms(&self, ends: &[&ReferenceEnd<'m>]) -> Atoms {
        let in_use: BTreeMap<_, &Policy> =
            ends.iter().flat_map(|end| &end.policies).flatten().copied().collect();
        atoms_of(self.model(), &in_use.into_values().collect::<Vec<_>>())
    }

    fn bounds(&self, end: &ReferenceEnd<'m>) -> Bounds {
        let policies: Vec<&Policy> =
            end.policies.iter().flatten().map(|(_, policy)| *policy).collect();
        bounds_of(self.model(), &policies)
    }

    fn key(&self, end: &ReferenceEnd<'m>, local: IpAddr) -> Self::Key {
        (end.endpoint.clone(), end.stage, end.direction, local)
    }

    fn address_class(&self, end: &ReferenceEnd<'m>, peer: IpAddr) -> Self::AddressClass {
        let policies = end.policies.as_ref()?;
        Some(self.signature(policies, &end.endpoint, end.stage, end.direction, peer))
    }

    fn judge(
        &self,
        end: &ReferenceEnd<'m>,
        local: IpAddr,
        peer: IpAddr,
        transports: &[Transport],
    ) -> Vec<Expected> {
        let one = |transport: &Transport| {
            let packet = Packet { local, peer, transport: *transport };
            let decision = end.policies.as_ref().map_or_else(
                || Decision::from(Reason::Unknown(end.direction)),
                |it| self.judge_by(it, &end.endpoint, end.stage, end.direction, &packet),
            );
            decision.into()
        };
        transports.iter().map(one).collect()
    }
}
