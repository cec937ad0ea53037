//! Interfaces.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use futures_util::{StreamExt, TryStreamExt};
use rtnetlink::packet_core::{NLM_F_REQUEST, NetlinkMessage, NetlinkPayload};
use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::packet_route::link::{
    InfoData, InfoKind, InfoVeth, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
};
use rtnetlink::packet_route::nsid::{NsidAttribute, NsidMessage};
use rtnetlink::{LinkBridge, LinkMessageBuilder, LinkUnspec, LinkVeth};

use super::{Error, Netlink};

/// An interface as the kernel shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    pub index: u32,
    pub name: String,
    /// The hardware address; `None` for devices without one (TUN).
    pub mac: Option<[u8; 6]>,
    /// The MTU in bytes.
    pub mtu: u32,
    /// Whether it is administratively up.
    pub up: bool,
    /// Whether this is the loopback interface.
    pub loopback: bool,
    /// The index of the bridge to which the interface belongs.
    pub master: Option<u32>,
    /// The index of the other end of a veth pair, whichever namespace that is in.
    pub veth_peer: Option<u32>,
    /// This namespace's number for the namespace of the other end. `None` if the other end is in this namespace, or does
    /// not exist.
    pub peer_namespace: Option<i32>,
    /// An administrator's text about the interface (`ip link set … alias`).
    pub alias: Option<String>,
}

/// The second end of a veth pair.
#[derive(Debug, Clone, Copy)]
pub struct Peer<'a> {
    pub name: &'a str,
    /// The namespace in which this end is made; if absent, the first end's.
    pub netns: Option<BorrowedFd<'a>>,
    /// The hardware address; the kernel chooses if absent.
    pub mac: Option<[u8; 6]>,
    /// The index; the kernel chooses if absent.
    pub index: Option<u32>,
}

/// The description of a veth pair to make.
#[derive(Debug, Clone, Copy)]
pub struct Veth<'a> {
    /// The first end's name.
    pub name: &'a str,
    /// The first end's hardware address; the kernel chooses if absent.
    pub mac: Option<[u8; 6]>,
    /// The first end's index; the kernel chooses if absent.
    pub index: Option<u32>,
    /// Both ends' MTU in bytes.
    pub mtu: u32,
    pub peer: Peer<'a>,
}

impl From<LinkMessage> for Link {
    fn from(message: LinkMessage) -> Self {
        let mut link = Self {
            index: message.header.index,
            name: String::new(),
            mac: None,
            mtu: 0,
            up: message.header.flags.contains(LinkFlags::Up),
            loopback: message.header.flags.contains(LinkFlags::Loopback),
            master: None,
            veth_peer: None,
            peer_namespace: None,
            alias: None,
        };
        let mut is_veth = false;
        for attribute in message.attributes {
            match attribute {
                LinkAttribute::IfName(name) => link.name = name,
                LinkAttribute::Mtu(mtu) => link.mtu = mtu,
                LinkAttribute::Address(mac) => link.mac = mac.try_into().ok(),
                LinkAttribute::Controller(master) => link.master = Some(master),
                LinkAttribute::Link(other) => link.veth_peer = Some(other),
                LinkAttribute::LinkNetNsId(number) => link.peer_namespace = Some(number),
                LinkAttribute::IfAlias(alias) => link.alias = Some(alias),
                LinkAttribute::LinkInfo(info) => {
                    is_veth = info.contains(&LinkInfo::Kind(InfoKind::Veth));
                }
                _ => {}
            }
        }
        // Other kinds of interface use this attribute for their lower interface.
        link.veth_peer = link.veth_peer.filter(|_| is_veth);
        link
    }
}

impl Netlink {
    /// The interface with this name, if there is one.
    pub async fn link(&self, name: &str) -> Result<Option<Link>, Error> {
        let request = self.handle.link().get().match_name(name).execute();
        match std::pin::pin!(request).try_next().await {
            Ok(message) => Ok(message.map(Link::from)),
            Err(rtnetlink::Error::NetlinkError(error)) if error.raw_code() == -libc::ENODEV => {
                Ok(None)
            }
            Err(error) => Err(Error::request(|| format!("interface {name} cannot be read"))(error)),
        }
    }

    /// The interface with this name; an error if there is none.
    pub async fn existing(&self, name: &str) -> Result<Link, Error> {
        if let Some(link) = self.link(name).await? {
            return Ok(link);
        }
        let found = self.links().await?.into_iter().map(|link| link.name).collect();
        Err(Error::NoLink { name: name.to_owned(), found })
    }

    pub async fn links(&self) -> Result<Vec<Link>, Error> {
        let messages = self.handle.link().get().execute().try_collect::<Vec<_>>().await;
        let messages =
            messages.map_err(Error::request(|| "the interfaces cannot be listed".to_owned()))?;
        Ok(messages.into_iter().map(Link::from).collect())
    }

    /// This namespace's number for another one, as in [`Link::peer_namespace`]. Returns `None` if it has no number: then no
    /// interface here has its other end there.
    pub async fn number_of(&self, netns: impl AsFd) -> Result<Option<i32>, Error> {
        let failed = || "the number of a network namespace cannot be read".to_owned();
        let mut question = NsidMessage::default();
        question.attributes.push(NsidAttribute::Fd(netns.as_fd().as_raw_fd().cast_unsigned()));
        let mut question = NetlinkMessage::from(RouteNetlinkMessage::GetNsId(question));
        question.header.flags = NLM_F_REQUEST;
        let answer = self.handle.clone().request(question).map_err(Error::request(failed))?;
        let number = match std::pin::pin!(answer).next().await.map(|message| message.payload) {
            Some(NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewNsId(found))) => {
                found.attributes.into_iter().find_map(|attribute| match attribute {
                    NsidAttribute::Id(number) => Some(number),
                    _ => None,
                })
            }
            Some(NetlinkPayload::Error(error)) => {
                return Err(Error::request(failed)(rtnetlink::Error::NetlinkError(error)));
            }
            _ => None,
        };
        Ok(number.filter(|number| *number >= 0))
    }

    /// Makes a veth pair, both ends down.
    pub async fn add_veth(&self, veth: &Veth<'_>) -> Result<(), Error> {
        let mut peer = LinkUnspec::new_with_name(veth.peer.name).mtu(veth.mtu);
        if let Some(netns) = &veth.peer.netns {
            peer = peer.setns_by_fd(netns.as_raw_fd());
        }
        if let Some(mac) = veth.peer.mac {
            peer = peer.address(mac.to_vec());
        }
        if let Some(index) = veth.peer.index {
            peer = peer.index(index);
        }
        let mut message = LinkVeth::new(veth.name, veth.peer.name)
            .mtu(veth.mtu)
            .set_info_data(InfoData::Veth(InfoVeth::Peer(peer.build())));
        if let Some(mac) = veth.mac {
            message = message.address(mac.to_vec());
        }
        if let Some(index) = veth.index {
            message = message.index(index);
        }
        self.handle.link().add(message.build()).execute().await.map_err(Error::request(|| {
            format!("veth pair {} and {} cannot be made", veth.name, veth.peer.name)
        }))
    }

    /// Makes a bridge and sets it up.
    pub async fn add_bridge(&self, name: &str) -> Result<(), Error> {
        let message = LinkBridge::new(name).build();
        self.handle
            .link()
            .add(message)
            .execute()
            .await
            .map_err(Error::request(|| format!("bridge {name} cannot be made")))
    }

    /// Removes an interface. It is no error if the interface does not exist.
    pub async fn delete_link(&self, index: u32) -> Result<(), Error> {
        match self.handle.link().del(index).execute().await {
            Err(rtnetlink::Error::NetlinkError(error)) if error.raw_code() == -libc::ENODEV => {
                Ok(())
            }
            other => {
                other.map_err(Error::request(|| format!("interface {index} cannot be removed")))
            }
        }
    }

    pub async fn set_up(&self, index: u32) -> Result<(), Error> {
        self.change(index, "up", LinkMessageBuilder::up).await
    }

    pub async fn set_down(&self, index: u32) -> Result<(), Error> {
        self.change(index, "down", LinkMessageBuilder::down).await
    }

    /// Renames an interface, which should be down.
    pub async fn rename(&self, index: u32, name: &str) -> Result<(), Error> {
        self.change(index, name, |link| link.name(name)).await
    }

    /// Sets the MTU in bytes.
    pub async fn set_mtu(&self, index: u32, mtu: u32) -> Result<(), Error> {
        self.change(index, &format!("to MTU {mtu}"), |link| link.mtu(mtu)).await
    }

    /// Sets the number of packets that may wait in the interface's queue.
    pub async fn set_queue_len(&self, index: u32, packets: u32) -> Result<(), Error> {
        self.change(index, &format!("to a queue of {packets}"), |link| link.txqueuelen(packets))
            .await
    }

    /// Sets the greatest number of segments in a super-packet from the kernel. Kernels before 4.16 ignore it.
    pub async fn set_segments(&self, index: u32, most: u32) -> Result<(), Error> {
        self.change(index, &format!("to super-packets of {most} segments"), |link| {
            link.append_extra_attribute(LinkAttribute::GsoMaxSegs(most))
        })
        .await
    }

    /// Sets the hardware address.
    pub async fn set_mac(&self, index: u32, mac: [u8; 6]) -> Result<(), Error> {
        self.change(index, "to another hardware address", |link| link.address(mac.to_vec())).await
    }

    /// Sets an interface's alias, a text of at most 255 bytes.
    pub async fn set_alias(&self, index: u32, alias: &str) -> Result<(), Error> {
        self.change(index, &format!("an alias of {} bytes", alias.len()), |link| {
            link.append_extra_attribute(LinkAttribute::IfAlias(alias.to_owned()))
        })
        .await
    }

    /// Makes an interface a port of a bridge.
    pub async fn set_master(&self, index: u32, master: u32) -> Result<(), Error> {
        self.change(index, &format!("into bridge {master}"), |link| link.controller(master)).await
    }

    /// Moves an interface into another namespace. Afterwards it is down and has no addresses.
    pub async fn move_to(&self, index: u32, netns: impl AsFd) -> Result<(), Error> {
        let fd = netns.as_fd().as_raw_fd();
        self.change(index, "into another namespace", |link| link.setns_by_fd(fd)).await
    }

    pub(super) async fn change(
        &self,
        index: u32,
        to: &str,
        change: impl FnOnce(LinkMessageBuilder<LinkUnspec>) -> LinkMessageBuilder<LinkUnspec>,
    ) -> Result<(), Error> {
        let message = change(LinkUnspec::new_with_index(index)).build();
        self.handle
            .link()
            .change(message)
            .execute()
            .await
            .map_err(Error::request(|| format!("interface {index} cannot be set {to}")))
    }
}
