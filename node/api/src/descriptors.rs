//! Messages that carry descriptors (`SCM_RIGHTS`, unix(7)): a pod's namespace, the queues of a device.
//!
//! [`receive`] takes the bytes that have arrived; [`receive_message`] waits for a whole message.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// The most descriptors that one system call carries (`SCM_MAX_FD`).
const AT_ONCE: usize = 253;
/// The most descriptors of a message: a queue for each worker that an agent can have.
pub const MAX_DESCRIPTORS: usize = 256;
/// The most bytes of a message that are received at once.
const CHUNK: usize = 16 << 10;

/// Sends bytes, and descriptors with the first of them. The socket blocks. Each system call with descriptors needs at
/// least one byte.
pub fn send(socket: impl AsFd, mut bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut rest = descriptors;
    while !bytes.is_empty() {
        let (now, later) = rest.split_at(rest.len().min(AT_ONCE));
        // Only one byte is sent if more descriptors follow.
        let part = if later.is_empty() { bytes } else { &bytes[..1] };
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(AT_ONCE))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !now.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(now));
        }
        match sendmsg(&socket, &[IoSlice::new(part)], &mut control, SendFlags::NOSIGNAL) {
            Ok(sent) => (bytes, rest) = (&bytes[sent..], later),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

/// Receives bytes into `buffer`, and the descriptors that come with them into `descriptors`. Returns the number of bytes,
/// or 0 if the other side has closed the connection.
///
/// # Errors
/// `WouldBlock` if a socket that does not block has no bytes. `InvalidData` if there are more descriptors than
/// [`MAX_DESCRIPTORS`].
pub fn receive(
    socket: impl AsFd,
    buffer: &mut [u8],
    descriptors: &mut Vec<OwnedFd>,
) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(AT_ONCE))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        let buffers = &mut [IoSliceMut::new(buffer)];
        match recvmsg(&socket, buffers, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            other => break other?,
        }
    };
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(those) = message {
            descriptors.extend(those);
        }
    }
    if descriptors.len() > MAX_DESCRIPTORS {
        let text = format!("a message with more than {MAX_DESCRIPTORS} descriptors");
        return Err(io::Error::new(io::ErrorKind::InvalidData, text));
    }
    Ok(received.bytes)
}

/// Receives a message of at most `most` bytes, without its length, and the descriptors that come with it. The socket
/// blocks. Returns `None` if the other side has closed the connection.
pub fn receive_message(
    socket: impl AsFd,
    most: usize,
) -> io::Result<Option<(Vec<u8>, Vec<OwnedFd>)>> {
    let mut descriptors = Vec::new();
    let mut header = [0; 4];
    let mut filled = 0;
    while filled < header.len() {
        match receive(&socket, &mut header[filled..], &mut descriptors)? {
            0 if filled == 0 => return Ok(None),
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            received => filled += received,
        }
    }
    let len = u32::from_le_bytes(header) as usize;
    if len > most {
        let text = format!("a message of {len} bytes is too long: at most {most} are allowed");
        return Err(io::Error::new(io::ErrorKind::InvalidData, text));
    }
    // Memory grows with the bytes received, not with the announced length.
    let mut bytes = Vec::new();
    let mut chunk = vec![0; CHUNK.min(len)];
    while bytes.len() < len {
        let rest = chunk.len().min(len - bytes.len());
        match receive(&socket, &mut chunk[..rest], &mut descriptors)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            received => bytes.extend_from_slice(&chunk[..received]),
        }
    }
    Ok(Some((bytes, descriptors)))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read as _;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn descriptors_come_with_the_bytes_that_they_were_sent_with() {
        let (mut left, right) = UnixStream::pair().unwrap();
        let null = File::open("/dev/null").unwrap();
        for count in [0, 1, AT_ONCE, MAX_DESCRIPTORS] {
            send(&left, b"message", &vec![null.as_fd(); count]).unwrap();
            let (mut bytes, mut descriptors) = (Vec::new(), Vec::new());
            while bytes.len() < 7 {
                let mut chunk = [0; 7];
                let len = receive(&right, &mut chunk, &mut descriptors).unwrap();
                bytes.extend_from_slice(&chunk[..len]);
            }
            assert_eq!((bytes.as_slice(), descriptors.len()), (&b"message"[..], count));
        }
        send(&left, b"message", &vec![null.as_fd(); MAX_DESCRIPTORS + 1]).unwrap();
        let mut descriptors = Vec::new();
        let result =
            (0..7).try_for_each(|_| receive(&right, &mut [0; 7], &mut descriptors).map(drop));
        assert_eq!(result.unwrap_err().kind(), io::ErrorKind::InvalidData);
        drop(right);
        assert_eq!(left.read(&mut [0; 1]).unwrap_or_default(), 0);
    }
}
