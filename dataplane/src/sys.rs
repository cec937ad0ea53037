//! Every system call of the packet path, and all of this crate's unsafe code.
