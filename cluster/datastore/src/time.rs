//! Times in the form of Kubernetes' objects (RFC 3339), for crates that have no clock. A time is in nanoseconds since
//! the Unix epoch.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Writes a time, in whole seconds: `2026-11-29T01:02:03Z`.
pub fn written(nanos: u64) -> String {
    humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_nanos(nanos)).to_string()
}

/// Reads a time in UTC, with or without fractions of a second. Returns `None` if the text is not a time or the time is
/// before the epoch.
pub fn read(text: &str) -> Option<u64> {
    let time = humantime::parse_rfc3339(text).ok()?;
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Some(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let nanos = 1_764_378_123_000_000_000;
        assert_eq!(written(nanos + 999_999_999), "2025-11-29T01:02:03Z");
        assert_eq!(read("2025-11-29T01:02:03Z"), Some(nanos));
        assert_eq!(read("2025-11-29T01:02:03.000000005Z"), Some(nanos + 5));
        assert_eq!([read("1900-01-01T00:00:00Z"), read("now")], [None; 2]);
    }
}
