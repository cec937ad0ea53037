//! The syntax that the API server requires of names, label keys and values, ports and addresses.
//!
//! Sources: Kubernetes, "Object Names and IDs" and "Labels and Selectors"; RFC 1123; RFC 6335, section 5.1.

use std::net::IpAddr;

use ipnet::IpNet;

/// These texts describe, in messages, what the checks below require.
pub(super) const DNS_LABEL: &str = "a DNS label: at most 63 lower-case letters, digits and '-', beginning and ending with a letter or digit";
pub(super) const DNS_SUBDOMAIN: &str = "a DNS name: at most 253 lower-case letters, digits, '-' and '.', each part beginning and ending with a letter or digit";
pub(super) const POLICY_NAME: &str = "a name with one '.' at most: lower-case letters, digits and '-', each part beginning and ending with a letter or digit";
pub(super) const QUALIFIED_NAME: &str = "a key: an optional DNS name and '/', then at most 63 letters, digits, '-', '_' and '.', beginning and ending with a letter or digit";
pub(super) const LABEL_VALUE: &str = "a label value: at most 63 letters, digits, '-', '_' and '.', beginning and ending with a letter or digit, or nothing";
pub(super) const PORT_NAME: &str = "a port name: at most 15 lower-case letters, digits and single '-', with a letter, beginning and ending with a letter or digit";
pub(super) const PORT_NUMBER: &str = "a port number from 1 to 65535";
pub(super) const ADDRESS: &str = "an IPv4 or IPv6 address";
pub(super) const CIDR: &str = "an IPv4 or IPv6 CIDR such as 10.0.0.0/8 or fd00::/64";

fn lower_or_digit(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit()
}

/// Returns whether the text is an RFC 1123 label in lower case.
pub(super) fn is_dns_label(text: &str) -> bool {
    let bytes = text.as_bytes();
    bytes.len() <= 63
        && bytes.first().copied().is_some_and(lower_or_digit)
        && bytes.last().copied().is_some_and(lower_or_digit)
        && bytes.iter().all(|byte| lower_or_digit(*byte) || *byte == b'-')
}

/// Returns whether the text consists of labels that are joined by dots. Unlike in DNS, a part has no length limit of
/// its own; the limit of 253 characters is for the whole.
pub(super) fn is_dns_subdomain(text: &str) -> bool {
    text.len() <= 253
        && text.split('.').all(|part| {
            let bytes = part.as_bytes();
            bytes.first().copied().is_some_and(lower_or_digit)
                && bytes.last().copied().is_some_and(lower_or_digit)
                && bytes.iter().all(|byte| lower_or_digit(*byte) || *byte == b'-')
        })
}

/// Returns whether the text is the name of a Calico policy. The name may have at most one dot. The exception is a
/// namespaced policy whose name contains its origin (a Kubernetes policy, or a security group of `OpenStack`).
pub(super) fn is_policy_name(text: &str, namespaced: bool) -> bool {
    let made = |prefix: &&str| namespaced && text.starts_with(prefix);
    let dots = text.bytes().filter(|byte| *byte == b'.').count();
    is_dns_subdomain(text) && (dots <= 1 || ["knp.default.", "ossg.default."].iter().any(made))
}

fn is_name_part(text: &str) -> bool {
    let bytes = text.as_bytes();
    bytes.len() <= 63
        && bytes.first().is_some_and(u8::is_ascii_alphanumeric)
        && bytes.last().is_some_and(u8::is_ascii_alphanumeric)
        && bytes
            .iter()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
}

/// Returns whether the text is the key of a label or an annotation.
pub(super) fn is_qualified_name(text: &str) -> bool {
    match text.split_once('/') {
        Some((prefix, name)) => is_dns_subdomain(prefix) && is_name_part(name),
        None => is_name_part(text),
    }
}

/// Returns whether the text is the value of a label.
pub(super) fn is_label_value(text: &str) -> bool {
    text.is_empty() || is_name_part(text)
}

/// Returns whether the text is an IANA service name.
pub(super) fn is_port_name(text: &str) -> bool {
    let bytes = text.as_bytes();
    bytes.len() <= 15
        && bytes.first().copied().is_some_and(lower_or_digit)
        && bytes.last().copied().is_some_and(lower_or_digit)
        && bytes.iter().all(|byte| lower_or_digit(*byte) || *byte == b'-')
        && bytes.iter().any(u8::is_ascii_lowercase)
        && !text.contains("--")
}

pub(super) fn port_number(number: i128) -> Option<u16> {
    u16::try_from(number).ok().filter(|port| *port != 0)
}

/// Parses an address. An IPv4 address written as IPv6 (`::ffff:10.0.0.1`) is refused, because components disagree about
/// its family.
pub(super) fn address(text: &str) -> Option<IpAddr> {
    match text.parse().ok()? {
        IpAddr::V6(address) if address.to_ipv4_mapped().is_some() => None,
        address => Some(address),
    }
}

/// Parses a CIDR and keeps its host bits.
pub(super) fn cidr(text: &str) -> Option<IpNet> {
    let (ip, length) = text.split_once('/')?;
    // `parse` would accept "+8" and "08".
    if length.len() > 1 && length.starts_with('0') || !length.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    IpNet::new(address(ip)?, length.parse().ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(check: fn(&str) -> bool, good: &[&str], bad: &[&str]) {
        for text in good {
            assert!(check(text), "{text:?} should be accepted");
        }
        for text in bad {
            assert!(!check(text), "{text:?} should be refused");
        }
    }

    #[test]
    fn names_are_those_of_the_api_server() {
        let long = "a".repeat(63);
        let longer = "a".repeat(64);
        let longest = format!("{}.{longer}", "a".repeat(188));
        let too_long = format!("{}.{longer}", "a".repeat(189));
        all(is_dns_label, &["a", "0", "a-b", &long], &["", "A", "-a", "a-", "a.b", "a_b", &longer]);
        all(
            is_dns_subdomain,
            &["a", "a.b", "0.1", "a-b.c", &longer, &longest],
            &["", ".", "a.", ".a", "a..b", "a.-b", "A.b", &too_long],
        );
    }

    #[test]
    fn label_keys_and_values_are_those_of_the_api_server() {
        let long = "a".repeat(63);
        let longer = "a".repeat(64);
        all(
            is_qualified_name,
            &["a", "A_b.c-d", "example.com/a", "0", &long],
            &["", "/a", "a/", "a/b/c", "-a", "a-", "A.com/a", "a b", "ä", &longer],
        );
        all(is_label_value, &["", "a", "A.b_c-D", "0", &long], &["-", "a-", ".a", "a/b", &longer]);
    }

    #[test]
    fn port_names_are_iana_service_names() {
        all(
            is_port_name,
            &["http", "a", "8a", "a-b", "fifteen-letters"],
            &["", "80", "-a", "a-", "a--b", "HTTP", "a_b", "sixteen-letters-"],
        );
    }

    #[test]
    fn cidrs_keep_host_bits_and_refuse_ambiguity() {
        assert_eq!(cidr("10.1.2.3/8").map(|net| net.to_string()).as_deref(), Some("10.1.2.3/8"));
        assert!(cidr("fd00::/64").is_some() && cidr("0.0.0.0/0").is_some());
        for text in [
            "10.0.0.0",
            "10.0.0.0/33",
            "10.0.0.0/",
            "10.0.0.0/+8",
            "10.0.0.0/08",
            "010.0.0.0/8",
            "/8",
            "fd00::/129",
            "::ffff:10.0.0.0/104",
            " 10.0.0.0/8",
        ] {
            assert!(cidr(text).is_none(), "{text}");
        }
    }
}
