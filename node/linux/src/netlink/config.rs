//! The configuration that an interface loses when it leaves its network namespace, read and written.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use futures_util::TryStreamExt;
use rtnetlink::packet_route::address::{AddressAttribute, AddressFlags, AddressMessage};
use rtnetlink::packet_route::link::{
    InfoBridge, InfoBridgePort, InfoData, InfoPortData, InfoPortKind, LinkAttribute, LinkInfo,
    LinkMessage, LinkXdp, XdpAttached,
};
use rtnetlink::packet_route::neighbour::{NeighbourMessage, NeighbourState};
use rtnetlink::packet_route::route::{
    RouteAttribute, RouteFlags, RouteMessage, RouteProtocol, RouteType,
};
use rtnetlink::packet_route::tc::TcAttribute;
use rtnetlink::{LinkMessageBuilder, RouteMessageBuilder};

use super::{Error, Link, Netlink};
use crate::netns::sysctl;

/// The configuration of an interface that is lost when it leaves its network namespace. It consists of the interface's
/// bridge and its settings as a port of that bridge, its addresses, routes of all tables, permanent neighbours, and
/// settings under `/proc/sys/net`.
///
/// It is stored as the kernel reports it, so that another interface with the same index and name can get the same
/// configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InterfaceConfig {
    pub link: Link,
    attributes: Vec<LinkAttribute>,
    port: Vec<InfoBridgePort>,
    addresses: Vec<AddressMessage>,
    routes: Vec<RouteMessage>,
    neighbours: Vec<NeighbourMessage>,
    settings: Vec<(String, String)>,
}

/// The setting for IPv6's duplicate address detection.
const ACCEPT_DAD: &str = "accept_dad";
const WAIT_STEPS: u32 = 200;
const WAIT_STEP: Duration = Duration::from_millis(5);

impl Netlink {
    /// The configuration of the interface with this name. The calling thread must be in the namespace, as within
    /// [`in_netns`](super::in_netns).
    pub async fn config(&self, name: &str) -> Result<InterfaceConfig, Error> {
        let link = self.existing(name).await?;
        let message = self.link_message(link.index).await?;
        let (attributes, port) = settable(message);
        Ok(InterfaceConfig {
            attributes,
            port,
            addresses: self.addresses_of(link.index).await?,
            routes: self.routes_of(link.index).await?,
            neighbours: self.permanent_neighbours_of(link.index).await?,
            settings: sysctl::of_interface(name),
            link,
        })
    }

    /// Configures an interface with the same index and name as the one from which `config` was read. The interface
    /// should be down. Afterwards it is up if the former interface was.
    pub async fn configure(&self, config: &InterfaceConfig) -> Result<(), Error> {
        let InterfaceConfig { link, attributes, port, .. } = config;
        for (key, value) in &config.settings {
            sysctl::set_if_present(key, value)?;
        }
        // No duplicate address detection is needed: the former interface had the addresses until now.
        let accept_dad = format!("ipv6/conf/{}/{ACCEPT_DAD}", link.name);
        sysctl::set_if_present(&accept_dad, "0")?;
        self.change(link.index, "as it was", |message| {
            let each = attributes.iter().cloned();
            each.fold(message, LinkMessageBuilder::append_extra_attribute)
        })
        .await?;
        if let Some(master) = link.master {
            self.set_master(link.index, master).await?;
            self.change(link.index, "as the bridge's port that it was", |message| {
                let data = InfoPortData::BridgePort(port.clone());
                message.set_port_kind(InfoPortKind::Bridge).set_port_data(data)
            })
            .await?;
        }
        for message in &config.addresses {
            self.add_address_as(message).await?;
        }
        if link.up {
            self.set_up(link.index).await?;
            for message in &config.routes {
                self.add_route_as(message).await?;
            }
            for message in &config.neighbours {
                self.add_neighbour_as(message).await?;
            }
        }
        self.wait_for_addresses(link.index).await?;
        let before = config.settings.iter().find(|(key, _)| *key == accept_dad);
        before.map_or(Ok(()), |(key, value)| sysctl::set_if_present(key, value))?;
        Ok(())
    }

    /// A setting of an interface that would be lost because no [`InterfaceConfig`] contains it, as text. Returns `None` if
    /// there is none.
    pub async fn unconfigurable(&self, link: &Link) -> Result<Option<String>, Error> {
        let message = self.link_message(link.index).await?;
        let has_program = message.attributes.iter().any(|attribute| {
            let LinkAttribute::Xdp(xdp) = attribute else { return false };
            xdp.iter().any(|it| matches!(it, LinkXdp::Attached(on) if *on != XdpAttached::None))
        });
        if has_program {
            return Ok(Some("an XDP program".to_owned()));
        }
        if let Some(kind) = self.discipline(link.index).await? {
            return Ok(Some(format!("traffic control ({kind})")));
        }
        let Some(master) = link.master else { return Ok(None) };
        Ok(lost_in(self.link_message(master).await?))
    }

    async fn link_message(&self, index: u32) -> Result<LinkMessage, Error> {
        let failed = || format!("interface {index} cannot be read");
        let request = self.handle.link().get().match_index(index).execute();
        let found = std::pin::pin!(request).try_next().await.map_err(Error::request(failed))?;
        found.ok_or_else(|| Error::Request {
            what: failed(),
            source: std::io::Error::from_raw_os_error(libc::ENODEV),
        })
    }

    /// The first queueing discipline that a user has given an interface, in either direction.
    async fn discipline(&self, index: u32) -> Result<Option<String>, Error> {
        let all = self.handle.qdisc().get().execute().try_collect::<Vec<_>>().await;
        let all = all.map_err(Error::request(|| {
            format!("the queueing disciplines of interface {index} cannot be read")
        }))?;
        let of_interface = all.into_iter().filter(|it| it.header.index == index.cast_signed());
        let mut kinds = of_interface.flat_map(|it| it.attributes).filter_map(|it| match it {
            TcAttribute::Kind(kind) => Some(kind),
            _ => None,
        });
        Ok(kinds.find(|kind| kind != "noqueue"))
    }

    /// Waits until the interface's addresses can be used: its other end must be up, and the kernel must have noticed that.
    /// It waits at most a second, because there may be no other end.
    async fn wait_for_addresses(&self, index: u32) -> Result<(), Error> {
        let is_tentative = |message: &AddressMessage| {
            let tentative = |it: &AddressAttribute| matches!(it, AddressAttribute::Flags(all) if all.contains(AddressFlags::Tentative));
            message.attributes.iter().any(tentative)
        };
        for _ in 0..WAIT_STEPS {
            if !self.addresses_of(index).await?.iter().any(is_tentative) {
                break;
            }
            tokio::time::sleep(WAIT_STEP).await;
        }
        Ok(())
    }

    async fn addresses_of(&self, index: u32) -> Result<Vec<AddressMessage>, Error> {
        let all = self.handle.address().get().set_link_index_filter(index).execute();
        let mut all = all
            .try_collect::<Vec<_>>()
            .await
            .map_err(Error::request(|| "the addresses cannot be listed".to_owned()))?;
        for message in &mut all {
            message.attributes.retain(|it| !matches!(it, AddressAttribute::CacheInfo(_)));
        }
        Ok(all)
    }

    async fn add_address_as(&self, message: &AddressMessage) -> Result<(), Error> {
        let unspecified = Ipv4Addr::UNSPECIFIED.into();
        let mut request = self.handle.address().add(message.header.index, unspecified, 0).replace();
        *request.message_mut() = message.clone();
        request.execute().await.map_err(Error::request(|| {
            format!("interface {} cannot be given its address back", message.header.index)
        }))
    }

    /// The routes that a user has made; the kernel adds and removes the other routes with addresses. Direct routes come
    /// first, because the next hops of others may need them.
    async fn routes_of(&self, index: u32) -> Result<Vec<RouteMessage>, Error> {
        let mut routes = Vec::new();
        for request in [
            RouteMessageBuilder::<Ipv4Addr>::new().build(),
            RouteMessageBuilder::<Ipv6Addr>::new().build(),
        ] {
            let all = self.handle.route().get(request).execute().try_collect::<Vec<_>>().await;
            routes
                .extend(all.map_err(Error::request(|| "the routes cannot be listed".to_owned()))?);
        }
        routes.retain(|route| {
            route.header.protocol != RouteProtocol::Kernel
                && !matches!(route.header.kind, RouteType::Local | RouteType::Broadcast)
                && route.attributes.contains(&RouteAttribute::Oif(index))
        });
        for route in &mut routes {
            route.attributes.retain(|it| !matches!(it, RouteAttribute::CacheInfo(_)));
            route.header.flags &= RouteFlags::Onlink;
        }
        let has_gateway = |route: &RouteMessage| {
            let gateway = |it: &RouteAttribute| {
                matches!(it, RouteAttribute::Gateway(_) | RouteAttribute::Via(_))
            };
            route.attributes.iter().any(gateway)
        };
        routes.sort_by_key(has_gateway);
        Ok(routes)
    }

    async fn add_route_as(&self, message: &RouteMessage) -> Result<(), Error> {
        match self.handle.route().add(message.clone()).execute().await {
            Err(rtnetlink::Error::NetlinkError(error)) if error.raw_code() == -libc::EEXIST => {
                Ok(())
            }
            other => other.map_err(Error::request(|| {
                format!("a route cannot be set again: {:?}", message.attributes)
            })),
        }
    }

    async fn permanent_neighbours_of(&self, index: u32) -> Result<Vec<NeighbourMessage>, Error> {
        let all = self.handle.neighbours().get().execute().try_collect::<Vec<_>>().await;
        let mut all =
            all.map_err(Error::request(|| "the neighbours cannot be listed".to_owned()))?;
        all.retain(|it| it.header.ifindex == index && it.header.state == NeighbourState::Permanent);
        Ok(all)
    }

    async fn add_neighbour_as(&self, message: &NeighbourMessage) -> Result<(), Error> {
        let index = message.header.ifindex;
        let neighbours = self.handle.neighbours();
        let mut request = neighbours.add(index, Ipv4Addr::UNSPECIFIED.into()).replace();
        *request.message_mut() = message.clone();
        request.execute().await.map_err(Error::request(|| {
            format!("a neighbour cannot be set again on interface {index}")
        }))
    }
}

fn infos(message: LinkMessage) -> impl Iterator<Item = LinkInfo> {
    let infos = message.attributes.into_iter().filter_map(|attribute| match attribute {
        LinkAttribute::LinkInfo(info) => Some(info),
        _ => None,
    });
    infos.flatten()
}

/// A setting that an interface loses when it leaves this master, and that no [`InterfaceConfig`] contains.
fn lost_in(master: LinkMessage) -> Option<String> {
    let filters_vlans = infos(master).find_map(|info| match info {
        LinkInfo::Data(InfoData::Bridge(all)) => {
            Some(all.contains(&InfoBridge::VlanFiltering(true)))
        }
        _ => None,
    });
    match filters_vlans {
        None => Some("its place in an interface that is no bridge".to_owned()),
        Some(true) => Some("its VLANs in a bridge that filters by them".to_owned()),
        Some(false) => None,
    }
}

/// The attributes that can be set, among those that were read: attributes of the interface, and attributes of the interface
/// as a bridge's port.
fn settable(message: LinkMessage) -> (Vec<LinkAttribute>, Vec<InfoBridgePort>) {
    let is_setting =
        |it: &&LinkAttribute| matches!(it, LinkAttribute::TxQueueLen(_) | LinkAttribute::Group(_));
    let own = message.attributes.iter().filter(is_setting).cloned().collect();
    let port = infos(message).filter_map(|info| match info {
        LinkInfo::PortData(InfoPortData::BridgePort(data)) => Some(data),
        _ => None,
    });
    (own, port.flatten().filter(is_port_setting).collect())
}

/// Whether an attribute is a setting of a bridge's port, and not its state.
fn is_port_setting(attribute: &InfoBridgePort) -> bool {
    use InfoBridgePort::{
        BroadcastFlood, Cost, FastLeave, GroupFwdMask, Guard, HairpinMode, Isolated, Learning,
        Locked, Mab, MulticastEhtHostsLimit, MulticastFlood, MulticastMaxGroups, MulticastRouter,
        MulticastToUnicast, NeighSupress, NeighVlanSuppress, Priority, Protect, ProxyARP,
        ProxyARPWifi, UnicastFlood,
    };
    matches!(
        attribute,
        BroadcastFlood(_)
            | Cost(_)
            | FastLeave(_)
            | GroupFwdMask(_)
            | Guard(_)
            | HairpinMode(_)
            | Isolated(_)
            | Learning(_)
            | Locked(_)
            | Mab(_)
            | MulticastEhtHostsLimit(_)
            | MulticastFlood(_)
            | MulticastMaxGroups(_)
            | MulticastRouter(_)
            | MulticastToUnicast(_)
            | NeighSupress(_)
            | NeighVlanSuppress(_)
            | Priority(_)
            | Protect(_)
            | ProxyARP(_)
            | ProxyARPWifi(_)
            | UnicastFlood(_)
    )
}

#[cfg(test)]
mod tests {
    use rtnetlink::packet_route::link::InfoKind;

    use super::*;

    /// Interfaces test the other cases, but not every kernel has these kinds of masters.
    #[test]
    fn a_bridge_that_filters_vlans_and_what_is_no_bridge_keep_more_than_can_be_read() {
        let lost = |info: Vec<LinkInfo>| {
            let mut master = LinkMessage::default();
            master.attributes = vec![LinkAttribute::Mtu(1500), LinkAttribute::LinkInfo(info)];
            lost_in(master).unwrap_or_default()
        };
        let bridge = |filters| {
            let data = vec![InfoBridge::AgeingTime(300), InfoBridge::VlanFiltering(filters)];
            vec![LinkInfo::Kind(InfoKind::Bridge), LinkInfo::Data(InfoData::Bridge(data))]
        };
        assert_eq!(lost(bridge(false)), "");
        assert!(lost(bridge(true)).contains("VLANs"));
        assert!(lost(vec![LinkInfo::Kind(InfoKind::Vrf)]).contains("no bridge"));
        assert!(lost(Vec::new()).contains("no bridge"));
    }
}
