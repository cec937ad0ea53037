//! The agent: inputs → [`settle`](Agent::settle) → outputs. One thread owns it; nothing in it is shared or locked.
//!
//! - [`Inputs`]: what the sources have told, and what of it is not settled yet.
//! - [`Attachments`]: the pods of this node, each in one state, and the work for them under way: the input that the agent
//!   itself makes.
//! - [`View`]: what the inputs mean for this node.
//! - [`Calculated`]: the tables in use, and what they were calculated of.
//! - [`Dataplane`]: workers and ports, and what they report.
//!
//! Each event of the control loop writes into the first two, and what follows for the others is settled after it. `status`
//! and `figures` read all of it.

mod attach;
mod attachments;
mod calculated;
mod dataplane;
mod detach;
mod figures;
mod inputs;
mod node_devices;
mod pod_request;
mod pod_state;
mod pod_walk;
mod pods;
mod ports;
mod restart;
mod routes;
mod settle;
mod status;
mod view;

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::net::Ipv4Addr;
use std::time::Instant;

use tokio::sync::{mpsc, watch};

use self::attachments::Attachments;
pub(super) use self::attachments::Done;
use self::calculated::Calculated;
use self::dataplane::Dataplane;
pub(super) use self::inputs::Inputs;
use self::pod_request::{AttachRequest, Maker, PodRequest};
use self::settle::{Settled, settle};
pub(super) use self::view::View;
use super::error::Error;
use super::holding::LastAgent;
use super::pod_work::Completed;
use super::server::{Outcome, PendingRequest};
use super::settings::{Network, Settings};
use super::uplink;
use manx_api::explain::ExplainRequest;
use manx_api::{Call, ErrorKind, Failure, Reply};
use manx_dataplane::flow::FlowRecordFile;
use manx_linux::netlink;
use manx_observe::Observer;
use manx_observe::served::Served;

/// The agent.
pub(super) struct Agent {
    pub(super) inputs: Inputs,
    pub(super) view: View,
    attachments: Attachments,
    calculated: Calculated,
    dataplane: Dataplane,
    /// The nodes to which there is an IPIP tunnel: somebody looks for the next hops to them.
    peers: watch::Sender<BTreeSet<Ipv4Addr>>,
    started: Instant,
    /// What the agent cannot go on after.
    failed: Option<Error>,
    /// Records of flows of the last agent, by its workers, until there are tables to judge them by.
    last_flows: Option<BTreeMap<usize, FlowRecordFile>>,
    /// Which pages of health and metrics are served.
    served: Served,
}

impl Agent {
    /// Starts the workers and makes the node's own ports on the uplink, and attaches the pods of the last agent; then
    /// what the inputs say is in force. Workers begin when they have tables, flows and all ports: before that, a
    /// packet would be judged without one of these. If the objects have not been read whole they begin without tables,
    /// and drop what comes.
    /// Returns the receiver of work for pods that has ended, too.
    pub(super) async fn start(
        settings: &Settings,
        (inputs, view): (Inputs, View),
        uplink: &netlink::Link,
        observer: &Observer,
    ) -> Result<(Self, mpsc::UnboundedReceiver<Completed<Done>>), Error> {
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
        let calculated =
            Calculated::new(own, settings.connections, settings.verify_tables, latencies);
        let LastAgent { devices, flows } = attachments.resume().await;
        let mut agent = Self {
            inputs,
            view,
            attachments,
            calculated,
            dataplane,
            peers: watch::Sender::default(),
            started: Instant::now(),
            failed: None,
            last_flows: Some(flows),
            served: observer.served.clone(),
        };
        let taken = agent.take_over(devices);
        agent.attachments.set_left_apart().await;
        agent.settle(Instant::now());
        agent.serve(taken)?;
        agent.dataplane.ports.workers.begin();
        Ok((agent, completed))
    }

    /// The nodes to which there is an IPIP tunnel, now and later.
    pub(super) fn peers(&self) -> watch::Receiver<BTreeSet<Ipv4Addr>> {
        self.peers.subscribe()
    }

    /// Does all that follows from the last changes, and sends the replies that wait for it. The control loop calls this once
    /// a turn, after the event.
    pub(super) fn settle(&mut self, now: Instant) {
        let before = self.calculated.tables.version;
        let Self { inputs, view, attachments, calculated, dataplane, .. } = self;
        let settled = settle(
            inputs,
            view,
            calculated,
            &attachments.locals(),
            |view| attachments.devices.reconcile_host(&view.host()),
            |view| dataplane.open_vxlan(view),
        );
        let Settled { placed, tables, received } = settled;
        if let Some(tables) = tables {
            if let Some(flows) = self.last_flows.take() {
                self.restore(flows, &tables);
            }
            self.dataplane.ports.workers.publish(&tables);
        }
        if let Some(received) = received {
            self.dataplane.note_change(received, before, self.calculated.tables.version);
        }
        self.look_for_expected(now);
        self.attachments.send_replies();
        self.end_leaving();
        if placed {
            let peers = self.view.ipip_peers();
            self.peers.send_if_modified(|known| mem::replace(known, peers) != *known);
        }
    }

    /// Reads the workers' reports, and retries what has failed. `Err`: the agent cannot go on.
    pub(super) fn tick(&mut self, now: Instant) -> Result<(), Error> {
        self.read_reports();
        self.inputs.look_for_account();
        self.dataplane.ports.restore_devices(now);
        if self.dataplane.vxlan_fault.message().is_some() {
            self.inputs.retry_socket();
        }
        match self.failed.take() {
            Some(error) => Err(error),
            None if self.dataplane.ports.workers.are_alive() => Ok(()),
            None => Err(Error::WorkerGone),
        }
    }

    fn read_reports(&mut self) {
        let Self { dataplane, calculated, .. } = self;
        let lost = dataplane.read_reports(&mut calculated.calculation);
        for (port, error) in lost {
            self.handle_lost_port(port, error);
        }
    }

    /// Takes a request. Its reply follows at once, or when the work that it asks for has ended.
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
        // A client that went away no longer waits.
        let _ = answer.send(outcome);
    }

    /// By the objects that the agent has loaded, on a thread of its own: there may be very many of them.
    fn explain(&self, request: ExplainRequest) -> Outcome {
        let (contents, uplink) = (self.inputs.source.shared(), self.view.uplink.clone());
        Outcome::Later(Box::new(move || {
            let answer =
                manx_analysis::explain::explain(&request, &contents, &BTreeMap::new(), &uplink);
            let invalid = |message| Failure { kind: ErrorKind::Invalid, message };
            answer.map(|it| Reply::Explained(Box::new(it))).map_err(invalid)
        }))
    }

    /// Whether Manx is gone from the cluster: its service account was deleted.
    pub(super) fn is_removed(&self) -> bool {
        self.view.cluster.in_sync && self.inputs.is_account_deleted()
    }

    /// Tells the cluster that this node's pods have a network, where that is Manx's.
    pub(crate) fn tell_network_up(&self) {
        if self.attachments.network() == Network::Manx {
            self.inputs.source.tell_network_up();
        }
    }

    /// Tells the cluster that this node's pods have none any more, a second at most. Where Manx is gone from the cluster,
    /// another plugin may come that never tells that there is one.
    pub(crate) async fn tell_network_down(&self) {
        if self.attachments.network() == Network::Manx && !self.is_removed() {
            self.inputs.source.tell_network_down().await;
        }
    }

    /// Ends all changes of the leases: no file is written any more when this returns.
    pub(super) async fn close_leases(&self) {
        self.attachments.close_leases().await;
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.attachments.devices.remove_host();
    }
}
