//! The addresses of one member.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::ops::Deref;

/// The addresses in ascending order, each of them once. Most members have one or two addresses, and a `BTreeSet`
/// allocates memory for eleven even if it holds one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct AddressSet(Box<[IpAddr]>);

impl AddressSet {
    /// Whether the set has this address.
    pub fn contains(&self, address: &IpAddr) -> bool {
        self.0.binary_search(address).is_ok()
    }

    /// Keeps only the addresses for which `is_kept` is true.
    pub fn retain(&mut self, mut is_kept: impl FnMut(&IpAddr) -> bool) {
        self.0 = self.0.iter().copied().filter(|address| is_kept(address)).collect();
    }
}

impl Deref for AddressSet {
    type Target = [IpAddr];

    fn deref(&self) -> &[IpAddr] {
        &self.0
    }
}

impl FromIterator<IpAddr> for AddressSet {
    fn from_iter<I: IntoIterator<Item = IpAddr>>(addresses: I) -> Self {
        addresses.into_iter().collect::<BTreeSet<_>>().into()
    }
}

impl From<BTreeSet<IpAddr>> for AddressSet {
    fn from(addresses: BTreeSet<IpAddr>) -> Self {
        Self(addresses.into_iter().collect())
    }
}

impl<const N: usize> From<[IpAddr; N]> for AddressSet {
    fn from(addresses: [IpAddr; N]) -> Self {
        addresses.into_iter().collect()
    }
}

impl IntoIterator for AddressSet {
    type Item = IpAddr;
    type IntoIter = std::vec::IntoIter<IpAddr>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_vec().into_iter()
    }
}

impl<'a> IntoIterator for &'a AddressSet {
    type Item = &'a IpAddr;
    type IntoIter = std::slice::Iter<'a, IpAddr>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}
