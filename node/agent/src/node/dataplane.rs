//! The dataplane: the workers, their ports, and their reports.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Instant;

use crossbeam::channel::Receiver;
use manx_dataplane::flow::Owner;
use manx_dataplane::pipeline::Sizes;
use manx_dataplane::port::capture::CopyBudget;
use manx_dataplane::port::link::ETHERNET_LEN;
use manx_dataplane::report::Report;
use manx_dataplane::tables::{Link, PortId, Tables};
use manx_dataplane::worker::{self, Workers};

use super::calculated::OwnPorts;
use super::node_devices::OwnDevices;
use super::ports::Ports;
use super::publications::{Publications, Retired};
use super::refused_ports::RefusedPorts;
use super::view::View;
use crate::capture;
use crate::denials::Denials;
use crate::error::Error;
use crate::fault::Fault;
use crate::server::Outcome;
use crate::settings::{ServiceTranslator, Settings};
use crate::uplink::{self, NextHops};
use manx_api::{Capture, ErrorKind, Failure};
use manx_calculation::calc::Calculation;
use manx_calculation::overlay::{Overlay, Sockets, Underlay};
use manx_observe::latency::Latencies;

/// See the module.
pub(super) struct Dataplane {
    pub(super) ports: Ports,
    reports: Receiver<Report>,
    publications: Publications,
    pub(super) denials: Denials,
    pub(super) refused_ports: RefusedPorts,
    /// The memory for waiting copies, which all captures share.
    captures: Arc<CopyBudget>,
    /// The port of the packet socket on the uplink, whose packets begin with Ethernet headers.
    packet_socket: Option<PortId>,
    /// The reason why an overlay's socket is not open although a tunnel needs it.
    pub(super) socket_faults: BTreeMap<Overlay, Fault>,
    latencies: Latencies,
}

impl Dataplane {
    /// Starts the workers with the node's own ports, and returns these ports. The workers do not begin yet.
    pub(super) fn start(
        settings: &Settings,
        tunnels: uplink::Tunnels,
        own: OwnDevices,
        uplink_mtu: u32,
        latencies: Latencies,
    ) -> Result<(Self, OwnPorts), Error> {
        let (report, reports) = crossbeam::channel::unbounded();
        let translates = matches!(settings.services, ServiceTranslator::Manx(_));
        let sizes = Sizes { translates, ..Sizes::default() };
        let settings_of_worker = worker::Settings { sizes, polling: settings.polling, core: None };
        let workers =
            Workers::spawn(settings_of_worker, &settings.cores, &report).map_err(Error::Worker)?;
        let mut ports = Ports::new(workers);
        let host = ports.attach("host", own.host)?;
        let attach_forwarded = |device| ports.attach("forwarded", device);
        let forwarded = own.forwarded.map(attach_forwarded).transpose()?;
        let service = own.service.map(|device| ports.attach("service", device)).transpose()?;
        let [v4, v6] = match &settings.services {
            ServiceTranslator::Manx(_) => uplink::report_sockets(settings.cores.len())?,
            ServiceTranslator::None | ServiceTranslator::KubeProxy => [None, None],
        };
        let mut attach_reports = |sockets: Option<Vec<_>>| {
            sockets.map(|queues| ports.attach("icmp", queues)).transpose()
        };
        let reports_of_network = [attach_reports(v4)?, attach_reports(v6)?];
        let raw = ports.attach(Overlay::Ipip.port(), tunnels.raw)?;
        let packet_socket = match tunnels.packet_socket {
            Some((queues, mac)) => Some((ports.attach("uplink-packet", queues)?, mac)),
            None => None,
        };
        let next_hops = NextHops::new();
        let own = OwnPorts {
            host: Link::native(host, uplink_mtu),
            forwarded,
            service: service.map(|port| Link::native(port, uplink_mtu)),
            icmp: reports_of_network,
            underlay: Underlay { packet_socket, next_hops, ..Underlay::new(uplink_mtu, raw) },
        };
        let dataplane = Self {
            ports,
            reports,
            publications: Publications::new(settings.cores.len()),
            denials: Denials::default(),
            refused_ports: RefusedPorts::default(),
            captures: capture::copy_budget(),
            packet_socket: packet_socket.map(|(port, _)| port),
            socket_faults: BTreeMap::new(),
            latencies,
        };
        Ok((dataplane, own))
    }

    /// The number of flows that a worker can hold.
    pub(super) fn flow_capacity() -> usize {
        Sizes::default().flows
    }

    /// Publishes tables; `received` is the time when the change that they contain arrived.
    pub(super) fn publish(&mut self, tables: Arc<Tables>, received: Option<Instant>) {
        self.ports.workers.publish(&tables);
        self.publications.add(tables, received);
    }

    /// Records that a change is in force in the tables in use.
    pub(super) fn note_change_in_place(&self, received: Instant) {
        self.latencies.changed(received.elapsed());
    }

    /// Opens the sockets of overlays that tunnels need and that are not yet open. Until a socket is open, its tunnels have
    /// no next hop.
    pub(super) fn open_sockets(&mut self, view: &View, open: &Sockets) -> Sockets {
        let mut needed = view.overlays();
        needed.retain(|overlay| !open.contains_key(overlay));
        self.socket_faults.retain(|overlay, _| needed.contains(overlay));
        let Some(local) = view.topology.underlay else { return Sockets::new() };
        let open_one = |overlay: Overlay| {
            let sockets = uplink::own_sockets(overlay, local, self.ports.workers.len())?;
            let opened = sockets.and_then(|sockets| {
                let port = self.ports.attach(overlay.port(), sockets);
                let name = overlay.encapsulation().name();
                port.map_err(|error| format!("no port for {name}: {error}"))
            });
            let fault = self.socket_faults.entry(overlay).or_default();
            Some((overlay, fault.record(opened)?))
        };
        needed.into_iter().filter_map(open_one).collect()
    }

    /// The reasons why sockets are not open.
    pub(super) fn socket_faults(&self) -> impl Iterator<Item = &str> {
        self.socket_faults.values().filter_map(Fault::message)
    }

    /// Handles the workers' reports; `name` describes an owner of flows. Returns the ports that the workers have lost.
    pub(super) fn read_reports(
        &mut self,
        calculation: &mut Calculation,
        name: impl Fn(Owner) -> String,
    ) -> Vec<(PortId, io::Error)> {
        let mut lost = Vec::new();
        while let Ok(report) = self.reports.try_recv() {
            match report {
                Report::Denied(denied) => {
                    let rule = calculation.reason(denied.slot);
                    let rule = rule.map_or_else(String::new, ToString::to_string);
                    self.denials.note(&denied, rule);
                }
                Report::PortRefused(refused) => {
                    self.refused_ports.note(&refused, &name, Instant::now());
                }
                Report::PortLost(port, error) => lost.push((port, error)),
                Report::PollFailed(error) => tracing::error!(%error, "epoll failed"),
                Report::Retired(tables, at) => {
                    if let Some(retired) = self.publications.hand_back(&tables, at) {
                        self.note_retired(calculation, retired);
                    }
                }
            }
        }
        lost
    }

    fn note_retired(&mut self, calculation: &mut Calculation, retired: Retired) {
        let Retired { version, changed_in } = retired;
        if let Some(time) = changed_in {
            self.latencies.changed(time);
        }
        if let Some(version) = version {
            self.ports.ids.retired(version);
            calculation.reclaim_slots(version, |slot| self.ports.workers.rule_count(slot));
        }
    }

    /// Starts a capture of a port, which the request names by its own name or its pod's.
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
        let framing = if self.packet_socket == Some(*id) { ETHERNET_LEN } else { 0 };
        capture::start(
            self.ports.workers.iter().map(|worker| worker.commands().clone()).collect(),
            capture::Source { port: *id, name: what.port.clone(), framing },
            &self.captures,
        )
    }
}
