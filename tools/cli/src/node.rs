//! `manx node`: the node agent's settings.

use std::env;
use std::path::PathBuf;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand, ValueEnum};
use ipnet::IpNet;

use manx_dataplane::flow::MAX_WORKERS;
use manx_dataplane::tables::{self, TrackingSettings};
use manx_dataplane::worker::Polling;

use super::datastore::DatastoreOptions;
use super::log::{self, LogFormat};
use super::node_address::AddressOptions;
use super::node_status::NodeStatus;
use super::observed::{self, ObserveOptions};
use super::values::{EGRESS_PORTS, NODE_PORTS, egress_ports, net, node_ports};
use super::{Error, socket, supervise};
use manx_agent::pod_device::Preference;
use manx_agent::settings::{self, ManxTranslationSettings, Network, PortRange, PortRanges};
use manx_api::Device;

/// The variable by which Calico's manifests choose how nodes learn routes.
const BACKEND: &str = "CALICO_NETWORKING_BACKEND";

/// A request to a running agent. Without such a command `manx node` is the agent.
#[derive(Debug, Clone, Subcommand)]
pub enum NodeCommand {
    /// Show the node's BGP sessions, as `calicoctl node status` does, and why a session is down
    ///
    /// Exit code 0: every session is established, or there is none; 1: a session is not; 3: no
    /// agent answers.
    Status(NodeStatus),
}

/// The settings of the node agent.
#[derive(Debug, Clone, Args)]
#[command(args_conflicts_with_subcommands = true)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of its own")]
pub struct Node {
    #[command(subcommand)]
    #[expect(missing_docs, reason = "clap would take it for the command's own description")]
    pub command: Option<NodeCommand>,
    /// Name of this node's Node object [env: also `MANX_NAME`]
    #[arg(long, env = "NODENAME", value_name = "NODE")]
    pub name: Option<String>,
    #[command(flatten)]
    #[expect(missing_docs, reason = "clap would take it for the command's own description")]
    pub datastore: DatastoreOptions,
    #[command(flatten)]
    #[expect(missing_docs, reason = "clap would take it for the command's own description")]
    pub observe: ObserveOptions,
    /// Socket for attach, detach and status [default: NODE.sock in the runtime folder]
    ///
    /// The runtime folder is /run/manx for root, and manx in `$XDG_RUNTIME_DIR` for other users.
    #[arg(long, env = "MANX_SOCKET", value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Wait for the end of an agent that listens at the socket, and take its place
    ///
    /// Without this flag the agent does not start beside another one.
    #[arg(long, env = "MANX_STANDBY")]
    pub standby: bool,
    /// Be process 1 of a container: start the agent as a child process, and again at once when it
    /// is killed or fails
    ///
    /// If an agent cannot start at all, because of its settings or the machine, this process ends
    /// with the agent's exit code.
    #[arg(long, env = "MANX_SUPERVISE")]
    pub supervise: bool,
    /// The process that started this one because of --supervise
    #[arg(long, hide = true, value_name = "PID")]
    pub supervised_by: Option<i32>,
    #[command(flatten)]
    #[expect(missing_docs, reason = "clap would take it for the command's own description")]
    pub addresses: AddressOptions,
    /// Interface that leads to the other nodes [default: the interface with the Node's address]
    #[arg(long, env = "MANX_UPLINK", value_name = "IFACE")]
    pub uplink: Option<String>,
    /// How tunnel packets reach the uplink
    #[arg(long, env = "MANX_UPLINK_MODE", value_enum, default_value_t = UplinkMode::Packet)]
    pub uplink_mode: UplinkMode,
    /// What translates the addresses of services to endpoints
    #[arg(long, env = "MANX_SERVICES", value_enum, default_value_t = ServiceTranslator::None)]
    pub services: ServiceTranslator,
    /// Ranges of cluster IPs, for --services manx in a cluster whose API server has no `ServiceCIDR`
    /// objects
    #[arg(long, env = "MANX_SERVICE_CIDR", value_name = "CIDR,...", value_delimiter = ',', value_parser = net)]
    pub service_cidr: Vec<IpNet>,
    /// Networks whose addresses Services may have as externalIPs, for --services manx [default:
    /// none]
    ///
    /// Anybody who can write a Service can take any address in them.
    #[arg(long, env = "MANX_EXTERNAL_IPS", value_name = "CIDR,...", value_delimiter = ',', value_parser = net)]
    pub external_ips: Vec<IpNet>,
    /// Ports of the node's addresses that replace pods' ports on the way out, for --services manx
    /// [default: 61000-65534]
    #[arg(long, env = "MANX_EGRESS_PORTS", value_name = "FIRST-LAST", value_parser = egress_ports)]
    pub egress_ports: Option<PortRange>,
    /// The API server's --service-node-port-range, for --services manx [default: 30000-32767]
    #[arg(long, env = "MANX_NODE_PORTS", value_name = "FIRST-LAST", value_parser = node_ports)]
    pub node_ports: Option<PortRange>,
    /// Networks of the node's addresses that have node ports and host ports, for --services manx
    /// [default: primary]
    ///
    /// `primary` is the node's first address of each family.
    #[arg(long, env = "MANX_NODEPORT_ADDRESSES", value_name = "CIDR,...", value_delimiter = ',')]
    pub nodeport_addresses: Vec<String>,
    /// What assigns pods' addresses, which also says where nodes' blocks come from
    #[arg(long, env = "MANX_IPAM", value_enum, default_value_t = Ipam::HostLocal)]
    pub ipam: Ipam,
    /// Speak BGP with the peers that `BGPConfiguration` and `BGPPeer` objects name
    ///
    /// `CALICO_NETWORKING_BACKEND=bird` has the same effect.
    #[arg(long, env = "MANX_BGP")]
    pub bgp: bool,
    /// Only enforce policy: another CNI plugin connects the pods, gives them addresses, and reaches
    /// other nodes
    #[arg(long, env = "MANX_POLICY_ONLY")]
    pub policy_only: bool,
    /// How pods are attached
    #[arg(long, env = "MANX_POD_DEVICE", value_parser = pod_device_parser(), default_value = Preference::Auto.name())]
    pub pod_device: Preference,
    /// What a worker without packets does
    #[arg(long, env = "MANX_POLL", value_enum, default_value_t = Poll::Adaptive)]
    pub poll: Poll,
    /// Number of workers that carry packets, each a thread with its own queue of every device
    /// [default: 1, or one for each core of --pin]
    #[arg(long, env = "MANX_WORKERS", value_name = "N", value_parser = parse_workers)]
    pub workers: Option<usize>,
    /// Core of each worker, in order; at most as many as there are workers
    #[arg(long, env = "MANX_PIN", value_name = "CORE,...", value_delimiter = ',')]
    pub pin: Vec<usize>,
    /// Drop a TCP packet that is no SYN and belongs to no known connection, instead of judging it
    /// by policy
    ///
    /// Then a restart of the agent ends the TCP connections that the holder has no record of.
    #[arg(long, env = "MANX_TCP_STRICT")]
    pub tcp_strict: bool,
    /// What happens to an established connection that policy no longer allows
    #[arg(long, env = "MANX_ESTABLISHED", value_enum, default_value_t = Established::Judge)]
    pub established: Established,
    /// Prove new policy tables equal to the objects before they are published
    ///
    /// Tables that decide a packet wrongly are not published: the previous ones stay, and `manx
    /// status` shows the packet.
    #[arg(long, env = "MANX_VERIFY_TABLES")]
    pub verify_tables: bool,
    /// Form of the log
    #[arg(long, env = "MANX_LOG", value_enum, default_value_t = LogFormat::Text)]
    pub log: LogFormat,
}

impl Node {
    /// The name of the Node object.
    fn name(&self) -> Result<String, Error> {
        let name = self.name.clone().or_else(|| env::var("MANX_NAME").ok());
        name.filter(|name| !name.is_empty()).ok_or_else(|| {
            Error::Invalid("no node is named: expected --name NODE (NODENAME)".to_owned())
        })
    }

    /// The program that translates services, with its settings. Returns an error if there are settings for Manx's
    /// translation, but another program translates.
    fn services(&self) -> Result<settings::ServiceTranslator, Error> {
        let of_manx = [
            ("--service-cidr (MANX_SERVICE_CIDR)", !self.service_cidr.is_empty()),
            ("--external-ips (MANX_EXTERNAL_IPS)", !self.external_ips.is_empty()),
            ("--egress-ports (MANX_EGRESS_PORTS)", self.egress_ports.is_some()),
            ("--node-ports (MANX_NODE_PORTS)", self.node_ports.is_some()),
            (
                "--nodeport-addresses (MANX_NODEPORT_ADDRESSES)",
                !self.nodeport_addresses.is_empty() && self.nodeport_addresses != ["primary"],
            ),
        ];
        let given = of_manx.into_iter().find(|(_, is_given)| *is_given);
        if let Some((option, _)) = given.filter(|_| self.services != ServiceTranslator::Manx) {
            return Err(Error::Invalid(format!(
                "{option} is for --services manx (MANX_SERVICES): set both or neither"
            )));
        }
        match self.services {
            ServiceTranslator::None => Ok(settings::ServiceTranslator::None),
            ServiceTranslator::KubeProxy => Ok(settings::ServiceTranslator::KubeProxy),
            ServiceTranslator::Manx => {
                let ports = self.ports()?;
                let ranges = self.service_cidr.clone();
                let external_ips = self.external_ips.clone();
                Ok(settings::ServiceTranslator::Manx(ManxTranslationSettings {
                    ranges,
                    external_ips,
                    node_port_nets: self.node_port_nets()?,
                    ports,
                }))
            }
        }
    }

    /// What assigns pods' addresses.
    fn ipam(&self) -> Result<settings::Ipam, Error> {
        let is_calico = self.ipam == Ipam::Calico;
        if is_calico && self.policy_only {
            return Err(Error::Invalid(
                "--ipam calico (MANX_IPAM) is not for --policy-only (MANX_POLICY_ONLY), where the other plugin gives out \
                 addresses: set one of the two"
                    .to_owned(),
            ));
        }
        if is_calico && self.services == ServiceTranslator::KubeProxy {
            return Err(Error::Invalid(
                "--ipam calico (MANX_IPAM) is not for --services kube-proxy (MANX_SERVICES): no address of Calico's IPAM is \
                 for what kube-proxy masquerades; use --services manx, or --ipam host-local"
                    .to_owned(),
            ));
        }
        self.datastore.check_use_pod_cidr(is_calico)?;
        Ok(if is_calico { settings::Ipam::Calico } else { settings::Ipam::HostLocal })
    }

    /// Whether the agent speaks BGP. `backend`: the value of Calico's variable [`BACKEND`].
    fn bgp(&self, backend: Option<&str>) -> Result<bool, Error> {
        let of_calico = match backend {
            None | Some("" | "none" | "vxlan") => false,
            Some("bird") => true,
            Some(other) => {
                return Err(Error::Invalid(format!(
                    "{BACKEND}: found {other:?}: expected bird, vxlan or none"
                )));
            }
        };
        if self.bgp && self.policy_only {
            return Err(Error::Invalid(
                "--bgp (MANX_BGP) is not for --policy-only (MANX_POLICY_ONLY), where the other plugin reaches other nodes: set \
                 one of the two"
                    .to_owned(),
            ));
        }
        Ok((self.bgp || of_calico) && !self.policy_only)
    }

    /// The networks of addresses with node ports. An empty list stands for `primary`.
    fn node_port_nets(&self) -> Result<Vec<IpNet>, Error> {
        let nets = &self.nodeport_addresses;
        if matches!(&nets[..], [only] if only == "primary") {
            return Ok(Vec::new());
        }
        let invalid = |text: &String, message: String| {
            Error::Invalid(format!(
                "--nodeport-addresses (MANX_NODEPORT_ADDRESSES): found {text:?}: {message}, or primary alone"
            ))
        };
        nets.iter().map(|text| net(text).map_err(|message| invalid(text, message))).collect()
    }

    /// The ports of the node's addresses that belong to Manx.
    fn ports(&self) -> Result<PortRanges, Error> {
        let egress = self.egress_ports.map_or_else(|| egress_ports(EGRESS_PORTS), Ok);
        let node_ports = self.node_ports.map_or_else(|| node_ports(NODE_PORTS), Ok);
        let ports = PortRanges {
            egress: egress.map_err(Error::Invalid)?,
            node_ports: node_ports.map_err(Error::Invalid)?,
        };
        let PortRanges { egress, node_ports } = ports;
        if egress.first() <= node_ports.last() && node_ports.first() <= egress.last() {
            return Err(Error::Invalid(format!(
                "--egress-ports (MANX_EGRESS_PORTS), {egress}, and --node-ports (MANX_NODE_PORTS), {node_ports}, overlap: \
                 expected ranges without a common port"
            )));
        }
        Ok(ports)
    }

    /// The socket on which the agent listens.
    pub fn socket_path(&self) -> Result<PathBuf, Error> {
        match &self.socket {
            Some(path) => Ok(path.clone()),
            None => Ok(socket::of_node(&socket::runtime_folder()?, &self.name()?)),
        }
    }

    /// The core of each worker, if it is pinned to one.
    fn cores(&self) -> Result<Vec<Option<usize>>, Error> {
        let workers = self.workers.unwrap_or(self.pin.len().max(1));
        if self.pin.len() > workers {
            return Err(Error::Invalid(format!(
                "--pin names {} cores for {workers} workers: name at most one for each",
                self.pin.len()
            )));
        }
        let twice = self.pin.iter().enumerate().find(|(at, core)| self.pin[..*at].contains(core));
        if let Some((_, core)) = twice {
            return Err(Error::Invalid(format!(
                "--pin names core {core} twice: expected a core of its own for each worker"
            )));
        }
        let pinned = self.pin.iter().copied().map(Some);
        Ok(pinned.chain(std::iter::repeat(None)).take(workers).collect())
    }
}

/// Parses a number of workers.
pub(super) fn parse_workers(text: &str) -> Result<usize, String> {
    let most = MAX_WORKERS;
    text.parse()
        .ok()
        .filter(|workers| (1..=most).contains(workers))
        .ok_or_else(|| format!("expected 1 to {most}"))
}

/// Parses the kind of device by which pods are attached.
pub(super) fn pod_device_parser() -> impl TypedValueParser<Value = Preference> {
    let auto = PossibleValue::new(Preference::Auto.name())
        .help("TUN where /dev/net/tun makes devices, else veth");
    let devices =
        Device::ALL.map(|device| PossibleValue::new(device.name()).help(device.description()));
    let values = PossibleValuesParser::new([auto].into_iter().chain(devices));
    // The values are the names of devices, and `auto`.
    values.map(|name| Device::named(&name).map_or(Preference::Auto, Preference::Only))
}

/// The sockets by which tunnel packets reach the uplink.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum UplinkMode {
    /// A raw protocol-4 socket: the kernel routes the outer packet
    Raw,
    /// A packet socket on the interface, beside the node's own stack
    Packet,
}

/// The program that translates the addresses of services.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ServiceTranslator {
    /// Nothing: a service address is an address outside the cluster
    None,
    /// kube-proxy on the node, in the mode iptables or nftables
    KubeProxy,
    /// Manx itself
    Manx,
}

/// What assigns pods' addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Ipam {
    /// Each node by itself, from its Node's podCIDRs
    HostLocal,
    /// Calico's IPAM: a node's blocks are those that it claims by affinities
    Calico,
}

/// The behaviour of a worker without packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Poll {
    /// Sleeps after a while and is woken by packets
    Adaptive,
    /// Never sleeps
    Busy,
}

/// The fate of an established connection that policy has stopped allowing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Established {
    /// Ends at its next packet, which is judged
    Judge,
    /// Lives until it ends by itself, as with Calico
    Keep,
}

/// Runs the agent, or the supervisor of agents, until it gets a signal to stop.
pub fn run(node: &Node) -> Result<(), Error> {
    log::start(node.log);
    if node.supervised_by.is_none() {
        observed::warn_about_felix_variables();
    }
    // The supervisor checks the settings, too, so that a wrong setting is reported once and at
    // once.
    let settings = agent_settings(node)?;
    match node.supervised_by {
        None if node.supervise => supervise::run(),
        None => Ok(manx_agent::run(&settings)?),
        Some(supervisor) => {
            supervise::follow_supervisor(supervisor)?;
            Ok(manx_agent::run(&settings)?)
        }
    }
}

fn agent_settings(node: &Node) -> Result<manx_agent::Settings, Error> {
    let socket = node.socket_path()?;
    Ok(manx_agent::Settings {
        name: node.name()?,
        datastore: node.datastore.datastore(&socket)?,
        observed_at: node.observe.addresses(node.services == ServiceTranslator::Manx)?,
        socket,
        addresses: node.addresses.settings()?,
        uplink: node.uplink.clone(),
        packet_socket: node.uplink_mode == UplinkMode::Packet,
        services: node.services()?,
        network: if node.policy_only { Network::OtherPlugin } else { Network::Manx },
        ipam: node.ipam()?,
        bgp: node.bgp(env::var(BACKEND).ok().as_deref())?,
        pod_device: node.pod_device,
        polling: match node.poll {
            Poll::Adaptive => Polling::Adaptive,
            Poll::Busy => Polling::Busy,
        },
        cores: node.cores()?,
        connections: TrackingSettings {
            tcp_strict: node.tcp_strict,
            established: match node.established {
                Established::Judge => tables::Established::Judge,
                Established::Keep => tables::Established::Keep,
            },
        },
        verify_tables: node.verify_tables,
        standby: node.standby,
        report_ready: if node.supervised_by.is_some() { supervise::report_ready } else { || {} },
    })
}
