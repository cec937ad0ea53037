//! The outer header of what leaves by a tunnel.

use manx_calculation::import::Overlay;

use super::wire::Fault;
use crate::fabric::{UNDERLAY, vxlan_mac};

/// Whether an outer header is as it must be: from this node to the other one, with a hop limit of its own, the inner packet's
/// marks, and the lengths of what is inside, which begins at `start`.
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
        return Err("what is in the tunnel is no IPv4 packet of the right length");
    }
    if ip[8] != 64 || ip[1] != inner[1] & 3 {
        return Err("its outer header has another hop limit or another mark than it should");
    }
    match overlay {
        Overlay::Ipip if (ip[6] ^ inner[6]) & 0x40 != 0 => {
            Err("its outer header may be cut otherwise than the inner one")
        }
        Overlay::Ipip => Ok(()),
        Overlay::Vxlan => {
            let len = u16::from_be_bytes([bytes[24], bytes[25]]);
            let frame = &bytes[36..48];
            let ends = [vxlan_mac(1 - node), vxlan_mac(node)].concat();
            if usize::from(len) != bytes.len() - 20 || frame != ends {
                return Err("the datagram around it has another length, or its frame other ends");
            }
            Ok(())
        }
    }
}
