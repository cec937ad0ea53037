//! Joins segments whose payload a socket has already placed in one piece, without copying it.

use super::coalesce::{Run, opens};
use super::headers::{Shape, TCP};
use crate::packet::Offload;

/// A super-packet that [`join`] has made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Joined {
    /// The number of its segments, at least 2.
    pub(crate) segments: usize,
    /// The length of the super-packet, in bytes.
    pub(crate) len: usize,
    /// Its metadata. Offsets count from its first byte.
    pub(crate) offload: Offload,
}

/// The length of the headers of a TCP segment to which others may be joined. `None` for any other packet.
pub(crate) fn header_len(segment: &[u8]) -> Option<usize> {
    match Shape::classify(segment) {
        Shape::Whole(headers) if headers.protocol == TCP && opens(segment, &headers) => {
            Some(headers.payload)
        }
        _ => None,
    }
}

/// Joins TCP segments by the rules of [`coalesce`](super::coalesce::coalesce). `bytes` holds the first segment, which
/// is `first` bytes long, followed by the payload of the others in order. `others` holds the headers of the others,
/// each as long as the first one's. The payload of each is as long as the first one's, except for the last, which may
/// be shorter.
///
/// Joins as many segments as possible, starting with the first; the rest of `bytes` stays unchanged. Returns `None` and
/// changes nothing if no segments can be joined.
pub(crate) fn join<'h>(
    bytes: &mut [u8],
    first: usize,
    others: impl Iterator<Item = &'h [u8]>,
) -> Option<Joined> {
    let (head, mut rest) = bytes.split_at_checked(first)?;
    let headers = match Shape::classify(head) {
        Shape::Whole(headers) if headers.protocol == TCP => headers,
        _ => return None,
    };
    if !(opens(head, &headers) && headers.verify_ip(head) && headers.verify(head)) {
        return None;
    }
    let mut run = Run::new(0, head, headers);
    let size = first - headers.payload;
    let mut len = first;
    for header in others {
        let (payload, behind) = rest.split_at(size.min(rest.len()));
        let follows = header.len() == headers.payload
            && headers.tell_length(header, header.len() + payload.len())
            && run.is_connected(head, header)
            && run.continues(head, header, payload.len())
            && headers.verify_ip(header)
            && headers.verify_apart(header, payload);
        if !follows {
            break;
        }
        run.count(head, header, payload.len());
        len += payload.len();
        rest = behind;
        if run.ended {
            break;
        }
    }
    let segments = usize::from(run.segments);
    if segments < 2 {
        return None;
    }
    let offload = run.close(&mut bytes[..len]);
    Some(Joined { segments, len, offload })
}
