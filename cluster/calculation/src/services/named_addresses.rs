//! The addresses that objects name: a connection to a backend goes on while its address is one of them.
//!
//! A pod, a node and a slice name addresses. A slice names those of its endpoints in any condition, because only new
//! connections are not for an endpoint that is not ready. Pods and nodes are there for endpoints that no slice names any
//! more, and so that an agent that starts again knows those addresses, too.

use std::collections::HashMap;
use std::mem;
use std::net::IpAddr;

use ahash::RandomState;

use manx_objects::State;
use manx_objects::object::{Object, Pod};

use super::backends::can_be_backend;
use crate::import::pod_addresses;

/// The number of objects that name each address.
#[derive(Debug, Default)]
pub(super) struct NamedAddresses {
    counts: HashMap<IpAddr, u32, RandomState>,
    /// The addresses whose counts have changed.
    changed: Vec<IpAddr>,
}

impl NamedAddresses {
    pub(super) fn add(&mut self, state: &State) {
        let Self { counts, changed } = self;
        each_named(state, |address| {
            let count = counts.entry(address).or_default();
            *count += 1;
            if *count == 1 {
                changed.push(address);
            }
        });
    }

    pub(super) fn remove(&mut self, state: &State) {
        let Self { counts, changed } = self;
        each_named(state, |address| {
            let Some(count) = counts.get_mut(&address) else { return };
            *count -= 1;
            if *count == 0 {
                counts.remove(&address);
                changed.push(address);
            }
        });
    }

    /// Forgets all objects.
    pub(super) fn clear(&mut self) {
        self.changed.extend(self.counts.drain().map(|(address, _)| address));
    }

    /// The addresses that may have come or gone since the last call, each with whether it is named now.
    pub(super) fn take_changed(&mut self) -> impl Iterator<Item = (IpAddr, bool)> {
        let Self { counts, changed } = self;
        mem::take(changed).into_iter().map(|address| (address, counts.contains_key(&address)))
    }
}

/// Calls `each` for every address that an object names, once for each time that it names it.
fn each_named(state: &State, mut each: impl FnMut(IpAddr)) {
    match state {
        State::Valid(object) => match &**object {
            Object::Pod(pod) if takes_part(pod) => pod_addresses(pod).into_iter().for_each(each),
            Object::Node(node) => {
                let calicos = node.calico_address.map(|net| net.addr());
                let others = node.internal_ips.iter().chain(&node.external_ips).copied();
                calicos.into_iter().chain(others).for_each(each);
            }
            Object::EndpointSlice(slice) if slice.service.is_some() => {
                let addresses = slice.endpoints.iter().map(|endpoint| endpoint.address);
                addresses.filter(|it| can_be_backend(*it)).for_each(each);
            }
            _ => {}
        },
        State::Invalid(invalid) => {
            invalid.reported.iter().chain(&invalid.annotated).for_each(|it| each(*it));
        }
    }
}

/// Whether a pod has addresses of its own.
fn takes_part(pod: &Pod) -> bool {
    !pod.host_network && !pod.is_finished()
}
