//! The first node of the cluster without its devices: the calculation of its control thread.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use manx_calculation::calc::{Calculation, InPlace, Inputs, LocalPod, ServiceMode};
use manx_calculation::import::Cluster;
use manx_calculation::interfaces::Interfaces;

use manx_calculation::overlay::Underlay;
use manx_calculation::services::{Frontends, ServiceRanges};
use manx_calculation::topology::Topology;
use manx_dataplane::tables::{Link, PortId, Tables, TrackingSettings};
use manx_objects::Entry;
use manx_objects::contents::{Changes, Contents, Stored};
use manx_objects::object::{Kind, ObjectKey};
use manx_policy_compiler::model::ObjectName;

use super::cluster::NODE;
use crate::error::Failure;

/// The first node of the cluster.
pub(super) struct Node {
    pub(super) calculation: Calculation,
    pub(super) cluster: Cluster,
    pub(super) topology: Topology,
    pub(super) locals: BTreeMap<ObjectName, LocalPod>,
    /// The Services, if the node translates them.
    pub(super) services: Option<(Frontends, ServiceRanges)>,
}

impl Node {
    pub(super) fn tables(&mut self) -> Tables {
        self.with_inputs(Calculation::tables)
    }

    /// Stores changed routes in `tables` in place. Returns whether this was possible.
    pub(super) fn change_routes(&mut self, tables: &Tables) -> bool {
        self.with_inputs(|calculation, inputs| {
            calculation.change_routes(tables, inputs, None) != InPlace::Refused
        })
    }

    fn with_inputs<T>(&mut self, then: impl FnOnce(&mut Calculation, &Inputs<'_>) -> T) -> T {
        let inputs = Inputs {
            cluster: &self.cluster,
            topology: &self.topology,
            locals: &self.locals.iter().collect(),
            underlay: &Underlay::new(1500, PortId(1)),
            host: Link::native(PortId(0), 1500),
            forwarded: None,
            own_addresses: &BTreeSet::new(),
            uplink: None,
            services: match &self.services {
                Some((frontends, ranges)) => ServiceMode::Manx(frontends, ranges, None),
                None => ServiceMode::Nobody,
            },
            connections: TrackingSettings::default(),
            interfaces: Interfaces { node: NODE, uplink: None, addresses: &[] },
        };
        then(&mut self.calculation, &inputs)
    }
}

/// The node's pods, as if each of them were attached.
pub(super) fn attached_pods(cluster: &Cluster) -> BTreeMap<ObjectName, LocalPod> {
    let ours =
        cluster.pods_by_node.iter().filter(|(_, node)| ***node == *NODE).map(|(name, _)| &**name);
    let local = |(index, name): (u32, &ObjectName)| {
        let addresses = cluster.model.endpoints.get(name).map(|it| it.addresses.clone());
        let addresses = addresses.into_iter().flatten().collect();
        let port = PortId(2 + index as u16);
        (
            name.clone(),
            LocalPod { index, attachment: index, port, host: None, addresses, mtu: 1480 },
        )
    };
    (0..).zip(ours).map(local).collect()
}

/// Stores the object in `text`, or removes `key`. Returns the change.
pub(super) fn change(
    contents: &mut Contents,
    key: &ObjectKey,
    text: Option<&str>,
) -> Result<Changes, Failure> {
    let entry = text.map(read).transpose()?.flatten();
    Ok(store(contents, key, entry))
}

/// The object in a text, if there is one.
pub(super) fn read(text: &str) -> Result<Option<Entry>, Failure> {
    Ok(manx_objects::read("change", text)?.entries.pop())
}

/// Stores an object, or removes `key`. Returns the change.
pub(super) fn store(contents: &mut Contents, key: &ObjectKey, entry: Option<Entry>) -> Changes {
    let before = match entry {
        Some(entry) => {
            contents.objects.insert(entry.key, Stored { state: entry.state, place: entry.place })
        }
        None => contents.objects.remove(key),
    };
    Changes::Objects(BTreeMap::from([(key.clone(), before)]))
}

/// The key of an object in the namespace with this number.
pub(super) fn key(kind: Kind, namespace: usize, name: String) -> ObjectKey {
    ObjectKey { kind, namespace: format!("ns-{namespace}"), name }
}

/// The result of `f`, and the time that it took.
pub(super) fn timed<T>(f: impl FnOnce() -> T) -> (T, Duration) {
    let start = Instant::now();
    let result = f();
    (result, start.elapsed())
}
