//! The settings for a node's address, which have Calico's names, and the text that shows an
//! address.

use std::fmt::Write as _;

use clap::Args;
use manx_agent::settings::NodeAddressSettings;
use manx_api::node_address::{NodeAddress, OtherAddress};
use manx_linux::autodetect::{self, Facts, Found, Known, MOST_TOLD, Method, Wanted};
use manx_linux::netlink::{Family, Netlink};

use super::Error;

/// The settings for the address that a node has for other nodes.
#[derive(Debug, Clone, Args, Default)]
pub struct AddressOptions {
    /// IPv4 address that other nodes use for this one: autodetect, none, or the address [default:
    /// as the Node object says]
    ///
    /// It is written to the Node's annotation projectcalico.org/IPv4Address.
    #[arg(long, env = "IP", value_name = "autodetect|none|ADDRESS[/LEN]")]
    pub ip: Option<String>,
    /// How --ip autodetect finds it [default: first-found]
    ///
    /// first-found, kubernetes-internal-ip, can-reach=DESTINATION, interface=REGEX[,REGEX...], skip-interface=REGEX[,REGEX...]
    /// or cidr=CIDR[,CIDR...]. Without --ip this implies autodetect.
    #[arg(long, env = "IP_AUTODETECTION_METHOD", value_name = "METHOD")]
    pub ip_autodetection_method: Option<String>,
    /// The same as --ip for IPv6, with the annotation projectcalico.org/IPv6Address, which BGP uses
    #[arg(long, env = "IP6", value_name = "autodetect|none|ADDRESS[/LEN]")]
    pub ip6: Option<String>,
    /// How --ip6 autodetect finds it [default: first-found]
    #[arg(long, env = "IP6_AUTODETECTION_METHOD", value_name = "METHOD")]
    pub ip6_autodetection_method: Option<String>,
}

impl AddressOptions {
    /// The requested detection of the node's addresses. As in Calico, a method alone requests an
    /// IPv4 address, but no IPv6 address.
    pub fn settings(&self) -> Result<NodeAddressSettings, Error> {
        let v4 = self.ip.as_deref().or(self.ip_autodetection_method.as_ref().map(|_| "autodetect"));
        let v4 = wanted(Family::V4, v4, self.ip_autodetection_method.as_deref());
        let v6 = self.ip6.as_deref();
        let v6 = wanted(Family::V6, v6, self.ip6_autodetection_method.as_deref());
        Ok([v4?, v6?])
    }
}

fn wanted(family: Family, text: Option<&str>, by: Option<&str>) -> Result<Option<Wanted>, Error> {
    let (setting, variable) = match family {
        Family::V4 => ("--ip (IP)", "--ip-autodetection-method (IP_AUTODETECTION_METHOD)"),
        Family::V6 => ("--ip6 (IP6)", "--ip6-autodetection-method (IP6_AUTODETECTION_METHOD)"),
    };
    let by = by.unwrap_or_default();
    let invalid = |setting: &str, found: &str, expected: String| {
        Error::Invalid(format!("{setting}: found {found:?}: {expected}"))
    };
    let method = autodetect::method(by).map_err(|expected| invalid(variable, by, expected))?;
    let text = text.unwrap_or_default();
    autodetect::wanted(family, text, &method).map_err(|expected| invalid(setting, text, expected))
}

/// The addresses that the settings find on this machine, without a Node object.
pub(crate) fn look(options: &AddressOptions) -> Result<Vec<NodeAddress>, Error> {
    let wanted = options.settings()?;
    let failed =
        |error: String| Error::Failed(format!("the addresses cannot be looked at: {error}"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| failed(error.to_string()))?;
    let facts = runtime.block_on(async {
        autodetect::read(&Netlink::open()?, autodetect::methods(&wanted)).await
    });
    // Dropping the runtime would wait for a name that is still being resolved.
    runtime.shutdown_background();
    let facts = facts.map_err(|error| failed(error.to_string()))?;
    let all = Family::ALL.into_iter().zip(&wanted);
    let all = all.filter_map(|(family, wanted)| found(family, wanted.as_ref(), &facts));
    Ok(all.collect())
}

/// The address that the settings find for a family; `None` if there is no address and none is
/// wanted.
fn found(family: Family, wanted: Option<&Wanted>, facts: &Facts) -> Option<NodeAddress> {
    let there = autodetect::addresses(family, facts);
    let taken = match wanted {
        None => None,
        Some(Wanted::Autodetect(Method::InternalIp)) => {
            Some(Err("the Node's status says which one: ask `manx node status`".to_owned()))
        }
        Some(wanted) => {
            let choice = autodetect::choose(wanted, family, facts, &Known::default());
            Some(choice.taken.map_err(|refusal| refusal.to_string()))
        }
    };
    if there.is_empty() && wanted.is_none() {
        return None;
    }
    let (taken, problem) = match taken {
        Some(Ok(found)) => (Some(found), None),
        Some(Err(problem)) => (None, Some(problem)),
        None => (None, None),
    };
    let is_other =
        |it: &&Found| taken.as_ref().is_none_or(|to| to.address.addr() != it.address.addr());
    let others = there.iter().filter(is_other).take(MOST_TOLD).map(|it| OtherAddress {
        address: it.address.to_string(),
        interface: it.interface.clone(),
    });
    Some(NodeAddress {
        family: family.name().to_owned(),
        others: others.collect(),
        address: taken.as_ref().map(|it| it.address.to_string()),
        interface: taken.map(|it| it.interface),
        source: None,
        method: wanted.map(ToString::to_string),
        problem,
    })
}

/// The lines about an address for users.
pub(crate) fn lines(node_address: &NodeAddress) -> String {
    let NodeAddress { family, address, source, interface, method, others, problem } = node_address;
    let place = match (address, interface) {
        (Some(address), Some(interface)) => format!("{address} on {interface}"),
        (Some(address), None) => format!("{address}, which no interface that is up has"),
        (None, _) => "none taken".to_owned(),
    };
    let by = method.as_ref().map(|method| format!(", by {method}")).unwrap_or_default();
    let source = source.as_ref().map(|source| format!(" ({source})")).unwrap_or_default();
    let others: Vec<String> =
        others.iter().map(|it| format!("{} on {}", it.address, it.interface)).collect();
    let others = if others.is_empty() {
        String::new()
    } else {
        format!("; there are also {}", others.join(", "))
    };
    let mut text = format!("{family} {place}{by}{source}{others}\n");
    if let Some(problem) = problem {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "WARNING {family}: {problem}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(ip: &str, by: &str, ip6: &str, by6: &str) -> AddressOptions {
        let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        AddressOptions {
            ip: some(ip),
            ip_autodetection_method: some(by),
            ip6: some(ip6),
            ip6_autodetection_method: some(by6),
        }
    }

    #[test]
    fn settings_mean_what_they_mean_in_calico_and_errors_name_them() {
        let read = |ip, by, ip6, by6| {
            let read = options(ip, by, ip6, by6).settings();
            let shown = |it: Option<Wanted>| it.map_or_else(|| "-".to_owned(), |it| it.to_string());
            read.map(|all| all.map(shown).join(" ")).map_err(|error| error.to_string())
        };
        for (given, expected) in [
            (["", "", "", ""], "- -"),
            (["none", "interface=eth0", "none", "interface=eth0"], "- -"),
            (["autodetect", "", "autodetect", ""], "first-found first-found"),
            (["", "cidr=10.0.0.0/8", "", "cidr=fd00::/8"], "cidr=10.0.0.0/8 -"),
            (["10.0.0.5", "interface=eth0", "fd00::5/64", ""], "10.0.0.5 fd00::5/64"),
        ] {
            let [ip, by, ip6, by6] = given;
            assert_eq!(read(ip, by, ip6, by6).unwrap(), expected, "{given:?}");
        }
        let wrong =
            [["eth0", "", "", ""], ["autodetect", "eth0", "", ""], ["", "", "10.0.0.5", ""]];
        let told = wrong.map(|[ip, by, ip6, by6]| read(ip, by, ip6, by6).unwrap_err());
        insta::assert_snapshot!(told.join("\n"), @r#"
        --ip (IP): found "eth0": expected autodetect, none, or an address of this node such as 10.0.0.5/24, or the same without a length
        --ip-autodetection-method (IP_AUTODETECTION_METHOD): found "eth0": expected first-found, kubernetes-internal-ip, can-reach=DESTINATION, interface=REGEX[,REGEX...], skip-interface=REGEX[,REGEX...] or cidr=CIDR[,CIDR...]
        --ip6 (IP6): found "10.0.0.5": expected autodetect, none, or an address of this node such as fd00::5/64, or the same without a length
        "#);
    }

    #[test]
    fn an_address_reads_like_this() {
        let of =
            |address: Option<&str>, interface: Option<&str>, method: Option<&str>| NodeAddress {
                family: "IPv4".to_owned(),
                address: address.map(str::to_owned),
                source: address.map(|_| "InternalIP".to_owned()),
                interface: interface.map(str::to_owned),
                method: method.map(str::to_owned),
                others: Vec::new(),
                problem: None,
            };
        let mut all = [
            of(Some("172.18.0.2"), Some("eth0"), None),
            of(Some("172.18.0.2/24"), None, Some("first-found")),
            of(None, None, Some("interface=eth9")),
        ];
        let other = |address: &str, interface: &str| OtherAddress {
            address: address.to_owned(),
            interface: interface.to_owned(),
        };
        all[0].others = vec![other("10.0.0.5/24", "eth1"), other("172.17.0.1/16", "docker0")];
        all[2].problem = Some("found no address, expected one".to_owned());
        insta::assert_snapshot!(all.iter().map(lines).collect::<String>(), @r"
        IPv4 172.18.0.2 on eth0 (InternalIP); there are also 10.0.0.5/24 on eth1, 172.17.0.1/16 on docker0
        IPv4 172.18.0.2/24, which no interface that is up has, by first-found (InternalIP)
        IPv4 none taken, by interface=eth9
        WARNING IPv4: found no address, expected one
        ");
    }
}
