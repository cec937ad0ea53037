//! Leases as the text of a record. A text that does not parse or contradicts itself is an error. An empty start instead
//! would give a living pod's address to another pod.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::free_order::RESTING;
use crate::leases::Leases;
use manx_api::{AttachmentId, PodName};

/// The version that is written. Version 1, without pinned addresses, and version 2, without attachments of container
/// runtimes, are read, too.
const VERSION: u32 = 3;
/// The version of a record whose addresses come from the cluster's pools. It is another number because earlier versions of
/// this program would treat these addresses as another plugin's.
const VERSION_OF_POOLS: u32 = 4;

#[derive(Serialize, Deserialize)]
struct Saved {
    version: u32,
    blocks: Vec<SavedBlock>,
    /// Whether the cluster's pools gave the addresses out. Earlier versions of this program do not write it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pools: bool,
    /// The pods with one address of each block.
    pods: BTreeMap<String, Vec<IpAddr>>,
    /// The pods with other addresses, which their callers named.
    #[serde(default)]
    pinned: BTreeMap<String, Vec<IpAddr>>,
    /// The attachments of container runtimes, for pods of both maps.
    #[serde(default)]
    attachments: BTreeMap<String, AttachmentId>,
}

#[derive(Serialize, Deserialize)]
struct SavedBlock {
    cidr: String,
    last: IpAddr,
    /// The resting numbers, in order. The form is short because a release must not need more space: the disk may be full.
    /// Earlier versions of this program do not write this field.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    resting: String,
}

/// Writes leases as text.
pub(crate) fn write(leases: &Leases) -> Result<Vec<u8>, serde_json::Error> {
    let all = leases.pods.iter().map(|(pod, addresses)| (pod.to_string(), addresses.clone()));
    let (pods, pinned) = all.partition(|(_, addresses)| leases.is_of_blocks(addresses));
    let blocks = leases.orders.iter().map(|order| SavedBlock {
        cidr: order.block().net().to_string(),
        last: order.last(),
        resting: order.resting().map(|number| number.to_string()).collect::<Vec<_>>().join(" "),
    });
    let saved = Saved {
        version: if leases.is_of_pools { VERSION_OF_POOLS } else { VERSION },
        blocks: blocks.collect(),
        pools: leases.is_of_pools,
        pods,
        pinned,
        attachments: leases.ids.iter().map(|(pod, id)| (pod.to_string(), id.clone())).collect(),
    };
    let mut text = serde_json::to_vec_pretty(&saved)?;
    text.push(b'\n');
    Ok(text)
}

/// Reads leases from text. `Err` describes the fault of the text.
pub(crate) fn read(text: &[u8]) -> Result<Leases, String> {
    let Saved { version, blocks, pools, pods, pinned, attachments } =
        serde_json::from_slice(text).map_err(|error| error.to_string())?;
    if !(1..=VERSION_OF_POOLS).contains(&version) {
        return Err(format!(
            "it has version {version}, this manx reads versions up to {VERSION_OF_POOLS}"
        ));
    }
    let net = |block: &SavedBlock| {
        block.cidr.parse::<IpNet>().map_err(|_| format!("{:?} is not a CIDR", block.cidr))
    };
    let nets = blocks.iter().map(net).collect::<Result<Vec<_>, _>>()?;
    let mut leases = match nets.as_slice() {
        [] if pools => Leases::of_pools(),
        [] => Leases::without_blocks(),
        nets => Leases::new(nets).map_err(|error| error.to_string())?,
    };
    for (order, SavedBlock { last, .. }) in leases.orders.iter_mut().zip(&blocks) {
        order.set_last(*last).map_err(|error| error.to_string())?;
    }
    for (name, addresses) in pods {
        let pod = pod(&name)?;
        if addresses.len() != leases.orders.len() {
            return Err(format!(
                "{pod} has {} addresses of {} blocks",
                addresses.len(),
                leases.orders.len()
            ));
        }
        for (order, address) in leases.orders.iter().zip(&addresses) {
            order.number(*address).map_err(|error| error.to_string())?;
        }
        add_pod(&mut leases, &pod, &addresses)?;
    }
    for (name, addresses) in pinned {
        let pod = pod(&name)?;
        if addresses.is_empty() {
            return Err(format!("{pod} has no address"));
        }
        add_pod(&mut leases, &pod, &addresses)?;
    }
    for (name, id) in attachments {
        let pod = pod(&name)?;
        if !leases.pods.contains_key(&pod) {
            return Err(format!("{pod} is attached ({id}) and has no address"));
        }
        leases.set_id(&pod, id);
    }
    for (at, SavedBlock { resting, .. }) in blocks.into_iter().enumerate() {
        rest(&mut leases, at, &resting)?;
    }
    Ok(leases)
}

fn add_pod(leases: &mut Leases, pod: &PodName, addresses: &[IpAddr]) -> Result<(), String> {
    if let Some(address) = addresses.iter().find(|address| leases.is_used(address)) {
        return Err(format!("{pod} is not the only pod with {address}"));
    }
    if leases.pods.contains_key(pod) {
        return Err(format!("{pod} is there twice"));
    }
    leases.pin(pod, addresses).map(drop).map_err(|error| error.to_string())
}

/// Marks the addresses with these numbers as resting, in the block of index `at`. The pods' addresses must be set before.
fn rest(leases: &mut Leases, at: usize, resting: &str) -> Result<(), String> {
    let numbers = resting.split_whitespace().map(str::parse);
    let numbers: Vec<u128> = numbers
        .collect::<Result<_, _>>()
        .map_err(|_| format!("{resting:?} is not a list of the numbers of addresses that rest"))?;
    if numbers.len() > RESTING {
        return Err(format!("{} addresses rest, and at most {RESTING} do", numbers.len()));
    }
    for number in numbers {
        let block = *leases.orders[at].block();
        if !(block.first()..=block.end()).contains(&number) {
            return Err(format!("number {number} of {} rests, and is no pod's", block.net()));
        }
        let address = block.address(number);
        if leases.is_used(&address) {
            return Err(format!("{address} rests, and a pod has it"));
        }
        let order = &mut leases.orders[at];
        if order.resting().any(|it| it == number) {
            return Err(format!("{address} rests twice"));
        }
        order.rest(address);
    }
    Ok(())
}

fn pod(name: &str) -> Result<PodName, String> {
    match name.split_once('/') {
        Some((namespace, name)) => {
            Ok(PodName { namespace: namespace.to_owned(), name: name.to_owned() })
        }
        None => Err(format!("{name:?} is not a pod's namespace/name")),
    }
}
