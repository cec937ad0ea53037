//! The Internet checksum: computed, adjusted (RFC 1071, RFC 1624).
