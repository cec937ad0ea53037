//! The namespaces of a node and of an outside host, joined by a veth.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use manx_api::Device;
use manx_dataplane::worker::Polling;
use manx_devices::device::Queues;
use manx_linux::netlink::{LOCAL, MAIN, Peer, Veth};

use super::*;

/// The namespaces of a node and of an outside host, and the node's `manx1`.
pub(super) struct Place {
    pub(super) node: OwnedFd,
    pub(super) world: OwnedFd,
    pub(super) agent: AgentNamespace,
    pub(super) settings: TranslationSettings,
    pub(super) _folder: tempfile::TempDir,
}

impl Place {
    pub(super) fn new() -> Self {
        let (node, world) = (netns::create().unwrap(), netns::create().unwrap());
        let peer = Peer { name: "eth0", netns: Some(world.as_fd()), mac: None, index: None };
        let veth = Veth { name: "eth0", mac: None, index: None, mtu: 1500, peer };
        netlink::in_netns(&node, async |netlink| netlink.add_veth(&veth).await).unwrap();
        for (netns, addresses) in [(&node, NODE), (&world, WORLD)] {
            netlink::in_netns(netns, async |netlink| {
                sysctl::apply(sysctl::FORWARD)?;
                sysctl::make_ipv6_static("eth0")?;
                for name in ["lo", "eth0"] {
                    let link = netlink.existing(name).await?;
                    netlink.set_up(link.index).await?;
                }
                let link = netlink.existing("eth0").await?;
                for (address, len) in addresses.into_iter().zip([24, 64]) {
                    let net = IpNet::new(ip(address), len).unwrap();
                    netlink.add_address(link.index, net).await?;
                }
                Ok(())
            })
            .unwrap();
        }
        let folder = tempfile::tempdir().unwrap();
        let ports = PortRanges { egress: range(61000, 65534), node_ports: range(30000, 32767) };
        let settings = TranslationSettings { ports, record: folder.path().join("reserved-ports") };
        let agent = AgentNamespace::create().unwrap();
        let place = Self { node, world, agent, settings, _folder: folder };
        // The kernel adds the routes of IPv6 addresses a moment later.
        let late = [
            "Local 2001:db8::1/",
            "Anycast 2001:db8::/",
            "Local fe80:",
            "Anycast fe80:",
            "Unicast fe80:",
        ];
        let end = Instant::now() + LONG;
        while !late.iter().all(|it| place.routes().contains(it)) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
        place
    }

    pub(super) fn attach(&self) -> Result<(TranslationDevice, Queues), Error> {
        let like = DeviceSpec {
            interface: "manx0",
            addresses: &[],
            mtu: 1500,
            segments: None,
            device: Device::Tun,
            queues: 1,
            polling: Polling::Adaptive,
        };
        let made =
            in_node(self, || TranslationDevice::attach(&self.agent, &like, self.settings.clone()));
        made.map(|(device, held)| (device, held.queues))
    }

    /// All rules and routes, and the settings that Manx may change.
    pub(super) fn state(&self) -> BTreeMap<String, String> {
        let mut state = in_node(self, || {
            let folders = ["ipv4", "ipv4/conf/all", "ipv4/conf/eth0", "ipv6/conf/all"];
            let files = folders
                .into_iter()
                .flat_map(|folder| std::fs::read_dir(format!("/proc/sys/net/{folder}")).unwrap());
            let paths = files.map(|file| file.unwrap().path());
            // Some files can only be written.
            let read = paths.filter_map(|it| Some((std::fs::read_to_string(&it).ok()?, it)));
            read.map(|(text, path)| (path.display().to_string(), text))
                .collect::<BTreeMap<String, String>>()
        });
        state.insert("routes".to_owned(), self.routes());
        state.insert("rules".to_owned(), self.rules().join("\n"));
        state
    }

    fn routes(&self) -> String {
        let list = async |netlink: Netlink| {
            let mut all = Vec::new();
            for family in Family::ALL {
                for table in [PORTS_TABLE, LOCAL, MAIN] {
                    all.extend(netlink.table_routes(table, family).await?);
                }
            }
            Ok(all.iter().map(ToString::to_string).collect::<Vec<String>>().join("\n"))
        };
        netlink::in_netns(&self.node, list).unwrap()
    }

    pub(super) fn rules(&self) -> Vec<String> {
        let list = async |netlink: Netlink| {
            let mut all = netlink.rules(Family::V4).await?;
            all.extend(netlink.rules(Family::V6).await?);
            Ok(all.iter().map(ToString::to_string).collect())
        };
        netlink::in_netns(&self.node, list).unwrap()
    }
}

pub(super) fn in_node<T: Send>(place: &Place, work: impl FnOnce() -> T + Send) -> T {
    netns::run_in(&place.node, work).unwrap()
}

pub(super) fn in_world<T: Send>(place: &Place, work: impl FnOnce() -> T + Send) -> T {
    netns::run_in(&place.world, work).unwrap()
}
