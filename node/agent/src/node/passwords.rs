//! The passwords of BGP peers, from the Secrets that `BGPPeer` and `BGPConfiguration` objects name.
//!
//! A peer whose password is not known has no session, because a session must not be established without it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use manx_bgp::peer::{Peer, SecretKey};
use manx_datastore::secrets::{Found, FoundSecrets};
use manx_speaker::Password;

/// The Secrets' keys that contain the passwords of peers.
pub(super) fn keys(peers: &[Peer]) -> BTreeSet<SecretKey> {
    peers.iter().filter_map(|peer| peer.password.clone()).collect()
}

/// The password of each peer that has one, or the reason why it is missing. Peers whose Secret has not been read yet are
/// left out.
pub(super) fn passwords(
    peers: &[Peer],
    namespace: &str,
    found: &FoundSecrets,
) -> BTreeMap<IpAddr, Result<Password, String>> {
    let of_peer = |peer: &Peer| {
        let key = peer.password.as_ref()?;
        Some((peer.address, password(key, namespace, found.get(key)?)))
    };
    peers.iter().filter_map(of_peer).collect()
}

/// The password in a Secret: its text, without the line break at the end that a file has.
fn password(key: &SecretKey, namespace: &str, found: &Found) -> Result<Password, String> {
    let SecretKey { name, key } = key;
    let secret = format!("Secret {namespace}/{name}");
    let value = match found {
        Found::Value(value) => value.expose(),
        Found::NoSecret => {
            return Err(format!(
                "{secret}: found none, expected one whose key {key} has the peer's password: make it, or correct the reference"
            ));
        }
        Found::NoKey => {
            return Err(format!(
                "{secret}: found no key {key}, expected one with the peer's password: add it, or correct the reference"
            ));
        }
        Found::Unreadable(reason) => {
            return Err(format!(
                "{secret}, whose key {key} has the peer's password, cannot be read: {reason}; if agents may not read it, add its name to the Role manx-secrets of {namespace}"
            ));
        }
    };
    let value = value.strip_suffix(b"\n").unwrap_or(value);
    let value = value.strip_suffix(b"\r").unwrap_or(value);
    let is_text = std::str::from_utf8(value).is_ok_and(|text| !text.chars().any(char::is_control));
    Password::new(value).filter(|_| is_text).ok_or_else(|| {
        let most = Password::MOST;
        let what = if is_text { "of text" } else { "that are no text of one line" };
        format!(
            "{secret}: found {} bytes {what} in key {key}, expected a password of 1 to {most}: correct it",
            value.len()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(found: &Found) -> Result<Password, String> {
        let key = SecretKey { name: "bgp-secrets".to_owned(), key: "rack".to_owned() };
        password(&key, "kube-system", found)
    }

    fn of(bytes: &[u8]) -> Result<Password, String> {
        told(&Found::Value(bytes.to_vec().into()))
    }

    #[test]
    fn a_password_is_one_line_of_at_most_80_bytes_without_its_line_break() {
        for text in ["pass", "pass\n", "pass\r\n"] {
            assert_eq!(of(text.as_bytes()), Ok(Password::new(b"pass").unwrap()), "{text:?}");
        }
        assert_eq!(of("pä ss".as_bytes()), Ok(Password::new("pä ss".as_bytes()).unwrap()));
        assert!(of(&[b'x'; 80]).is_ok());
        for bytes in [&b""[..], b"\n", b"two\nlines", b"a\n\n", b"a\0", b"\xff", &[b'x'; 81]] {
            assert!(of(bytes).is_err(), "{bytes:?}");
        }
    }

    #[test]
    fn what_is_missing_is_told_with_what_to_do_and_without_the_value() {
        insta::assert_snapshot!(told(&Found::NoSecret).unwrap_err(), @"Secret kube-system/bgp-secrets: found none, expected one whose key rack has the peer's password: make it, or correct the reference");
        insta::assert_snapshot!(told(&Found::NoKey).unwrap_err(), @"Secret kube-system/bgp-secrets: found no key rack, expected one with the peer's password: add it, or correct the reference");
        insta::assert_snapshot!(told(&Found::Unreadable("it is forbidden".to_owned())).unwrap_err(), @"Secret kube-system/bgp-secrets, whose key rack has the peer's password, cannot be read: it is forbidden; if agents may not read it, add its name to the Role manx-secrets of kube-system");
        insta::assert_snapshot!(of(&[b'x'; 81]).unwrap_err(), @"Secret kube-system/bgp-secrets: found 81 bytes of text in key rack, expected a password of 1 to 80: correct it");
        insta::assert_snapshot!(of(b"hid\nden").unwrap_err(), @"Secret kube-system/bgp-secrets: found 7 bytes that are no text of one line in key rack, expected a password of 1 to 80: correct it");
    }
}
