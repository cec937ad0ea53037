//! The decision: from settings and facts to an address, or to the reason why there is none.

use std::fmt;
use std::net::IpAddr;
use std::sync::LazyLock;

use ipnet::IpNet;
use regex::Regex;

use super::facts::{Facts, Interface};
use super::method::{Method, Wanted};
use crate::netlink::Family;

/// The most addresses that a message to people lists.
pub const MOST_TOLD: usize = 16;

/// The interfaces of containers and tunnels, which `first-found` skips. The list is Calico's
/// (`DEFAULT_INTERFACES_TO_EXCLUDE`).
static PASSED_OVER: LazyLock<Option<Regex>> = LazyLock::new(|| {
    Regex::new(
        r"^(docker|cbr|dummy|podman|virbr|lxcbr|veth|lo|cali|tunl|flannel|kube-ipvs|cni|vxlan\.calico|vxlan-v6\.calico|wireguard\.cali|wg-v6\.cali)",
    )
    .ok()
});

/// The prefix of the names of Manx's own devices. Their addresses belong to pods' ranges, so no method chooses them.
const OWN: &str = "manx";

/// An address of an interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// The address, with the prefix length of its net.
    pub address: IpNet,
    /// The interface's name.
    pub interface: String,
}

/// The addresses of one family in the Node's object.
#[derive(Debug, Clone, Default)]
pub struct Known {
    /// The first `InternalIP`. `None` if the Node has none, or if its object is not known.
    pub internal_ip: Option<IpAddr>,
    /// The address that was chosen before, which the annotation stores.
    pub annotated: Option<IpNet>,
}

/// The result of choosing an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// The address, or the reason why there is none.
    pub taken: Result<Found, Refusal>,
    /// The other addresses that the node could have, at most [`MOST_TOLD`].
    pub others: Vec<Found>,
}

/// The reason why no address is chosen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// No address fits. The fields are the expectation and the existing addresses.
    Nothing { expected: String, there: Vec<Found> },
    /// Several interfaces have a fitting address.
    Several(Vec<Found>),
    /// The node would reach the destination from several of its addresses.
    SeveralWays(Vec<IpAddr>),
    /// The destination's name resolves to no address of the family, or the kernel has no route to these addresses.
    NoWay(Vec<IpAddr>),
    /// The Node has no `InternalIP` of the family.
    NoInternalIp,
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on {}", self.address, self.interface)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing { expected, there } => {
                write!(
                    f,
                    "found {}, expected {expected}: name another method, or give an interface that is up such an address",
                    list(there)
                )
            }
            Self::Several(found) => write!(
                f,
                "found {}, expected an address of one interface: name it, as in interface=^{}$",
                list(found),
                found.first().map_or_else(String::new, |it| regex::escape(&it.interface))
            ),
            Self::SeveralWays(sources) => write!(
                f,
                "found that the kernel sends there from {}, expected one address: name one of the destination's addresses",
                list(sources)
            ),
            Self::NoWay(addresses) if addresses.is_empty() => f.write_str(
                "found no address of this family for the destination, expected one: name an address, or look at the node's DNS",
            ),
            Self::NoWay(addresses) => write!(
                f,
                "found no route to {}, expected one: name a destination that this node reaches, or give it a route",
                list(addresses)
            ),
            Self::NoInternalIp => f.write_str(
                "found no InternalIP of this family in the Node's status, expected one: have kubelet report it (--node-ip), or name \
                 another method",
            ),
        }
    }
}

fn list(items: &[impl ToString]) -> String {
    if items.is_empty() {
        return "no address".to_owned();
    }
    let told: Vec<String> = items.iter().take(MOST_TOLD).map(ToString::to_string).collect();
    let more = items.len().saturating_sub(MOST_TOLD);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    told.join(", ") + &more
}

/// Chooses the node's address of a family. The order of interfaces is Calico's: the last one by index comes first.
pub fn choose(wanted: &Wanted, family: Family, facts: &Facts, known: &Known) -> Choice {
    let there = addresses(family, facts);
    let taken = match wanted {
        Wanted::Address(address, length) => named(*address, *length, &there),
        Wanted::Autodetect(method) => detected(method, family, facts, known, &there),
    };
    let is_taken =
        |it: &Found| taken.as_ref().is_ok_and(|taken| taken.address.addr() == it.address.addr());
    let others = there.iter().filter(|it| !is_taken(it)).take(MOST_TOLD).cloned().collect();
    Choice { taken, others }
}

/// All addresses at which other hosts may reach the node, the last interface first. Each address is listed once, with its
/// shortest prefix length if several interfaces have it.
pub fn addresses(family: Family, facts: &Facts) -> Vec<Found> {
    let usable = |it: &&Interface| it.up && !it.name.starts_with(OWN);
    let mut all: Vec<Found> = Vec::new();
    for interface in facts.interfaces.iter().rev().filter(usable) {
        let fits = |it: &&IpNet| Family::of(it.addr()) == family && is_global(it.addr());
        for address in interface.addresses.iter().filter(fits) {
            let found = Found { address: *address, interface: interface.name.clone() };
            match all.iter_mut().find(|it| it.address.addr() == address.addr()) {
                Some(same) if same.address.prefix_len() > address.prefix_len() => *same = found,
                Some(_) => {}
                None => all.push(found),
            }
        }
    }
    all
}

/// Whether an address can be reached from beyond its link. The test is Go's `IsGlobalUnicast`, as in Calico.
fn is_global(address: IpAddr) -> bool {
    let is_local = match address {
        IpAddr::V4(v4) => v4.is_link_local() || v4.is_broadcast(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    !(is_local || address.is_loopback() || address.is_unspecified() || address.is_multicast())
}

/// The address that the settings name. Its prefix length comes from the settings, or else from the interface.
fn named(address: IpAddr, length: Option<u8>, there: &[Found]) -> Result<Found, Refusal> {
    let found = there.iter().find(|it| it.address.addr() == address);
    let found = found.ok_or_else(|| nothing(&format!("{address} on an interface"), there))?;
    let net = length.and_then(|length| IpNet::new(address, length).ok());
    Ok(Found { address: net.unwrap_or(found.address), interface: found.interface.clone() })
}

fn detected(
    method: &Method,
    family: Family,
    facts: &Facts,
    known: &Known,
    there: &[Found],
) -> Result<Found, Refusal> {
    let with = |fits: &dyn Fn(&Found) -> bool| -> Vec<Found> {
        there.iter().filter(|it| fits(it)).cloned().collect()
    };
    let any = |names: &[Regex], it: &Found| names.iter().any(|name| name.is_match(&it.interface));
    match method {
        Method::FirstFound => {
            let fit = with(&|it| !is_passed_over(&it.interface));
            first(fit, known).ok_or_else(|| nothing(OF_THE_NODE, there))
        }
        Method::SkipInterface(names) => {
            let fit = with(&|it| !is_passed_over(&it.interface) && !any(names, it));
            let others = format!("{OF_THE_NODE} that {method} leaves");
            first(fit, known).ok_or_else(|| nothing(&others, there))
        }
        Method::Interface(names) => one(with(&|it| any(names, it)), known)?
            .ok_or_else(|| nothing(&format!("one of an interface by {method}"), there)),
        Method::Cidr(nets) => {
            let fit = with(&|it| nets.iter().any(|net| net.contains(&it.address.addr())));
            // A net of the node may contain the net of a bridge for containers.
            let of_node: Vec<Found> =
                fit.iter().filter(|it| !is_passed_over(&it.interface)).cloned().collect();
            one(if of_node.is_empty() { fit } else { of_node }, known)?
                .ok_or_else(|| nothing(&format!("one by {method}"), there))
        }
        Method::InternalIp => {
            let address = known.internal_ip.ok_or(Refusal::NoInternalIp)?;
            named(address, None, there)
        }
        Method::CanReach(name) => reaching(name, family, facts, known, there),
    }
}

/// The expectation of `first-found`, in messages.
const OF_THE_NODE: &str = "one of an interface that is none of containers' or tunnels'";

fn is_passed_over(interface: &str) -> bool {
    PASSED_OVER.as_ref().is_some_and(|regex| regex.is_match(interface))
}

fn nothing(expected: &str, there: &[Found]) -> Refusal {
    Refusal::Nothing { expected: expected.to_owned(), there: there.to_vec() }
}

/// The address that was chosen before, if it is one of `fit`; otherwise the first of `fit`.
fn first(fit: Vec<Found>, known: &Known) -> Option<Found> {
    let before = known.annotated.map(|it| it.addr());
    let at = fit.iter().position(|it| Some(it.address.addr()) == before).unwrap_or(0);
    fit.into_iter().nth(at)
}

/// Like [`first`], for methods that should find a single interface. If several interfaces have fitting addresses, this
/// is an error, unless one of them has the address that was chosen before.
fn one(fit: Vec<Found>, known: &Known) -> Result<Option<Found>, Refusal> {
    let before = known.annotated.map(|it| it.addr());
    let is_settled = fit.iter().any(|it| Some(it.address.addr()) == before);
    let is_one = fit.windows(2).all(|pair| pair[0].interface == pair[1].interface);
    if is_one || is_settled { Ok(first(fit, known)) } else { Err(Refusal::Several(fit)) }
}

/// The address from which the kernel sends to a destination. The result must be the same for all of the destination's
/// addresses of the family.
fn reaching(
    name: &str,
    family: Family,
    facts: &Facts,
    known: &Known,
    there: &[Found],
) -> Result<Found, Refusal> {
    let of_name =
        facts.destinations.iter().filter(|it| it.name == name && Family::of(it.address) == family);
    let mut sources: Vec<IpAddr> = of_name.clone().filter_map(|it| it.source).collect();
    sources.sort_unstable();
    sources.dedup();
    let before = known.annotated.map(|it| it.addr());
    match &sources[..] {
        [] => Err(Refusal::NoWay(of_name.map(|it| it.address).collect())),
        [source] => named(*source, None, there),
        _ => match sources.iter().find(|it| Some(**it) == before) {
            Some(source) => named(*source, None, there),
            None => Err(Refusal::SeveralWays(sources)),
        },
    }
}
