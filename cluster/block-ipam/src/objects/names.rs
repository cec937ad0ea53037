//! Names and labels of the objects.
//!
//! Source: Calico's design note "IPAM datastore", sections "CIDR-to-name encoding" and "Host-scoped lookups".

use data_encoding::{BASE32_NOPAD, HEXLOWER};
use ipnet::IpNet;
use sha2::Sha256;
use sha3::{Digest, Sha3_256};

use crate::affinity::Owner;
use crate::pool::Family;
use crate::store::Key;

/// The maximum length of an object's name, in bytes, minus one.
const LONGEST: usize = 252;
/// The number of hash digits in a name that would otherwise be too long.
const HASH_DIGITS: usize = 11;

const HOST: &str = "projectcalico.org/hostname-hash";
const TYPE: &str = "projectcalico.org/affinity-type";
const VERSION: &str = "projectcalico.org/ip-version";

/// Returns the name of a record's object.
pub(super) fn name(key: &Key) -> String {
    match key {
        Key::Block(cidr) => name_of(*cidr),
        Key::Handle(id) => id.to_lowercase(),
        Key::Affinity(owner, cidr) => {
            let (host, cidr) = (owner.name(), name_of(*cidr));
            let name = format!("{host}-{cidr}");
            if name.len() <= LONGEST {
                return name;
            }
            let hash = HEXLOWER.encode(&Sha256::digest(format!("{host}+{cidr}")));
            let room = LONGEST - cidr.len() - HASH_DIGITS - 2;
            let cut = host.get(..room).unwrap_or(host);
            format!("{cut}-{cidr}-{}", &hash[..HASH_DIGITS])
        }
    }
}

fn name_of(cidr: IpNet) -> String {
    cidr.to_string().replace(['.', ':', '/'], "-")
}

/// Returns the labels by which the affinities of an owner are found. The name of a node may be longer than the value of
/// a label, so the label has the name's hash.
pub(super) fn labels_of(owner: &Owner, cidr: IpNet) -> [(&'static str, String); 3] {
    let version = match Family::of(cidr) {
        Family::V4 => "4",
        Family::V6 => "6",
    };
    [(HOST, hash_of(owner)), (TYPE, owner.kind().to_owned()), (VERSION, version.to_owned())]
}

/// Returns the label selector for an owner's affinities.
pub(super) fn selector_of(owner: &Owner) -> String {
    format!("{HOST}={},{TYPE}={}", hash_of(owner), owner.kind())
}

fn hash_of(owner: &Owner) -> String {
    BASE32_NOPAD.encode(&Sha3_256::digest(owner.name()))
}
