//! A block: a range of a pool's addresses, and the allocation of each address.
//!
//! Changes apply to whole blocks: a block is one object of the datastore, and is written with compare-and-swap. All
//! functions here are pure. Law: each address of the block is either free, and then occurs exactly once in
//! [`free`](field@Block::free), or allocated.
//!
//! Source: Calico's design notes, "IPAM core library" and "IPAM datastore".

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;

use crate::addresses::{address, ordinal, size};
use crate::affinity::Owner;
use crate::handle::Handle;

/// The maximum number of addresses of a block: 2^12. The largest block of a pool has this size (`blockSize` 20, or 116
/// of IPv6).
pub const MOST_ADDRESSES: u32 = 1 << 12;

/// The handle of addresses that Windows nodes reserve for themselves. A block with only such addresses counts as empty.
const WINDOWS: &str = "windows-reserved-ipam-handle";

/// The attribute `type` of an address that belongs to a Service.
pub const OF_SERVICE: &str = "LoadBalancer";

/// A time, in nanoseconds since the Unix epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(pub u64);

impl Time {
    /// Returns the time from `then` to this time, or zero if `then` is later.
    pub fn since(self, then: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(then.0))
    }
}

/// The attributes of the user of an address: `pod`, `namespace`, `node`, `timestamp`, or a `type`.
pub type Attributes = BTreeMap<String, String>;

/// The allocation of an address.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Allocation {
    /// The handle by which the address is released. `None` if the address has no user, or if it was released and still
    /// rests.
    pub handle: Option<String>,
    /// The attributes of the user.
    pub owner: Attributes,
    /// The attributes of the previous or the next user of the address: a live migration moves the address between two
    /// users.
    pub alternate: Attributes,
    /// The time of the release. The address then rests until the cool-down ends.
    pub released_at: Option<Time>,
    /// The block's sequence number when it was allocated. A release that names another number is refused, because it
    /// refers to an earlier allocation of the address. 0 means that the number is not known.
    pub sequence: u64,
}

impl Allocation {
    /// Returns whether the allocation has this handle. Handles that were migrated from host-local files may end in a
    /// carriage return and a second line, which are ignored.
    pub fn has_handle(&self, handle: &str) -> bool {
        self.handle.as_deref().is_some_and(|it| first_line(it) == handle)
    }

    /// Returns the namespace and the name of the Service of type `LoadBalancer` that has the address. Returns `None` if
    /// the attributes do not name a Service, or if the handle is not one of a Service.
    pub fn service(&self) -> Option<(&str, &str)> {
        let of = |key: &str| self.owner.get(key).map(String::as_str);
        let has_handle = self.handle.as_deref().is_some_and(Handle::is_of_service);
        let is_of_service = has_handle && of("type") == Some(OF_SERVICE);
        is_of_service.then_some((of("namespace")?, of("service")?))
    }
}

/// Returns whether a Windows node reserves the address for itself.
pub(crate) fn is_windows(allocation: &Allocation) -> bool {
    let handle = allocation.handle.as_deref();
    handle.is_some_and(|it| first_line(it).eq_ignore_ascii_case(WINDOWS))
}

/// Returns a handle without the part after a carriage return.
pub fn first_line(handle: &str) -> &str {
    handle.split('\r').next().unwrap_or(handle)
}

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// Its addresses.
    pub cidr: IpNet,
    /// The owner, usually a node, whose requests use this block first. `None` if the block has no owner; all nodes may
    /// borrow from it.
    pub owner: Option<Owner>,
    /// The time when the owner claimed the block.
    pub claimed_at: Option<Time>,
    /// The allocated addresses, by their index in the block.
    pub allocations: BTreeMap<u32, Allocation>,
    /// The free addresses, by their index. The first one is assigned next. An address that becomes free is added at the
    /// end.
    pub free: VecDeque<u32>,
    /// The sequence number. It grows with each write.
    pub sequence: u64,
}

/// The error of a release that refers to an earlier allocation of the address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{address} has another owner by now ({found}); expected {expected}: nothing was released")]
pub struct Outdated {
    address: IpAddr,
    found: String,
    expected: String,
}

/// The reason why a named address is not assigned.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The address is already allocated.
    #[error("address {address} is taken by {by}")]
    Taken {
        /// The address.
        address: IpAddr,
        /// The user of the address, as text for people.
        by: String,
    },
    /// The address is outside the block.
    #[error("address {0} does not lie in block {1}")]
    Outside(IpAddr, IpNet),
}

/// An address to release, with the allocation that the caller expects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToRelease {
    pub address: IpAddr,
    /// The handle that the allocation must have.
    pub handle: Option<String>,
    /// The sequence number that the allocation must have.
    pub sequence: Option<u64>,
}

impl Block {
    /// Returns a new block without allocations. Its sequence number starts with the time, so that allocations of an
    /// earlier block with the same addresses have other numbers.
    pub fn new(cidr: IpNet, owner: Owner, now: Time) -> Self {
        Self {
            cidr: cidr.trunc(),
            owner: Some(owner),
            claimed_at: Some(now),
            allocations: BTreeMap::new(),
            free: (0..size(cidr)).collect(),
            sequence: now.0,
        }
    }

    /// Returns whether no address of the block has a user. Addresses that Windows nodes reserve do not count.
    pub fn is_empty(&self) -> bool {
        self.allocations.values().all(is_windows)
    }

    /// Returns whether the block has a free address outside the reserved nets.
    pub fn has_free(&self, reserved: &[IpNet]) -> bool {
        self.next_free(reserved).is_some()
    }

    fn next_free(&self, reserved: &[IpNet]) -> Option<usize> {
        let is_reserved = |at: u32| {
            let address = address(self.cidr, at);
            reserved.iter().any(|net| net.contains(&address))
        };
        self.free.iter().position(|at| !is_reserved(*at))
    }

    /// Assigns the address that has been free for the longest time. Returns `None` if no address is free, or if all
    /// free ones are reserved.
    pub fn allocate_next(
        &mut self,
        handle: &str,
        owner: &Attributes,
        reserved: &[IpNet],
    ) -> Option<IpAddr> {
        let at = self.free.remove(self.next_free(reserved)?)?;
        Some(self.allocate_at(at, handle, owner))
    }

    /// Assigns a named address. If the handle already has it, nothing changes.
    pub fn allocate(
        &mut self,
        address: IpAddr,
        handle: &str,
        owner: &Attributes,
    ) -> Result<(), Refused> {
        let at = ordinal(self.cidr, address).ok_or(Refused::Outside(address, self.cidr))?;
        match self.allocations.get(&at) {
            Some(taken) if taken.has_handle(handle) => return Ok(()),
            Some(taken) => return Err(Refused::Taken { address, by: describe(taken) }),
            None => {}
        }
        self.free.retain(|free| *free != at);
        self.allocate_at(at, handle, owner);
        Ok(())
    }

    fn allocate_at(&mut self, at: u32, handle: &str, owner: &Attributes) -> IpAddr {
        let allocation = Allocation {
            handle: Some(handle.to_owned()),
            owner: owner.clone(),
            sequence: self.sequence,
            ..Allocation::default()
        };
        self.allocations.insert(at, allocation);
        address(self.cidr, at)
    }

    /// Gives a new sequence number to an address of a handle. A release that was requested earlier contains the old
    /// number, and is refused. Returns whether the handle has the address.
    pub fn adopt(&mut self, address: IpAddr, handle: &str) -> bool {
        let allocation = ordinal(self.cidr, address).and_then(|at| self.allocations.get_mut(&at));
        let Some(allocation) = allocation.filter(|it| it.has_handle(handle)) else { return false };
        allocation.sequence = self.sequence;
        true
    }

    /// Returns the addresses of a handle.
    pub fn addresses_of<'a>(&'a self, handle: &'a str) -> impl Iterator<Item = IpAddr> + 'a {
        let of_handle = self.allocations.iter().filter(move |(_, it)| it.has_handle(handle));
        of_handle.map(|(at, _)| address(self.cidr, *at))
    }

    /// Returns the allocation of an address.
    pub fn allocation(&self, address: IpAddr) -> Option<&Allocation> {
        self.allocations.get(&ordinal(self.cidr, address)?)
    }

    /// Releases all addresses of a handle and returns them.
    pub fn release_handle(&mut self, handle: &str, rest: Rest) -> Vec<IpAddr> {
        let released: Vec<IpAddr> = self.addresses_of(handle).collect();
        for address in &released {
            self.free(*address, rest);
        }
        released
    }

    /// Releases either all of these addresses or none. Returns the handle of each address that was allocated.
    ///
    /// # Errors
    /// Returns an error if one of them has another handle or sequence number than the caller expects.
    pub fn release(
        &mut self,
        addresses: &[ToRelease],
        rest: Rest,
    ) -> Result<Vec<(IpAddr, Option<String>)>, Outdated> {
        let mut released = Vec::new();
        for ToRelease { address, handle, sequence } in addresses {
            let Some(found) = self.allocation(*address) else { continue };
            if found.released_at.is_some() {
                continue;
            }
            let outdated = |found, expected| Err(Outdated { address: *address, found, expected });
            if let Some(handle) = handle
                && !found.has_handle(handle)
            {
                return outdated(describe(found), format!("handle {handle}"));
            }
            if let Some(sequence) = sequence
                && *sequence != found.sequence
            {
                let found = format!("sequence number {}", found.sequence);
                return outdated(found, format!("sequence number {sequence}"));
            }
            let handle = found.handle.as_deref().map(|it| first_line(it).to_owned());
            released.push((*address, handle));
        }
        for (address, _) in &released {
            self.free(*address, rest);
        }
        Ok(released)
    }

    /// Frees an address, or starts its rest.
    fn free(&mut self, address: IpAddr, rest: Rest) {
        let Some(at) = ordinal(self.cidr, address) else { return };
        let Some(allocation) = self.allocations.get_mut(&at) else { return };
        if rest.cooldown.is_zero() {
            self.allocations.remove(&at);
            self.free.push_back(at);
        } else {
            let sequence = allocation.sequence;
            let released_at = Some(rest.now);
            *allocation = Allocation { released_at, sequence, ..Allocation::default() };
        }
    }

    /// Frees the addresses that have rested long enough. Returns whether any address was freed.
    pub fn end_rest(&mut self, rest: Rest) -> bool {
        let rested = |it: &Allocation| {
            it.released_at.is_some_and(|then| rest.now.since(then) >= rest.cooldown)
        };
        let ended: Vec<u32> =
            self.allocations.iter().filter(|(_, it)| rested(it)).map(|(at, _)| *at).collect();
        for at in &ended {
            self.allocations.remove(at);
            self.free.push_back(*at);
        }
        !ended.is_empty()
    }
}

/// The current time, and the time for which a released address must rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rest {
    pub now: Time,
    /// `ipCooldownSeconds`: a released address is not assigned again for this time. If it is zero, the address is free
    /// immediately.
    pub cooldown: Duration,
}

/// Describes the user of an address, for people.
pub fn describe(allocation: &Allocation) -> String {
    let Allocation { handle, owner, released_at, .. } = allocation;
    if let (Some((namespace, service)), None) = (allocation.service(), released_at) {
        return format!("Service {namespace}/{service}");
    }
    let of = |key: &str| owner.get(key);
    match (of("namespace"), of("pod"), of("type"), handle) {
        _ if released_at.is_some() => "nobody: it rests after its release".to_owned(),
        (Some(namespace), Some(pod), ..) => format!("pod {namespace}/{pod}"),
        (_, _, Some(kind), _) => match of("node") {
            Some(node) => format!("the {kind} of node {node}"),
            None => format!("a {kind}"),
        },
        (.., Some(handle)) => format!("handle {}", first_line(handle)),
        _ => "an owner that is not known".to_owned(),
    }
}
