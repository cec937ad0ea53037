//! The dataplane: the workers, their ports, the tables that they use, and what they report.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::time::Instant;

use crossbeam::channel::Receiver;
use ipnet::IpNet;
use manx_dataplane::pipeline::Sizes;
use manx_dataplane::port::capture::CopyBudget;
use manx_dataplane::port::link::ETHERNET_LEN;
use manx_dataplane::report::{Denied, Report};
use manx_dataplane::tables::{Connections, Link, NextHop, PortId, Tables};
use manx_dataplane::worker::{self, Workers};
use manx_policy_compiler::model::ObjectName;

use super::attachments::OwnDevices;
use super::datastore::Datastore;
use super::ports::Ports;
use crate::capture;
use crate::denials::Denials;
use crate::error::Error;
use crate::fault::Fault;
use crate::server::Outcome;
use crate::settings::Settings;
use crate::uplink::{self, NextHops};
use crate::verify::Verifier;
use manx_api::{Capture, ErrorKind, Failure, Verification};
use manx_calculation::calc::{Calculation, Inputs, Local, NextStep, Underlay};
use manx_objects::contents::Changes;
use manx_observe::latency::Latencies;

/// See the module.
pub(super) struct Dataplane {
    pub(super) ports: Ports,
    reports: Receiver<Report>,
    /// How many workers have handed these tables back, by version, and when the last one has; while one has not, it may
    /// use them.
    retirements: BTreeMap<u64, (usize, Instant)>,
    pub(super) denials: Denials,
    /// Where the copies of all captures wait.
    captures: Arc<CopyBudget>,
    host: Link,
    /// Where packets come from that the node forwards.
    forwarded: Option<PortId>,
    /// Where the node translates service addresses.
    service: Option<Link>,
    pub(super) underlay: Underlay,
    /// Why VXLAN's socket is not open, while a tunnel asks for it.
    pub(super) vxlan_fault: Fault,
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
    /// Published tables that not every worker uses yet, by the version before, and when what they say was received.
    on_the_way: BTreeMap<u64, Instant>,
    latencies: Latencies,
}

impl Dataplane {
    /// Starts the workers and gives them the node's own ports. They wait to begin.
    pub(super) fn start(
        settings: &Settings,
        tunnels: uplink::Tunnels,
        own: OwnDevices,
        uplink_mtu: u32,
        latencies: Latencies,
    ) -> Result<Self, Error> {
        let (report, reports) = crossbeam::channel::unbounded();
        let of_each =
            worker::Settings { sizes: Sizes::default(), polling: settings.polling, core: None };
        let workers = Workers::spawn(of_each, &settings.cores, &report).map_err(Error::Worker)?;
        let mut ports = Ports::new(workers);
        let host = ports.attach("host", own.host)?;
        let attach_forwarded = |device| ports.attach("forwarded", device);
        let forwarded = own.forwarded.map(attach_forwarded).transpose()?;
        let service = own.service.map(|device| ports.attach("service", device)).transpose()?;
        let raw = ports.attach("uplink-raw", tunnels.raw)?;
        let packet_socket = match tunnels.packet_socket {
            Some((queues, mac)) => Some((ports.attach("uplink-packet", queues)?, mac)),
            None => None,
        };
        let next_hops = NextHops::new();
        Ok(Self {
            ports,
            reports,
            retirements: BTreeMap::new(),
            denials: Denials::default(),
            captures: capture::room(),
            host: Link::native(host, uplink_mtu),
            forwarded,
            service: service.map(|port| Link::native(port, uplink_mtu)),
            underlay: Underlay { mtu: uplink_mtu, raw, packet_socket, next_hops, vxlan: None },
            vxlan_fault: Fault::default(),
            connections: settings.connections,
            calculation: Calculation::default(),
            verifier: settings.verify_tables.then(Verifier::default),
            tables: Arc::new(Tables::closed()),
            routes: Vec::new(),
            changed_in_place: 0,
            routes_changed_in_place: 0,
            on_the_way: BTreeMap::new(),
            latencies,
        })
    }

    /// Applies what has changed in the datastore as far as it goes without other tables. Where tables are proved before
    /// they are published, tables in use are not changed in place: the change makes new ones.
    pub(super) fn apply_delta(&mut self, datastore: &mut Datastore, changes: &Changes) -> NextStep {
        if self.verifier.is_some() {
            return NextStep::Import;
        }
        let Datastore { source, cluster, .. } = datastore;
        let image = &self.tables.image;
        let next = self.calculation.apply_delta(image, cluster, source.contents(), changes);
        if let NextStep::Nothing(pods) | NextStep::Routes { pods, .. } = next {
            self.changed_in_place += pods;
        }
        next
    }

    /// Flows that a worker can hold.
    pub(super) fn flow_capacity() -> usize {
        Sizes::default().flows
    }

    /// Calculates tables, once the datastore has been read whole; until then nothing passes. [`Dataplane::publish`]
    /// follows. `None`: the tables of before stay in use, because these are refuted.
    pub(super) fn calculate(
        &mut self,
        datastore: &Datastore,
        locals: &BTreeMap<&ObjectName, &Local>,
    ) -> Option<Arc<Tables>> {
        if !datastore.cluster.in_sync {
            return None;
        }
        let began = Instant::now();
        let (calculation, inputs) = self.inputs(datastore, locals);
        let tables = calculation.tables(&inputs);
        let left_out = self.calculation.left_out();
        let proved = self.verifier.as_mut().is_none_or(|verifier| {
            let names = locals.keys().copied().filter(|name| !left_out.contains(name));
            let names: BTreeSet<ObjectName> = names.cloned().collect();
            verifier.admits(datastore.source.contents(), names, &tables.image)
        });
        proved.then(|| {
            self.latencies.published(began.elapsed());
            Arc::new(tables)
        })
    }

    /// Has the workers use these tables.
    pub(super) fn publish(&mut self, tables: Arc<Tables>) {
        self.routes = self.calculation.current_routes().collect();
        self.ports.workers.publish(&tables);
        self.tables = tables;
    }

    /// A change that was received then has been applied: to the tables of version `before`, which are still in use, or
    /// to newer ones. Those are in use when each worker has handed back the ones before.
    pub(super) fn note_change(&mut self, received: Option<Instant>, before: u64) {
        let Some(received) = received.filter(|_| !self.is_refuted()) else { return };
        if self.tables.version == before {
            self.latencies.changed(received.elapsed());
        } else {
            self.on_the_way.insert(before, received);
        }
    }

    /// Whether the last tables were wrong about a packet, and those before stay in force.
    pub(super) fn is_refuted(&self) -> bool {
        let verification = self.verifier.as_ref().map(Verifier::verification);
        matches!(verification, Some(Verification::Refuted(_)))
    }

    /// Stores in the tables in use that routes have changed. `false`: new tables have to be published.
    pub(super) fn change_routes(
        &mut self,
        datastore: &Datastore,
        locals: &BTreeMap<&ObjectName, &Local>,
    ) -> bool {
        let tables = Arc::clone(&self.tables);
        let (calculation, inputs) = self.inputs(datastore, locals);
        let stored = calculation.change_routes(&tables, &inputs);
        if stored {
            self.routes_changed_in_place += 1;
            self.routes = self.calculation.current_routes().collect();
        }
        stored
    }

    /// What makes the tables, and what it makes them of.
    fn inputs<'a>(
        &'a mut self,
        datastore: &'a Datastore,
        locals: &'a BTreeMap<&'a ObjectName, &'a Local>,
    ) -> (&'a mut Calculation, Inputs<'a>) {
        let inputs = Inputs {
            cluster: &datastore.cluster,
            topology: &datastore.topology,
            locals,
            underlay: &self.underlay,
            host: self.host,
            forwarded: self.forwarded,
            uplink: None,
            own_addresses: &datastore.own_addresses,
            services: datastore.services.as_ref().zip(self.service),
            connections: self.connections,
            interfaces: datastore.topology.interfaces(&datastore.node, &datastore.uplink),
        };
        (&mut self.calculation, inputs)
    }

    /// Opens VXLAN's socket when the first tunnel asks for it. Until that works those tunnels lead nowhere. Returns
    /// whether it has been opened now.
    pub(super) fn open_vxlan(&mut self, datastore: &Datastore) -> bool {
        let wanted = datastore.has_vxlan();
        if !wanted {
            self.vxlan_fault = Fault::default();
        }
        let local = datastore.topology.underlay;
        let Some(local) = local.filter(|_| wanted && self.underlay.vxlan.is_none()) else {
            return false;
        };
        let opened = uplink::vxlan(local, self.ports.workers.len()).and_then(|sockets| {
            let port = self.ports.attach("uplink-vxlan", sockets);
            port.map_err(|error| format!("no port for VXLAN: {error}"))
        });
        let Some(port) = self.vxlan_fault.settle(opened) else { return false };
        self.underlay.vxlan = Some(port);
        true
    }

    /// Takes in what the workers have reported, up to the next port that they have lost. `None`: all of it.
    pub(super) fn read_reports(&mut self) -> Option<(PortId, io::Error)> {
        while let Ok(report) = self.reports.try_recv() {
            match report {
                Report::Denied(denied) => self.record_denial(&denied),
                Report::PortLost(port, error) => return Some((port, error)),
                Report::PollFailed(error) => tracing::error!(%error, "epoll failed"),
                Report::Retired(tables, at) => self.count_retirement(tables.version, at),
            }
        }
        None
    }

    fn record_denial(&mut self, denied: &Denied) {
        let rule =
            self.calculation.reason(denied.slot).map_or_else(String::new, ToString::to_string);
        self.denials.note(denied, rule);
    }

    /// A worker has handed tables back. Each does so in the order of publication: no worker uses any more what the last
    /// one has handed back, and all that was before it.
    fn count_retirement(&mut self, version: u64, at: Instant) {
        let (handed_back, last) = self.retirements.entry(version).or_insert((0, at));
        *handed_back += 1;
        *last = at.max(*last);
        if *handed_back < self.ports.workers.len() {
            return;
        }
        let last = *last;
        if let Some(received) = self.on_the_way.remove(&version) {
            self.latencies.changed(last.saturating_duration_since(received));
        }
        self.retirements.remove(&version);
        self.ports.ids.retired(version);
        self.calculation.fold(version, |slot| self.ports.workers.rule_count(slot));
    }

    /// Starts a capture of a port, by its name or its pod's, on this node.
    pub(super) fn capture(&self, what: &Capture, node: &str) -> Outcome {
        let wanted = [what.port.clone(), format!("pod:{}", what.port)];
        let Some((id, _)) =
            self.ports.attached.iter().find(|(_, port)| wanted.contains(&port.name))
        else {
            let names: Vec<&str> =
                self.ports.attached.values().map(|port| port.name.as_str()).collect();
            let (port, names) = (&what.port, names.join(", "));
            let message = format!("no port {port:?} on node {node}: expected one of {names}");
            return Outcome::Reply(Err(Failure { kind: ErrorKind::Invalid, message }));
        };
        let framed =
            self.underlay.packet_socket.is_some_and(|(packet_socket, _)| packet_socket == *id);
        let framing = if framed { ETHERNET_LEN } else { 0 };
        capture::start(
            self.ports.workers.iter().map(|worker| worker.commands().clone()).collect(),
            capture::Source { port: *id, name: what.port.clone(), framing },
            &self.captures,
        )
    }
}
