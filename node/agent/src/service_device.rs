//! The service port: `manx1` in the node's namespace, by which packets to service addresses go to the node's kube-proxy and
//! come back.
//!
//! A routing rule sends packets that come in by `manx1` out by `manx1` again, unless their destination is the node
//! itself. So they do not use the node's own routes. Manx judges the packets that kube-proxy has translated, and drops
//! the others.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, OwnedFd};

use manx_api::gateway;
use manx_devices::device::{self, AgentNamespace, CreatedDevice, DeviceSpec, Error, OpenDevice};
use manx_linux::netlink::{self, Hop, Route, TRANSLATED_TABLE};
use manx_linux::netns::{self, sysctl};

use crate::error;
use crate::interfaces::SERVICES;

/// The service port's interface, without its queues.
#[derive(Debug)]
pub(crate) struct ServiceDevice {
    netns: OwnedFd,
    made: CreatedDevice,
}

impl ServiceDevice {
    /// Makes `manx1` in the calling thread's namespace, which is the node's. Its other properties are those of `like`, the
    /// host port's device.
    ///
    /// # Errors
    /// [`error::Error::StrictReversePath`] if the kernel would drop packets that kube-proxy has translated.
    pub(crate) fn attach(
        agent: &AgentNamespace,
        like: &DeviceSpec<'_>,
    ) -> Result<(Self, OpenDevice), error::Error> {
        let netns = netns::current().map_err(Error::from)?;
        // The kernel uses the larger of this value and the interface's (`ip-sysctl.rst`).
        let strict = netns::run_in(&netns, || sysctl::read("ipv4/conf/all/rp_filter"));
        if strict.map_err(Error::from)?.is_ok_and(|found| found == "1") {
            return Err(error::Error::StrictReversePath);
        }
        let wanted = DeviceSpec { interface: SERVICES, ..*like };
        let (made, held) = device::make(agent, netns.as_fd(), "the node", &wanted)?;
        let port = Self { netns, made };
        match port.route_back() {
            Ok(()) => Ok((port, held)),
            Err(error) => {
                // The first error is the one to report.
                let _ = port.detach(agent);
                Err(error.into())
            }
        }
    }

    fn route_back(&self) -> Result<(), Error> {
        netns::run_in(&self.netns, || {
            // Packets of pods come in here, but the routes to pods lead to another interface. So a check of sources
            // would drop them.
            sysctl::set(&format!("ipv4/conf/{SERVICES}/rp_filter"), "0")
        })?
        .map_err(netlink::Error::from)?;
        Ok(netlink::in_netns(&self.netns, async |netlink| {
            let families = [IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::UNSPECIFIED)];
            for family in families {
                // The route has a gateway, because packets leave by the interface by which they came: for a destination on the
                // link itself the kernel would send redirects (RFC 1812, section 5.2.7.2).
                let hop = Hop { onlink: true, ..Hop::via(gateway(family), self.made.index) };
                let route = Route::by(Route::default_of(family), [hop]);
                let done = netlink.replace_route_in(TRANSLATED_TABLE, &route).await;
                // A kernel without IPv6 refuses this route, and does not need it.
                if family.is_ipv4() {
                    done?;
                }
            }
            netlink.set_table_rule(TRANSLATED_TABLE, Some(SERVICES)).await
        })?)
    }

    /// Removes the rule, and what is left of the interface after its queues are closed.
    pub(crate) fn detach(&self, agent: &AgentNamespace) -> Result<(), Error> {
        netlink::in_netns(&self.netns, async |netlink| {
            netlink.set_table_rule(TRANSLATED_TABLE, None).await
        })?;
        self.made.remove(agent)
    }
}
