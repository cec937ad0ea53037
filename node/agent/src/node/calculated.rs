//! The tables in use, the state from which they were calculated, and whether they were proved.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use ipnet::IpNet;
use manx_dataplane::tables::{Link, NextHop, PortId, Tables, TrackingSettings};
use manx_policy_compiler::model::ObjectName;

use super::inputs::Inputs;
use super::node_services::NodeServices;
use super::view::View;
use crate::verify::Verifier;
use manx_api::Verification;
use manx_calculation::calc::{
    self, Calculation, InPlace, LocalPod, ManxPortsInput, NextStep, ServiceMode,
};
use manx_calculation::overlay::Underlay;
use manx_calculation::topology::RouteSource;
use manx_objects::contents::Changes;
use manx_observe::latency::Latencies;

/// The attached pods, in the form from which tables are calculated.
pub(super) type Locals<'a> = BTreeMap<&'a ObjectName, &'a LocalPod>;

/// The node's own ports.
pub(super) struct OwnPorts {
    pub(super) host: Link,
    /// The port of packets that the node forwards.
    pub(super) forwarded: Option<PortId>,
    /// The link to the node's translation of service addresses.
    pub(super) service: Option<Link>,
    /// The ports of ICMP messages about packets with the node's own address, for IPv4 and for IPv6.
    pub(super) icmp: [Option<PortId>; 2],
    /// The ports of tunnels.
    pub(super) underlay: Underlay,
}

/// See the module.
pub(super) struct Calculated {
    pub(super) own: OwnPorts,
    connections: TrackingSettings,
    pub(super) calculation: Calculation,
    /// The proof of tables before they are published, if it is on.
    pub(super) verifier: Option<Verifier>,
    pub(super) tables: Arc<Tables>,
    /// The routes of the tables in use, if the calculation has newer ones whose tables were refuted.
    routes_in_use: Option<Vec<(IpNet, NextHop)>>,
    /// The number of pod changes that were made in tables in use.
    pub(super) changed_in_place: u64,
    /// The number of times that routes were changed in tables in use.
    pub(super) routes_changed_in_place: u64,
    latencies: Latencies,
}

impl Calculated {
    /// The state without tables, in which no packets pass.
    pub(super) fn new(
        own: OwnPorts,
        connections: TrackingSettings,
        verifier: Option<Verifier>,
        latencies: Latencies,
    ) -> Self {
        Self {
            own,
            connections,
            calculation: Calculation::default(),
            verifier,
            tables: Arc::new(Tables::closed()),
            routes_in_use: None,
            changed_in_place: 0,
            routes_changed_in_place: 0,
            latencies,
        }
    }

    /// Applies changes of objects to the tables in use as far as possible, and returns the remaining work. Tables are not
    /// changed in place if tables are proved, or before the first tables are published.
    pub(super) fn apply_delta(
        &mut self,
        inputs: &Inputs,
        view: &mut View,
        changes: &Changes,
    ) -> NextStep {
        if self.verifier.is_some() || self.tables.version == 0 {
            return NextStep::Import;
        }
        let (image, contents) = (&self.tables.image, inputs.contents());
        let next = self.calculation.apply_delta(image, &mut view.cluster, contents, changes);
        if let NextStep::Nothing(pods) | NextStep::Routes { pods, .. } = next {
            self.changed_in_place += pods;
        }
        next
    }

    /// Calculates new tables. Returns `None` if the tables in use stay, because the objects have not been read completely
    /// or the new tables are refuted.
    pub(super) fn calculate_tables(
        &mut self,
        inputs: &Inputs,
        view: &View,
        locals: &Locals<'_>,
    ) -> Option<Arc<Tables>> {
        if !view.cluster.in_sync {
            return None;
        }
        let began = Instant::now();
        let in_use = self.verifier.is_some().then(|| self.routes());
        let (calculation, calc_inputs) = self.calculation_with_inputs(view, locals);
        let tables = calculation.tables(&calc_inputs);
        let left_out = self.calculation.left_out();
        let proved = self.verifier.as_mut().is_none_or(|verifier| {
            let names = locals.keys().copied().filter(|name| !left_out.contains(name));
            let names: BTreeSet<ObjectName> = names.cloned().collect();
            verifier.admits(inputs.contents(), names, &tables.image)
        });
        if !proved {
            self.routes_in_use = in_use;
            return None;
        }
        self.latencies.published(began.elapsed());
        self.routes_in_use = None;
        self.tables = Arc::new(tables);
        Some(Arc::clone(&self.tables))
    }

    /// Changes the routes in the tables in use. With `only`, the routes to these addresses alone may have changed,
    /// because services have got or lost them. Returns `false` if new tables must be made. This is always the case if
    /// tables are proved.
    pub(super) fn change_routes(
        &mut self,
        view: &View,
        locals: &Locals<'_>,
        only: Option<&BTreeSet<IpAddr>>,
    ) -> bool {
        if self.verifier.is_some() {
            return false;
        }
        let tables = Arc::clone(&self.tables);
        let (calculation, calc_inputs) = self.calculation_with_inputs(view, locals);
        let stored = calculation.change_routes(&tables, &calc_inputs, only);
        self.routes_changed_in_place += u64::from(stored == InPlace::Stored);
        stored != InPlace::Refused
    }

    /// The routes of the tables in use.
    pub(super) fn routes(&self) -> Vec<(IpNet, NextHop)> {
        match &self.routes_in_use {
            Some(in_use) => in_use.clone(),
            None => self.calculation.current_routes().collect(),
        }
    }

    /// The tables in use with the current services, if these have changed. They share everything else with the former
    /// tables, and have the same version. So no flow looks up its endpoints again, and no new proof is needed.
    pub(super) fn replace_services(&mut self, view: &View) -> Option<Arc<Tables>> {
        let now = view.services.manx()?.frontends.table();
        let before = self.tables.services.as_ref()?;
        if Arc::ptr_eq(before, now) || !view.cluster.in_sync {
            return None;
        }
        let services = Some(Arc::clone(now));
        self.tables = Arc::new(Tables { services, ..Tables::clone(&self.tables) });
        Some(Arc::clone(&self.tables))
    }

    /// The routes that do not come from objects, with their sources.
    pub(super) fn own_routes(
        &mut self,
        view: &View,
        locals: &Locals<'_>,
    ) -> Vec<(IpNet, RouteSource, NextHop)> {
        calc::own_routes(&self.calculation_with_inputs(view, locals).1)
    }

    /// The calculation and its inputs.
    fn calculation_with_inputs<'a>(
        &'a mut self,
        view: &'a View,
        locals: &'a Locals<'a>,
    ) -> (&'a mut Calculation, calc::Inputs<'a>) {
        let OwnPorts { host, forwarded, service, icmp, underlay } = &self.own;
        let inputs = calc::Inputs {
            cluster: &view.cluster,
            topology: &view.topology,
            locals,
            underlay,
            host: *host,
            forwarded: *forwarded,
            uplink: None,
            own_addresses: &view.own_addresses,
            services: match (&view.services, *service) {
                (NodeServices::KubeProxy(services), Some(link)) => {
                    ServiceMode::KubeProxy(services, link)
                }
                (NodeServices::Manx(services), link) => {
                    let port = link.map(|link| ManxPortsInput {
                        link,
                        egress: services.egress,
                        addresses: view.first_addresses(),
                        outgoing: view.outgoing_addresses(),
                        icmp: *icmp,
                    });
                    ServiceMode::Manx(&services.frontends, &services.ranges, port)
                }
                (NodeServices::Nobody | NodeServices::KubeProxy(_), _) => ServiceMode::Nobody,
            },
            connections: self.connections,
            interfaces: view.topology.interfaces(&view.node, &view.uplink),
        };
        (&mut self.calculation, inputs)
    }

    /// Whether the last tables gave a wrong result for a packet, so that the earlier ones stay in force.
    pub(super) fn is_refuted(&self) -> bool {
        let verification = self.verifier.as_ref().map(Verifier::verification);
        matches!(verification, Some(Verification::Refuted(_)))
    }
}
