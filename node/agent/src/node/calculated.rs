//! The tables in use, what they were calculated of, and whether they were proved.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use ipnet::IpNet;
use manx_dataplane::tables::{Connections, Link, NextHop, PortId, Tables};
use manx_policy_compiler::model::ObjectName;

use super::inputs::Inputs;
use super::view::View;
use crate::verify::Verifier;
use manx_api::Verification;
use manx_calculation::calc::{self, Calculation, LocalPod, NextStep};
use manx_calculation::overlay::Underlay;
use manx_calculation::topology::RouteSource;
use manx_objects::contents::Changes;
use manx_observe::latency::Latencies;

/// The attached pods, as tables are made of them.
pub(super) type Locals<'a> = BTreeMap<&'a ObjectName, &'a LocalPod>;

/// The node's own ports.
pub(super) struct OwnPorts {
    pub(super) host: Link,
    /// Where packets come from that the node forwards.
    pub(super) forwarded: Option<PortId>,
    /// Where the node translates service addresses.
    pub(super) service: Option<Link>,
    /// Where the tunnels are.
    pub(super) underlay: Underlay,
}

/// See the module.
pub(super) struct Calculated {
    pub(super) own: OwnPorts,
    connections: Connections,
    pub(super) calculation: Calculation,
    /// What proves tables before they are published, if that is asked for.
    pub(super) verifier: Option<Verifier>,
    /// The tables in use.
    pub(super) tables: Arc<Tables>,
    /// The routes of these tables.
    pub(super) routes: Vec<(IpNet, NextHop)>,
    /// How often pods have changed in tables that were in use.
    pub(super) changed_in_place: u64,
    /// How often routes have changed in tables that were in use.
    pub(super) routes_changed_in_place: u64,
    latencies: Latencies,
}

impl Calculated {
    /// No tables: nothing passes.
    pub(super) fn new(
        own: OwnPorts,
        connections: Connections,
        verify_tables: bool,
        latencies: Latencies,
    ) -> Self {
        Self {
            own,
            connections,
            calculation: Calculation::default(),
            verifier: verify_tables.then(Verifier::default),
            tables: Arc::new(Tables::closed()),
            routes: Vec::new(),
            changed_in_place: 0,
            routes_changed_in_place: 0,
            latencies,
        }
    }

    /// Applies what has changed in the objects as far as it goes without other tables. Where tables are proved before
    /// they are published, tables in use are not changed in place, and neither is what stands for tables before the first.
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

    /// Makes tables, once the objects have been read whole; until then nothing passes. `None`: the tables of before stay
    /// in use, because there are none yet or these are refuted.
    pub(super) fn make(
        &mut self,
        inputs: &Inputs,
        view: &View,
        locals: &Locals<'_>,
    ) -> Option<Arc<Tables>> {
        if !view.cluster.in_sync {
            return None;
        }
        let began = Instant::now();
        let (calculation, of) = self.calculation_of(view, locals);
        let tables = calculation.tables(&of);
        let left_out = self.calculation.left_out();
        let proved = self.verifier.as_mut().is_none_or(|verifier| {
            let names = locals.keys().copied().filter(|name| !left_out.contains(name));
            let names: BTreeSet<ObjectName> = names.cloned().collect();
            verifier.admits(inputs.contents(), names, &tables.image)
        });
        if !proved {
            return None;
        }
        self.latencies.published(began.elapsed());
        self.routes = self.calculation.current_routes().collect();
        self.tables = Arc::new(tables);
        Some(Arc::clone(&self.tables))
    }

    /// Stores in the tables in use that routes have changed. `false`: new tables have to be made, as always where tables
    /// are proved.
    pub(super) fn change_routes(&mut self, view: &View, locals: &Locals<'_>) -> bool {
        if self.verifier.is_some() {
            return false;
        }
        let tables = Arc::clone(&self.tables);
        let (calculation, of) = self.calculation_of(view, locals);
        let stored = calculation.change_routes(&tables, &of);
        if stored {
            let routes: Vec<_> = self.calculation.current_routes().collect();
            self.routes_changed_in_place += u64::from(routes != self.routes);
            self.routes = routes;
        }
        stored
    }

    /// The routes that only the node itself knows, with their sources.
    pub(super) fn own_routes(
        &mut self,
        view: &View,
        locals: &Locals<'_>,
    ) -> Vec<(IpNet, RouteSource, NextHop)> {
        calc::own_routes(&self.calculation_of(view, locals).1)
    }

    /// What makes the tables, and what it makes them of.
    fn calculation_of<'a>(
        &'a mut self,
        view: &'a View,
        locals: &'a Locals<'a>,
    ) -> (&'a mut Calculation, calc::Inputs<'a>) {
        let OwnPorts { host, forwarded, service, underlay } = &self.own;
        let of = calc::Inputs {
            cluster: &view.cluster,
            topology: &view.topology,
            locals,
            underlay,
            host: *host,
            forwarded: *forwarded,
            uplink: None,
            own_addresses: &view.own_addresses,
            services: view.services.as_ref().zip(*service),
            connections: self.connections,
            interfaces: view.topology.interfaces(&view.node, &view.uplink),
        };
        (&mut self.calculation, of)
    }

    /// Whether the last tables were wrong about a packet, and those before stay in force.
    pub(super) fn is_refuted(&self) -> bool {
        let verification = self.verifier.as_ref().map(Verifier::verification);
        matches!(verification, Some(Verification::Refuted(_)))
    }
}
