//! ICMP and ICMPv6 echo (RFC 792; RFC 4443, section 4).

/// An echo request or reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Echo {
    pub(super) request: bool,
    /// The number that identifies the sender.
    pub(super) identifier: u16,
    /// The number that identifies the request.
    pub(super) sequence: u16,
}

impl Echo {
    const fn kind(v4: bool, request: bool) -> u8 {
        match (v4, request) {
            (true, true) => 8,
            (true, false) => 0,
            (false, true) => 128,
            (false, false) => 129,
        }
    }

    /// The message as bytes. The kernel fills in the checksum of ICMPv6, because it covers the
    /// addresses.
    pub(super) fn bytes(self, v4: bool) -> Vec<u8> {
        let mut bytes = vec![Self::kind(v4, self.request), 0, 0, 0];
        bytes.extend(self.identifier.to_be_bytes());
        bytes.extend(self.sequence.to_be_bytes());
        bytes.extend(b"manx rig");
        if v4 {
            let checksum = checksum(&bytes);
            bytes[2..4].copy_from_slice(&checksum.to_be_bytes());
        }
        bytes
    }

    /// Parses a message. The kernel has checked the checksum.
    pub(super) fn parse(bytes: &[u8], v4: bool) -> Option<Self> {
        let request = match bytes.first()? {
            kind if *kind == Self::kind(v4, true) => true,
            kind if *kind == Self::kind(v4, false) => false,
            _ => return None,
        };
        let identifier = u16::from_be_bytes(bytes.get(4..6)?.try_into().ok()?);
        let sequence = u16::from_be_bytes(bytes.get(6..8)?.try_into().ok()?);
        Some(Self { request, identifier, sequence })
    }
}

/// The Internet checksum of an even number of bytes (RFC 1071).
fn checksum(bytes: &[u8]) -> u16 {
    let mut sum: u32 =
        bytes.chunks_exact(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_sums_to_zero() {
        for v4 in [true, false] {
            let echo = Echo { request: true, identifier: 0xbeef, sequence: 3 };
            let bytes = echo.bytes(v4);
            assert_eq!(Echo::parse(&bytes, v4), Some(echo));
            assert_eq!(Echo::parse(&bytes, !v4), None);
            if v4 {
                assert_eq!(checksum(&bytes), 0);
            }
        }
    }
}
