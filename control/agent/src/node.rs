//! The agent's state in three parts, and what each event does to them. One thread owns it; nothing in it is shared or
//! locked.
//!
//! - [`Datastore`]: the objects, and what they mean for this node. It knows no other part.
//! - [`Dataplane`]: workers, ports, and the tables that it makes of the datastore and of the pods that are attached.
//! - [`Attachments`]: the pods of this node, their addresses and devices, and device work under way. It knows no other
//!   part.
//!
//! What takes more than one part is here, in `pods`, in `succession`, in `status` and in `figures`.

mod attachments;
mod dataplane;
mod datastore;
mod figures;
mod pods;
mod ports;
mod status;
mod succession;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use ipnet::IpNet;
use tokio::sync::mpsc;

pub(super) use self::attachments::Done;
use self::attachments::{AttachRequest, Attachments, Maker, PodRequest};
use self::dataplane::Dataplane;
pub(super) use self::datastore::Datastore;
use self::datastore::are_api_servers_in;
use super::device_work::Completed;
use super::error::Error;
use super::holding::Legacy;
use super::server::{Outcome, PendingRequest};
use super::settings::{Network, Settings};
use super::uplink::{self, NextHops};
use manx_api::explain::ExplainRequest;
use manx_api::{Call, ErrorKind, Failure, Reply};
use manx_calculation::calc::NextStep;
use manx_calculation::topology::Reserved;
use manx_dataplane::flow::FlowRecordFile;
use manx_linux::netlink;
use manx_objects::contents::Changes;
use manx_observe::Observer;
use manx_observe::served::Served;

/// The agent.
pub(super) struct Agent {
    pub(super) datastore: Datastore,
    dataplane: Dataplane,
    attachments: Attachments,
    started: Instant,
    /// What the agent cannot go on after.
    failed: Option<Error>,
    /// Records of flows of the last agent, by its workers, until there are tables to judge them by.
    legacy: Option<BTreeMap<usize, FlowRecordFile>>,
    /// Which pages of health and metrics are served.
    served: Served,
}

impl Agent {
    /// Starts the workers and makes the node's own ports on the uplink, and attaches the pods of the last agent; then
    /// what the datastore says is in force. Workers begin when they have tables, flows and all ports: before that, a
    /// packet would be judged without one of these. If the datastore has not been read whole they begin without tables,
    /// and drop what comes.
    /// Returns the receiver of device work that has ended, too.
    pub(super) async fn start(
        settings: &Settings,
        datastore: Datastore,
        uplink: &netlink::Link,
        observer: &Observer,
    ) -> Result<(Self, mpsc::UnboundedReceiver<Completed<Done>>), Error> {
        let workers = settings.cores.len();
        let tunnels = match settings.network {
            Network::Manx => uplink::open(uplink, settings.packet_socket, workers)?,
            Network::OtherPlugin => uplink::unused(workers)?,
        };
        let blocks = &datastore.topology.blocks;
        let (attachments, own, completed) = Attachments::open(settings, blocks, uplink)?;
        let latencies = observer.latencies.clone();
        let dataplane = Dataplane::start(settings, tunnels, own, uplink.mtu, latencies)?;
        let started = Instant::now();
        let Legacy { devices, flows } = attachments.resume().await;
        let (failed, legacy, served) = (None, Some(flows), observer.served.clone());
        let mut agent = Self { datastore, dataplane, attachments, started, failed, legacy, served };
        let taken = agent.take_over(devices);
        agent.attachments.forget_others();
        agent.apply_topology();
        agent.publish();
        agent.serve(taken)?;
        agent.dataplane.ports.workers.begin();
        Ok((agent, completed))
    }

    /// Applies what has changed in the datastore. Returns whether the topology may have changed.
    pub(super) fn apply(&mut self, changes: &Changes) -> bool {
        let before = self.dataplane.tables.version;
        let changed = self.apply_changes(changes);
        self.dataplane.note_change(self.datastore.source.changed(), before);
        self.retry_early(Instant::now());
        changed
    }

    pub(super) fn apply_changes(&mut self, changes: &Changes) -> bool {
        let next = self.dataplane.apply_delta(&mut self.datastore, changes);
        let needs_tables = match next {
            NextStep::Nothing(_) | NextStep::Tables if are_api_servers_in(changes) => true,
            NextStep::Nothing(_) | NextStep::Tables => {
                let services = self.datastore.follow_services(changes, false);
                if services || matches!(next, NextStep::Tables) {
                    self.publish();
                }
                return false;
            }
            NextStep::Routes { tables, .. } => tables,
            NextStep::Import => {
                self.datastore.import();
                true
            }
        };
        if let Err(error) = self.datastore.place() {
            tracing::error!(%error, "the node cannot be placed; the routes stay as they were");
        }
        self.apply_topology();
        let needs_tables = self.datastore.follow_services(changes, true) || needs_tables;
        let locals = self.attachments.locals();
        if needs_tables || !self.dataplane.change_routes(&self.datastore, &locals) {
            self.publish();
        }
        true
    }

    /// Brings the node's own routes and tunnels up to date with the topology.
    fn apply_topology(&mut self) {
        self.dataplane.open_vxlan(&self.datastore);
        self.attachments.reconcile_host(&self.datastore.host());
    }

    fn publish(&mut self) {
        let tables = self.dataplane.calculate(&self.datastore, &self.attachments.locals());
        let Some(tables) = tables else { return };
        if let Some(flows) = self.legacy.take() {
            self.restore(flows, &tables);
        }
        self.dataplane.publish(tables);
    }

    /// Sets the next hops of the peers.
    pub(super) fn set_next_hops(&mut self, next_hops: NextHops) {
        self.dataplane.underlay.next_hops = next_hops;
        self.publish();
    }

    /// Sets the addresses that are no pod's.
    pub(super) fn set_reserved(&mut self, reserved: Reserved) {
        self.datastore.reserve(reserved);
        self.place_anew();
    }

    /// Sets the addresses that are the node's own.
    pub(super) fn set_own_addresses(&mut self, addresses: BTreeSet<IpNet>) {
        if self.datastore.set_own_addresses(addresses) {
            self.place_anew();
        }
    }

    fn place_anew(&mut self) {
        if let Err(error) = self.datastore.place() {
            tracing::error!(%error, "the node cannot be placed; the routes stay as they were");
        }
        self.apply_topology();
        self.publish();
    }

    /// Reads the workers' reports, and retries what has failed. `Err`: the agent cannot go on.
    pub(super) fn tick(&mut self, now: Instant) -> Result<(), Error> {
        self.read_reports();
        self.datastore.look_for_account();
        self.retry_early(now);
        self.dataplane.ports.restore_devices(now);
        if self.dataplane.vxlan_fault.message().is_some()
            && self.dataplane.open_vxlan(&self.datastore)
        {
            self.publish();
        }
        match self.failed.take() {
            Some(error) => Err(error),
            None if self.dataplane.ports.workers.are_alive() => Ok(()),
            None => Err(Error::WorkerGone),
        }
    }

    fn read_reports(&mut self) {
        while let Some((port, error)) = self.dataplane.read_reports() {
            self.handle_lost_port(port, error);
        }
    }

    /// Takes a request. Its reply follows at once, or when the work that it asks for has ended.
    pub(super) fn handle(&mut self, PendingRequest { call, netns, answer }: PendingRequest) {
        let outcome = match call {
            Call::Attach(attach) => {
                let request = AttachRequest { attach, netns, maker: Maker::Agent };
                return self.submit(PodRequest::Attach(Box::new(request), answer));
            }
            Call::Reserve(attach) => {
                let request = AttachRequest { attach, netns, maker: Maker::Caller };
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
            Call::Removed => Outcome::Reply(Ok(Reply::Removed(self.datastore.is_removed()))),
            Call::Status => Outcome::Reply(Ok(Reply::Status(Box::new(self.status())))),
            Call::Explain(request) => self.explain(request),
            Call::Denials => {
                self.read_reports();
                Outcome::Reply(Ok(Reply::Denials(self.dataplane.denials.all())))
            }
            Call::Flows(point) => {
                self.read_reports();
                Outcome::Reply(Ok(Reply::Flows(Box::new(self.flows(point)))))
            }
            Call::Capture(what) => self.dataplane.capture(&what, &self.datastore.node),
        };
        // A client that went away no longer waits.
        let _ = answer.send(outcome);
    }

    /// By the objects that the agent has loaded, on a thread of its own: there may be very many of them.
    fn explain(&self, request: ExplainRequest) -> Outcome {
        let (contents, uplink) = (self.datastore.source.shared(), self.datastore.uplink.clone());
        Outcome::Later(Box::new(move || {
            let answer =
                manx_analysis::explain::explain(&request, &contents, &BTreeMap::new(), &uplink);
            let invalid = |message| Failure { kind: ErrorKind::Invalid, message };
            answer.map(|it| Reply::Explained(Box::new(it))).map_err(invalid)
        }))
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.attachments.remove_host();
    }
}
