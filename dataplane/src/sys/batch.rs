//! Many datagrams in one system call: `recvmmsg(2)`, `sendmmsg(2)`.
//!
//! The kernel's arrays are allocated once and filled for every call, so a call allocates nothing.

use std::io;
use std::mem::size_of;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use super::check;
use crate::packet::Packet;

/// The largest number of bytes in front of a packet: a virtio header (10 bytes) and an Ethernet header (14).
pub const HEAD_LEN: usize = 24;
/// The bytes in front of a packet in its datagram. Only a part of the array may be used.
pub type Head = [u8; HEAD_LEN];

/// The arrays for up to `capacity` datagrams, each a head and a packet.
#[derive(Debug)]
pub struct Batch {
    heads: Vec<Head>,
    destinations: Vec<libc::sockaddr_in>,
    vectors: Vec<[libc::iovec; 2]>,
    messages: Vec<libc::mmsghdr>,
}

// SAFETY: the pointers in `vectors` and `messages` are written before each system call, and the kernel reads them
// during it. Between calls nothing follows them, so it does not matter which thread holds them.
unsafe impl Send for Batch {}

impl Batch {
    /// Arrays for `capacity` datagrams a call.
    pub fn new(capacity: usize) -> Self {
        let vector = libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 };
        let destination = libc::sockaddr_in {
            sin_family: libc::AF_INET as u16,
            sin_port: 0,
            sin_addr: libc::in_addr { s_addr: 0 },
            sin_zero: [0; 8],
        };
        // SAFETY: a msghdr of zeros is valid: null pointers with lengths of zero (on some targets it has private
        // padding, which no literal can name).
        let header: libc::msghdr = unsafe { std::mem::zeroed() };
        Self {
            heads: vec![[0; HEAD_LEN]; capacity],
            destinations: vec![destination; capacity],
            vectors: vec![[vector; 2]; capacity],
            messages: vec![libc::mmsghdr { msg_hdr: header, msg_len: 0 }; capacity],
        }
    }

    /// The number of datagrams that fit.
    pub fn capacity(&self) -> usize {
        self.messages.len()
    }

    /// The bytes that arrived in front of packet `i`.
    #[inline]
    pub fn head(&self, i: usize) -> &Head {
        &self.heads[i]
    }

    /// The bytes to send in front of packet `i`.
    #[inline]
    pub fn head_mut(&mut self, i: usize) -> &mut Head {
        &mut self.heads[i]
    }

    /// Sets the destination of datagram `i` for [`Batch::send_to`].
    #[inline]
    pub fn set_destination(&mut self, i: usize, to: Ipv4Addr) {
        self.destinations[i].sin_addr.s_addr = u32::from_ne_bytes(to.octets());
    }

    /// Whether datagram `i` was received whole: not cut, and at least as long as its head.
    #[inline]
    pub fn is_whole(&self, i: usize, head_len: usize) -> bool {
        let message = &self.messages[i];
        message.msg_hdr.msg_flags & libc::MSG_TRUNC == 0 && message.msg_len as usize >= head_len
    }

    /// Receives up to one datagram into each of `packets` (at most the capacity): the first `head_len` bytes (at most
    /// [`HEAD_LEN`]) into the head, the rest into the packet, whose length is set. Returns the number of datagrams that
    /// arrived; it never waits.
    ///
    /// A number below the requested one means that the queue was empty. `WouldBlock` means that there was no datagram.
    pub fn receive(
        &mut self,
        fd: BorrowedFd<'_>,
        head_len: usize,
        packets: &mut [Packet],
    ) -> io::Result<usize> {
        let head_len = head_len.min(HEAD_LEN);
        let slots = self.messages.iter_mut().zip(&mut self.vectors).zip(&mut self.heads);
        let mut count = 0;
        for (((message, vectors), head), packet) in slots.zip(packets.iter_mut()) {
            let room = packet.room_mut();
            vectors[0] = libc::iovec { iov_base: head.as_mut_ptr().cast(), iov_len: head_len };
            vectors[1] = libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() };
            message.msg_hdr.msg_name = ptr::null_mut();
            message.msg_hdr.msg_namelen = 0;
            message.msg_hdr.msg_iov = vectors.as_mut_ptr();
            message.msg_hdr.msg_iovlen = 2;
            message.msg_hdr.msg_flags = 0;
            message.msg_len = 0;
            count += 1;
        }
        // SAFETY: each of the first `count` messages points to two vectors in `self.vectors`. These point to a head in
        // `self.heads` and to the room of a distinct packet. All are borrowed until the call returns, and are as long
        // as stated.
        let received = check(unsafe {
            libc::recvmmsg(
                fd.as_raw_fd(),
                self.messages.as_mut_ptr(),
                count,
                libc::MSG_DONTWAIT,
                ptr::null_mut(),
            )
        })?
        .cast_unsigned() as usize;
        for (message, packet) in self.messages.iter().zip(packets.iter_mut()).take(received) {
            packet.set_len((message.msg_len as usize).saturating_sub(head_len));
        }
        Ok(received)
    }

    /// Sends `packets[from..]` (at most up to the capacity) to the address that the socket is bound to. Each packet
    /// follows the first `head_len` bytes of its head. Returns the number of datagrams that the kernel took, which is
    /// at least one. An error concerns the first packet.
    pub fn send(
        &mut self,
        fd: BorrowedFd<'_>,
        head_len: usize,
        packets: &[Packet],
        from: usize,
    ) -> io::Result<usize> {
        self.transmit(fd, head_len, packets, from, false)
    }

    /// Like [`Batch::send`], but each datagram goes to its own destination.
    pub fn send_to(
        &mut self,
        fd: BorrowedFd<'_>,
        head_len: usize,
        packets: &[Packet],
        from: usize,
    ) -> io::Result<usize> {
        self.transmit(fd, head_len, packets, from, true)
    }

    fn transmit(
        &mut self,
        fd: BorrowedFd<'_>,
        head_len: usize,
        packets: &[Packet],
        from: usize,
        addressed: bool,
    ) -> io::Result<usize> {
        let head_len = head_len.min(HEAD_LEN);
        let slots = self
            .messages
            .iter_mut()
            .zip(&mut self.vectors)
            .zip(&mut self.heads)
            .zip(&mut self.destinations);
        let mut count = 0;
        for ((((message, vectors), head), destination), packet) in slots.zip(packets).skip(from) {
            let bytes = packet.bytes();
            vectors[0] = libc::iovec { iov_base: head.as_mut_ptr().cast(), iov_len: head_len };
            vectors[1] =
                libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
            message.msg_hdr.msg_iov = vectors.as_mut_ptr();
            message.msg_hdr.msg_iovlen = 2;
            message.msg_hdr.msg_flags = 0;
            if addressed {
                message.msg_hdr.msg_name = ptr::from_mut(destination).cast();
                message.msg_hdr.msg_namelen = size_of::<libc::sockaddr_in>() as libc::socklen_t;
            } else {
                message.msg_hdr.msg_name = ptr::null_mut();
                message.msg_hdr.msg_namelen = 0;
            }
            count += 1;
        }
        let Some(messages) = self.messages.get_mut(from..) else { return Ok(0) };
        // SAFETY: each of the `count` messages from `from` on points to two vectors in `self.vectors`, and possibly to
        // an address in `self.destinations`. The vectors point to a head in `self.heads` and to a packet's bytes. All
        // are borrowed until the call returns, and are as long as stated. The kernel only reads through the vectors of
        // a sent message.
        let sent = check(unsafe {
            libc::sendmmsg(fd.as_raw_fd(), messages.as_mut_ptr(), count, libc::MSG_DONTWAIT)
        })?;
        Ok(sent.cast_unsigned() as usize)
    }
}
