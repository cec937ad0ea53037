//! The time at which an object was created: `metadata.creationTimestamp`, which only the API server writes.

use std::num::NonZeroU64;

/// The time as a number that sorts in order of time: the digits of `2026-01-31T09:30:00Z`. The API server writes all
/// times in this form (RFC 3339, UTC, whole seconds); a manifest may have any text there, and a text of another form
/// counts as absent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Created(NonZeroU64);

impl Created {
    /// Reads the text of the field.
    pub fn parse(text: &str) -> Option<Self> {
        const FORM: &[u8] = b"0000-00-00T00:00:00Z";
        let fits = text.len() == FORM.len()
            && text.bytes().zip(FORM).all(|(byte, form)| match form {
                b'0' => byte.is_ascii_digit(),
                _ => byte == *form,
            });
        let digits = || text.bytes().filter(u8::is_ascii_digit).map(|byte| u64::from(byte - b'0'));
        let number = fits.then(|| digits().fold(0, |number, digit| number * 10 + digit))?;
        NonZeroU64::new(number).map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_the_api_server_sort_and_other_texts_are_none() {
        let texts = ["2025-12-31T23:59:59Z", "2026-01-01T00:00:00Z", "2026-01-01T00:00:01Z"];
        assert!(texts.map(Created::parse).is_sorted());
        assert!(texts.into_iter().all(|text| Created::parse(text).is_some()));
        for other in [
            "",
            "x",
            "2026-01-01",
            "2026-01-01T00:00:00+01:00",
            "2026-01-01T00:00:00.5Z",
            "2026-01-01 00:00:00Z",
            "0000-00-00T00:00:00Z",
            "２026-01-01T00:00:00",
        ] {
            assert_eq!(Created::parse(other), None, "{other}");
        }
    }
}
