//! A block: a range of a pool's addresses, and who has which of them.
//!
//! A block is the unit of change: one object of the datastore, written whole by compare-and-swap. All functions here are
//! pure. The law: each address of the block is either free, which is told once in [`free`](field@Block::free), or allocated.
//!
//! Source: Calico's design notes, "IPAM core library" and "IPAM datastore".

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;

use crate::addresses::{address, ordinal, size};
use crate::affinity::Owner;
use crate::handle::Handle;

/// The most addresses of a block: 2^12, those of the largest block that a pool may have (`blockSize` 20 and 116).
pub const MOST_ADDRESSES: u32 = 1 << 12;

/// The handle of addresses that Windows nodes keep for themselves. A block that has only these is empty.
const WINDOWS: &str = "windows-reserved-ipam-handle";

/// The attribute `type` of an address that a Service has.
pub const OF_SERVICE: &str = "LoadBalancer";

/// A moment, in nanoseconds since the Unix epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(pub u64);

impl Time {
    /// The time from then to now; zero if `then` is later.
    pub fn since(self, then: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(then.0))
    }
}

/// What is known of the one who has an address: `pod`, `namespace`, `node`, `timestamp`, or a `type`.
pub type Attributes = BTreeMap<String, String>;

/// An address that somebody has.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Allocation {
    /// The handle by which it is released. `None`: nobody's, or one that is released and may not be given out yet.
    pub handle: Option<String>,
    /// Who has it.
    pub owner: Attributes,
    /// Who had it, or will have it: the other end of a live migration.
    pub alternate: Attributes,
    /// When it was released. Then it rests until the cool-down ends.
    pub released_at: Option<Time>,
    /// The block's sequence number when it was allocated. A release that names another one is refused, because it is about
    /// an earlier allocation of the address. 0: not known.
    pub sequence: u64,
}

impl Allocation {
    /// Whether it has this handle. Handles that were migrated from host-local files may end in a carriage return and a second
    /// line, which do not count.
    pub fn has_handle(&self, handle: &str) -> bool {
        self.handle.as_deref().is_some_and(|it| first_line(it) == handle)
    }

    /// The namespace and the name of the Service of type `LoadBalancer` that has it. `None`: it says no such thing, or its
    /// handle is not one of a Service.
    pub fn service(&self) -> Option<(&str, &str)> {
        let of = |key: &str| self.owner.get(key).map(String::as_str);
        let has_handle = self.handle.as_deref().is_some_and(Handle::is_of_service);
        let is_of_service = has_handle && of("type") == Some(OF_SERVICE);
        is_of_service.then_some((of("namespace")?, of("service")?))
    }
}

/// Whether a Windows node keeps the address for itself.
pub(crate) fn is_windows(allocation: &Allocation) -> bool {
    let handle = allocation.handle.as_deref();
    handle.is_some_and(|it| first_line(it).eq_ignore_ascii_case(WINDOWS))
}

/// A handle without what stands behind a carriage return.
pub fn first_line(handle: &str) -> &str {
    handle.split('\r').next().unwrap_or(handle)
}

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// Its addresses.
    pub cidr: IpNet,
    /// The node whose pods get its addresses first. `None`: no node's; all nodes may borrow from it.
    pub owner: Option<Owner>,
    /// When the owner claimed it.
    pub claimed_at: Option<Time>,
    /// The allocated addresses, by their place in the block.
    pub allocations: BTreeMap<u32, Allocation>,
    /// The free addresses, by their place. The first one is given out next; an address that becomes free comes last.
    pub free: VecDeque<u32>,
    /// It grows with each write.
    pub sequence: u64,
}

/// A release that is about an earlier allocation of the address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{address} has another owner by now ({found}); expected {expected}: nothing was released")]
pub struct Outdated {
    address: IpAddr,
    found: String,
    expected: String,
}

/// The reason why a named address is not given out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Somebody has it.
    #[error("address {address} is taken by {by}")]
    Taken {
        /// The address.
        address: IpAddr,
        /// Who has it, for people.
        by: String,
    },
    /// The block has no such address.
    #[error("address {0} does not lie in block {1}")]
    Outside(IpAddr, IpNet),
}

/// An address to release, and what the caller knows of its allocation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToRelease {
    pub address: IpAddr,
    /// The handle that it must have.
    pub handle: Option<String>,
    /// The sequence number that it must have.
    pub sequence: Option<u64>,
}

impl Block {
    /// A new block without allocations. Its sequence starts with the time, so that an allocation of an earlier block of these
    /// addresses has another number.
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

    /// Whether nobody has an address of it.
    pub fn is_empty(&self) -> bool {
        self.allocations.values().all(is_windows)
    }

    /// Whether it has a free address outside of the reserved nets.
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

    /// Gives out the free address that has been free for the longest time. `None`: all free ones are reserved, or none is free.
    pub fn allocate_next(
        &mut self,
        handle: &str,
        owner: &Attributes,
        reserved: &[IpNet],
    ) -> Option<IpAddr> {
        let at = self.free.remove(self.next_free(reserved)?)?;
        Some(self.allocate_at(at, handle, owner))
    }

    /// Gives out a named address. One that the handle has already stays as it is.
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

    /// Gives an address of a handle a new sequence number. A release that was sent before names the former one, and is
    /// refused. Returns whether the handle has the address.
    pub fn adopt(&mut self, address: IpAddr, handle: &str) -> bool {
        let allocation = ordinal(self.cidr, address).and_then(|at| self.allocations.get_mut(&at));
        let Some(allocation) = allocation.filter(|it| it.has_handle(handle)) else { return false };
        allocation.sequence = self.sequence;
        true
    }

    /// The addresses that a handle has.
    pub fn addresses_of<'a>(&'a self, handle: &'a str) -> impl Iterator<Item = IpAddr> + 'a {
        let of_handle = self.allocations.iter().filter(move |(_, it)| it.has_handle(handle));
        of_handle.map(|(at, _)| address(self.cidr, *at))
    }

    /// Who has an address.
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

    /// Releases addresses, all or none. Returns the handle of each that was allocated.
    ///
    /// # Errors
    /// One of them has another handle or sequence number than the caller expects.
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

    /// Frees an address, or lets it rest first.
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

    /// Frees the addresses that have rested long enough. Returns whether there was one.
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

/// How long a released address is not given out again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rest {
    pub now: Time,
    /// `ipCooldownSeconds`. Zero: it is free at once.
    pub cooldown: Duration,
}

/// Who has an address, for people.
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
