//! Paths through bare forwarders: one forwarder between two pods, or one forwarder on each of two nodes.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::process::Command;

use manx_api::Device;
use manx_dataplane::worker::Polling;
use manx_linux::netns;

use super::forwarder::BARE;
use crate::error::Error;
use crate::host::cores::Cores;
use crate::host::namespaces;
use crate::host::process::Process;
use crate::path::constants::MTU;
use crate::path::ends::{PathEnd, PathEnds, ProcessPath};
use crate::path::links::{add_address, add_veth, named_namespace, net};

/// A path through one forwarder. The forwarder runs on `core`, or on any core if `core` is `None`.
pub fn one_node(
    device: Device,
    polling: Polling,
    core: Option<usize>,
) -> Result<ProcessPath, Error> {
    let folder = namespaces::temporary_folder()?;
    let end = |name: &str, host| {
        let netns = netns::create_named(&folder.path().join(name))?;
        Ok::<_, Error>(PathEnd { netns, address: Ipv4Addr::new(10, 97, 0, host).into() })
    };
    let ends = PathEnds::new(end("left", 2)?, end("right", 3)?);
    let attached = [("left", &ends.sender), ("right", &ends.receiver)]
        .map(|(name, end)| (folder.path().join(name), end.address));
    let busy = (polling == Polling::Busy).then(|| "--busy".to_owned());
    let flags = [format!("--device={}", device.name())].into_iter().chain(busy);
    let process = start(&attached, core, flags)?;
    Ok(ProcessPath { ends, processes: vec![process], folder })
}

/// A path between pods on two nodes, with a forwarder on each node and UDP datagrams between them.
pub fn two_nodes(cores: Cores) -> Result<ProcessPath, Error> {
    let folder = namespaces::temporary_folder()?;
    let nodes =
        [named_namespace(folder.path(), "node-1")?, named_namespace(folder.path(), "node-2")?];
    add_veth(&nodes[0], "eth0", &nodes[1], "eth0", MTU)?;
    let underlay = |node: u8| Ipv4Addr::new(172, 18, 0, node);
    let mut processes = Vec::new();
    let mut pod_on = |node: u8, peer: u8| {
        add_address(&nodes[usize::from(node) - 1], "eth0", net(172, 18, 0, node, 24))?;
        let name = format!("pod-{node}");
        let address = IpAddr::V4(Ipv4Addr::new(10, 97, 0, node));
        let netns = named_namespace(folder.path(), &name)?;
        let tunnel = [
            format!("--node={}", folder.path().join(format!("node-{node}")).display()),
            format!("--peer={}", underlay(peer)),
        ];
        let attached = [(folder.path().join(name), address)];
        processes.push(start(&attached, cores.worker_core(node == 2), tunnel)?);
        Ok::<_, Error>(PathEnd { netns, address })
    };
    let ends = PathEnds::new(pod_on(1, 2)?, pod_on(2, 1)?);
    Ok(ProcessPath { ends, processes, folder })
}

/// Starts a forwarder on this core, attached to these namespaces, and waits until its devices exist.
fn start(
    attached: &[(PathBuf, IpAddr)],
    core: Option<usize>,
    options: impl IntoIterator<Item = String>,
) -> Result<Process, Error> {
    let mut command = Command::new("/proc/self/exe");
    command.arg(BARE).args(options);
    command.args(attached.iter().map(|(netns, end)| format!("--end={}={end}", netns.display())));
    command.args(core.map(|core| format!("--pin={core}")));
    Process::start_and_wait(&mut command)
}
