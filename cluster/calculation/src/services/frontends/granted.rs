//! The host ports that pods of this node request, and those that are granted.
//!
//! A port leads to a pod under two conditions: no Service and no older pod has the port, and the agent has granted it.
//! The agent knows which ports the node's own programs use.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use manx_dataplane::services::{Frontend, FrontendKey};
use manx_dataplane::wire::protocol;
use manx_objects::contents::Contents;
use manx_objects::object::ObjectKey;

use super::Frontends;
use crate::services::bounds::MOST_HOST_PORTS;
use crate::services::omission::Omission;
use crate::services::rank::Rank;

/// The ports of this node that lead to pods, each with the pod.
pub type GrantedPorts = BTreeMap<FrontendKey, Arc<ObjectKey>>;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct AskedHostPorts {
    /// The ports that each pod requests.
    asked: BTreeMap<Arc<Rank>, Box<[FrontendKey]>>,
    granted: GrantedPorts,
}

impl AskedHostPorts {
    /// Records the ports that a pod requests. Its frontends for ports that are not granted are removed.
    pub(super) fn ask(
        &mut self,
        rank: &Arc<Rank>,
        frontends: &mut BTreeMap<FrontendKey, Arc<Frontend>>,
    ) {
        self.asked.insert(Arc::clone(rank), frontends.keys().copied().collect());
        frontends.retain(|key, _| self.granted.get(key) == Some(&rank.object));
    }

    /// Removes the requests of an object.
    pub(super) fn forget(&mut self, rank: &Rank) {
        self.asked.remove(rank);
    }

    /// Replaces the granted ports, and returns the pods whose ports have changed.
    fn grant(&mut self, granted: &GrantedPorts) -> BTreeSet<ObjectKey> {
        let before = std::mem::replace(&mut self.granted, granted.clone());
        let differs = |(key, pod): &(&FrontendKey, &Arc<ObjectKey>)| {
            before.get(*key) != Some(*pod) || granted.get(*key) != Some(*pod)
        };
        let both = before.iter().chain(granted);
        both.filter(differs).map(|(_, pod)| ObjectKey::clone(pod)).collect()
    }
}

impl Frontends {
    /// Returns the ports of this node that pods request, each with the pod that may have it. This is the oldest pod
    /// that requests the port. A port is left out if a Service has it, or if the limit is reached. A port leads
    /// to its pod only when it is granted.
    pub fn asked_ports(&self) -> GrantedPorts {
        self.each_asked_port(|_, _| {})
    }

    /// Grants these ports, which pods have requested, and revokes all others. `admits` is the same as for
    /// [`Frontends::follow`]. Returns whether anything has changed.
    pub fn grant(
        &mut self,
        contents: &Contents,
        granted: &GrantedPorts,
        admits: impl Fn(IpAddr) -> bool,
    ) -> bool {
        if *granted == self.host_ports.granted {
            return false;
        }
        let changed = self.host_ports.grant(granted);
        self.compile_all(contents, changed, admits);
        true
    }

    /// Like [`Frontends::asked_ports`]. Calls `omit` for each port that a pod does not get.
    pub(super) fn each_asked_port<'a>(
        &'a self,
        mut omit: impl FnMut(&'a ObjectKey, Omission),
    ) -> GrantedPorts {
        let AskedHostPorts { asked: of_pods, granted } = &self.host_ports;
        let mut asked = GrantedPorts::new();
        if of_pods.is_empty() {
            return asked;
        }
        let checks = self.health_checks();
        let checked = |key: &FrontendKey| {
            checks.get(&key.port).filter(|_| key.protocol == protocol::TCP).map(|it| &it.service)
        };
        let mut ports = BTreeSet::new();
        for (rank, keys) in of_pods {
            let pod = &rank.object;
            for key in keys {
                let of_service = self.service_at(key).or_else(|| checked(key));
                let by = of_service.or_else(|| asked.get(key));
                let port = (key.protocol, key.port);
                if let Some(by) = by {
                    omit(pod, Omission::Taken { key: *key, by: ObjectKey::clone(by) });
                } else if ports.len() >= MOST_HOST_PORTS && !ports.contains(&port) {
                    omit(pod, Omission::TooManyHostPorts);
                } else {
                    ports.insert(port);
                    asked.insert(*key, Arc::clone(pod));
                    if granted.get(key) != Some(pod) {
                        omit(pod, Omission::HostPortInUse(*key));
                    }
                }
            }
        }
        asked
    }
}
