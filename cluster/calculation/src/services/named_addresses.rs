//! The addresses that objects name. A connection to a backend continues while an object names the backend's address.
//!
//! | what names the address | connections that continue |
//! |---|---|
//! | a pod's status, or a node | all |
//! | a slice, or only an annotation of a pod | those through a Service of the same namespace |
//!
//! Anybody who can write a slice or an annotation may name any address. So these keep only connections of the same
//! namespace alive, and the connections of other namespaces end when the pod is gone. A slice names the addresses of
//! its endpoints in any condition, because an endpoint that is not ready only gets no new connections.
//!
//! Objects of different kinds may arrive in any order. If a slice arrives before its pod, it keeps the connections of
//! its namespace alive until the pod arrives. Connections of other namespaces cannot exist yet, because only Services
//! of that namespace lead to the slice's endpoints. Pods and nodes are needed for endpoints that no slice names any
//! more, and for an agent that has just started and must know those addresses, too. The result depends only on the
//! current objects.

use std::collections::{BTreeMap, HashMap};
use std::mem;
use std::net::IpAddr;
use std::sync::Arc;

use ahash::RandomState;

use manx_dataplane::services::ServiceTable;
use manx_objects::State;
use manx_objects::object::{Object, ObjectKey, Pod};

use super::backends::can_be_backend;
use super::numbers;
use crate::import::pod_addresses;

/// The objects that name each address.
#[derive(Debug, Default)]
pub(super) struct NamedAddresses {
    /// The number of times that statuses of pods and nodes name each address.
    by_ends: HashMap<IpAddr, u32, RandomState>,
    /// The number of times that slices and annotations name each address, with the number of their namespace.
    by_authors: BTreeMap<(IpAddr, u64), u32>,
    /// The addresses that have become named, or are not named any more. Each comes with the number of the namespace
    /// whose object names it, or with `None` if a pod or a node does.
    changed: Vec<(IpAddr, Option<u64>)>,
}

impl NamedAddresses {
    /// Records that an object has this state.
    pub(super) fn add(&mut self, key: &ObjectKey, state: &State) {
        let Self { by_ends, by_authors, changed } = self;
        each_named(key, state, |address, namespace| {
            let count = match namespace {
                None => by_ends.entry(address).or_default(),
                Some(namespace) => by_authors.entry((address, namespace)).or_default(),
            };
            *count += 1;
            if *count == 1 {
                changed.push((address, namespace));
            }
        });
    }

    /// Records that an object does not have this state any more.
    pub(super) fn remove(&mut self, key: &ObjectKey, state: &State) {
        let Self { by_ends, by_authors, changed } = self;
        each_named(key, state, |address, namespace| {
            let count = match namespace {
                None => by_ends.get_mut(&address),
                Some(namespace) => by_authors.get_mut(&(address, namespace)),
            };
            let Some(count) = count else { return };
            *count -= 1;
            if *count > 0 {
                return;
            }
            match namespace {
                None => _ = by_ends.remove(&address),
                Some(namespace) => _ = by_authors.remove(&(address, namespace)),
            }
            changed.push((address, namespace));
        });
    }

    /// Removes all objects.
    pub(super) fn clear(&mut self) {
        self.changed.extend(self.by_ends.drain().map(|(address, _)| (address, None)));
        let of_slices = mem::take(&mut self.by_authors).into_keys();
        self.changed.extend(of_slices.map(|(address, namespace)| (address, Some(namespace))));
    }

    /// Stores in the table the changes since the last call. Addresses from slices and annotations are stored only if no
    /// pod and no node has the address; in most clusters, only few addresses are like that.
    pub(super) fn store(&mut self, table: &mut Arc<ServiceTable>) {
        for (address, namespace) in mem::take(&mut self.changed) {
            let is_held = self.by_ends.contains_key(&address);
            let Some(namespace) = namespace else {
                if table.has_address(address.into()) != is_held {
                    Arc::make_mut(table).set_address(address.into(), is_held);
                }
                for (&(_, namespace), _) in
                    self.by_authors.range((address, 0)..=(address, u64::MAX))
                {
                    set_named(table, namespace, address, !is_held);
                }
                continue;
            };
            let is_named = self.by_authors.contains_key(&(address, namespace));
            set_named(table, namespace, address, is_named && !is_held);
        }
    }
}

fn set_named(table: &mut Arc<ServiceTable>, namespace: u64, address: IpAddr, is_named: bool) {
    if table.is_named(namespace, address.into()) != is_named {
        Arc::make_mut(table).set_named(namespace, address.into(), is_named);
    }
}

/// Calls `each` for every address that an object names, as often as the object names it. The second argument is the
/// number of the object's namespace if the object's authors can choose the address.
fn each_named(key: &ObjectKey, state: &State, mut each: impl FnMut(IpAddr, Option<u64>)) {
    let namespace = || Some(numbers::of_namespace(&key.namespace));
    let object = match state {
        State::Valid(object) => object,
        State::Invalid(invalid) => {
            invalid.reported.iter().for_each(|it| each(*it, None));
            invalid.annotated.iter().for_each(|it| each(*it, namespace()));
            return;
        }
    };
    match &**object {
        Object::Pod(pod) if takes_part(pod) => {
            for address in pod_addresses(pod) {
                let is_reported = pod.reported_addresses().any(|it| it == address);
                each(address, if is_reported { None } else { namespace() });
            }
        }
        Object::Node(node) => {
            let calicos = node.calico_address.map(|net| net.addr());
            let others = node.internal_ips.iter().chain(&node.external_ips).copied();
            calicos.into_iter().chain(others).for_each(|it| each(it, None));
        }
        Object::EndpointSlice(slice) if slice.service.is_some() => {
            let namespace = namespace();
            let addresses = slice.endpoints.iter().map(|endpoint| endpoint.address);
            addresses.filter(|it| can_be_backend(*it)).for_each(|it| each(it, namespace));
        }
        _ => {}
    }
}

/// Returns whether a pod has its own addresses.
fn takes_part(pod: &Pod) -> bool {
    !pod.host_network && !pod.is_finished()
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use manx_objects::object::SliceEndpoint;

    use super::*;

    /// The maximum memory, in bytes, of an endpoint whose address no pod and no node has, as in docs/services.md.
    const OF_ENDPOINT: usize = 250;
    /// A node of a B-tree is at least half full.
    const SLACK: usize = 2;

    #[test]
    fn an_endpoint_that_a_slice_names_takes_a_bounded_number_of_bytes() {
        const COUNT: u32 = 100_000;
        let mut table = ServiceTable::default();
        let empty = table.bytes();
        for n in 0..COUNT {
            table.set_named(1, Ipv4Addr::from_bits(0x0a00_0000 + n).into(), true);
        }
        let in_table = (table.bytes() - empty) / COUNT as usize;
        let in_object = size_of::<SliceEndpoint>() + SLACK * size_of::<IpAddr>();
        let counted = SLACK * (size_of::<(IpAddr, u64)>() + size_of::<u32>());
        let all = in_object + counted + in_table;
        assert!(all <= OF_ENDPOINT, "{in_object} + {counted} + {in_table}");
    }
}
