//! Addresses of interfaces.

use futures_util::TryStreamExt;
use ipnet::IpNet;
use rtnetlink::packet_route::AddressFamily;
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

/// Whether an interface has an address permanently. An IPv6 address does not count if it is temporary (RFC 8981),
/// deprecated or tentative (RFC 4862), or if another host on the link has it.
pub(crate) fn is_lasting(message: &AddressMessage) -> bool {
    let of_header = AddressFlags::from_bits_retain(message.header.flags.bits().into());
    let flags = message.attributes.iter().find_map(|attribute| match attribute {
        AddressAttribute::Flags(flags) => Some(*flags),
        _ => None,
    });
    let flags = flags.unwrap_or(of_header);
    // One bit says that an IPv4 address is secondary, and that an IPv6 address is temporary (`if_addr.h`).
    let is_temporary =
        message.header.family == AddressFamily::Inet6 && flags.contains(AddressFlags::Secondary);
    let passing = AddressFlags::Deprecated | AddressFlags::Tentative | AddressFlags::Dadfailed;
    !is_temporary && !flags.intersects(passing)
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
        Ok(self.address_messages().await?.iter().filter_map(Address::from_message).collect())
    }

    /// All permanent addresses of interfaces. IPv6 addresses that are temporary, deprecated or tentative are left out, and
    /// those that another host has.
    pub async fn lasting_addresses(&self) -> Result<Vec<Address>, Error> {
        let messages = self.address_messages().await?;
        let lasting = messages.iter().filter(|message| is_lasting(message));
        Ok(lasting.filter_map(Address::from_message).collect())
    }

    async fn address_messages(&self) -> Result<Vec<AddressMessage>, Error> {
        let messages = self.handle.address().get().execute().try_collect::<Vec<_>>().await;
        messages.map_err(Error::request(|| "the addresses cannot be listed".to_owned()))
    }
}
