//! Memory that costs nothing until it is used, and that can be prefetched.

use std::io;
use std::mem::needs_drop;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::{self, NonNull};

use zerocopy::FromZeros;

use super::shared_file::SharedFile;

/// The page size of an array.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum Pages {
    /// 4 KB, for scattered memory that is rarely read.
    Small = libc::MADV_NOHUGEPAGE,
    /// 2 MB, if the kernel has such pages. With small pages, nearly every lookup in a large array walks page tables
    /// first.
    Huge = libc::MADV_HUGEPAGE,
}

/// Prefetches the cache line of this address. It is a hint, which affects only time.
#[inline]
#[cfg(target_arch = "x86_64")]
pub fn prefetch<T>(address: *const T) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: prefetching reads nothing and faults on no address; SSE is part of x86-64.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) };
}

/// Does nothing on other processors.
#[inline]
#[cfg(not(target_arch = "x86_64"))]
pub fn prefetch<T>(_address: *const T) {}

/// Maps memory for reading and writing, at an address that the kernel chooses.
fn map(bytes: usize, flags: libc::c_int, file: libc::c_int) -> io::Result<NonNull<libc::c_void>> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a mapping at an address of the kernel's choice touches no memory of ours.
    let address = unsafe { libc::mmap(ptr::null_mut(), bytes, protection, flags, file, 0) };
    if address == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(address).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
}

/// A fixed array of zeroed values in pages of its own. A page uses memory only after it is first touched.
#[derive(Debug)]
pub struct ZeroedPages<T: FromZeros> {
    first: NonNull<T>,
    len: usize,
}

// SAFETY: it owns its pages alone, and `T` is `Send`.
unsafe impl<T: FromZeros + Send> Send for ZeroedPages<T> {}
// SAFETY: a shared reference to it gives shared references to its values, and nothing else.
unsafe impl<T: FromZeros + Sync> Sync for ZeroedPages<T> {}

impl<T: FromZeros> ZeroedPages<T> {
    /// Creates `len` zeroed values in pages of this size. Fails if there is no address space, or with `OutOfMemory` if
    /// the number of bytes overflows.
    pub fn new(len: usize, pages: Pages) -> io::Result<Self> {
        const { assert!(size_of::<T>() > 0 && align_of::<T>() <= 4096 && !needs_drop::<T>()) };
        if len == 0 {
            return Ok(Self { first: NonNull::dangling(), len });
        }
        let bytes = Self::bytes(len).ok_or(io::ErrorKind::OutOfMemory)?;
        let first = map(bytes, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE, -1)?;
        // SAFETY: the range was just mapped. This is only advice: nothing is lost if a kernel without huge pages
        // refuses it.
        unsafe { libc::madvise(first.as_ptr().cast(), bytes, pages as libc::c_int) };
        Ok(Self { first: first.cast(), len })
    }

    /// Creates `len` zeroed values, at least one, in a file that other processes may also map. Other processes may
    /// write there, so `T` must be atomic. Fails if there is no address space or no file, or with `OutOfMemory` if the
    /// number of bytes overflows.
    pub(crate) fn shared(len: usize, name: &str) -> io::Result<(Self, SharedFile)>
    where
        T: Sync,
    {
        const { assert!(size_of::<T>() > 0 && align_of::<T>() <= 4096 && !needs_drop::<T>()) };
        let bytes =
            Self::bytes(len).filter(|&bytes| bytes > 0).ok_or(io::ErrorKind::OutOfMemory)?;
        let file = SharedFile::new(name, bytes as u64)?;
        let first = map(bytes, libc::MAP_SHARED, file.as_fd().as_raw_fd())?;
        Ok((Self { first: first.cast(), len }, file))
    }

    /// Prefetches the cache line of a value's first byte. Does nothing if there is no such value.
    #[inline]
    pub fn prefetch(&self, at: usize) {
        prefetch(self.first.as_ptr().wrapping_add(at));
    }

    fn bytes(len: usize) -> Option<usize> {
        len.checked_mul(size_of::<T>()).filter(|&bytes| isize::try_from(bytes).is_ok())
    }
}

impl<T: FromZeros> Deref for ZeroedPages<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: `first` is page-aligned, so aligned for `T`. It is the start of `len` values that are zero or were
        // written as `T`, and zero is a valid `T` by `FromZeros`. If `len` is 0 it dangles, aligned. The mapping lives
        // as long as `self`.
        unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.len) }
    }
}

impl<T: FromZeros> DerefMut for ZeroedPages<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`; `&mut self` makes this borrow the only one.
        unsafe { std::slice::from_raw_parts_mut(self.first.as_ptr(), self.len) }
    }
}

impl<T: FromZeros> Drop for ZeroedPages<T> {
    fn drop(&mut self) {
        if let (Some(bytes), true) = (Self::bytes(self.len), self.len > 0) {
            // SAFETY: this is exactly the range that `new` mapped, and no borrow outlives `self`.
            unsafe { libc::munmap(self.first.as_ptr().cast(), bytes) };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::sync::atomic::AtomicU64;
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;

    #[test]
    fn pages_start_as_zero_and_keep_what_is_written() {
        let mut pages = ZeroedPages::<[u32; 4]>::new(100_000, Pages::Huge).unwrap();
        assert_eq!(pages.len(), 100_000);
        assert!(pages.iter().all(|words| *words == [0; 4]));
        pages[99_999] = [1, 2, 3, 0];
        pages.prefetch(99_999);
        pages.prefetch(usize::MAX);
        assert_eq!(pages[99_999], [1, 2, 3, 0]);
        assert!(ZeroedPages::<[u32; 4]>::new(0, Pages::Small).unwrap().is_empty());
        assert!(ZeroedPages::<[u32; 4]>::new(usize::MAX / 2, Pages::Small).is_err());
    }

    #[test]
    fn shared_pages_outlive_their_mapping_and_keep_their_size() {
        let (pages, file) = ZeroedPages::<AtomicU64>::shared(1000, "test").unwrap();
        assert!(pages.iter().all(|word| word.load(Relaxed) == 0));
        pages[999].store(7, Relaxed);
        drop(pages);
        let mut last = [0; 8];
        assert_eq!(file.read_at(&mut last, 999 * 8).unwrap(), 8);
        let file = File::from(file.as_fd().try_clone_to_owned().unwrap());
        assert_eq!(u64::from_ne_bytes(last), 7);
        assert!(file.set_len(0).is_err() && file.set_len(9000).is_err());
        assert!(ZeroedPages::<AtomicU64>::shared(usize::MAX / 2, "test").is_err());
        assert!(ZeroedPages::<AtomicU64>::shared(0, "test").is_err());
    }
}
