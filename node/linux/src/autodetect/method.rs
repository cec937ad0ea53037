//! Parses the settings `IP` and `IP_AUTODETECTION_METHOD`, and their counterparts for IPv6.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use regex::{Regex, RegexBuilder};

use crate::netlink::Family;

/// The most memory that a compiled expression may take. Expressions of interfaces' names are short.
const MOST_BYTES: usize = 1 << 20;

/// The method by which an address is found.
#[derive(Debug, Clone)]
pub enum Method {
    /// `first-found`: the first address of an interface that belongs to neither containers nor tunnels.
    FirstFound,
    /// `kubernetes-internal-ip`: the Node's first `InternalIP` of the family.
    InternalIp,
    /// `can-reach=DESTINATION`: the source address of the kernel's packets to this address or name.
    CanReach(String),
    /// `interface=REGEX[,REGEX]`: an address of an interface whose name matches.
    Interface(Vec<Regex>),
    /// `skip-interface=REGEX[,REGEX]`: like `first-found`, without the interfaces whose names match.
    SkipInterface(Vec<Regex>),
    /// `cidr=CIDR[,CIDR]`: an address in one of these nets.
    Cidr(Vec<IpNet>),
}

/// The address that the settings request, in one family.
#[derive(Debug, Clone)]
pub enum Wanted {
    /// The address that the method finds.
    Autodetect(Method),
    /// This address. Without a prefix length, it has the interface's.
    Address(IpAddr, Option<u8>),
}

/// The methods among the requested settings. They determine which facts are read from the kernel.
pub fn methods(wanted: &[Option<Wanted>]) -> impl Iterator<Item = &Method> {
    wanted.iter().flatten().filter_map(|wanted| match wanted {
        Wanted::Autodetect(method) => Some(method),
        Wanted::Address(..) => None,
    })
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fn join<T: ToString>(items: &[T]) -> String {
            items.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
        }
        match self {
            Self::FirstFound => f.write_str("first-found"),
            Self::InternalIp => f.write_str("kubernetes-internal-ip"),
            Self::CanReach(destination) => write!(f, "can-reach={destination}"),
            Self::Interface(names) => write!(f, "interface={}", join(names)),
            Self::SkipInterface(names) => write!(f, "skip-interface={}", join(names)),
            Self::Cidr(nets) => write!(f, "cidr={}", join(nets)),
        }
    }
}

impl fmt::Display for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Autodetect(method) => method.fmt(f),
            Self::Address(address, Some(length)) => write!(f, "{address}/{length}"),
            Self::Address(address, None) => address.fmt(f),
        }
    }
}

/// Parses a method. An empty text is `first-found`, as in Calico.
///
/// # Errors
/// A sentence about what was expected.
pub fn method(text: &str) -> Result<Method, String> {
    let text = text.trim();
    let parts = |list: &str| -> Vec<String> {
        list.split(',').map(|it| it.trim().to_owned()).filter(|it| !it.is_empty()).collect()
    };
    let (name, value) = text.split_once('=').map_or((text, None), |(it, of)| (it, Some(of.trim())));
    match (name, value) {
        ("" | "first-found", None) => Ok(Method::FirstFound),
        ("kubernetes-internal-ip", None) => Ok(Method::InternalIp),
        ("can-reach", Some(to)) if !to.is_empty() => {
            Ok(Method::CanReach(to.trim_matches(['[', ']']).to_owned()))
        }
        ("interface", Some(names)) => Ok(Method::Interface(expressions(&parts(names))?)),
        ("skip-interface", Some(names)) => Ok(Method::SkipInterface(expressions(&parts(names))?)),
        ("cidr", Some(nets)) => Ok(Method::Cidr(self::nets(&parts(nets))?)),
        _ => Err(
            "expected first-found, kubernetes-internal-ip, can-reach=DESTINATION, interface=REGEX[,REGEX...], \
             skip-interface=REGEX[,REGEX...] or cidr=CIDR[,CIDR...]"
                .to_owned(),
        ),
    }
}

/// Parses `IP` or `IP6`. Returns `None` if the setting requests neither an address nor `autodetect`.
///
/// # Errors
/// A sentence about what was expected.
pub fn wanted(family: Family, text: &str, by: &Method) -> Result<Option<Wanted>, String> {
    let text = text.trim();
    match text {
        "" | "none" => return Ok(None),
        "autodetect" => return Ok(Some(Wanted::Autodetect(by.clone()))),
        _ => {}
    }
    let (address, length) = text.split_once('/').map_or((text, None), |(it, of)| (it, Some(of)));
    let address: Option<IpAddr> = address.parse().ok().filter(|it| Family::of(*it) == family);
    let (most, example) = match family {
        Family::V4 => (32, "10.0.0.5/24"),
        Family::V6 => (128, "fd00::5/64"),
    };
    let length = match length {
        None => Ok(None),
        Some(length) => match length.parse::<u8>() {
            Ok(length) if length <= most => Ok(Some(length)),
            _ => Err(()),
        },
    };
    match (address, length) {
        (Some(address), Ok(length)) => Ok(Some(Wanted::Address(address, length))),
        _ => Err(format!(
            "expected autodetect, none, or an address of this node such as {example}, or the same without a length"
        )),
    }
}

/// Compiles expressions for names. They match anywhere in a name, as in Calico, unless they begin with `^` and end with
/// `$`.
fn expressions(texts: &[String]) -> Result<Vec<Regex>, String> {
    if texts.is_empty() {
        return Err(
            "expected at least one expression after the =, such as eth.* or ^ens3$".to_owned()
        );
    }
    let one = |text: &String| {
        let regex = RegexBuilder::new(text).size_limit(MOST_BYTES).build();
        regex.map_err(|error| {
            let reason = error.to_string();
            let reason = reason.lines().last().unwrap_or_default().trim_start_matches("error: ");
            format!(
                "{text:?} is no regular expression ({reason}): expected one such as eth.* or ^ens3$"
            )
        })
    };
    texts.iter().map(one).collect()
}

fn nets(texts: &[String]) -> Result<Vec<IpNet>, String> {
    if texts.is_empty() {
        return Err("expected at least one net after the =, such as 10.0.0.0/8".to_owned());
    }
    let one = |text: &String| {
        let net = text.parse::<IpNet>().map(|net| net.trunc());
        net.map_err(|_| format!("{text:?} is no net: expected one such as 10.0.0.0/8"))
    };
    texts.iter().map(one).collect()
}
