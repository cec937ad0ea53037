//! The messages about sockets.

use std::io;

use super::lack::{Capability, Lack};

const REMEDY: &str = "run it as root, inside a user namespace (as the rig does), or with CAP_NET_ADMIN and CAP_NET_RAW; in a container: \
                      docker run --cap-add NET_ADMIN --cap-add NET_RAW";

/// The message if packet sockets are refused.
pub fn packet_sockets_refused(error: &io::Error) -> Lack {
    Lack {
        capability: Capability::PacketSockets,
        found: format!("packet sockets with virtio headers cannot be opened ({error})"),
        cost: "neither veth pods nor a packet socket on the uplink are to be had".to_owned(),
        remedy: match error.raw_os_error() {
            Some(libc::EAFNOSUPPORT) => "load the driver: sudo modprobe af_packet".to_owned(),
            _ => REMEDY.to_owned(),
        },
    }
}

/// The message if raw sockets are refused.
pub fn raw_sockets_refused(error: &io::Error) -> Lack {
    Lack {
        capability: Capability::RawSockets,
        found: format!("raw sockets of protocol 4 cannot be opened ({error})"),
        cost: "IPIP between nodes is not to be had".to_owned(),
        remedy: REMEDY.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_refusal_has_its_sentence() {
        let told = [
            packet_sockets_refused(&io::Error::from_raw_os_error(libc::EPERM)),
            packet_sockets_refused(&io::Error::from_raw_os_error(libc::EAFNOSUPPORT)),
            raw_sockets_refused(&io::Error::from_raw_os_error(libc::EPERM)),
        ];
        insta::assert_snapshot!(told.map(|lack| lack.to_string()).join("\n"), @r"
        packet sockets with virtio headers cannot be opened (Operation not permitted (os error 1)): neither veth pods nor a packet socket on the uplink are to be had; run it as root, inside a user namespace (as the rig does), or with CAP_NET_ADMIN and CAP_NET_RAW; in a container: docker run --cap-add NET_ADMIN --cap-add NET_RAW
        packet sockets with virtio headers cannot be opened (Address family not supported by protocol (os error 97)): neither veth pods nor a packet socket on the uplink are to be had; load the driver: sudo modprobe af_packet
        raw sockets of protocol 4 cannot be opened (Operation not permitted (os error 1)): IPIP between nodes is not to be had; run it as root, inside a user namespace (as the rig does), or with CAP_NET_ADMIN and CAP_NET_RAW; in a container: docker run --cap-add NET_ADMIN --cap-add NET_RAW
        ");
    }
}
