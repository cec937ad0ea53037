//! The values of options that several commands have. An error says what was expected; clap adds
//! what was found, and where.

use std::net::IpAddr;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use manx_agent::settings::PortRange;

/// The default range of node ports of an API server.
pub(crate) const NODE_PORTS: &str = "30000-32767";
/// The default range of ports that replace pods' ports in packets to the outside (the way out).
pub(crate) const EGRESS_PORTS: &str = "61000-65534";

/// Parses a net. Host bits are refused, because they show a mistake in the address or in the
/// length.
pub(crate) fn net(text: &str) -> Result<IpNet, String> {
    let text = text.trim();
    let (address, length) = text.split_once('/').map_or((text, None), |(it, of)| (it, Some(of)));
    let Ok(address) = address.parse::<IpAddr>() else {
        return Err(
            "expected a net such as 203.0.113.0/28; for one address 203.0.113.5/32".to_owned()
        );
    };
    let alone = IpNet::from(address);
    let most = alone.prefix_len();
    let Some(length) = length else {
        return Err(format!(
            "expected a net such as 203.0.113.0/28; for this address alone {alone}"
        ));
    };
    let net = length.parse().ok().and_then(|length| IpNet::new(address, length).ok());
    match net {
        None => Err(format!(
            "expected a length from 0 to {most} after the slash; for this address alone {alone}"
        )),
        Some(net) if net.trunc() != net => Err(format!(
            "{address} is no net's first address with this length: expected {}, which holds it, or {alone} for it alone",
            net.trunc()
        )),
        Some(net) => Ok(net),
    }
}

/// Parses a net of IPv4, as [`net`].
pub(crate) fn ipv4_net(text: &str) -> Result<Ipv4Net, String> {
    match net(text)? {
        IpNet::V4(net) => Ok(net),
        IpNet::V6(_) => Err("expected a net of IPv4, such as 10.244.0.0/16".to_owned()),
    }
}

/// Parses a net of IPv6, as [`net`].
pub(crate) fn ipv6_net(text: &str) -> Result<Ipv6Net, String> {
    match net(text)? {
        IpNet::V6(net) => Ok(net),
        IpNet::V4(_) => Err("expected a net of IPv6, such as fd00:10:244::/56".to_owned()),
    }
}

/// Parses the range of node ports.
pub(crate) fn node_ports(text: &str) -> Result<PortRange, String> {
    port_range(text, NODE_PORTS)
}

/// Parses the ports of the way out.
pub(crate) fn egress_ports(text: &str) -> Result<PortRange, String> {
    port_range(text, EGRESS_PORTS)
}

/// Parses a range of ports. The error gives `example`.
fn port_range(text: &str, example: &str) -> Result<PortRange, String> {
    let bounds = text.split_once('-').and_then(|(first, last)| {
        let port = |text: &str| text.trim().parse::<u16>().ok();
        PortRange::new(port(first)?, port(last)?)
    });
    bounds.ok_or_else(|| {
        format!(
            "expected FIRST-LAST, both between 1 and 65534 and the lower one first, such as {example}"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_net_is_taken_as_it_is_written_or_the_error_says_how_to_write_it() {
        for right in ["203.0.113.0/28", "203.0.113.5/32", "0.0.0.0/0", "2001:db8::/64"] {
            assert_eq!(net(right).unwrap().to_string(), right);
        }
        assert_eq!(net(" 2001:db8::/64 "), net("2001:db8::/64"));
        let wrong = ["bogus", "", "203.0.113.5", "2001:db8::5", "1.2.3.4/40", "1.2.3.4/", "a/8"];
        let wrong = wrong.into_iter().chain(["203.0.113.5/28", "2001:db8::5/64"]);
        let told = wrong.map(|it| format!("{it}: {}", net(it).unwrap_err()));
        insta::assert_snapshot!(told.collect::<Vec<_>>().join("\n"), @"
        bogus: expected a net such as 203.0.113.0/28; for one address 203.0.113.5/32
        : expected a net such as 203.0.113.0/28; for one address 203.0.113.5/32
        203.0.113.5: expected a net such as 203.0.113.0/28; for this address alone 203.0.113.5/32
        2001:db8::5: expected a net such as 203.0.113.0/28; for this address alone 2001:db8::5/128
        1.2.3.4/40: expected a length from 0 to 32 after the slash; for this address alone 1.2.3.4/32
        1.2.3.4/: expected a length from 0 to 32 after the slash; for this address alone 1.2.3.4/32
        a/8: expected a net such as 203.0.113.0/28; for one address 203.0.113.5/32
        203.0.113.5/28: 203.0.113.5 is no net's first address with this length: expected 203.0.113.0/28, which holds it, or 203.0.113.5/32 for it alone
        2001:db8::5/64: 2001:db8::5 is no net's first address with this length: expected 2001:db8::/64, which holds it, or 2001:db8::5/128 for it alone
        ");
        assert_eq!(ipv4_net("10.244.0.0/16").unwrap().to_string(), "10.244.0.0/16");
        insta::assert_snapshot!(ipv4_net("fd00::/16").unwrap_err(), @"expected a net of IPv4, such as 10.244.0.0/16");
    }

    #[test]
    fn a_range_of_ports_is_refused_with_an_example_of_its_own() {
        assert_eq!(node_ports("30000-32767").unwrap().to_string(), NODE_PORTS);
        assert_eq!(egress_ports("61000 - 65534").unwrap().to_string(), EGRESS_PORTS);
        for wrong in ["40000-30000", "30000", "0-5", "30000-65535", "", "a-b"] {
            assert!(node_ports(wrong).unwrap_err().ends_with("such as 30000-32767"), "{wrong}");
            assert!(egress_ports(wrong).unwrap_err().ends_with("such as 61000-65534"), "{wrong}");
        }
        insta::assert_snapshot!(node_ports("40000-30000").unwrap_err(), @"expected FIRST-LAST, both between 1 and 65534 and the lower one first, such as 30000-32767");
    }
}
