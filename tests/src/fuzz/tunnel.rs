//! The outer header of packets that leave by a tunnel.

use manx_calculation::overlay::Overlay;

use super::wire::Fault;
use crate::fabric::{UNDERLAY, vxlan_mac};

/// Checks an outer header: from this node to the other one, with a new hop limit, the inner packet's ECN marks, and the
/// length of the inner packet, which begins at `start`.
pub fn check(node: usize, bytes: &[u8], start: usize, overlay: Overlay) -> Result<(), Fault> {
    let (ip, inner) = (&bytes[..20], &bytes[start..]);
    if bytes[0] != 0x45
        || ip[12..16] != UNDERLAY[node].octets()
        || ip[16..20] != UNDERLAY[1 - node].octets()
    {
        return Err("its outer header is not from this node to the other one");
    }
    let inner_total = inner.get(2..4).map(|it| usize::from(u16::from_be_bytes([it[0], it[1]])));
    if inner.first().is_none_or(|it| it >> 4 != 4) || inner_total != Some(inner.len()) {
        return Err("the inner packet is no IPv4 packet of the right length");
    }
    if ip[8] != 64 || ip[1] != inner[1] & 3 {
        return Err("its outer header has another hop limit or another mark than it should");
    }
    match overlay {
        Overlay::Ipip if (ip[6] ^ inner[6]) & 0x40 != 0 => {
            Err("the DF bits of its outer and inner header differ")
        }
        Overlay::Ipip => Ok(()),
        Overlay::Vxlan => {
            let len = u16::from_be_bytes([bytes[24], bytes[25]]);
            let frame = &bytes[36..48];
            let ends = [vxlan_mac(1 - node), vxlan_mac(node)].concat();
            if usize::from(len) != bytes.len() - 20 || frame != ends {
                return Err(
                    "the VXLAN datagram has a wrong length, or its frame has wrong addresses",
                );
            }
            Ok(())
        }
    }
}
