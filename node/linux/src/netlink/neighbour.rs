//! Neighbours, and the next hop of the kernel's routing table.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use futures_util::TryStreamExt;
use rtnetlink::RouteMessageBuilder;
use rtnetlink::packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
};
use rtnetlink::packet_route::route::{RouteAttribute, RouteType};

use super::route::ip;
use super::{Error, Netlink};

/// The number of reads of the neighbour table after a resolution was started, and the interval between two reads.
const RESOLVE_STEPS: u32 = 20;
const RESOLVE_STEP: Duration = Duration::from_millis(50);

/// An entry of the neighbour table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Neighbour {
    pub index: u32,
    pub address: IpAddr,
    /// The neighbour's hardware address, if it is known.
    pub mac: Option<[u8; 6]>,
}

/// The next hop to a destination in the kernel's routing table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NextHop {
    pub device: u32,
    /// The neighbour that gets the packet: the gateway, or the destination itself.
    pub neighbour: IpAddr,
    /// The source address that the kernel would choose.
    pub source: Option<IpAddr>,
    /// Whether the destination is a host beyond the node: neither an address of the node itself nor a broadcast address.
    pub is_beyond: bool,
}

impl Neighbour {
    fn from_message(message: &NeighbourMessage) -> Option<Self> {
        let (mut address, mut mac) = (None, None);
        for attribute in &message.attributes {
            match attribute {
                NeighbourAttribute::Destination(NeighbourAddress::Inet(v4)) => {
                    address = Some(IpAddr::V4(*v4));
                }
                NeighbourAttribute::Destination(NeighbourAddress::Inet6(v6)) => {
                    address = Some(IpAddr::V6(*v6));
                }
                NeighbourAttribute::LinkLayerAddress(bytes) => {
                    mac = bytes.as_slice().try_into().ok();
                }
                _ => {}
            }
        }
        // A failed or incomplete entry may still contain the address that no longer replies.
        if matches!(
            message.header.state,
            NeighbourState::Failed | NeighbourState::Incomplete | NeighbourState::None
        ) {
            mac = None;
        }
        Some(Self { index: message.header.ifindex, address: address?, mac })
    }
}

impl Netlink {
    /// Sets a neighbour's hardware address permanently.
    pub async fn set_neighbour(
        &self,
        index: u32,
        address: IpAddr,
        mac: [u8; 6],
    ) -> Result<(), Error> {
        let request =
            self.handle.neighbours().add(index, address).link_layer_address(&mac).replace();
        request.execute().await.map_err(Error::request(|| {
            format!("neighbour {address} cannot be set on interface {index}")
        }))
    }

    /// All neighbours of all interfaces, both families.
    pub async fn neighbours(&self) -> Result<Vec<Neighbour>, Error> {
        let messages = self.handle.neighbours().get().execute().try_collect::<Vec<_>>().await;
        let messages =
            messages.map_err(Error::request(|| "the neighbours cannot be listed".to_owned()))?;
        Ok(messages.iter().filter_map(Neighbour::from_message).collect())
    }

    /// The next hop to `destination`; `None` if there is no route.
    pub async fn next_hop(&self, destination: IpAddr) -> Result<Option<NextHop>, Error> {
        let request = match destination {
            IpAddr::V4(v4) => {
                RouteMessageBuilder::<Ipv4Addr>::new().destination_prefix(v4, 32).build()
            }
            IpAddr::V6(v6) => {
                RouteMessageBuilder::<Ipv6Addr>::new().destination_prefix(v6, 128).build()
            }
        };
        let answer = self.handle.route().get(request).execute();
        let message = match std::pin::pin!(answer).try_next().await {
            Ok(Some(message)) => message,
            Ok(None) => return Ok(None),
            Err(rtnetlink::Error::NetlinkError(error))
                if matches!(-error.raw_code(), libc::ENETUNREACH | libc::EHOSTUNREACH) =>
            {
                return Ok(None);
            }
            Err(error) => {
                return Err(Error::request(|| {
                    format!("the route to {destination} cannot be read")
                })(error));
            }
        };
        let (mut device, mut neighbour, mut source) = (None, destination, None);
        for attribute in &message.attributes {
            match attribute {
                RouteAttribute::Oif(index) => device = Some(*index),
                RouteAttribute::Gateway(gateway) => neighbour = ip(gateway).unwrap_or(destination),
                RouteAttribute::PrefSource(address) => source = ip(address),
                _ => {}
            }
        }
        let is_beyond = message.header.kind == RouteType::Unicast;
        Ok(device.map(|device| NextHop { device, neighbour, source, is_beyond }))
    }

    /// The hardware address of a neighbour. If it is not known, the kernel resolves it, for at most a second. Returns
    /// `None` if the neighbour does not reply.
    pub async fn resolve(&self, hop: NextHop) -> Result<Option<[u8; 6]>, Error> {
        for step in 0..RESOLVE_STEPS {
            let known = self.neighbours().await?.into_iter().find(|neighbour| {
                neighbour.index == hop.device && neighbour.address == hop.neighbour
            });
            if let Some(mac) = known.and_then(|neighbour| neighbour.mac) {
                return Ok(Some(mac));
            }
            if step == 0 {
                self.trigger_resolution(hop).await?;
            }
            tokio::time::sleep(RESOLVE_STEP).await;
        }
        Ok(None)
    }

    /// Makes the kernel resolve a neighbour's hardware address, as if it had a packet to send there (`NTF_USE`).
    pub async fn trigger_resolution(&self, hop: NextHop) -> Result<(), Error> {
        let NextHop { device, neighbour, .. } = hop;
        self.handle
            .neighbours()
            .add(device, neighbour)
            .state(NeighbourState::None)
            .flags(NeighbourFlags::Use)
            .replace()
            .execute()
            .await
            .map_err(Error::request(|| format!("neighbour {neighbour} cannot be asked for")))
    }
}
