//! The objects of one cluster, in a form that is ready for judging.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::blocks::BlockSource;
use super::hosts::Hosts;
use super::members::{Members, Role};
use super::party::Party;
use super::policies::{self, Policy};
use super::prepare::Preparer;
use super::profiles::Profiles;
use super::rules::Occupants;
use super::selecting::{ByNamespace, Placed};
use super::service_slices::ServiceSlices;
use super::tiers::{self, Tier};
use manx_objects::contents::Stored;
use manx_objects::object::ObjectKey;

/// The objects of one cluster, in a form that is ready for judging.
#[derive(Debug)]
pub struct Oracle {
    pub(super) members: Members,
    pub(super) policies: Vec<Policy>,
    pub(super) tiers: Vec<Tier>,
    pub(super) by_namespace: ByNamespace,
    pub(super) profiles: Profiles,
    pub(super) hosts: Hosts,
}

impl Oracle {
    /// Returns an oracle for all objects of a store.
    pub fn new(objects: &BTreeMap<ObjectKey, Stored>) -> Self {
        Self::with_blocks(objects, BlockSource::assumed(objects))
    }

    /// Like [`Oracle::new`], for a known source of the nodes' blocks.
    pub fn with_blocks(objects: &BTreeMap<ObjectKey, Stored>, source: BlockSource) -> Self {
        let members = Members::new(objects, source);
        let services = ServiceSlices::new(objects);
        let preparer = Preparer { members: &members, services: &services };
        let policies = policies::read(objects, &preparer);
        let tiers = tiers::arrange(objects, &policies);
        let profiles = Profiles::new(objects, &preparer);
        let by_namespace = ByNamespace::new(&tiers, &policies);
        Self { members, policies, tiers, by_namespace, profiles, hosts: Hosts::new(objects) }
    }

    /// Returns every pod that is an endpoint, once for each of its addresses.
    pub fn pods(&self) -> impl Iterator<Item = Party> + '_ {
        self.members.list.iter().filter(|member| member.role == Role::Pod).flat_map(|member| {
            member.addresses.iter().map(|address| Party::Pod {
                namespace: member.namespace.clone().unwrap_or_default(),
                name: member.name.clone(),
                address: *address,
            })
        })
    }

    /// Returns an address with all members that have it.
    pub(super) fn occupants_of(&self, address: IpAddr, endpoint: Option<usize>) -> Occupants {
        Occupants { address, holders: self.members.holders(address), endpoint }
    }

    /// Returns the index of the member for this pod.
    pub(super) fn endpoint(&self, party: &Party) -> Option<usize> {
        let Party::Pod { namespace, name, address } = party else { return None };
        self.members.pod(namespace, name, *address)
    }

    /// Returns the policies that select an endpoint, tier by tier, in the order of each tier.
    pub(super) fn selecting(&self, endpoint: usize) -> Vec<Placed> {
        let member = &self.members.list[endpoint];
        let may_select = self.by_namespace.of(member);
        let mut selecting: Vec<Placed> =
            may_select.filter(|it| self.policies[it.policy].subject.has(member)).collect();
        selecting.sort_unstable();
        selecting
    }

    /// Returns those policies that cannot be evaluated, so that all traffic of the endpoint is denied. They are in the
    /// order of their names.
    pub(super) fn broken(&self, selecting: &[Placed]) -> Vec<usize> {
        let mut broken: Vec<usize> = selecting.iter().map(|it| it.policy).collect();
        broken.retain(|policy| self.policies[*policy].broken.is_some());
        broken.sort_unstable();
        broken
    }
}
