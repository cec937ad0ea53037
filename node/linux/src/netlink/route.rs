//! Routes.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use futures_util::TryStreamExt;
use ipnet::IpNet;
use rtnetlink::RouteMessageBuilder;
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteHeader, RouteMessage, RouteNextHop,
    RouteNextHopFlags, RouteProtocol, RouteScope, RouteType,
};

use super::family::Family;
use super::{Error, Netlink};

/// The protocol number of Manx's routes. By this number Manx finds its own routes and touches no others (`ip route show
/// proto 77`; numbers above `RTPROT_STATIC` are free for any program: rtnetlink(7)).
pub const MANX_PROTOCOL: u8 = 77;

/// The metric of an IPv6 route that names none (`IP6_RT_PRIO_USER`).
const DEFAULT_METRIC_V6: u32 = 1024;

/// The main routing table.
pub const MAIN: u8 = RouteHeader::RT_TABLE_MAIN;

/// A next hop of a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hop {
    /// The neighbour, if the destination is not on the link itself.
    pub via: Option<IpAddr>,
    pub device: u32,
    /// Whether the neighbour is on the link even if no address of the interface says so.
    pub onlink: bool,
}

impl Hop {
    /// A neighbour on a link.
    pub const fn via(neighbour: IpAddr, device: u32) -> Self {
        Self { via: Some(neighbour), device, onlink: false }
    }

    fn attributes(self) -> impl Iterator<Item = RouteAttribute> {
        self.via.into_iter().map(|via| RouteAttribute::Gateway(via.into()))
    }

    /// One of several next hops, in the kernel's form. All have the same weight.
    fn one_of_several(self) -> RouteNextHop {
        let mut hop = RouteNextHop::default();
        hop.interface_index = self.device;
        hop.flags.set(RouteNextHopFlags::Onlink, self.onlink);
        hop.attributes = self.attributes().collect();
        hop
    }

    fn from_attributes<'a>(
        device: Option<u32>,
        onlink: bool,
        attributes: impl IntoIterator<Item = &'a RouteAttribute>,
    ) -> Option<Self> {
        let (mut via, mut device) = (None, device);
        for attribute in attributes {
            match attribute {
                RouteAttribute::Gateway(to) => via = ip(to),
                RouteAttribute::Oif(index) => device = Some(*index),
                _ => {}
            }
        }
        Some(Self { via, device: device?, onlink })
    }
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Route {
    pub destination: IpNet,
    /// The next hops, at least one. The kernel spreads flows over several
    /// (<https://docs.kernel.org/networking/ip-sysctl.html>, `fib_multipath_hash_policy`). The kernel keeps their order,
    /// and compares it when it deletes an IPv4 route.
    pub hops: Vec<Hop>,
    /// The source address of the node's own packets; the kernel chooses if absent.
    pub source: Option<IpAddr>,
    /// The metric: of two routes to one destination, the one with the lower metric is used. `None`: the kernel's default (0
    /// of IPv4, 1024 of IPv6).
    pub metric: Option<u32>,
}

impl Route {
    /// A route with these next hops.
    pub fn by(destination: IpNet, hops: impl IntoIterator<Item = Hop>) -> Self {
        Self { destination, hops: hops.into_iter().collect(), source: None, metric: None }
    }

    /// A route to a destination on the link itself.
    pub fn direct(destination: IpNet, device: u32) -> Self {
        Self::by(destination, [Hop { via: None, device, onlink: false }])
    }

    /// A route by one neighbour on a link.
    pub fn via(destination: IpNet, neighbour: IpAddr, device: u32) -> Self {
        Self::by(destination, [Hop::via(neighbour, device)])
    }

    /// Whether no next hop is a neighbour: the destination is on the link itself.
    pub fn is_direct(&self) -> bool {
        self.hops.iter().all(|it| it.via.is_none())
    }

    /// The default prefix in the family of `like`: `0.0.0.0/0` or `::/0`.
    pub fn default_of(like: IpAddr) -> IpNet {
        match like {
            IpAddr::V4(_) => IpNet::V4(ipnet::Ipv4Net::default()),
            IpAddr::V6(_) => IpNet::V6(ipnet::Ipv6Net::default()),
        }
    }

    fn message(&self) -> RouteMessage {
        let mut message = RouteMessage::default();
        message.header.table = MAIN;
        message.header.protocol = RouteProtocol::Other(MANX_PROTOCOL);
        message.header.kind = RouteType::Unicast;
        message.header.address_family = match self.destination {
            IpNet::V4(_) => AddressFamily::Inet,
            IpNet::V6(_) => AddressFamily::Inet6,
        };
        // An IPv4 route without a next hop leads to neighbours, so its scope is the link; IPv6 has no such difference.
        let is_of_link = self.is_direct() && self.destination.addr().is_ipv4();
        message.header.scope = if is_of_link { RouteScope::Link } else { RouteScope::Universe };
        message.header.destination_prefix_length = self.destination.prefix_len();
        message.attributes.push(RouteAttribute::Destination(self.destination.network().into()));
        // A kernel without multipath does not accept a list, not even one with a single next hop.
        if let [hop] = &*self.hops {
            message.attributes.push(RouteAttribute::Oif(hop.device));
            message.attributes.extend(hop.attributes());
            message.header.flags.set(RouteFlags::Onlink, hop.onlink);
        } else {
            let hops = self.hops.iter().map(|it| it.one_of_several());
            message.attributes.push(RouteAttribute::MultiPath(hops.collect()));
        }
        if let Some(source) = self.source {
            message.attributes.push(RouteAttribute::PrefSource(source.into()));
        }
        if let Some(metric) = self.metric {
            message.attributes.push(RouteAttribute::Priority(metric));
        }
        message
    }

    fn from_message(message: &RouteMessage) -> Option<Self> {
        let unspecified = match message.header.address_family {
            AddressFamily::Inet => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            AddressFamily::Inet6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
            _ => return None,
        };
        let mut address = unspecified;
        let (mut several, mut source, mut metric) = (None, None, None);
        for attribute in &message.attributes {
            match attribute {
                RouteAttribute::Destination(to) => address = ip(to)?,
                RouteAttribute::MultiPath(hops) => several = Some(hops),
                RouteAttribute::PrefSource(from) => source = ip(from),
                RouteAttribute::Priority(value) => metric = Some(*value),
                _ => {}
            }
        }
        let hops: Option<Vec<Hop>> = if let Some(several) = several {
            let hops = several.iter().map(|it| {
                let onlink = it.flags.contains(RouteNextHopFlags::Onlink);
                Hop::from_attributes(Some(it.interface_index), onlink, &it.attributes)
            });
            hops.collect()
        } else {
            let onlink = message.header.flags.contains(RouteFlags::Onlink);
            Hop::from_attributes(None, onlink, &message.attributes).map(|it| vec![it])
        };
        let destination = IpNet::new(address, message.header.destination_prefix_length).ok()?;
        let default = if destination.addr().is_ipv4() { 0 } else { DEFAULT_METRIC_V6 };
        let metric = metric.filter(|it| *it != default);
        Some(Self { destination, hops: hops?, source, metric })
    }
}

/// A route of a table below 256, in the words of `ip`.
#[derive(Debug, Clone, Copy)]
pub struct RouteOf<'a> {
    pub table: u8,
    pub route: &'a Route,
    /// The name of the route's interface. A route contains only the interface's index. `None` if the name is not known.
    pub device: Option<&'a str>,
}

impl fmt::Display for RouteOf<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { table, route: Route { destination, hops, source, metric }, device } = self;
        // Several next hops are written after everything else.
        let (one, several) = if hops.len() == 1 { (&**hops, &[][..]) } else { (&[][..], &**hops) };
        write!(f, "ip route table {table} {destination}")?;
        one.iter().filter_map(|it| it.via).try_for_each(|via| write!(f, " via {via}"))?;
        device.iter().try_for_each(|device| write!(f, " dev {device}"))?;
        source.iter().try_for_each(|source| write!(f, " src {source}"))?;
        metric.iter().try_for_each(|metric| write!(f, " metric {metric}"))?;
        several.iter().filter_map(|it| it.via).try_for_each(|via| write!(f, " nexthop via {via}"))
    }
}

/// A route of any program.
#[derive(Debug, Clone)]
pub struct ListedRoute {
    message: RouteMessage,
}

impl ListedRoute {
    /// Whether Manx made it.
    pub fn is_manx(&self) -> bool {
        self.message.header.protocol == RouteProtocol::Other(MANX_PROTOCOL)
    }

    /// The route, if it leads to an interface.
    pub fn route(&self) -> Option<Route> {
        let unicast = self.message.header.kind == RouteType::Unicast;
        Route::from_message(&self.message).filter(|_| unicast)
    }

    /// Whether the route drops the packets that no other route of its table matches.
    pub fn is_end(&self) -> bool {
        self.message.header.kind == RouteType::BlackHole
            && self.message.header.destination_prefix_length == 0
    }

    /// The destination, if the route is a [last resort](Netlink::add_last_resort).
    pub fn last_resort(&self) -> Option<IpNet> {
        let is_last = self.message.attributes.contains(&RouteAttribute::Priority(u32::MAX));
        let is_unreachable = self.message.header.kind == RouteType::Unreachable && is_last;
        let to = self.message.attributes.iter().find_map(|attribute| match attribute {
            RouteAttribute::Destination(to) => ip(to),
            _ => None,
        });
        let net = IpNet::new(to?, self.message.header.destination_prefix_length).ok()?;
        is_unreachable.then_some(net)
    }
}

impl fmt::Display for ListedRoute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RouteHeader { kind, destination_prefix_length: len, protocol, .. } =
            self.message.header;
        let to = self.message.attributes.iter().find_map(|attribute| match attribute {
            RouteAttribute::Destination(to) => ip(to),
            _ => None,
        });
        let table = self.message.header.table;
        write!(f, "ip route table {table} {kind:?} ")?;
        match to {
            Some(to) => write!(f, "{to}/{len}")?,
            None => write!(f, "default")?,
        }
        write!(f, " proto {}", u8::from(protocol))
    }
}

pub(super) fn ip(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(v4) => Some(IpAddr::V4(*v4)),
        RouteAddress::Inet6(v6) => Some(IpAddr::V6(*v6)),
        _ => None,
    }
}

/// The message of a default route, or of a request for the routes of a family.
fn default_message(family: Family) -> RouteMessage {
    match family {
        Family::V4 => RouteMessageBuilder::<Ipv4Addr>::new().build(),
        Family::V6 => RouteMessageBuilder::<Ipv6Addr>::new().build(),
    }
}

impl Netlink {
    /// Adds a route to the main table, or replaces the route with the same destination and metric. The replacement is atomic.
    /// (Some kernels keep an IPv6 route with a neighbour next to a direct one: the caller deletes the old one.)
    pub async fn replace_route(&self, route: &Route) -> Result<(), Error> {
        self.replace_route_in(MAIN, route).await
    }

    /// Like [`Self::replace_route`], in another table below 256.
    pub async fn replace_route_in(&self, table: u8, route: &Route) -> Result<(), Error> {
        let mut message = route.message();
        message.header.table = table;
        self.handle.route().add(message).replace().execute().await.map_err(Error::request(|| {
            let hop = |hop: &Hop| {
                let via = hop.via.map(|via| format!(" via {via}")).unwrap_or_default();
                format!("{via} by interface {}", hop.device)
            };
            let hops: Vec<String> = route.hops.iter().map(hop).collect();
            format!("the route to {}{} cannot be set", route.destination, hops.join(" and"))
        }))
    }

    /// Adds a route as an administrator does (`proto static`): Manx neither lists nor removes it later.
    pub async fn replace_static_route(&self, route: &Route) -> Result<(), Error> {
        let mut message = route.message();
        message.header.protocol = RouteProtocol::Static;
        self.handle.route().add(message).replace().execute().await.map_err(Error::request(|| {
            format!("the static route to {} cannot be set", route.destination)
        }))
    }

    /// Removes a route of Manx from a table below 256. It is no error if the route does not exist.
    pub async fn delete_route(&self, table: u8, route: &Route) -> Result<(), Error> {
        let mut message = route.message();
        message.header.table = table;
        match self.handle.route().del(message).execute().await {
            Err(rtnetlink::Error::NetlinkError(error)) if error.raw_code() == -libc::ESRCH => {
                Ok(())
            }
            other => other.map_err(Error::request(|| {
                format!("the route to {} cannot be removed", route.destination)
            })),
        }
    }

    /// The routes to interfaces that Manx made in a table below 256, both families.
    pub async fn manx_routes(&self, table: u8) -> Result<Vec<Route>, Error> {
        let is_manx = |message: &RouteMessage| {
            message.header.protocol == RouteProtocol::Other(MANX_PROTOCOL)
                && message.header.table == table
                && message.header.kind == RouteType::Unicast
        };
        self.routes(is_manx).await
    }

    /// The routes of a table below 256 in this family, of all programs.
    pub async fn table_routes(&self, table: u8, family: Family) -> Result<Vec<ListedRoute>, Error> {
        let all = self.handle.route().get(default_message(family)).execute();
        let all = match (all.try_collect::<Vec<_>>().await, family) {
            // The kernel may lack IPv6.
            (Err(_), Family::V6) => Vec::new(),
            (all, _) => all.map_err(Error::request(|| "the routes cannot be listed".to_owned()))?,
        };
        let is_wanted = |message: &RouteMessage| {
            let RouteHeader { address_family, table: of, flags, .. } = message.header;
            let same =
                (address_family, of) == (default_message(family).header.address_family, table);
            // A cloned route is one that the kernel has learned about a destination.
            same && !flags.contains(RouteFlags::Cloned)
        };
        Ok(all.into_iter().filter(is_wanted).map(|message| ListedRoute { message }).collect())
    }

    /// Makes a table below 256 drop the packets that none of its routes matches. Otherwise the kernel would use the next
    /// table.
    pub async fn end_table(&self, table: u8, family: Family) -> Result<(), Error> {
        let mut message = default_message(family);
        message.header.table = table;
        message.header.protocol = RouteProtocol::Other(MANX_PROTOCOL);
        message.header.kind = RouteType::BlackHole;
        message.header.scope = RouteScope::Universe;
        self.handle.route().add(message).replace().execute().await.map_err(Error::request(|| {
            format!("table {table} cannot be made to drop what none of its routes leads to")
        }))
    }

    /// Makes a prefix unreachable while the main table has no other route of this prefix or of a longer one. Routes of
    /// shorter prefixes, such as a default route, are not used then.
    pub async fn add_last_resort(&self, to: IpNet) -> Result<(), Error> {
        let mut message = Route::direct(to, 0).message();
        message.header.kind = RouteType::Unreachable;
        message.header.scope = RouteScope::Universe;
        message.attributes.retain(|it| !matches!(it, RouteAttribute::Oif(_)));
        // The kernel uses the route with the lowest priority value first.
        message.attributes.push(RouteAttribute::Priority(u32::MAX));
        self.handle.route().add(message).replace().execute().await.map_err(Error::request(|| {
            format!("{to} cannot be made unreachable while nobody serves it")
        }))
    }

    /// Deletes a listed route. It is no error if the route does not exist.
    pub async fn delete_listed(&self, route: &ListedRoute) -> Result<(), Error> {
        match self.handle.route().del(route.message.clone()).execute().await {
            Err(rtnetlink::Error::NetlinkError(error)) if error.raw_code() == -libc::ESRCH => {
                Ok(())
            }
            other => other.map_err(Error::request(|| format!("{route} cannot be deleted"))),
        }
    }

    /// The gateways of all default routes, in any table, of both families.
    pub async fn default_gateways(&self) -> Result<BTreeSet<IpAddr>, Error> {
        let is_default = |message: &RouteMessage| message.header.destination_prefix_length == 0;
        let routes = self.routes(is_default).await?;
        Ok(routes.into_iter().flat_map(|route| route.hops).filter_map(|it| it.via).collect())
    }

    async fn routes(&self, is_wanted: impl Fn(&RouteMessage) -> bool) -> Result<Vec<Route>, Error> {
        let mut routes = Vec::new();
        let requests = [
            RouteMessageBuilder::<Ipv4Addr>::new().build(),
            RouteMessageBuilder::<Ipv6Addr>::new().build(),
        ];
        for request in requests {
            let messages = self.handle.route().get(request).execute().try_collect::<Vec<_>>().await;
            let messages =
                messages.map_err(Error::request(|| "the routes cannot be listed".to_owned()))?;
            let wanted = messages.iter().filter(|message| is_wanted(message));
            routes.extend(wanted.filter_map(Route::from_message));
        }
        Ok(routes)
    }
}
