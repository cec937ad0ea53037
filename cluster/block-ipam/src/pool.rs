//! Chooses the pools that serve a request.
//!
//! Pools that a pod or its namespace names are used independently of the pools' selectors. Otherwise, the automatic
//! pools whose selectors match both the node and the namespace are used, in the order of their names. The `allowedUses`
//! of a pool always apply.
//!
//! Source: Calico's API reference, "IP pool"; its design note "IPAM core library".

use std::fmt;

use ipnet::IpNet;
use manx_objects::object::{AssignmentMode, IpPool, PoolUse};
use manx_policy_compiler::selector::{Labels, Selector, SelectorError};

/// The part of a pool that the assignment of addresses needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pool {
    pub name: String,
    pub cidr: IpNet,
    /// The prefix length of its blocks.
    pub block_size: u8,
    /// Whether no new address of the pool is assigned.
    pub is_disabled: bool,
    /// Whether the pool serves only requests that name it (`assignmentMode: Manual`).
    pub is_manual: bool,
    /// The nodes that the pool is for. `None` means every node.
    pub nodes: Option<Selector>,
    /// The namespaces that the pool is for. `None` means every namespace, and requests without a namespace.
    pub namespaces: Option<Selector>,
    /// `allowedUses`.
    pub uses: Vec<PoolUse>,
}

impl Pool {
    /// Returns the pool of an object.
    ///
    /// # Errors
    /// Returns an error if a selector cannot be parsed. This cannot happen for a pool that the reader has accepted.
    pub fn new(name: &str, pool: &IpPool) -> Result<Self, SelectorError> {
        let selector = |text: &Option<String>| text.as_deref().map(Selector::parse).transpose();
        let uses = [PoolUse::Workload, PoolUse::Tunnel, PoolUse::LoadBalancer];
        Ok(Self {
            name: name.to_owned(),
            cidr: pool.cidr.trunc(),
            block_size: pool.block_size(),
            is_disabled: pool.disabled,
            is_manual: pool.assignment_mode == Some(AssignmentMode::Manual),
            nodes: selector(&pool.node_selector)?,
            namespaces: selector(&pool.namespace_selector)?,
            uses: uses.into_iter().filter(|it| pool.allows(*it)).collect(),
        })
    }
}

/// The address family of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Family {
    V4,
    V6,
}

impl Family {
    /// Returns the family of a net.
    pub const fn of(net: IpNet) -> Self {
        match net {
            IpNet::V4(_) => Self::V4,
            IpNet::V6(_) => Self::V6,
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        })
    }
}

/// The data by which the pools for a request are chosen.
#[derive(Debug, Clone, Copy)]
pub struct Asker<'a> {
    /// The labels of the node.
    pub node: &'a Labels,
    /// The labels of the pod's namespace, or `None` if the address is not for a pod.
    pub namespace: Option<&'a Labels>,
    /// The intended use of the address.
    pub purpose: PoolUse,
}

/// The reason why no pool serves a request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoPool {
    #[error(
        "the pool {named:?} does not exist, or is disabled, or has no {family} addresses; expected the name or CIDR of one of: {}",
        list(.pools)
    )]
    Unknown {
        /// The name or CIDR in the request.
        named: String,
        family: Family,
        /// The pools that exist.
        pools: Vec<String>,
    },
    #[error(
        "no {family} IPPool is for this node and namespace: expected one that is not disabled, is Automatic, and whose nodeSelector and namespaceSelector match; there are: {}",
        list(.pools)
    )]
    NoneMatches {
        family: Family,
        /// The pools that exist.
        pools: Vec<String>,
    },
    #[error("the IPPools {} do not have {purpose:?} in their allowedUses", list(.pools))]
    OtherUse {
        /// The pools that would serve the request if they allowed its use.
        pools: Vec<String>,
        purpose: PoolUse,
    },
}

fn list(pools: &[String]) -> String {
    if pools.is_empty() { "none".to_owned() } else { pools.join(", ") }
}

fn names<'a>(pools: impl IntoIterator<Item = &'a Pool>) -> Vec<String> {
    pools.into_iter().map(|pool| format!("{} ({})", pool.name, pool.cidr)).collect()
}

/// Returns the pools of a family that serve a request, in order of preference. `named` contains the names or CIDRs of
/// pools in the request. It is empty if the request names none.
pub fn choose<'a>(
    pools: &'a [Pool],
    family: Family,
    named: &[String],
    asker: Asker<'_>,
) -> Result<Vec<&'a Pool>, NoPool> {
    let mut enabled: Vec<&Pool> =
        pools.iter().filter(|pool| Family::of(pool.cidr) == family && !pool.is_disabled).collect();
    enabled.sort_by(|a, b| a.name.cmp(&b.name));
    let matching: Vec<&Pool> = if named.is_empty() {
        let selects = |selector: &Option<Selector>, labels: &Labels| {
            selector.as_ref().is_none_or(|it| it.matches(labels))
        };
        let serves = |pool: &&&Pool| {
            let namespace = match asker.namespace {
                Some(labels) => selects(&pool.namespaces, labels),
                None => pool.namespaces.is_none(),
            };
            !pool.is_manual && selects(&pool.nodes, asker.node) && namespace
        };
        enabled.iter().filter(serves).copied().collect()
    } else {
        let find = |text: &String| {
            let net: Option<IpNet> = text.parse().ok();
            let found = enabled.iter().find(|pool| pool.name == *text || Some(pool.cidr) == net);
            found.copied().ok_or_else(|| NoPool::Unknown {
                named: text.clone(),
                family,
                pools: names(enabled.iter().copied()),
            })
        };
        named.iter().map(find).collect::<Result<_, _>>()?
    };
    if matching.is_empty() {
        return Err(NoPool::NoneMatches { family, pools: names(enabled) });
    }
    let for_purpose: Vec<&Pool> =
        matching.iter().filter(|pool| pool.uses.contains(&asker.purpose)).copied().collect();
    if for_purpose.is_empty() {
        return Err(NoPool::OtherUse { pools: names(matching), purpose: asker.purpose });
    }
    Ok(for_purpose)
}

/// Returns the smallest pool that contains an address.
pub fn around(pools: &[Pool], address: std::net::IpAddr) -> Option<&Pool> {
    let around = pools.iter().filter(|pool| pool.cidr.contains(&address));
    around.max_by_key(|pool| pool.cidr.prefix_len())
}
