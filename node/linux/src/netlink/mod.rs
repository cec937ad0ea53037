//! Links, addresses, routes and neighbours of a network namespace.
//!
//! A [`Netlink`] talks to the namespace in which it was opened. [`in_netns`] opens one in a thread and a small runtime of
//! its own. The caller waits, so no other code ever runs in a thread of another namespace:
//!
//! ```no_run
//! # use manx_linux::{netlink, netns};
//! # fn up(pod: std::os::fd::OwnedFd) -> Result<(), netlink::Error> {
//! netlink::in_netns(&pod, async |netlink| {
//!     let lo = netlink.existing("lo").await?;
//!     netlink.set_up(lo.index).await
//! })
//! # }
//! ```

mod address;
mod config;
mod family;
mod link;
mod neighbour;
mod route;
mod rule;
mod rule_list;

use std::io;
use std::os::fd::AsFd;

pub use self::address::Address;
#[cfg(test)]
pub(crate) use self::address::is_lasting;
pub use self::config::InterfaceConfig;
pub use self::family::Family;
pub use self::link::{Link, Peer, Veth};
pub use self::neighbour::{Neighbour, NextHop};
pub use self::route::{Hop, ListedRoute, MAIN, MANX_PROTOCOL, Route, RouteOf};
pub use self::rule::{OWN_TABLE, PORTS_TABLE, RULE_PREFERENCE, TRANSLATED_TABLE};
pub use self::rule_list::{Action, LOCAL, ListedRule, NoPortRange, PortRange, Rule, Transport};

use crate::netns;

/// A request that the kernel refused, with a message.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The netlink socket, the runtime or the thread could not be made.
    #[error("netlink cannot be reached: {0}")]
    Connect(io::Error),
    /// The namespace cannot be entered.
    #[error(transparent)]
    Namespace(#[from] netns::Error),
    /// A setting under `/proc/sys/net` could not be read or written.
    #[error(transparent)]
    Sysctl(#[from] netns::sysctl::Error),
    /// The kernel refused a request.
    #[error("{what}: {source}")]
    Request {
        /// The message, e.g. `interface eth0 cannot be made`.
        what: String,
        source: io::Error,
    },
    /// There is no such interface.
    #[error("there is no interface {name} in this network namespace: there is {}", found.join(", "))]
    NoLink { name: String, found: Vec<String> },
}

impl Error {
    /// The kernel's error number, if there is one.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Connect(source) | Self::Request { source, .. } => source.raw_os_error(),
            Self::Sysctl(error) => error.source.raw_os_error(),
            Self::Namespace(_) | Self::NoLink { .. } => None,
        }
    }

    fn request(what: impl FnOnce() -> String) -> impl FnOnce(rtnetlink::Error) -> Self {
        move |error| Self::Request { what: what(), source: io_error(error) }
    }
}

fn io_error(error: rtnetlink::Error) -> io::Error {
    match error {
        rtnetlink::Error::NetlinkError(message) => message.to_io(),
        other => io::Error::other(other.to_string()),
    }
}

/// A netlink connection to the kernel, for one namespace.
#[derive(Clone, Debug)]
pub struct Netlink {
    handle: rtnetlink::Handle,
}

impl Netlink {
    /// Opens a connection in the calling thread's namespace. Call it within a tokio runtime, which runs the connection.
    pub fn open() -> Result<Self, Error> {
        let (connection, handle, _) = rtnetlink::new_connection().map_err(Error::Connect)?;
        tokio::spawn(connection);
        Ok(Self { handle })
    }
}

/// Runs `work` with a [`Netlink`] of the namespace, in a thread with a runtime of its own, and waits for it. During
/// `work` the thread's namespace is `netns`, so [`netns::sysctl`] changes its settings, too.
pub fn in_netns<T: Send>(
    netns: impl AsFd + Sync,
    work: impl AsyncFnOnce(Netlink) -> Result<T, Error> + Send,
) -> Result<T, Error> {
    netns::run_in(netns, || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(Error::Connect)?;
        runtime.block_on(async { work(Netlink::open()?).await })
    })?
}

#[cfg(test)]
mod tests;
