//! An IP address of either family in sixteen bytes: half of a flow's key.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::checksum;

/// The bits in front of an IPv4 address in IPv4-mapped form, `::ffff:0:0/96` (RFC 4291, section 2.5.5.2).
const MAPPED: u64 = 0xffff;

/// The first octet of IPv4's loopback addresses.
const LOOPBACK: u8 = 127;

/// An IPv4 address in IPv4-mapped form, or an IPv6 address.
///
/// An IPv6 packet with an IPv4-mapped address is malformed ([`crate::parse`]), because the address would count as IPv4.
/// Addresses are ordered by their sixteen bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(C)]
pub struct Address {
    high: u64,
    low: u64,
}

impl Address {
    /// `::`, the address of no node.
    pub const UNSPECIFIED: Self = Self { high: 0, low: 0 };

    /// The address in the bytes of an IPv4 header.
    #[inline]
    pub const fn v4(octets: [u8; 4]) -> Self {
        Self { high: 0, low: MAPPED << 32 | u32::from_be_bytes(octets) as u64 }
    }

    /// The address in the bytes of an IPv6 header.
    #[inline]
    pub const fn v6(octets: [u8; 16]) -> Self {
        let bits = u128::from_be_bytes(octets);
        Self { high: (bits >> 64) as u64, low: bits as u64 }
    }

    /// Whether it is an IPv4 address.
    #[inline]
    pub const fn is_v4(self) -> bool {
        self.high == 0 && self.low >> 32 == MAPPED
    }

    /// The IPv4 address, if it is one.
    #[inline]
    pub const fn to_v4(self) -> Option<Ipv4Addr> {
        if self.is_v4() { Some(Ipv4Addr::from_bits(self.low as u32)) } else { None }
    }

    /// The address in the standard library's form.
    #[inline]
    pub const fn to_ip(self) -> IpAddr {
        match self.to_v4() {
            Some(v4) => IpAddr::V4(v4),
            None => IpAddr::V6(Ipv6Addr::from_bits(self.to_bits())),
        }
    }

    /// Whether it is one of IPv4's loopback addresses, 127.0.0.0/8.
    #[inline]
    pub const fn is_v4_loopback(self) -> bool {
        matches!(self.to_ip(), IpAddr::V4(v4) if v4.is_loopback())
    }

    /// Whether a router forwards packets from and to the address. It does not forward for these: this network, the
    /// unspecified address, loopback, multicast, reserved and broadcast addresses, and IPv6's link-local ones (RFC
    /// 1812, section 5.3.7; RFC 6890; RFC 4291, sections 2.5 and 2.7). It forwards for IPv4's link-local addresses, as
    /// Calico does and against RFC 3927, section 7, because metadata services and node-local DNS have such addresses.
    #[inline]
    pub const fn is_forwardable(self) -> bool {
        match self.to_v4() {
            Some(v4) => {
                let first = v4.octets()[0];
                !(first == 0 || first == LOOPBACK || first >= 224)
            }
            None => self.is_forwardable_v6(),
        }
    }

    #[inline(never)]
    const fn is_forwardable_v6(self) -> bool {
        let v6 = Ipv6Addr::from_bits(self.to_bits());
        !(v6.is_unspecified()
            || v6.is_loopback()
            || v6.is_unicast_link_local()
            || v6.is_multicast())
    }

    /// The sixteen bytes as one big-endian number.
    #[inline]
    pub const fn to_bits(self) -> u128 {
        (self.high as u128) << 64 | self.low as u128
    }

    /// The sum of the address's bytes in a header, for pseudo-headers ([`crate::checksum`]).
    #[inline]
    pub(crate) const fn checksum(self) -> u32 {
        let Self { high, low } = self;
        // 2^16 counts as 1, so words are added two at a time. 0xffff counts as 0, so the mapped prefix does not matter.
        let pairs = (high >> 32) + (high as u32 as u64) + (low >> 32) + (low as u32 as u64);
        checksum::fold(checksum::fold64(pairs)) as u32
    }
}

/// The sum of the pseudo-header of either family, which TCP, UDP and ICMPv6 checksums cover: addresses, protocol, and
/// the length of the layer-4 part in bytes (RFC 9293, section 3.1; RFC 8200, section 8.1).
#[inline]
pub fn pseudo(source: Address, destination: Address, protocol: u8, len: u32) -> u32 {
    source.checksum() + destination.checksum() + u32::from(protocol) + (len & 0xffff) + (len >> 16)
}

impl From<Ipv4Addr> for Address {
    #[inline]
    fn from(address: Ipv4Addr) -> Self {
        Self::v4(address.octets())
    }
}

impl From<IpAddr> for Address {
    #[inline]
    fn from(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(v4) => Self::v4(v4.octets()),
            IpAddr::V6(v6) => Self::v6(v6.octets()),
        }
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.to_ip().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn there_and_back_is_the_same_address(v4: [u8; 4], v6: [u8; 16]) {
            for ip in [IpAddr::from(v4), IpAddr::from(v6)] {
                let ip = ip.to_canonical();
                prop_assert_eq!(Address::from(ip).to_ip(), ip);
                prop_assert_eq!(Address::from(ip).is_v4(), ip.is_ipv4());
                let octets = match ip {
                    IpAddr::V4(v4) => v4.octets().to_vec(),
                    IpAddr::V6(v6) => v6.octets().to_vec(),
                };
                let sums = [Address::from(ip).checksum(), checksum::sum(&octets)];
                prop_assert_eq!(checksum::fold(sums[0]) % 0xffff, checksum::fold(sums[1]) % 0xffff);
            }
        }

        #[test]
        fn only_unicast_addresses_beyond_the_link_are_forwarded(v4: [u8; 4]) {
            let ip = Ipv4Addr::from(v4);
            let never = v4[0] == 0
                || v4[0] >= 240
                || ip.is_loopback()
                || ip.is_multicast()
                || ip.is_broadcast();
            prop_assert_eq!(Address::v4(v4).is_forwardable(), !never);
        }

        #[test]
        fn ordered_as_its_bytes(a: [u8; 16], b: [u8; 16]) {
            prop_assert_eq!(Address::v6(a).cmp(&Address::v6(b)), a.cmp(&b));
        }
    }

    #[test]
    fn ipv6_addresses_of_the_link_are_not_forwarded() {
        for (text, forwarded) in [
            ("::", false),
            ("::1", false),
            ("fe80::1", false),
            ("ff02::1", false),
            ("ff0e::1", false),
            ("fd00::1", true),
            ("2001:db8::1", true),
        ] {
            let ip: IpAddr = text.parse().unwrap();
            assert_eq!(Address::from(ip).is_forwardable(), forwarded, "{text}");
        }
    }
}
