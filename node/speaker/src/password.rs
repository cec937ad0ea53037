//! A password that no log or status contains.

use std::fmt;

/// A password of TCP MD5 (RFC 2385): 1 to [`Password::MOST`] bytes. Its `Debug` output hides it.
#[derive(Clone, PartialEq, Eq)]
pub struct Password(Box<[u8]>);

impl Password {
    /// The most bytes of a password: Linux' limit (`TCP_MD5SIG_MAXKEYLEN`).
    pub const MOST: usize = 80;

    /// Returns `None` if there are too many bytes, or none.
    pub fn new(bytes: &[u8]) -> Option<Self> {
        (1..=Self::MOST).contains(&bytes.len()).then(|| Self(bytes.into()))
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Password(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_has_1_to_80_bytes_and_is_not_shown() {
        let lengths = [0, 1, 80, 81].map(|it| Password::new(&vec![b'x'; it]).is_some());
        assert_eq!(lengths, [false, true, true, false]);
        let shown = format!("{:?} {:#?}", Password::new(b"hidden"), Some(Password::new(b"hidden")));
        assert!(!shown.contains("hidden") && !shown.contains("104"), "{shown}");
    }
}
