//! Longest-prefix match from addresses to small numbers: to identities here, to routes in the dataplane.

mod map;
mod nets;
mod v4;
mod v6;

pub use v4::MAX_VALUE;

#[cfg(test)]
mod tests;

pub use map::PrefixMap;
pub(crate) use nets::lies_in;
