//! Addresses of interfaces.

use futures_util::TryStreamExt;
use ipnet::IpNet;
use rtnetlink::packet_route::address::{
    AddressAttribute, AddressFlags, AddressMessage, AddressScope,
};

use super::{Error, Netlink};

/// An address on an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Address {
    pub index: u32,
    /// The address with its prefix length.
    pub net: IpNet,
}

impl Address {
    fn from_message(message: &AddressMessage) -> Option<Self> {
        // IFA_LOCAL is the interface's own address; IFA_ADDRESS is the peer's on point-to-point links (rtnetlink(7)).
        let mut address = None;
        for attribute in &message.attributes {
            match attribute {
                AddressAttribute::Local(local) => address = Some(*local),
                AddressAttribute::Address(other) if address.is_none() => address = Some(*other),
                _ => {}
            }
        }
        let net = IpNet::new(address?, message.header.prefix_len).ok()?;
        Some(Self { index: message.header.index, net })
    }
}

impl Netlink {
    /// Adds an address to an interface, usable at once (no duplicate address detection). An existing one stays.
    pub async fn add_address(&self, index: u32, net: IpNet) -> Result<(), Error> {
        let mut request = self.handle.address().add(index, net.addr(), net.prefix_len()).replace();
        if net.addr().is_ipv6() {
            let attributes = &mut request.message_mut().attributes;
            attributes.push(AddressAttribute::Flags(AddressFlags::Nodad));
        }
        request.execute().await.map_err(Error::request(|| {
            format!("interface {index} cannot be given the address {net}")
        }))
    }

    /// Like [`Self::add_address`], for an address that the kernel never chooses as a source for another host (scope host).
    pub async fn add_unused_address(&self, index: u32, net: IpNet) -> Result<(), Error> {
        let mut request = self.handle.address().add(index, net.addr(), net.prefix_len()).replace();
        request.message_mut().header.scope = AddressScope::Host;
        request.execute().await.map_err(Error::request(|| {
            format!("interface {index} cannot be given the address {net}")
        }))
    }

    /// Removes an address. It is no error if the address does not exist.
    pub async fn delete_address(&self, address: Address) -> Result<(), Error> {
        let Address { index, net } = address;
        let mut wanted =
            self.handle.address().add(index, net.addr(), net.prefix_len()).message_mut().clone();
        // The broadcast address that the builder adds may differ from the actual one.
        wanted.attributes.retain(|attribute| !matches!(attribute, AddressAttribute::Broadcast(_)));
        match self.handle.address().del(wanted).execute().await {
            Err(rtnetlink::Error::NetlinkError(error))
                if error.raw_code() == -libc::EADDRNOTAVAIL =>
            {
                Ok(())
            }
            other => other.map_err(Error::request(|| {
                format!("interface {index} cannot be rid of the address {net}")
            })),
        }
    }

    /// All addresses of all interfaces.
    pub async fn addresses(&self) -> Result<Vec<Address>, Error> {
        let messages = self.handle.address().get().execute().try_collect::<Vec<_>>().await;
        let messages =
            messages.map_err(Error::request(|| "the addresses cannot be listed".to_owned()))?;
        Ok(messages.iter().filter_map(Address::from_message).collect())
    }
}
