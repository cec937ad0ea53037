//! The agent: inputs → [`settle`](Agent::settle) → outputs. One thread owns it; nothing in it is shared or locked.
//!
//! - [`Inputs`]: the state of each source, and the changes that are not settled yet.
//! - [`Attachments`]: the pods of this node, each in one state, and the work for them. The agent itself writes this
//!   input.
//! - [`View`]: the cluster as this node sees it, derived from the inputs.
//! - [`Calculated`]: the tables in use, and the state from which they were calculated.
//! - [`Dataplane`]: workers, ports, and the workers' reports.
//!
//! Each event of the control loop writes into the first two, and settling then updates the others. `status` and `metrics`
//! read all of them.

mod attach;
mod attachments;
mod calculated;
mod dataplane;
mod detach;
mod host_ports;
mod inputs;
mod known;
mod metrics;
mod node_devices;
mod node_services;
mod node_statuses;
mod passwords;
mod peering;
mod pod_request;
mod pod_state;
mod pod_walk;
mod pods;
mod ports;
mod publications;
mod refused_ports;
mod restart;
mod routers;
mod routes;
mod settle;
mod status;
mod view;
mod way_out;

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{Notify, mpsc, watch};

use self::attachments::Attachments;
pub(super) use self::attachments::WorkResult;
use self::calculated::Calculated;
use self::dataplane::Dataplane;
use self::host_ports::HostPortGrants;
pub(super) use self::inputs::Inputs;
use self::node_statuses::{NodeStatusReports, Snapshot};
use self::peering::Peering;
use self::pod_request::{AttachRequest, Maker, PodRequest};
use self::settle::{HostUpdate, Settled, settle};
pub(super) use self::view::View;
use super::error::Error;
use super::node_address::{News, NodeAddresses};
use super::pod_work::Completed;
use super::port_rules::Desired;
use super::restart_state::LastAgent;
use super::server::{Outcome, PendingRequest};
use super::settings::{Ipam, Network, Settings};
use super::tunnel_addresses;
use super::uplink;
use super::verify::Verifier;
use manx_analysis::explain::Explainer;
use manx_analysis::services::Translates;
use manx_api::explain::ExplainRequest;
use manx_api::{Call, ErrorKind, Failure, Reply};
use manx_dataplane::flow::{FlowRecordFile, Owner};
use manx_dataplane::tables::Tables;
use manx_dataplane::wire::protocol;
use manx_datastore::Happening;
use manx_linux::autodetect::Facts;
use manx_linux::netlink;
use manx_observe::Observer;
use manx_observe::checks::ServiceChecks;
use manx_observe::served::Served;

/// The interval at which the rules, routes and settings for the node's ports are checked, and changes by other programs are
/// undone.
const CHECK_PORTS: Duration = Duration::from_secs(10);
/// The same interval for everything else in the node's kernel. It is longer because this check asks the kernel for the
/// route to each node that is reached without a tunnel. For 5,000 nodes that takes a quarter of a second.
const CHECK_HOST: Duration = Duration::from_mins(1);

pub(super) struct Agent {
    pub(super) inputs: Inputs,
    pub(super) view: View,
    attachments: Attachments,
    calculated: Calculated,
    dataplane: Dataplane,
    /// The nodes that are reached by an IPIP tunnel, for the task that finds the next hops to these nodes.
    peers: watch::Sender<BTreeSet<Ipv4Addr>>,
    started: Instant,
    /// The time of the next check of rules, routes and settings for the node's ports.
    check_ports: Instant,
    /// The time of the next check of everything else in the node's kernel.
    check_host: Instant,
    /// The ports of the node that are routed to Manx.
    led_ports: Desired,
    /// The ports of the node that pods have (`hostPort`).
    host_ports: HostPortGrants,
    /// The program that translates services.
    translates: Option<Translates>,
    /// The tunnels for which Calico's IPAM gives this node addresses.
    tunnels: watch::Sender<Option<tunnel_addresses::Wanted>>,
    ipam: Ipam,
    /// An error that ends the agent at the next tick.
    failed: Option<Error>,
    /// The flow records of the last agent, by worker. They are kept until there are tables, by which the flows are
    /// allowed or not.
    last_flows: Option<BTreeMap<usize, FlowRecordFile>>,
    /// The state of the pages for health and metrics.
    served: Served,
    /// The health checks of services.
    checks: ServiceChecks,
    /// The BGP speaker, if the node speaks BGP.
    peering: Option<Peering>,
    /// The addresses by which other nodes reach this one.
    node_addresses: NodeAddresses,
    /// The status that `CalicoNodeStatus` objects request.
    status_reports: NodeStatusReports,
}

impl Agent {
    /// Starts the workers, makes the node's own ports, attaches the pods of the last agent, and settles the inputs. Workers
    /// begin only when they have tables, flows and all ports, because no packet may be judged without one of these. If the
    /// objects have not been read completely, they begin without tables and drop all packets. The returned receiver gets
    /// the results of work for pods.
    pub(super) async fn start(
        settings: &Settings,
        (mut inputs, view, node_addresses): (Inputs, View, NodeAddresses),
        uplink: &netlink::Link,
        observer: &Observer,
        news: &Arc<Notify>,
    ) -> Result<(Self, mpsc::UnboundedReceiver<Completed<WorkResult>>), Error> {
        let workers = settings.cores.len();
        let tunnels = match settings.network {
            Network::Manx => uplink::open(uplink, settings.packet_socket, workers)?,
            Network::OtherPlugin => uplink::unused(workers)?,
        };
        let (attachments, own, completed) =
            Attachments::open(settings, &view.topology.blocks, uplink).await?;
        let latencies = observer.latencies.clone();
        let (dataplane, own) =
            Dataplane::start(settings, tunnels, own, uplink.mtu, latencies.clone())?;
        let verifier = settings.verify_tables.then(|| Verifier::new(settings.ipam));
        let calculated = Calculated::new(own, settings.connections, verifier, latencies);
        let LastAgent { devices, flows } = attachments.load_last_agent().await;
        let restarted = !devices.is_empty();
        let peering = settings
            .bgp
            .then(|| Peering::start(inputs.contents(), &settings.name, news, restarted));
        let peering = peering.transpose()?;
        if peering.is_some() && restarted {
            inputs.set_ways_out(None);
        }
        let mut agent = Self {
            inputs,
            view,
            attachments,
            calculated,
            dataplane,
            peers: watch::Sender::default(),
            started: Instant::now(),
            check_ports: Instant::now() + CHECK_PORTS,
            check_host: Instant::now() + CHECK_HOST,
            led_ports: Desired::default(),
            host_ports: HostPortGrants::load(&settings.socket),
            translates: settings.services.translates(),
            tunnels: watch::Sender::default(),
            ipam: settings.ipam,
            failed: None,
            last_flows: Some(flows),
            served: observer.served.clone(),
            checks: observer.checks.clone(),
            peering,
            node_addresses,
            status_reports: NodeStatusReports::default(),
        };
        if settings.network == Network::Manx
            && let Some(statuses) = agent.inputs.source.node_statuses()
        {
            statuses.want();
        }
        let restored = agent.restore_pods(devices);
        agent.attachments.set_left_apart().await;
        agent.settle(Instant::now());
        if let Some(pools) = agent.attachments.pools() {
            tokio::spawn(tunnel_addresses::keep(pools.clone(), agent.tunnels.subscribe()));
            agent.want_tunnels();
        }
        agent.serve_restored(restored)?;
        agent.dataplane.ports.workers.begin();
        Ok((agent, completed))
    }

    /// A receiver for the nodes that are reached by an IPIP tunnel, now and later.
    pub(super) fn peers(&self) -> watch::Receiver<BTreeSet<Ipv4Addr>> {
        self.peers.subscribe()
    }

    /// Puts the latest changes into force, and then sends the replies that wait for them. The control loop calls this
    /// after each event.
    pub(super) fn settle(&mut self, now: Instant) {
        let Self { inputs, view, attachments, calculated, dataplane, .. } = self;
        let settled = settle(
            inputs,
            view,
            calculated,
            &attachments.locals(),
            |view, update| match update {
                HostUpdate::All => attachments.devices.reconcile_host(&view.host_network()),
                HostUpdate::Routes(changed) => {
                    attachments.devices.change_host_routes(&changed, || view.host_network());
                }
            },
            |view, open| dataplane.open_sockets(view, open),
        );
        let Settled { placed, tables, received, peers } = settled;
        if let Some(mut tables) = tables {
            if let Some(flows) = self.last_flows.take() {
                // Connections to host ports continue if the pods still have these ports.
                tables = self.grant_ports().unwrap_or(tables);
                self.restore_flows(flows, &tables);
            }
            self.dataplane.publish(tables, received);
        } else if let Some(received) = received {
            self.dataplane.note_change_in_place(received);
        }
        self.lead_ports();
        self.check_expected(now);
        self.attachments.send_replies();
        self.end_leaving();
        if placed {
            // With other addresses the node may have other interfaces.
            self.check_ports = now;
            let peers = self.view.ipip_peers();
            self.peers.send_if_modified(|known| mem::replace(known, peers) != *known);
            self.want_tunnels();
        }
        if peers && let Some(peering) = &mut self.peering {
            peering.configure(&self.inputs, &self.view);
        }
    }

    /// Takes the routes out of the cluster that routers have announced, and the gateways to routers.
    pub(super) fn take_ways_out(&mut self, now: Instant) {
        let Some(peering) = &mut self.peering else { return };
        self.inputs.set_gateways(peering.gateways());
        if let Some(ways_out) = peering.take_ways_out(now) {
            self.inputs.set_ways_out(Some(ways_out));
        }
    }

    /// Fills in the `CalicoNodeStatus` objects that are due.
    fn report_statuses(&mut self, now: Instant) {
        let Self { inputs, view, peering, node_addresses, status_reports, .. } = self;
        let Some(statuses) = inputs.source.node_statuses() else { return };
        let due = status_reports.take_due(now, || statuses.requests());
        if due.is_empty() {
            return;
        }
        let wants_routes = due.iter().any(|(_, request)| request.routes);
        let snapshot = peering.as_ref().map(|peering| {
            let interface = |to| node_addresses.interface_to(to).map(str::to_owned);
            peering.snapshot(wants_routes, || node_statuses::used(view), interface)
        });
        let snapshot = snapshot.unwrap_or_else(Snapshot::default);
        status_reports.note_cut(&snapshot);
        for (name, request) in due {
            statuses.put(&name, node_statuses::status(&request, &snapshot));
        }
    }

    /// Checks by new facts of the kernel whether the node's address has changed. Writes a new address to the Node's
    /// object.
    pub(super) fn take_facts(&mut self, facts: Facts, now: Instant) {
        let Self { inputs, node_addresses, .. } = self;
        if let Some(annotations) = node_addresses.look(facts, inputs.contents(), now) {
            tracing::info!(?annotations, "the node has another address");
            inputs.source.annotate_node(annotations);
        }
        let (reason, is_warning, text) = match node_addresses.news(inputs.contents()) {
            None => return,
            Some(News::Problem(problem)) => ("NodeAddressLost", true, problem),
            Some(News::Over) => {
                ("NodeAddressFound", false, "the node has its address again".to_owned())
            }
        };
        if is_warning {
            tracing::warn!(text, "{reason}");
        } else {
            tracing::info!(text, "{reason}");
        }
        let happening = Happening { reason, action: "Detect", is_warning, text };
        inputs.source.tell("node address".to_owned(), happening);
    }

    /// Publishes for which tunnels the node needs addresses, if Calico's IPAM gives them out.
    fn want_tunnels(&self) {
        // While a pool is not valid, it is unknown which addresses may stay.
        if self.attachments.pools().is_some() && self.view.cluster.invalid_pools.is_empty() {
            let wanted = self.view.wanted_tunnels(&self.inputs);
            self.tunnels.send_if_modified(|known| {
                let is_new = !known.as_ref().is_some_and(|it| it.is_like(&wanted));
                *known = Some(wanted);
                is_new
            });
        }
    }

    /// Reads the workers' reports, and retries failed actions. Returns an error if the agent cannot continue.
    pub(super) fn tick(&mut self, now: Instant) -> Result<(), Error> {
        self.read_reports();
        self.inputs.check_account();
        self.take_ways_out(now);
        for (peer, happening) in self.peering.iter_mut().flat_map(|it| it.happenings(now)) {
            self.inputs.source.tell(peer, happening);
        }
        self.report_statuses(now);
        self.dataplane.ports.restore_devices(now);
        if now >= self.check_ports {
            self.check_ports = now + CHECK_PORTS;
            self.attachments.devices.reconcile_ports(&self.led_ports);
            self.host_ports.retry();
        }
        if now >= self.check_host {
            self.check_host = now + CHECK_HOST;
            self.attachments.devices.check_host(&self.view.host_network());
        }
        if let Some((from, to)) = self.node_addresses.replaced(self.inputs.contents()) {
            return Err(Error::AddressChanged { from, to });
        }
        if self.dataplane.socket_faults().next().is_some() {
            self.inputs.retry_socket();
        }
        match self.failed.take() {
            Some(error) => Err(error),
            None if self.dataplane.ports.workers.are_alive() => Ok(()),
            None => Err(Error::WorkerGone),
        }
    }

    /// Routes the node's ports to Manx that belong to pods or are translated. A port is routed only after the tables
    /// contain it. The port of a health check stays the node's only at addresses where the agent itself listens. At
    /// other addresses it is routed to Manx, so that no other process gets its packets.
    fn lead_ports(&mut self) {
        if let Some(tables) = self.grant_ports() {
            self.dataplane.publish(tables, None);
        }
        let Self { view, host_ports, checks, .. } = self;
        let wanted = view.health_checks();
        let mut served = checks.served();
        served.retain(|at| wanted.contains_key(at));
        checks.serve(wanted);
        let ports = view.manx_ports(host_ports.granted(), served);
        if ports != self.led_ports {
            self.attachments.devices.reconcile_ports(&ports);
            self.led_ports = ports;
        }
    }

    /// Decides which ports of the node pods get. If this changes the services, returns the tables in use with the new
    /// services.
    fn grant_ports(&mut self) -> Option<Arc<Tables>> {
        let Self { inputs, view, attachments, calculated, host_ports, checks, .. } = self;
        if !view.cluster.in_sync {
            // It is unknown which pods request ports.
            return None;
        }
        let devices = &attachments.devices;
        let served = checks.served();
        let mut asked = view.asked_ports();
        // The agent's own socket will be closed, so it must not count as a process that owns the port.
        asked.retain(|key, _| {
            key.protocol != protocol::TCP
                || !served.contains(&SocketAddr::new(key.address.to_ip(), key.port))
        });
        if let Err(error) = host_ports.decide(&asked, || devices.used_ports()) {
            tracing::error!(%error, "no pod gets a port of the node (hostPort)");
        }
        let has_changed = view.grant_ports(inputs, host_ports.granted());
        has_changed.then(|| calculated.replace_services(view)).flatten()
    }

    fn read_reports(&mut self) {
        let Self { dataplane, calculated, attachments, .. } = self;
        let name = |owner: Owner| match owner.endpoint_index() {
            None if owner == Owner::NODE => "the node".to_owned(),
            None if owner.is_namespace() => "clients from outside".to_owned(),
            index => {
                let mut attached = attachments.attached();
                let pod = attached.find(|(_, pod)| Some(pod.local.index) == index);
                pod.map_or_else(|| "another pod".to_owned(), |(name, _)| format!("pod {name}"))
            }
        };
        let lost = dataplane.read_reports(&mut calculated.calculation, name);
        for (port, error) in lost {
            self.handle_lost_port(port, error);
        }
    }

    /// Handles a request. The reply is sent at once, or when the work for the request has ended.
    pub(super) fn handle(&mut self, PendingRequest { call, netns, answer }: PendingRequest) {
        let outcome = match call {
            Call::Attach(attach) => {
                let request = AttachRequest { attach, netns, maker: Maker::Agent, until: None };
                return self.submit(PodRequest::Attach(Box::new(request), answer));
            }
            Call::Reserve(attach) => {
                let request = AttachRequest { attach, netns, maker: Maker::Caller, until: None };
                return self.submit(PodRequest::Attach(Box::new(request), answer));
            }
            Call::HandOver => {
                let message =
                    "nothing is reserved on this connection: `reserve` comes before `hand-over`";
                Outcome::Reply(Err(Failure {
                    kind: ErrorKind::Invalid,
                    message: message.to_owned(),
                }))
            }
            Call::Detach(detach) => {
                return self.submit(PodRequest::Detach(Box::new(detach), answer));
            }
            Call::Attachments => Outcome::Reply(Ok(Reply::Attachments(self.list_attachments()))),
            Call::Ready => Outcome::Reply(self.check_ready().map(|()| Reply::Ready)),
            Call::Removed => Outcome::Reply(Ok(Reply::Removed(self.is_removed()))),
            Call::Status => Outcome::Reply(Ok(Reply::Status(Box::new(self.status())))),
            Call::Routes(around) => {
                Outcome::Reply(self.list_routes(around).map(|it| Reply::Routes(Box::new(it))))
            }
            Call::Explain(request) => self.explain(request),
            Call::Denials => {
                self.read_reports();
                Outcome::Reply(Ok(Reply::Denials(self.dataplane.denials.all())))
            }
            Call::Flows(point) => {
                self.read_reports();
                Outcome::Reply(Ok(Reply::Flows(Box::new(self.flows(point)))))
            }
            Call::Capture(what) => self.dataplane.capture(&what, &self.view.node),
        };
        // This fails if the client has gone.
        let _ = answer.send(outcome);
    }

    /// Explains a connection by the loaded objects and this agent's settings. It runs on another thread, because there may
    /// be very many objects.
    fn explain(&self, request: ExplainRequest) -> Outcome {
        let (contents, uplink) = (self.inputs.source.shared(), self.view.uplink.clone());
        let (translates, ipam) = (self.translates.clone(), self.ipam);
        Outcome::Deferred(Box::new(move || {
            let explainer = Explainer::with_ipam(&contents, &BTreeMap::new(), &uplink, ipam);
            let answer = match translates {
                Some(translates) => explainer.translated_by(translates).explain_all(&request),
                None => explainer.explain(&request),
            };
            let invalid = |message| Failure { kind: ErrorKind::Invalid, message };
            answer.map(|it| Reply::Explained(Box::new(it))).map_err(invalid)
        }))
    }

    /// Whether Manx was removed from the cluster: its service account is deleted.
    pub(super) fn is_removed(&self) -> bool {
        self.view.cluster.in_sync && self.inputs.is_account_deleted()
    }

    /// Reports to the cluster that this node's pods have a network, if the network is Manx's.
    pub(crate) fn tell_network_up(&self) {
        if self.attachments.network() == Network::Manx {
            self.inputs.source.tell_network_up();
        }
    }

    /// Reports to the cluster that this node's pods have no network any more; this takes a second at most. It is not done
    /// after Manx was removed, because the next plugin may never report that the network is up again.
    pub(crate) async fn tell_network_down(&self) {
        if self.attachments.network() == Network::Manx && !self.is_removed() {
            self.inputs.source.tell_network_down().await;
        }
    }

    /// Ends all changes of the leases. No file is written any more when this returns.
    pub(super) async fn close_leases(&self) {
        self.attachments.close_leases().await;
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let keeps_ports = self.inputs.has_account() && !self.is_removed();
        // If Manx is being removed, the peers get a notification. Otherwise the next agent will continue the sessions.
        if let Some(peering) = self.peering.take()
            && !self.is_removed()
        {
            peering.leave();
        }
        self.attachments.devices.remove_host(keeps_ports);
        if !keeps_ports {
            self.host_ports.forget();
        }
    }
}
