//! A file without a name, in memory: it lives as long as a descriptor of it, in any process.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

use rustix::fs::{MemfdFlags, SealFlags, SeekFrom, fcntl_add_seals, memfd_create, seek};

/// A handle of such a file. Its content is not trusted if another process has written it.
#[derive(Debug)]
pub struct SharedFile(File);

impl SharedFile {
    /// A file of zeros whose size cannot change. Only parts that have been written use memory.
    pub(super) fn new(name: &str, bytes: u64) -> io::Result<Self> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        // A system may forbid files that could be executed (`vm.memfd_noexec`); before Linux 6.3 there is no such flag.
        let file = memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL)
            .or_else(|_| memfd_create(name, flags))?;
        let file = File::from(file);
        file.set_len(bytes)?;
        // A mapping that reaches beyond its file ends the process that touches it.
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok(Self(file))
    }

    /// A file that another process has made. Returns an error if the descriptor is not such a file.
    pub fn open(file: OwnedFd) -> io::Result<Self> {
        let file = File::from(file);
        if file.metadata()?.is_file() {
            Ok(Self(file))
        } else {
            Err(io::Error::other("it is not a file"))
        }
    }

    /// Reads, starting at this offset. Returns the number of bytes; 0 means the end of the file.
    pub fn read_at(&self, bytes: &mut [u8], at: u64) -> io::Result<usize> {
        self.0.read_at(bytes, at)
    }

    /// The offset of the first hole, where nothing was written, or of the end of the file.
    pub fn first_hole(&self) -> io::Result<u64> {
        seek(&self.0, SeekFrom::Hole(0)).or_else(|_| Ok(self.0.metadata()?.len()))
    }
}

impl AsFd for SharedFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
