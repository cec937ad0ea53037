//! System calls that have no safe wrapper of the needed form: batches of datagrams, features of a device, and a
//! scheduling policy.
//!
//! This is the only module of the crate that contains `unsafe`.
#![expect(unsafe_code, reason = "system calls; every block argues its safety")]

use std::io;
use std::mem;
use std::net::UdpSocket;
use std::os::fd::{AsRawFd, RawFd};
use std::ptr;

/// The number of messages of one call.
pub const BATCH: usize = 64;

/// Buffers for [`BATCH`] datagrams of one length, and the message headers for the kernel.
pub struct Batch {
    buffers: Vec<u8>,
    vectors: Vec<libc::iovec>,
    headers: Vec<libc::mmsghdr>,
}

// SAFETY: the pointers point to vectors that the batch owns and never resizes, so they stay valid when the batch moves.
unsafe impl Send for Batch {}

impl std::fmt::Debug for Batch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Batch").field("messages", &self.headers.len()).finish_non_exhaustive()
    }
}

impl Batch {
    /// Creates datagrams of `len` zero bytes each, at least one byte.
    pub fn new(len: usize) -> Self {
        let len = len.max(1);
        let mut buffers = vec![0; BATCH * len];
        let mut vectors: Vec<libc::iovec> = buffers
            .chunks_exact_mut(len)
            .map(|chunk| libc::iovec { iov_base: chunk.as_mut_ptr().cast(), iov_len: len })
            .collect();
        let headers = vectors
            .iter_mut()
            .map(|vector| {
                // SAFETY: all zeros is a valid mmsghdr: no name, no control data, null pointers of length 0.
                let mut header: libc::mmsghdr = unsafe { mem::zeroed() };
                header.msg_hdr.msg_iov = ptr::from_mut(vector);
                header.msg_hdr.msg_iovlen = 1;
                header
            })
            .collect();
        Self { buffers, vectors, headers }
    }

    /// Writes into a datagram. Bytes beyond the end of the datagram or of the batch are ignored.
    pub fn write(&mut self, datagram: usize, at: usize, bytes: &[u8]) {
        let Some(vector) = self.vectors.get(datagram) else { return };
        let len = bytes.len().min(vector.iov_len.saturating_sub(at));
        if len > 0 {
            // SAFETY: `at + len` is at most the length of this vector's buffer, which lives as long as `self`. `&mut
            // self` is the only access to it, and `bytes` cannot lie in it, because no reference to it is ever given
            // away.
            unsafe {
                let to = vector.iov_base.cast::<u8>().add(at);
                ptr::copy_nonoverlapping(bytes.as_ptr(), to, len);
            }
        }
    }

    /// Sends the whole batch on a socket that is connected or bound to a link. Returns the number of datagrams that the
    /// kernel took.
    pub fn send(&mut self, socket: &impl AsRawFd) -> io::Result<usize> {
        debug_assert_eq!(self.buffers.len(), self.vectors.len() * self.vectors[0].iov_len);
        // SAFETY: the headers point to vectors, and these point to buffers, that live as long as `self`. The count is
        // the number of headers.
        let sent = unsafe {
            libc::sendmmsg(socket.as_raw_fd(), self.headers.as_mut_ptr(), BATCH as u32, 0)
        };
        count(sent)
    }

    /// Waits for one datagram, and takes further ones that have already arrived, at most a batch. Returns their number.
    pub fn receive(&mut self, socket: &UdpSocket) -> io::Result<usize> {
        // SAFETY: as in `send`; the kernel writes at most each vector's length into its buffer.
        let received = unsafe {
            libc::recvmmsg(
                socket.as_raw_fd(),
                self.headers.as_mut_ptr(),
                BATCH as u32,
                libc::MSG_WAITFORONE,
                ptr::null_mut(),
            )
        };
        count(received)
    }
}

/// Makes the calling thread run only while no other thread wants its core (`sched(7)`, `SCHED_IDLE`). A thread that
/// wakes up on that core runs at once.
///
/// # Errors
/// Returns an error if the kernel refuses.
pub fn run_only_when_idle() -> io::Result<()> {
    // SAFETY: all zeros is a valid sched_param: priority 0, which this policy asks for.
    let parameters: libc::sched_param = unsafe { mem::zeroed() };
    // SAFETY: the kernel reads one sched_param, which lives until the call returns; 0 is the calling thread.
    let returned = unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const parameters) };
    if returned < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn count(returned: libc::c_int) -> io::Result<usize> {
    usize::try_from(returned).map_err(|_| io::Error::last_os_error())
}

const ETHTOOL_GSTRINGS: u32 = 0x1b;
const ETHTOOL_GSSET_INFO: u32 = 0x37;
const ETHTOOL_SFEATURES: u32 = 0x3b;
const ETH_SS_FEATURES: u32 = 4;
const ETH_GSTRING_LEN: usize = 32;

/// Switches off features of an interface, like `ethtool -K IFACE FEATURE off`. The interface is in the calling thread's
/// namespace. (linux/ethtool.h: the names of the features are a set of strings, and the number of a feature is its
/// index in the set.)
///
/// # Errors
/// Returns an error if the interface or a feature does not exist, or if the kernel refuses.
pub fn features_off(interface: &str, features: &[&str]) -> io::Result<()> {
    let socket = UdpSocket::bind(("0.0.0.0", 0))?;
    let fd = socket.as_raw_fd();
    let names = feature_names(fd, interface)?;
    let blocks = names.len().div_ceil(32);
    // The request: command, size, then {valid, requested} for each block of 32 features.
    let mut request = vec![0u32; 2 + 2 * blocks];
    request[0] = ETHTOOL_SFEATURES;
    request[1] = blocks as u32;
    for feature in features {
        let Some(bit) = names.iter().position(|name| name == feature) else {
            return Err(io::Error::new(
                io::ErrorKind::NotFound,
                format!("no device feature is named {feature}"),
            ));
        };
        request[2 + 2 * (bit / 32)] |= 1 << (bit % 32);
    }
    ethtool(fd, interface, &mut request)
}

fn feature_names(fd: RawFd, interface: &str) -> io::Result<Vec<String>> {
    // The request: command, reserved, a mask of sets in 64 bits, and the length of the requested set.
    let mut info = [ETHTOOL_GSSET_INFO, 0, 1 << ETH_SS_FEATURES, 0, 0];
    ethtool(fd, interface, &mut info)?;
    let count = info[4] as usize;
    // The request: command, the set, the count, then the strings.
    let mut strings = vec![0u32; 3 + count * ETH_GSTRING_LEN / 4];
    strings[..3].copy_from_slice(&[ETHTOOL_GSTRINGS, ETH_SS_FEATURES, count as u32]);
    ethtool(fd, interface, &mut strings)?;
    let bytes: Vec<u8> = strings[3..].iter().flat_map(|word| word.to_ne_bytes()).collect();
    Ok(bytes
        .chunks_exact(ETH_GSTRING_LEN)
        .map(|name| {
            let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
            String::from_utf8_lossy(name).into_owned()
        })
        .collect())
}

fn ethtool(fd: RawFd, interface: &str, data: &mut [u32]) -> io::Result<()> {
    // SAFETY: all zeros is a valid ifreq.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    if interface.len() >= request.ifr_name.len() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "the interface's name is too long",
        ));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(interface.bytes()) {
        *to = from.cast_signed();
    }
    request.ifr_ifru.ifru_data = data.as_mut_ptr().cast();
    // SAFETY: the request is a whole ifreq. Its data has the shape and length of the command in its first word (each
    // caller lays it out), and both outlive the call.
    let returned = unsafe { libc::ioctl(fd, libc::SIOCETHTOOL, ptr::from_mut(&mut request)) };
    if returned < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
