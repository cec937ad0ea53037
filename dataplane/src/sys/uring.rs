//! Whether `io_uring` is to be had.

use std::io;

/// Asks the kernel for a ring with arguments that it cannot accept, and reads off its refusal whether it would give one
/// to this process.
///
/// Errors: `ENOSYS` without `io_uring` in the kernel or the seccomp filter; `EPERM` when `kernel.io_uring_disabled` or a
/// security module forbids it.
pub fn available() -> io::Result<()> {
    // SAFETY: a null pointer for the parameters, which the kernel reads only after it has checked that the caller may
    // have a ring; the call then fails with EFAULT and has no other effect.
    let result = unsafe {
        libc::syscall(libc::SYS_io_uring_setup, 1_u32, std::ptr::null_mut::<libc::c_void>())
    };
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EFAULT | libc::EINVAL) if result < 0 => Ok(()),
        _ => Err(error),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_answer_is_one_of_the_documented_ones() {
        if let Err(error) = super::available() {
            assert!(
                matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM | libc::EACCES)),
                "{error}"
            );
        }
    }
}
