//! A path through Manx: one or two node agents, and pods that are attached through their sockets.

use std::collections::BTreeMap;
use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path as FilePath, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use manx_api::client::Client;
use manx_api::{Attach, PodName, Status};
use manx_dataplane::worker::Polling;
use manx_linux::netns::{self, sysctl};
use tempfile::TempDir;

use super::agent::{Agent, MANIFESTS};
use super::manifests::{self, Pod};
use super::services;
use super::shape::{Shape, Translation};
use crate::error::{Error, io};
use crate::host::namespaces;
use crate::path::constants::{ATTACKER, FAR, IPIP_OVERHEAD, MTU, NAMESPACE, TARGET};
use crate::path::ends::{Path, PathEnd, PathEnds};
use crate::path::links::{add_address, add_veth, forward_ipv4, named_namespace};
use crate::path::way::{NODE, OTHER_SERVICES, OUTSIDE, Way, on_link};

/// The name of the namespace of the host outside.
const OUTSIDE_NAME: &str = "outside";
/// The address of the pod [`FAR`]. No device has this address.
const FAR_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 244, 2, 200);

/// Agents, their pods, and the folder of their sockets, manifests and logs. The agents end when this value is dropped.
#[derive(Debug)]
pub struct Cluster {
    agents: Vec<Agent>,
    ends: PathEnds,
    /// The pods besides the two ends, by name.
    others: BTreeMap<String, PathEnd>,
    polling: Polling,
    folder: TempDir,
}

/// The namespace of an attacker, and the addresses that it attacks.
#[derive(Debug, Clone)]
pub struct Attack {
    /// The network namespace of its pod.
    pub netns: PathBuf,
    pub from: Ipv4Addr,
    /// The address of a pod on the attacker's node.
    pub near: Ipv4Addr,
    /// The address of a pod on the other node.
    pub far: Ipv4Addr,
}

impl Path for Cluster {
    fn ends(&self) -> &PathEnds {
        &self.ends
    }

    fn set_running(&self, running: bool) -> Result<(), Error> {
        self.agents.iter().try_for_each(|agent| agent.process.set_running(running))
    }
}

impl Cluster {
    /// Starts agents, attaches the pods, and waits until the agents enforce the policies.
    pub fn start(shape: Shape) -> Result<Self, Error> {
        let folder = start_datastore(&shape)?;
        let datastore = folder.path().join(MANIFESTS);
        let names: &[&str] =
            if shape.across.is_some() { &["node-1", "node-2"] } else { &["node-1"] };
        let mut agents = names
            .iter()
            .map(|name| Agent::start(folder.path(), name, shape, Some(name) == names.last()))
            .collect::<Result<Vec<_>, _>>()?;
        let last = agents.len() - 1;
        let mut pods = Vec::new();
        let mut end = |name: &str, node: usize| {
            let end = attach(folder.path(), &agents[node], name)?;
            pods.push(pod(name, node, &end));
            Ok::<_, Error>(end)
        };
        let ends = match shape.way() {
            None => PathEnds::new(end("left", 0)?, end("right", last)?),
            Some(way) => match way {
                Way::ClusterIp => PathEnds::new(end("left", 0)?, end("right", last)?),
                Way::NodePort => PathEnds::new(outside(folder.path())?, end("right", last)?),
                Way::Out => PathEnds::new(end("left", 0)?, outside(folder.path())?),
            }
            .by(way),
        };
        let mut others = BTreeMap::new();
        for name in other_pods(&shape) {
            let end = attach(folder.path(), &agents[0], &name)?;
            pods.push(pod(&name, 0, &end));
            others.insert(name, end);
        }
        if shape.attack {
            pods.push(Pod { name: FAR.to_owned(), node: 1, address: FAR_ADDRESS.into() });
        }
        let measured = shape.way().and_then(Way::service);
        if measured.is_some() {
            write(&datastore, "measured.yaml", &services::measured(ends.receiver.address))?;
        }
        // The agents are ready when they have at least this many frontends. (A node port adds one more.)
        let frontends = match shape.translation {
            Translation::Off => None,
            Translation::Unused | Translation::Used(_) => {
                Some(usize::from(OTHER_SERVICES) + usize::from(measured.is_some()))
            }
        };
        write(&datastore, "pods.yaml", &manifests::pods(&pods))?;
        for (index, agent) in agents.iter_mut().enumerate() {
            let own = pods.iter().filter(|pod| pod.node == index).count();
            agent.wait_until("it knows all pods and enforces its own", |status| {
                status.known_endpoints == pods.len()
                    && status.endpoints.len() == own
                    && status.endpoints.iter().all(|endpoint| endpoint.enforced)
                    && status.frontends >= frontends
            })?;
        }
        Ok(Self { agents, ends, others, polling: shape.polling, folder })
    }

    /// The namespace of the attacker, and the addresses that it attacks.
    ///
    /// # Errors
    /// Returns an error if the cluster has no attacker because its [shape](Shape::attack) has none.
    pub fn attack(&self) -> Result<Attack, Error> {
        let address = |name: &str| match self.others.get(name).map(|end| end.address) {
            Some(IpAddr::V4(address)) => Ok(address),
            found => Err(Error::Failed(format!("the pod {name} has {found:?}, expected IPv4"))),
        };
        let netns = self.folder.path().join(ATTACKER);
        Ok(Attack { netns, from: address(ATTACKER)?, near: address(TARGET)?, far: FAR_ADDRESS })
    }

    /// Whether the workers of its agents never sleep.
    pub fn is_busy(&self) -> bool {
        self.polling == Polling::Busy
    }

    /// The status of every agent.
    pub fn statuses(&self) -> Result<Vec<Status>, Error> {
        self.agents.iter().map(Agent::status).collect()
    }

    /// For each agent, the CPU time that it uses during `length`, as a share of one core, and its resident memory in
    /// MiB.
    pub fn usage(&self, length: Duration) -> Result<Vec<(f64, f64)>, Error> {
        let before = self.agents.iter().map(Agent::cpu_seconds).collect::<Result<Vec<_>, _>>()?;
        let start = Instant::now();
        thread::sleep(length);
        let elapsed = start.elapsed().as_secs_f64();
        let usage = |(agent, before): (&Agent, f64)| {
            Ok(((agent.cpu_seconds()? - before) / elapsed, agent.resident_mib()?))
        };
        self.agents.iter().zip(before).map(usage).collect()
    }
}

/// Prepares everything that the agents need: a folder with the manifests of everything except pods, the namespaces of
/// both nodes, and the link between them. Returns the folder.
pub(super) fn start_datastore(shape: &Shape) -> Result<TempDir, Error> {
    let folder = namespaces::temporary_folder()?;
    let datastore = folder.path().join(MANIFESTS);
    fs::create_dir(&datastore).map_err(io("no folder for the manifests"))?;
    write(&datastore, "cluster.yaml", &manifests::cluster(shape))?;
    if shape.translation != Translation::Off {
        write(&datastore, "services.yaml", &services::others())?;
    }
    connect_nodes(folder.path(), shape)?;
    Ok(folder)
}

/// Creates the namespaces of both nodes, or of one node and a host outside, and the link between them.
fn connect_nodes(folder: &FilePath, shape: &Shape) -> Result<(), Error> {
    let (peer, peer_address) = if shape.has_outside() {
        (OUTSIDE_NAME, OUTSIDE)
    } else {
        ("node-2", Ipv4Addr::new(172, 18, 0, 3))
    };
    let nodes = [named_namespace(folder, "node-1")?, named_namespace(folder, peer)?];
    // The MTU of a pod is the link's MTU minus a tunnel header. With both ends on one node, the link's MTU is larger,
    // so that pods have the same MTU as the ends of a kernel path.
    let mtu = if shape.across.is_some() { MTU } else { MTU + IPIP_OVERHEAD };
    add_veth(&nodes[0], "eth0", &nodes[1], "eth0", mtu)?;
    for (netns, address) in nodes.iter().zip([NODE, peer_address]) {
        add_address(netns, "eth0", on_link(address))?;
        forward_ipv4(netns)?;
        // An agent that translates refuses to start if this setting is 1, and a new namespace may inherit 1 from the
        // machine.
        netns::run_in(netns, || sysctl::set("ipv4/conf/all/rp_filter", "0"))??;
    }
    Ok(())
}

/// The host outside.
fn outside(folder: &FilePath) -> Result<PathEnd, Error> {
    Ok(PathEnd { netns: netns::open(&folder.join(OUTSIDE_NAME))?, address: OUTSIDE.into() })
}

/// The names of the pods on the first node other than the two ends.
fn other_pods(shape: &Shape) -> Vec<String> {
    let bystanders = (0..shape.bystanders).map(|index| format!("bystander-{index}"));
    let attack: &[&str] = if shape.attack { &[ATTACKER, TARGET] } else { &[] };
    bystanders.chain(attack.iter().map(|name| (*name).to_owned())).collect()
}

fn pod(name: &str, node: usize, end: &PathEnd) -> Pod {
    Pod { name: name.to_owned(), node, address: end.address }
}

/// Attaches a pod through the socket of an agent.
fn attach(folder: &FilePath, agent: &Agent, pod: &str) -> Result<PathEnd, Error> {
    let netns = named_namespace(folder, pod)?;
    let name = PodName { namespace: NAMESPACE.to_owned(), name: pod.to_owned() };
    let attach = Attach::new(name, folder.join(pod), "eth0");
    let attached = Client::connect(&agent.socket)?.attach(attach)?;
    match attached.addresses.first() {
        Some(address) => Ok(PathEnd { netns, address: *address }),
        None => Err(Error::Nothing(format!("no address for the pod {pod}"))),
    }
}

/// Writes a manifest as the directory store requires it: as a whole, by a rename.
pub(super) fn write(folder: &FilePath, name: &str, text: &str) -> Result<(), Error> {
    let hidden = folder.join(format!(".{name}.tmp"));
    fs::write(&hidden, text)
        .and_then(|()| fs::rename(&hidden, folder.join(name)))
        .map_err(io(format!("the manifest {name} cannot be written")))
}
