//! Segments whose payload stands in one piece already, as a socket can lay it out, put together where they are.

use super::coalesce::{Run, opens};
use super::headers::{Shape, TCP};
use crate::packet::Offload;

/// What [`join`] has put together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Joined {
    /// Segments that are in it, at least 2.
    pub(crate) segments: usize,
    /// Bytes of the super-packet.
    pub(crate) len: usize,
    /// What it is; offsets count from its first byte.
    pub(crate) offload: Offload,
}

/// Bytes of the headers of a TCP segment that others may follow; `None`: it is something else.
pub(crate) fn header_len(segment: &[u8]) -> Option<usize> {
    match Shape::classify(segment) {
        Shape::Whole(headers) if headers.protocol == TCP && opens(segment, &headers) => {
            Some(headers.payload)
        }
        _ => None,
    }
}

/// Joins TCP segments by the rules of [`coalesce`](super::coalesce::coalesce). `bytes` are the first one, `first` bytes long, and
/// behind it the payload of the others in their order; `others` are their headers, as long as its own. The payload of each is as
/// long as the first one's, but for the last of all.
///
/// Joined are as many as may be, from the first on; where they end the rest of `bytes` is as it was. `None`, and nothing changed:
/// nothing can be joined.
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
