//! ICMP errors that this node originates, and the inner headers of those that pass.
