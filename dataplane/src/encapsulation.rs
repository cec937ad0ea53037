//! IPIP (RFC 2003): encapsulation and decapsulation.
