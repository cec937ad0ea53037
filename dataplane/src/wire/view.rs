//! The view of a packet: a header of a known layout, and the bytes that follow it.

use std::ops::Deref;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::Malformed;

/// The fixed part of a protocol's header, as it lies in a packet.
pub trait Header: FromBytes + IntoBytes + KnownLayout + Immutable + Unaligned + Sized {
    /// Whether version, type or flags are those of the protocol.
    #[inline]
    fn is_valid(&self) -> bool {
        true
    }

    /// The length of the header with its options, in bytes, as the header states it.
    #[inline]
    fn header_len(&self) -> usize {
        size_of::<Self>()
    }

    /// The length of header and payload, in bytes, as the header states it. `None` if it states none.
    #[inline]
    fn stated_len(&self) -> Option<usize> {
        None
    }
}

/// A packet: its header, whose fields can be read through the view, and the bytes after it.
///
/// No method panics. No method changes the length of the header.
#[derive(Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct View<H> {
    pub(super) header: H,
    rest: [u8],
}

impl<H: Header> View<H> {
    /// Checks the header as [`View::new_quoted`] does. Also checks that the length that it states is not less than the
    /// header and not more than the bytes. The link's padding may follow.
    #[inline]
    pub fn new_checked(bytes: &[u8]) -> Result<&Self, Malformed> {
        let view = Self::new_quoted(bytes)?;
        let fits = |len| len >= view.header_len() && len <= bytes.len();
        if view.header.stated_len().is_none_or(fits) { Ok(view) } else { Err(Malformed) }
    }

    /// Like [`View::new_checked`], for a mutable view.
    #[inline]
    pub fn new_checked_mut(bytes: &mut [u8]) -> Result<&mut Self, Malformed> {
        Self::new_checked(bytes)?;
        Self::mut_from_bytes(bytes).map_err(|_| Malformed)
    }

    /// Checks that the header is valid and complete, with its options. The payload may be cut short, as in a packet
    /// that an ICMP error quotes, or in the datagram of a first fragment.
    #[inline]
    pub fn new_quoted(bytes: &[u8]) -> Result<&Self, Malformed> {
        let view = Self::ref_from_bytes(bytes).map_err(|_| Malformed)?;
        let header_len = view.header_len();
        let fits = header_len >= size_of::<H>() && header_len <= bytes.len();
        if fits && view.header.is_valid() { Ok(view) } else { Err(Malformed) }
    }

    /// Like [`View::new_quoted`], for a mutable view.
    #[inline]
    pub fn new_quoted_mut(bytes: &mut [u8]) -> Result<&mut Self, Malformed> {
        Self::new_quoted(bytes)?;
        Self::mut_from_bytes(bytes).map_err(|_| Malformed)
    }

    /// The length of the header with its options, in bytes.
    #[inline]
    pub fn header_len(&self) -> usize {
        self.header.header_len()
    }

    /// The options, padding included.
    #[inline]
    pub fn options(&self) -> &[u8] {
        &self.rest[..self.header_len() - size_of::<H>()]
    }

    /// The bytes after the header, up to the length that it states or the end of the bytes.
    #[inline]
    pub fn payload(&self) -> &[u8] {
        let (start, there) = (self.header_len(), size_of::<H>() + self.rest.len());
        let end = self.header.stated_len().map_or(there, |len| len.clamp(start, there));
        &self.rest[start - size_of::<H>()..end - size_of::<H>()]
    }
}

impl<H> Deref for View<H> {
    type Target = H;

    #[inline]
    fn deref(&self) -> &H {
        &self.header
    }
}
