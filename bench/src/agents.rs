//! Paths through Manx: the real node agent in a process of its own for each node, pods attached through its socket.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path as FilePath, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;
use manx::node::{self, Node};
use manx_api::client::Client;
use manx_api::{Attach, Device, PodName, Status};
use manx_dataplane::worker::Polling;
use manx_linux::netns::{self, sysctl};
use tempfile::TempDir;

use crate::cores::Cores;
use crate::error::{Error, errno, io};
use crate::kernel;
use crate::manifests::{self, NAMESPACE, Pod};
use crate::path::{Between, End, Path};
use crate::process::{self, Process, tail};
use crate::world;

/// The word by which a program of this crate starts itself as an agent.
pub const AGENT: &str = "agent";
/// How long an agent may take to come up, and to enforce what it was given.
const PATIENCE: Duration = Duration::from_secs(20);
/// The attacker, and the pod beside it that it may send to.
pub const ATTACKER: &str = "attacker";
const TARGET: &str = "target";
/// A pod of the second node that the attacker may send to. Nobody has the address.
const FAR: (&str, Ipv4Addr) = ("far", Ipv4Addr::new(10, 244, 2, 200));
/// An IPv4 header.
const IPIP_OVERHEAD: u32 = 20;

/// An agent's own command line: `manx node`'s, and the namespace of its node.
#[derive(Debug, Parser)]
#[command(name = AGENT)]
struct Arguments {
    /// The node's network namespace
    #[arg(long)]
    netns: PathBuf,
    #[command(flatten)]
    node: Node,
}

/// Runs as an agent, with the arguments that [`Cluster`] gave; returns when it ends. Call before any thread exists.
pub fn run_agent(arguments: impl Iterator<Item = String>) -> Result<(), String> {
    let arguments = Arguments::parse_from(arguments);
    process::end_with_parent().map_err(|error| error.to_string())?;
    let netns = netns::open(&arguments.netns).map_err(|error| error.to_string())?;
    netns::enter(&netns).map_err(|error| error.to_string())?;
    node::run(&arguments.node).map_err(|error| error.to_string())
}

/// An encapsulation between nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Overlay {
    /// IPIP.
    Ipip,
    /// VXLAN.
    Vxlan,
}

/// What a cluster is like.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// What is between the pods if they are on two nodes; `None`: they are on one.
    pub across: Option<Overlay>,
    /// Pods on the first node besides the two ends.
    pub bystanders: usize,
    /// How many rules the policies hold besides the one that allows the traffic.
    pub rules: usize,
    /// How pods are attached.
    pub device: Device,
    /// What workers without packets do.
    pub polling: Polling,
    /// How many workers each agent has.
    pub workers: usize,
    /// Where the workers run.
    pub cores: Cores,
    /// Whether there is an attacker on the first node, with a pod beside it and one on the second node that it may send to. If
    /// the ends are on one node, nobody is on the second one: what arrives there is dropped.
    pub attack: bool,
}

impl Shape {
    /// The two ends alone on one node, by TUN, one worker.
    pub const fn one_node(rules: usize, cores: Cores) -> Self {
        let (device, polling) = (Device::Tun, Polling::Adaptive);
        let (workers, attack) = (1, false);
        Self { across: None, bystanders: 0, rules, device, polling, workers, cores, attack }
    }
}

/// Agents, and the folder of their sockets, manifests and logs. They end when it is dropped.
#[derive(Debug)]
pub struct Cluster {
    folder: TempDir,
    agents: Vec<Agent>,
    /// Pods besides the two ends, by name.
    others: BTreeMap<String, End>,
    polling: Polling,
}

/// Whence and where an attacker sends.
#[derive(Debug, Clone)]
pub struct Attack {
    /// The network namespace of its pod.
    pub netns: PathBuf,
    /// Its address.
    pub from: Ipv4Addr,
    /// A pod on the same node.
    pub near: Ipv4Addr,
    /// A pod on the other node.
    pub far: Ipv4Addr,
}

#[derive(Debug)]
struct Agent {
    process: Process,
    socket: PathBuf,
    log: PathBuf,
}

/// A path from one pod to another, policy on.
pub fn path(shape: Shape) -> Result<Path, Error> {
    let folder = world::folder()?;
    let datastore = folder.path().join("manifests");
    fs::create_dir(&datastore).map_err(io("no folder for the manifests"))?;
    write(&datastore, "cluster.yaml", &manifests::cluster(&shape))?;
    let nodes = [kernel::named(folder.path(), "node-1")?, kernel::named(folder.path(), "node-2")?];
    // Pods get what is left beside a tunnel header. On one node they are to have the same MTU as the kernel's ends.
    let mtu = if shape.across.is_some() { kernel::MTU } else { kernel::MTU + IPIP_OVERHEAD };
    kernel::veth(&nodes[0], "eth0", &nodes[1], "eth0", mtu)?;
    for (netns, host) in nodes.iter().zip([2, 3]) {
        kernel::address(netns, "eth0", kernel::net(172, 18, 0, host, 24))?;
        netns::run_in(netns, || sysctl::set("ipv4/ip_forward", "1"))??;
    }
    let names: &[&str] = if shape.across.is_some() { &["node-1", "node-2"] } else { &["node-1"] };
    let agents = names
        .iter()
        .map(|name| Agent::start(&folder, name, shape, Some(name) == names.last()))
        .collect::<Result<Vec<_>, _>>()?;
    let (others, polling) = (BTreeMap::new(), shape.polling);
    let mut cluster = Cluster { folder, agents, others, polling };
    let (from, to) = cluster.populate(&shape)?;
    Ok(Path { from, to, between: Between::Manx(Box::new(cluster)) })
}

/// Writes a manifest as the directory store asks for: whole, by a rename.
fn write(folder: &FilePath, name: &str, text: &str) -> Result<(), Error> {
    let hidden = folder.join(format!(".{name}.tmp"));
    fs::write(&hidden, text)
        .and_then(|()| fs::rename(&hidden, folder.join(name)))
        .map_err(io(format!("the manifest {name} cannot be written")))
}

impl Agent {
    fn start(
        folder: &TempDir,
        name: &str,
        shape: Shape,
        holds_receiver: bool,
    ) -> Result<Self, Error> {
        let socket = folder.path().join(format!("{name}.sock"));
        let log = folder.path().join(format!("{name}.log"));
        let out = File::create(&log).map_err(io("no log for the agent"))?;
        let error = out.try_clone().map_err(io("no log for the agent"))?;
        let mut command = Command::new("/proc/self/exe");
        command.arg(AGENT).arg("--netns").arg(folder.path().join(name));
        command.args(["--name", name, "--uplink", "eth0"]);
        command.arg("--datastore").arg(folder.path().join("manifests"));
        command.arg("--socket").arg(&socket);
        command.args(match shape.device {
            Device::Tun => ["--pod-device", "tun"],
            Device::Veth => ["--pod-device", "veth"],
        });
        command.args(match shape.polling {
            Polling::Adaptive => ["--poll", "adaptive"],
            Polling::Busy => ["--poll", "busy"],
        });
        command.args(["--workers", &shape.workers.to_string()]);
        let cores = shape.cores.of_workers(holds_receiver, shape.workers);
        if !cores.is_empty() {
            let cores: Vec<String> = cores.iter().map(ToString::to_string).collect();
            command.args(["--pin", &cores.join(",")]);
        }
        // What the user has set for agents of his own is not for these.
        for (name, _) in std::env::vars_os() {
            if name.as_encoded_bytes().starts_with(b"MANX_") {
                command.env_remove(name);
            }
        }
        let process = Process::start(command.stdin(Stdio::null()).stdout(out).stderr(error))?;
        let mut agent = Self { process, socket, log };
        agent.wait_until("its datastore is read", |status| status.in_sync)?;
        Ok(agent)
    }

    fn status(&self) -> Result<Status, Error> {
        Ok(Client::connect(&self.socket)?.status()?)
    }

    fn wait_until(&mut self, what: &str, ready: impl Fn(&Status) -> bool) -> Result<(), Error> {
        let start = Instant::now();
        loop {
            if self.status().is_ok_and(|status| ready(&status)) {
                return Ok(());
            }
            let ended = self.process.ended()?;
            if ended.is_some() || start.elapsed() > PATIENCE {
                return Err(Error::Process {
                    what: match ended {
                        Some(status) => format!("the agent ended before {what}: {status}"),
                        None => format!("an agent does not come so far that {what}"),
                    },
                    log: tail(&self.log),
                });
            }
            thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Cluster {
    /// Attaches the pods of the agents' nodes, and waits until the agents enforce what is written of all.
    fn populate(&mut self, shape: &Shape) -> Result<(End, End), Error> {
        let last = self.agents.len() - 1;
        let from = self.attach("left", 0)?;
        let to = self.attach("right", last)?;
        let pod = |name: &str, node, address| Pod { name: name.to_owned(), node, address };
        let mut pods = vec![pod("left", 0, from.address), pod("right", last, to.address)];
        let bystanders = (0..shape.bystanders).map(|index| format!("bystander-{index}"));
        let mut others: Vec<String> = bystanders.collect();
        if shape.attack {
            others.extend([ATTACKER, TARGET].map(str::to_owned));
            pods.push(pod(FAR.0, 1, FAR.1.into()));
        }
        for name in others {
            let end = self.attach(&name, 0)?;
            pods.push(pod(&name, 0, end.address));
            self.others.insert(name, end);
        }
        write(&self.folder.path().join("manifests"), "pods.yaml", &manifests::pods(&pods))?;
        for (index, agent) in self.agents.iter_mut().enumerate() {
            let own = pods.iter().filter(|pod| pod.node == index).count();
            agent.wait_until("it knows all pods and enforces its own", |status| {
                status.known_endpoints == pods.len()
                    && status.endpoints.len() == own
                    && status.endpoints.iter().all(|endpoint| endpoint.enforced)
            })?;
        }
        Ok((from, to))
    }

    fn attach(&self, pod: &str, agent: usize) -> Result<End, Error> {
        let netns = kernel::named(self.folder.path(), pod)?;
        let attached = Client::connect(&self.agents[agent].socket)?.attach(Attach {
            pod: PodName { namespace: NAMESPACE.to_owned(), name: pod.to_owned() },
            netns: self.folder.path().join(pod),
            interface: "eth0".to_owned(),
        })?;
        match attached.addresses.first() {
            Some(address) => Ok(End { netns, address: *address }),
            None => Err(Error::Nothing(format!("no address for the pod {pod}"))),
        }
    }

    /// Where an attacker starts, and whom it may send to: beside it, and on the other node.
    ///
    /// # Errors
    /// [`Shape::attack`] was not asked for.
    pub fn attack(&self) -> Result<Attack, Error> {
        let address = |name: &str| match self.others.get(name).map(|end| end.address) {
            Some(IpAddr::V4(address)) => Ok(address),
            found => Err(Error::Failed(format!("the pod {name} has {found:?}, expected IPv4"))),
        };
        let netns = self.folder.path().join(ATTACKER);
        Ok(Attack { netns, from: address(ATTACKER)?, near: address(TARGET)?, far: FAR.1 })
    }

    /// Whether its workers never sleep.
    pub fn is_busy(&self) -> bool {
        self.polling == Polling::Busy
    }

    /// Lets the agents run, or halts them.
    pub fn let_run(&self, run: bool) -> Result<(), Error> {
        self.agents.iter().try_for_each(|agent| agent.process.let_run(run))
    }

    /// What every agent says of itself.
    pub fn statuses(&self) -> Result<Vec<Status>, Error> {
        self.agents.iter().map(Agent::status).collect()
    }

    /// The share of a core that each agent uses over `length`, and its resident memory in MiB.
    pub fn usage(&self, length: Duration) -> Result<Vec<(f64, f64)>, Error> {
        let before = self.agents.iter().map(cpu_seconds).collect::<Result<Vec<_>, _>>()?;
        let start = Instant::now();
        thread::sleep(length);
        let elapsed = start.elapsed().as_secs_f64();
        self.agents
            .iter()
            .zip(before)
            .map(|(agent, before)| {
                Ok(((cpu_seconds(agent)? - before) / elapsed, resident_mib(agent)?))
            })
            .collect()
    }
}

/// User and system time of the process (`proc(5)`, stat: fields 14 and 15, in ticks).
fn cpu_seconds(agent: &Agent) -> Result<f64, Error> {
    let text = proc_file(agent, "stat")?;
    // The name in parentheses may hold spaces; fields are counted after it, from 3.
    let fields: Vec<&str> =
        text.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace().collect();
    let ticks = |field: usize| fields.get(field - 3).and_then(|text| text.parse::<f64>().ok());
    let hertz = nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK)
        .map_err(errno("the length of a tick is unknown"))?
        .unwrap_or(100);
    Ok((ticks(14).unwrap_or(0.0) + ticks(15).unwrap_or(0.0)) / hertz as f64)
}

fn resident_mib(agent: &Agent) -> Result<f64, Error> {
    let text = proc_file(agent, "status")?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
    Ok(kib.unwrap_or(0.0) / 1024.0)
}

fn proc_file(agent: &Agent, name: &str) -> Result<String, Error> {
    let path = format!("/proc/{}/{name}", agent.process.id());
    fs::read_to_string(&path).map_err(io(path.clone()))
}
