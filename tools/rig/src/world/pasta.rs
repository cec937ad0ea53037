//! The connection of the rig's nodes to the network of the rig's caller: one `pasta` for each node ([passt](https://passt.top)),
//! which is user-mode networking and needs no privilege.
//!
//! The supervisor starts the processes, because it is in the caller's network, and in the rig's user and pid
//! namespaces. So they end with the rig. The cluster's process requests them when the nodes have namespaces. It then
//! routes to them the packets that match no other route and have the node's own address as their source: the node's own
//! packets, and masqueraded packets of its pods (the way out). Older versions of `pasta` answer to the address that
//! they saw last, so they must see no other.

use std::fs::{self, File};
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use ipnet::IpNet;
use manx_linux::netlink::{self, Action, Family, Netlink, Rule};
use manx_linux::netns;
use manx_linux::whole_file;

use super::underlay::Names;
use super::workdir::Workdir;
use crate::plan::Plan;

/// The program's name.
const PROGRAM: &str = "pasta";
/// The name of the program's interface on a node.
const INTERFACE: &str = "world";
/// The routing table with the route to this interface.
const TABLE: u8 = 250;
/// The preference of the rule for this table. It comes after the main table's rule, which has
/// 32766.
const PREFERENCE: u32 = 32_800;
/// The origin of rule and route as the kernel shows it: an administrator (`RTPROT_STATIC`).
const STATIC: u8 = libc::RTPROT_STATIC;
/// The interval at which a condition is checked.
const LOOK: Duration = Duration::from_millis(20);
/// The time in which the interfaces must exist.
const START: Duration = Duration::from_secs(5);

/// The reason why a rig is not connected to the caller's network.
#[derive(Debug, thiserror::Error)]
pub enum PastaError {
    /// The rig cannot be connected.
    #[error("--world {PROGRAM}: {0}")]
    NotPossible(&'static str),
    /// The program is not installed.
    #[error(
        "--world {PROGRAM}: no program {PROGRAM} in PATH; Debian, Ubuntu and Fedora have it in the package passt"
    )]
    NotInstalled,
    /// The program does not do its work.
    #[error(
        "--world {PROGRAM}: it has made no interface for node {node} after {START:?}; it says: {log}"
    )]
    NotUp {
        node: String,
        /// The end of the program's log.
        log: String,
    },
    /// The network of a node cannot be changed.
    #[error("the way of node {node} to the world cannot be made: {source}")]
    Network { node: String, source: netlink::Error },
    /// A file in the rig's folder cannot be written.
    #[error("{path}: {source}")]
    File { path: PathBuf, source: io::Error },
}

/// Checks that a rig can be connected to the caller's network.
pub fn check(plan: &Plan) -> Result<(), PastaError> {
    if !plan.translates {
        return Err(PastaError::NotPossible(
            "pods have no way out; expected `services: manx` in rig.yaml",
        ));
    }
    if plan.segments.len() > 1 {
        return Err(PastaError::NotPossible(
            "the nodes are in several subnets, whose default route leads to the router between them; expected one subnet",
        ));
    }
    if !plan.nodes.values().all(|node| node.addresses.iter().any(|it| it.addr().is_ipv4())) {
        return Err(PastaError::NotPossible(
            "a node has no IPv4 address; expected one of each node",
        ));
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    if std::env::split_paths(&path).any(|folder| folder.join(PROGRAM).is_file()) {
        Ok(())
    } else {
        Err(PastaError::NotInstalled)
    }
}

/// The `pasta` processes of a rig's nodes, as the rig's supervisor holds them.
#[derive(Debug)]
pub(super) struct Pastas {
    workdir: Workdir,
    init: u32,
    /// The nodes' indexes, each with its process until that has ended. `None`: the cluster's
    /// process has not requested them.
    started: Option<Vec<(usize, Option<Child>)>>,
}

impl Pastas {
    /// The processes of the rig with this init process, before any is started. Unless `wanted`, none is ever started.
    pub(super) fn new(workdir: &Workdir, init: u32, wanted: bool) -> Self {
        Self { workdir: workdir.clone(), init, started: (!wanted).then(Vec::new) }
    }

    /// The longest time after which [`Self::start_if_wanted`] must be called again.
    pub(super) fn poll_interval(&self) -> Duration {
        if self.started.is_none() { LOOK } else { Duration::MAX }
    }

    /// Starts the processes if the cluster's process has requested them.
    pub(super) fn start_if_wanted(&mut self) {
        if self.started.is_some() {
            return;
        }
        let Ok(wanted) = fs::read_to_string(self.workdir.pasta_request()) else { return };
        let mut started = Vec::new();
        for (index, address) in wanted.lines().enumerate() {
            match self.start(index, address) {
                Ok(child) => started.push((index, Some(child))),
                // The cluster's process notices that the interface is missing, and shows this log.
                Err(error) => drop(fs::write(self.workdir.pasta_log(index), error.to_string())),
            }
        }
        self.started = Some(started);
    }

    /// Reaps processes that have ended, and reports each in the rig's log.
    pub(super) fn reap(&mut self) {
        self.started.iter_mut().flatten().for_each(|(index, program)| {
            let Some(mut running) = program.take() else { return };
            match running.try_wait() {
                Ok(Some(status)) => eprintln!("{PROGRAM} of node {index} has ended ({status})"),
                _ => *program = Some(running),
            }
        });
    }

    /// Kills the processes and waits for them. A pid namespace can end only when the parents of its
    /// processes have waited for them.
    pub(super) fn end(&mut self) {
        for program in self.started.iter_mut().flatten().filter_map(|(_, it)| it.as_mut()) {
            let _ = program.kill().and_then(|()| program.wait());
        }
    }

    fn start(&self, index: usize, address: &str) -> io::Result<Child> {
        let names = Names::new(&through_root(self.init, &self.workdir.names()));
        // `pasta` drops the capabilities that it would need to follow this path before it opens the
        // namespace, and closes all files except the first three.
        let netns = File::open(names.node(index))?;
        let log = File::create(self.workdir.pasta_log(index))?;
        let mut command = Command::new(PROGRAM);
        command
            .args(["--foreground", "--quiet", "--runas", "0", "--ipv4-only", "--mtu", "1500"])
            .args(["--netns-only", "--no-netns-quit", "--ns-ifname", INTERFACE])
            .args(["--netns", "/proc/self/fd/0"])
            .args(["--address", address, "--netmask", "32"])
            // The gateway's address is not mapped to the caller's loopback, and no port is forwarded in either
            // direction.
            .args(["--no-map-gw", "--no-dhcp"])
            .args(["-t", "none", "-u", "none", "-T", "none", "-U", "none"]);
        command.stdin(netns).stdout(log.try_clone()?).stderr(log).spawn()
    }
}

/// A path inside the rig, as it is reached from outside the rig's mount namespace.
fn through_root(init: u32, path: &Path) -> PathBuf {
    let root = PathBuf::from(format!("/proc/{init}/root"));
    root.join(path.strip_prefix("/").unwrap_or(path))
}

/// Requests a `pasta` for each node from the supervisor, and routes the nodes' packets to them.
pub(super) async fn connect(
    plan: &Plan,
    names: &Names,
    workdir: &Workdir,
) -> Result<(), PastaError> {
    let addresses: Vec<Ipv4Addr> =
        plan.nodes.values().filter_map(|node| node.addresses.iter().find_map(v4)).collect();
    let lines: Vec<String> = addresses.iter().map(Ipv4Addr::to_string).collect();
    let path = workdir.pasta_request();
    whole_file::replace(&path, lines.join("\n").as_bytes())
        .map_err(|source| PastaError::File { path, source })?;
    let until = Instant::now() + START;
    for (index, (node, address)) in plan.nodes.keys().zip(addresses).enumerate() {
        let network = |source| PastaError::Network { node: node.clone(), source };
        let netns = netns::open(&names.node(index)).map_err(|error| network(error.into()))?;
        while !netlink::in_netns(&netns, async |netlink| lead_out(&netlink, address).await)
            .map_err(network)?
        {
            if Instant::now() > until {
                let log = fs::read_to_string(workdir.pasta_log(index)).unwrap_or_default();
                let log = log.trim_end().lines().last().unwrap_or("nothing").to_owned();
                return Err(PastaError::NotUp { node: node.clone(), log });
            }
            tokio::time::sleep(LOOK).await;
        }
    }
    Ok(())
}

fn v4(net: &IpNet) -> Option<Ipv4Addr> {
    match net.addr() {
        IpAddr::V4(address) => Some(address),
        IpAddr::V6(_) => None,
    }
}

/// Routes packets with this source address to the program's interface. Returns whether the
/// interface exists.
async fn lead_out(netlink: &Netlink, address: Ipv4Addr) -> Result<bool, netlink::Error> {
    let Some(link) = netlink.link(INTERFACE).await? else { return Ok(false) };
    netlink.set_up(link.index).await?;
    let source = Some(address.into());
    let anywhere = netlink::Route::default_of(address.into());
    let route = netlink::Route { source, ..netlink::Route::direct(anywhere, link.index) };
    netlink.replace_route_in(TABLE, &route).await?;
    let rule = Rule { made_by: STATIC, ..Rule::new(PREFERENCE, Family::V4, Action::Lookup(TABLE)) };
    netlink.add_rule(&Rule { from: source, ..rule.clone() }).await?;
    // A socket of the node's own processes has no address yet when the kernel looks up its route. This rule leads to
    // the route, which gives the socket its source address.
    netlink.add_rule(&Rule { interface: Some("lo".to_owned()), ..rule }).await?;
    Ok(true)
}
