//! The cluster's process: builds everything inside the rig's namespaces, and keeps the processes and addresses that
//! probes need.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ipnet::IpNet;

use super::agent::{Agent, AgentError, LOOK, Start};
use super::deletion::{self, DeletionError};
use super::fault::Fault;
use super::pasta::PastaError;
use super::process::Process;
use super::setup::{HostPodState, NodeState, PodState, Setup, State};
use super::underlay::{self, Names};
use super::workdir::{Workdir, WorkdirError};
use super::{live, pasta, slices};
use crate::plan::addresses::{Addresses, addresses};
use crate::plan::error::PlanError;
use crate::plan::input::InputError;
use crate::plan::objects::Objects;
use crate::plan::policy_reference::PolicyReference;
use crate::plan::port::{HOST_PORTS, Port};
use crate::plan::prober::Prober;
use crate::plan::{Host, Plan, spec};
use manx_api::{Attached, PodName, Status};
use manx_datastore::Store;
use manx_linux::netlink;
use manx_linux::private;
use manx_objects::contents::Contents;
use manx_objects::object::{Kind, ObjectKey};

/// The time in which the agents must enforce the manifests.
const SYNC: Duration = Duration::from_secs(30);

/// The reason why a cluster cannot be built or cannot continue.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClusterError {
    /// No plan can be made from the objects.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The manifests cannot be used.
    #[error(transparent)]
    Input(#[from] InputError),
    /// The rig's folder cannot be used.
    #[error(transparent)]
    Workdir(#[from] WorkdirError),
    #[error("the rig's network cannot be built: {0}")]
    Underlay(#[from] netlink::Error),
    #[error(transparent)]
    Pasta(#[from] PastaError),
    #[error(transparent)]
    Agent(#[from] AgentError),
    /// A prober's process cannot be started.
    #[error("the process of {0} cannot be started: {1}")]
    Prober(Prober, std::io::Error),
    /// The agents do not enforce the manifests in time.
    #[error("the agents do not enforce the manifests after {SYNC:?}: {0}")]
    NotInSync(String),
    /// A deletion cannot be made.
    #[error(transparent)]
    Deletion(#[from] DeletionError),
    /// A change is not possible in a running rig.
    #[error(
        "{0} is new: a running rig takes no new nodes, pods or pools, only changes to those that it has; build it again with `manx rig run`"
    )]
    NewObject(String),
    /// A change of a pod's addresses is not possible in a running rig.
    #[error(
        "Pod {pod} has the address {address} now, and runs with {}: a running rig keeps its pods' addresses; build it again with `manx rig run`",
        .has.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
    )]
    OtherAddress {
        pod: PodName,
        /// The address in the changed object.
        address: IpAddr,
        /// The addresses that the pod has.
        has: Vec<IpAddr>,
    },
}

impl ClusterError {
    /// The cause of the error: the input, the environment, or Manx itself.
    pub(crate) fn fault(&self) -> Fault {
        match self {
            Self::Plan(_)
            | Self::Input(_)
            | Self::NewObject(_)
            | Self::OtherAddress { .. }
            | Self::Deletion(_) => Fault::Input,
            Self::Underlay(_) | Self::Pasta(_) => Fault::Environment,
            // An agent ends with the same exit codes as every command.
            Self::Agent(AgentError::Ended { status, .. }) => match status.code() {
                Some(2) => Fault::Input,
                Some(3) => Fault::Environment,
                _ => Fault::Own,
            },
            Self::Agent(AgentError::Call { source, .. })
                if source.kind() == manx_api::ErrorKind::Environment =>
            {
                Fault::Environment
            }
            Self::Workdir(_) | Self::Agent(_) | Self::Prober(..) | Self::NotInSync(_) => Fault::Own,
        }
    }
}

/// A cluster that is built.
#[derive(Debug)]
pub(crate) struct Cluster {
    /// The rig's folder.
    pub workdir: Workdir,
    /// The setup from which it is built.
    pub setup: Setup,
    pub plan: Plan,
    /// The addresses of all probers.
    pub addresses: Addresses,
    /// The processes of all probers.
    pub probers: BTreeMap<Prober, Arc<Process>>,
    /// The agents, in the order of the nodes' names.
    pub agents: Vec<Arc<Agent>>,
    /// The attachments of the pods.
    pub attached: BTreeMap<PodName, Attached>,
    objects: Objects,
}

impl Cluster {
    /// Builds the cluster. `progress` is called with the step, the number of parts that are done, and the number of all
    /// parts.
    pub(crate) async fn build(
        workdir: Workdir,
        mut progress: impl FnMut(&str, usize, usize),
    ) -> Result<Self, ClusterError> {
        let setup = Setup::read(&workdir)?;
        let objects = Objects::read(&workdir.manifests())?;
        let contents = Store::load(workdir.manifests());
        let plan = Plan::make(&contents, &setup.settings)?;
        let names = Names::new(&workdir.names());
        progress("network", 0, 1);
        underlay::build(&plan, &names).await?;
        for index in 0..plan.nodes.len() {
            private::make(&workdir.node(index)).map_err(WorkdirError::from)?;
        }
        if setup.pasta {
            pasta::connect(&plan, &names, &workdir).await?;
        }
        progress("network", 1, 1);
        let mut cluster = Self {
            addresses: Addresses::new(),
            probers: BTreeMap::new(),
            agents: Vec::new(),
            attached: BTreeMap::new(),
            workdir,
            setup,
            plan,
            objects,
        };
        cluster.place_pods()?;
        cluster.start_agents(&names)?;
        cluster.start_parties(&names, &mut progress).await?;
        cluster.attach_pods(&names, &mut progress).await?;
        progress("sync", 0, 1);
        cluster.wait_in_sync().await?;
        progress("sync", 1, 1);
        cluster.write_state()?;
        Ok(cluster)
    }

    /// Places pods as the scheduler does, before any agent reads them.
    fn place_pods(&mut self) -> Result<(), ClusterError> {
        for (name, pod) in &self.plan.pods {
            self.objects.place(name, &pod.node, &[]);
        }
        Ok(self.objects.write(&self.workdir.manifests())?)
    }

    fn start_agents(&mut self, names: &Names) -> Result<(), ClusterError> {
        let mut extra = self.setup.agent_arguments.clone();
        if self.plan.translates {
            extra.extend(["--services", "manx"].map(str::to_owned));
        }
        for (index, node) in self.plan.nodes.keys().enumerate() {
            let agent = Agent::start(&Start {
                node,
                netns: &names.node(index),
                manifests: &self.workdir.manifests(),
                socket: self.workdir.agent_socket(index),
                log: self.workdir.agent_log(index),
                extra: &extra,
            })?;
            self.agents.push(Arc::new(agent));
        }
        Ok(())
    }

    async fn start_parties(
        &mut self,
        names: &Names,
        progress: &mut impl FnMut(&str, usize, usize),
    ) -> Result<(), ClusterError> {
        let hosts: BTreeSet<Port> = HOST_PORTS.into();
        // A host also has addresses that are not of the underlay, and must answer a datagram from the address to which
        // it was sent.
        let at = |host: &Host| host.addresses.iter().map(IpNet::addr).collect();
        let outside: Vec<IpAddr> = at(&self.plan.outside);
        let mut wanted = vec![(Prober::Outside, names.outside(), hosts.clone(), outside)];
        for (index, (node, host)) in self.plan.nodes.iter().enumerate() {
            let on_node = self.plan.host_pods.values().filter(|pod| pod.node == *node);
            let ports = on_node.flat_map(|pod| &pod.ports).chain(&hosts).copied().collect();
            wanted.push((Prober::Node(node.clone()), names.node(index), ports, at(host)));
        }
        for (index, (pod, planned)) in self.plan.pods.iter().enumerate() {
            let prober = Prober::Pod(pod.clone());
            wanted.push((prober, names.pod(index), planned.ports.clone(), Vec::new()));
        }
        let total = wanted.len();
        for (index, (prober, netns, ports, at)) in wanted.into_iter().enumerate() {
            progress("pods", index, total);
            let process = Process::start(&prober, &netns, (&ports, &at), &self.workdir.log())
                .await
                .map_err(|error| ClusterError::Prober(prober.clone(), error))?;
            self.probers.insert(prober, Arc::new(process));
        }
        for pod in self.plan.host_pods.keys() {
            let prober = Prober::Pod(pod.clone());
            if let Some(process) = self.probers.get(&self.plan.acting(&prober)).cloned() {
                self.probers.insert(prober, process);
            }
        }
        progress("pods", total, total);
        Ok(())
    }

    async fn attach_pods(
        &mut self,
        names: &Names,
        progress: &mut impl FnMut(&str, usize, usize),
    ) -> Result<(), ClusterError> {
        for (index, agent) in self.agents.iter().enumerate() {
            progress("agents", index, self.agents.len());
            agent.wait_up().await?;
        }
        let total = self.plan.pods.len();
        for (index, (name, pod)) in self.plan.pods.iter().enumerate() {
            progress("attach", index, total);
            let Some(agent) = self.agents.iter().find(|agent| agent.node() == pod.node) else {
                let (pod, node) = (name.clone(), pod.node.clone());
                return Err(PlanError::UnknownNode { pod, node }.into());
            };
            let attached = agent.attach(name, &names.pod(index), &pod.addresses).await?;
            if let Some(id) = self.objects.place(name, &pod.node, &attached.addresses) {
                live::write(&self.workdir.manifests(), &id, &self.objects.0[&id])?;
            }
            self.attached.insert(name.clone(), attached);
        }
        self.fill_slices()?;
        progress("attach", total, total);
        let pods: BTreeMap<PodName, Vec<IpAddr>> =
            self.attached.iter().map(|(pod, a)| (pod.clone(), a.addresses.clone())).collect();
        self.addresses = addresses(&self.plan, &pods);
        Ok(())
    }

    /// Waits until every agent enforces the current live manifests.
    async fn wait_in_sync(&self) -> Result<(), ClusterError> {
        let datastore = format!("{:016x}", Store::load(self.workdir.manifests()).fingerprint);
        let deadline = tokio::time::Instant::now() + SYNC;
        loop {
            let mut missing = None;
            for agent in &self.agents {
                agent.check_alive()?;
                missing = lack(&agent.status().await?, self.plan.pods.len(), &datastore);
                if missing.is_some() {
                    break;
                }
            }
            match missing {
                None => return Ok(()),
                Some(what) if tokio::time::Instant::now() > deadline => {
                    return Err(ClusterError::NotInSync(what));
                }
                Some(_) => tokio::time::sleep(LOOK).await,
            }
        }
    }

    fn write_state(&self) -> Result<(), ClusterError> {
        let built = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let of = |prober: &Prober| self.addresses.get(prober).cloned().unwrap_or_default();
        let nodes = self.plan.nodes.keys().enumerate().map(|(index, name)| NodeState {
            name: name.clone(),
            addresses: of(&Prober::Node(name.clone())),
            socket: self.workdir.agent_socket(index),
        });
        let pods = self.plan.pods.iter().filter_map(|(name, pod)| {
            let attached = self.attached.get(name)?;
            let (name, node) = (name.clone(), pod.node.clone());
            let addresses = attached.addresses.clone();
            Some(PodState { name, node, addresses, device: attached.device })
        });
        let host_pods = self
            .plan
            .host_pods
            .iter()
            .map(|(name, pod)| HostPodState { name: name.clone(), node: pod.node.clone() });
        let state = State {
            name: self.workdir.name().to_owned(),
            source: self.setup.source.clone(),
            built_s: built.as_secs(),
            nodes: nodes.collect(),
            pods: pods.collect(),
            host_pods: host_pods.collect(),
            outside: of(&Prober::Outside),
        };
        Ok(state.write(&self.workdir)?)
    }

    /// All objects for the oracle: those that the agents see, and those that are withheld from them.
    pub(crate) fn contents(&self) -> Contents {
        let mut contents = Store::load(self.workdir.manifests());
        for (key, stored) in Store::load(self.workdir.withheld()).objects {
            contents.objects.entry(key).or_insert(stored);
        }
        contents
    }

    /// Applies changed objects and waits until the agents enforce them.
    pub(crate) async fn apply(&mut self, changed: Objects) -> Result<(), ClusterError> {
        self.check_addresses(&changed)?;
        let is_new = |id: &&ObjectKey| {
            !self.objects.0.contains_key(*id)
                && matches!(id.kind, Kind::Node | Kind::Pod | Kind::IpPool)
        };
        if let Some(id) = changed.0.keys().find(is_new) {
            return Err(ClusterError::NewObject(id.to_string()));
        }
        for (id, object) in changed.0 {
            let pod = PodName { namespace: id.namespace.clone(), name: id.name.clone() };
            self.objects.0.insert(id.clone(), object);
            if let Some(planned) = self.plan.pods.get(&pod).filter(|_| id.kind == Kind::Pod) {
                let addresses = self.attached.get(&pod).map(|a| a.addresses.as_slice());
                self.objects.place(&pod, &planned.node, addresses.unwrap_or_default());
            }
            if let Some(host) = self.plan.host_pods.get(&pod).filter(|_| id.kind == Kind::Pod) {
                self.objects.place(&pod, &host.node, &[]);
            }
            live::write(&self.workdir.manifests(), &id, &self.objects.0[&id])?;
        }
        self.fill_slices()?;
        self.wait_in_sync().await
    }

    /// Deletes the named objects and waits until the agents no longer enforce them. Returns the deleted objects.
    pub(crate) async fn delete(
        &mut self,
        references: &[PolicyReference],
    ) -> Result<BTreeSet<ObjectKey>, ClusterError> {
        let keys = deletion::find(&self.objects, references)?;
        for key in &keys {
            live::remove(&self.workdir.manifests(), key)?;
            self.objects.0.remove(key);
        }
        self.fill_slices()?;
        self.wait_in_sync().await?;
        Ok(keys)
    }

    /// Checks that changed pods keep the addresses with which they run. A changed object may leave out its addresses.
    fn check_addresses(&self, changed: &Objects) -> Result<(), ClusterError> {
        for (pod, spec) in spec::pods(&changed.contents()) {
            let Some(has) = self.attached.get(&pod).map(|attached| &attached.addresses) else {
                continue;
            };
            if let Some(address) = spec.addresses.into_iter().find(|it| !has.contains(it)) {
                return Err(ClusterError::OtherAddress { pod, address, has: has.clone() });
            }
        }
        Ok(())
    }

    /// Updates the slices as the endpoint slice controller does: the endpoints of the services are the pods that they
    /// select now.
    fn fill_slices(&mut self) -> Result<(), ClusterError> {
        let folder = self.workdir.manifests();
        let (slices, stale) = slices::endpoint_slices(&self.objects);
        for id in stale {
            self.objects.0.remove(&id);
            live::remove(&folder, &id)?;
        }
        for (id, slice) in slices.0 {
            if self.objects.0.get(&id) != Some(&slice) {
                live::write(&folder, &id, &slice)?;
                self.objects.0.insert(id, slice);
            }
        }
        Ok(())
    }
}

/// The reason why an agent does not yet enforce these manifests with this many pods; `None` if it does.
fn lack(status: &Status, pods: usize, datastore: &str) -> Option<String> {
    let node = &status.node;
    if !status.in_sync {
        return Some(format!("node {node} has not read the manifests yet"));
    }
    if status.datastore != datastore {
        return Some(format!("node {node} has not published the manifests as they stand"));
    }
    if status.known_endpoints != pods {
        let known = status.known_endpoints;
        return Some(format!("node {node} knows {known} of {pods} pods: {:?}", status.invalid));
    }
    let waiting = status.endpoints.iter().find(|endpoint| !endpoint.enforced)?;
    Some(format!("node {node} does not enforce {} yet", waiting.pod))
}
