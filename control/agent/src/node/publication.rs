//! From the datastore to tables that are in use: what the objects mean, where the node stands, what is published.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::sync::Arc;

use super::super::fault::Fault;
use super::super::uplink::{self, NextHops};
use super::Agent;
use manx_calculation::calc::{Calculation, Inputs, NextStep};
use manx_calculation::import::{Cluster, Overlay, import_for};
use manx_calculation::topology;

impl Agent {
    /// Reads what has changed in the datastore and applies it. Where tables are proved before they are published, tables in
    /// use are not changed in place: the change makes new ones. Returns whether the topology may have changed.
    pub(in super::super) fn refresh(&mut self) -> bool {
        let Some(changes) = self.store.refresh() else { return false };
        let (contents, image) = (self.store.contents(), &self.tables.image);
        let left = match self.verifier {
            None => self.calculation.apply_delta(image, &mut self.cluster, contents, &changes),
            Some(_) => NextStep::Import,
        };
        match left {
            NextStep::Nothing(pods) => self.changed_in_place += pods,
            NextStep::Tables => self.publish(),
            NextStep::Routes { tables } => {
                self.place_node();
                if tables || !self.change_routes() {
                    self.publish();
                }
            }
            NextStep::Import => self.import_all(import_for(contents, &self.name)),
        }
        matches!(left, NextStep::Import | NextStep::Routes { .. })
    }

    /// Replaces everything that was imported.
    pub(in super::super) fn import_all(&mut self, cluster: Cluster) {
        for problem in
            cluster.problems.iter().filter(|problem| !self.cluster.problems.contains(problem))
        {
            tracing::warn!(problem = problem.summary(), "datastore");
        }
        self.cluster = cluster;
        self.place_node();
        self.publish();
    }

    /// Calculates the topology, and brings the node's own namespace up to date with it. A cluster without a usable topology
    /// leaves the last one in force.
    fn place_node(&mut self) {
        match topology::topology(&self.cluster, &self.name) {
            Ok(topology) => {
                let known: BTreeSet<String> = self.topology.problems().collect();
                for problem in topology.problems().filter(|problem| !known.contains(problem)) {
                    tracing::error!(problem, "topology");
                }
                self.topology = topology;
                self.open_vxlan();
            }
            Err(error) => {
                tracing::error!(%error, "the node cannot be placed; the routes stay as they were");
            }
        }
        match self.host_device.reconcile(&self.topology.host()) {
            Ok(changes) => {
                for block in changes.unreachable {
                    tracing::error!(%block, "the node has no route to the node of this block");
                }
            }
            Err(error) => {
                tracing::error!(%error, "the node's own routes are not as they should be");
            }
        }
    }

    /// Stores in the tables in use that routes have changed. `false`: new tables have to be published.
    fn change_routes(&mut self) -> bool {
        let tables = Arc::clone(&self.tables);
        let (calculation, inputs) = self.inputs();
        let stored = calculation.change_routes(&tables, &inputs);
        if stored {
            self.routes = self.calculation.current_routes().collect();
        }
        stored
    }

    /// What makes the node's tables, and what it makes them of.
    fn inputs(&mut self) -> (&mut Calculation, Inputs<'_>) {
        let interfaces = self.topology.interfaces(&self.name, &self.uplink);
        let inputs = Inputs {
            cluster: &self.cluster,
            topology: &self.topology,
            locals: &self.locals,
            underlay: &self.underlay,
            host: self.host,
            uplink: None,
            connections: self.connections,
            interfaces,
        };
        (&mut self.calculation, inputs)
    }

    /// Sets the next hops of the peers.
    pub(in super::super) fn set_next_hops(&mut self, next_hops: NextHops) {
        self.underlay.next_hops = next_hops;
        self.publish();
    }

    /// The nodes to which there is an IPIP tunnel.
    pub(in super::super) fn peers(&self) -> BTreeSet<Ipv4Addr> {
        let peers = self.topology.peers().into_iter();
        peers.filter(|peer| peer.overlay == Overlay::Ipip).map(|peer| peer.address).collect()
    }

    /// Opens VXLAN's socket when the first tunnel asks for it. Until that works those tunnels lead nowhere. Returns whether
    /// it has been opened now.
    fn open_vxlan(&mut self) -> bool {
        let wanted = self.topology.peers().iter().any(|peer| peer.overlay == Overlay::Vxlan);
        let Some(local) =
            self.topology.underlay.filter(|_| wanted && self.underlay.vxlan.is_none())
        else {
            if !wanted {
                self.vxlan_fault = Fault::default();
            }
            return false;
        };
        let opened = match uplink::vxlan(local, self.workers.len()) {
            Ok(sockets) => self
                .attach_port("uplink-vxlan".to_owned(), sockets)
                .map_err(|error| format!("no port for VXLAN: {error}")),
            Err(error) => Err(format!("nodes behind VXLAN cannot be reached: {error}")),
        };
        let Some(port) = self.vxlan_fault.settle(opened) else { return false };
        self.underlay.vxlan = Some(port);
        true
    }

    /// Retries what has failed.
    pub(in super::super) fn retry(&mut self) {
        if self.vxlan_fault.message().is_some() && self.open_vxlan() {
            self.publish();
        }
    }

    /// Calculates and publishes, once the datastore has been read whole; until then nothing passes. Tables that are refuted
    /// are not published: those before stay.
    pub(super) fn publish(&mut self) {
        if !self.cluster.in_sync {
            return;
        }
        let (calculation, inputs) = self.inputs();
        let tables = calculation.tables(&inputs);
        let proved = self.verifier.as_mut().is_none_or(|verifier| {
            verifier.admits(self.store.contents(), self.locals.keys().cloned(), &tables.image)
        });
        if !proved {
            return;
        }
        self.routes = self.calculation.current_routes().collect();
        self.tables = Arc::new(tables);
        self.workers.publish(&self.tables);
    }
}
