//! `IPAMConfig`: the settings of IPAM for the whole cluster.
//!
//! Source: Calico's API reference, "IPAM configuration"; its design note "IPAM core library", section "`IPAMConfig`".

use std::time::Duration;

/// The maximum number of blocks of a node if the configuration does not set one.
const MOST_BLOCKS: u32 = 20;

/// See the module. The default value applies if there is no such object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// `strictAffinity`: no node borrows addresses from other nodes' blocks.
    pub strict_affinity: bool,
    /// `autoAllocateBlocks`: a node claims a new block when its own are full.
    pub claims_blocks: bool,
    /// `maxBlocksPerHost`; 0 means that it is not set.
    pub max_blocks: u32,
    /// `ipCooldownSeconds`: the time for which a released address is not assigned again.
    pub cooldown: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            strict_affinity: false,
            claims_blocks: true,
            max_blocks: 0,
            cooldown: Duration::ZERO,
        }
    }
}

/// A change of the settings. A setting that is `None` stays as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ConfigChange {
    pub strict_affinity: Option<bool>,
    pub max_blocks: Option<u32>,
}

/// Settings that contradict each other.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Contradiction {
    #[error(
        "IPAMConfig: strictAffinity is false and autoAllocateBlocks is false, so no node would get an address; set one of them"
    )]
    NothingAllowed,
    #[error(
        "IPAMConfig: maxBlocksPerHost is {0} and strictAffinity is false; expected strictAffinity: true with a limit of blocks"
    )]
    LimitWithoutStrict(u32),
}

impl Config {
    /// Returns the maximum number of blocks of a node.
    pub fn limit(&self) -> u32 {
        if self.max_blocks == 0 { MOST_BLOCKS } else { self.max_blocks }
    }

    /// Checks that the settings do not contradict each other. This is needed because the API server checks each field
    /// separately.
    pub fn checked(self) -> Result<Self, Contradiction> {
        match (self.strict_affinity, self.claims_blocks, self.max_blocks) {
            (false, false, _) => Err(Contradiction::NothingAllowed),
            (false, true, most) if most > 0 => Err(Contradiction::LimitWithoutStrict(most)),
            _ => Ok(self),
        }
    }
}
