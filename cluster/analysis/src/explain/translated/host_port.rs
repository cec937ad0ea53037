//! A port of a node that leads to a pod because of the pod's `hostPort`.

use std::net::IpAddr;
use std::rc::Rc;

use manx_calculation::services::{FrontendKey, Frontends};
use manx_objects::object::ObjectKey;

use super::AskedFor;
use crate::explain::Explainer;

impl Explainer<'_> {
    /// Returns the pod to which a port of a node leads, with the pod's address and port.
    pub(super) fn host_port(
        &self,
        node: &str,
        asked: &AskedFor<'_>,
    ) -> Option<((IpAddr, u16), ObjectKey)> {
        let frontends = self.host_ports(node)?;
        let AskedFor { address, protocol, port, .. } = *asked;
        let key = FrontendKey { address: address.into(), protocol, port };
        let pod = frontends.asked_ports().remove(&key)?;
        let backend = frontends.table().frontend(&key)?.backends.first().copied()?;
        Some(((backend.address.to_ip(), backend.port), ObjectKey::clone(&pod)))
    }

    fn host_ports(&self, node: &str) -> Option<Rc<Frontends>> {
        if let Some(known) = self.host_ports.borrow().get(node) {
            return known.clone();
        }
        let made = self.tables().with_host_ports(node).ok().map(Rc::new);
        self.host_ports.borrow_mut().insert(node.to_owned(), made.clone());
        made
    }
}
