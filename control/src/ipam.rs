//! Host-local allocation from the node's pod CIDRs.
