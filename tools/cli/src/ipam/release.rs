//! `manx ipam release`.
//!
//! A release names the handle and the sequence number of the address that the command has read. If
//! the address was assigned again meanwhile, these differ, and nothing is released. So the
//! datastore needs no lock, and a report of any age does no harm.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::IpAddr;
use std::path::PathBuf;

use clap::Args;
use comfy_table::Cell;
use ipnet::IpNet;
use manx_block_ipam::block::{Rest, ToRelease, describe, first_line};
use manx_block_ipam::check::{AddressState, Allocated};
use manx_block_ipam::release::{ReleaseError, delete_handle, release};
use manx_block_ipam::store::{Record, Store as _, Which};
use manx_block_ipam::users::User;
use manx_datastore::Writes;

use super::cluster::{Cluster, assign_error, store_error};
use super::report::{LeakedHandle, Report};
use crate::Error;
use crate::datastore::ServerOptions;
use crate::output;

/// The settings of `manx ipam release`.
#[derive(Debug, Clone, Args)]
#[group(id = "what", required = true, multiple = false, args = ["ip", "from_report"])]
pub struct Release {
    /// Release this address
    #[arg(long, value_name = "ADDRESS")]
    pub ip: Option<IpAddr>,
    /// Release unused addresses, and handles without addresses, of a report of `manx ipam check -o
    /// FILE`. May be repeated: then only what all reports contain is released. Use reports some
    /// minutes apart, so that work under way does not count
    #[arg(long, value_name = "FILE")]
    pub from_report: Vec<PathBuf>,
    /// Also release addresses that have a user. The user keeps the address, and another pod may get
    /// the same one
    #[arg(long)]
    pub force: bool,
    #[command(flatten)]
    #[expect(missing_docs, reason = "clap would take it for the command's own description")]
    pub server: ServerOptions,
}

/// Releases the requested addresses.
pub(super) async fn run<W: Writes + Sync>(
    asked: &Release,
    cluster: &Cluster<W>,
) -> Result<(), Error> {
    if let Some(address) = asked.ip {
        return output::print(&one(address, asked.force, cluster).await?);
    }
    let (text, is_all) = from_reports(asked, cluster).await?;
    output::print(&text)?;
    if is_all { Ok(()) } else { Err(Error::Deviation) }
}

/// Releases one address.
pub(super) async fn one<W: Writes + Sync>(
    address: IpAddr,
    force: bool,
    cluster: &Cluster<W>,
) -> Result<String, Error> {
    let seen = cluster.look().await?;
    let allocated = seen.records.allocated(&seen.users);
    let found = allocated.iter().find(|it| it.address == address);
    let Some(it) = found.filter(|it| it.state != AddressState::Resting) else {
        let found = found.map_or("is not allocated", |_| "is released, and rests");
        return Err(Error::Failed(format!("{address} {found}: there is nothing to release")));
    };
    if let Some(user) = user_of(it)
        && !force
    {
        let is_pods = it.users.iter().all(|it| matches!(it, User::Pod { .. }));
        let instead = match it.allocation.service() {
            Some(_) => "delete the Service instead. ",
            None if is_pods => "delete the pod instead. ",
            None => "",
        };
        return Err(Error::Failed(format!(
            "{address} {user}: {instead}--force releases the address nevertheless, and then another pod may get it, too"
        )));
    }
    let to_release = ToRelease {
        address,
        handle: it.allocation.handle.as_deref().map(|it| first_line(it).to_owned()),
        sequence: Some(it.allocation.sequence),
    };
    let rest = cluster.rest().await?;
    match release(&cluster.store, it.block.cidr, &[to_release], rest).await {
        Ok(released) if released.is_empty() => {
            Err(Error::Failed(format!("{address} was released by another program meanwhile")))
        }
        Ok(_) => {
            Ok(format!("released {address}, which was allocated to {}\n", describe(it.allocation)))
        }
        Err(error) => Err(release_error(error)),
    }
}

/// The reason why an address may not be released; `None` if it may be released.
fn user_of(it: &Allocated<'_>) -> Option<String> {
    match it.state {
        AddressState::Unused | AddressState::NodeGone => None,
        AddressState::Reserved => Some("is kept by a Windows node".to_owned()),
        AddressState::InUse | AddressState::Resting if it.users.is_empty() => Some(format!(
            "is allocated to {}, and nothing says that it is not used",
            describe(it.allocation)
        )),
        AddressState::InUse | AddressState::Resting => {
            let users: Vec<String> = it.users.iter().map(ToString::to_string).collect();
            Some(format!("is used by {}", users.join(", ")))
        }
    }
}

fn release_error(error: ReleaseError) -> Error {
    match error {
        ReleaseError::Failed(error) => assign_error(error),
        ReleaseError::Outdated(outdated) => Error::Failed(outdated.to_string()),
    }
}

/// An address that was unused at the time of a report: the address, its handle and its sequence
/// number.
type Leaked = (IpAddr, String, Option<u64>);

/// Releases what all reports contain. Returns the text to print, and whether nothing was refused.
pub(super) async fn from_reports<W: Writes + Sync>(
    asked: &Release,
    cluster: &Cluster<W>,
) -> Result<(String, bool), Error> {
    let (addresses, handles) = leaked(&asked.from_report, cluster).await?;
    let rest = cluster.rest().await?;
    let seen = cluster.look().await?;
    let allocated = seen.records.allocated(&seen.users);
    let allocated: BTreeMap<IpAddr, &Allocated<'_>> =
        allocated.iter().map(|it| (it.address, it)).collect();
    let (mut wanted, mut refused) = (BTreeMap::<IpNet, Vec<ToRelease>>::new(), Vec::new());
    let mut free_already = 0;
    for (address, handle, sequence) in addresses {
        let found = allocated.get(&address).filter(|it| it.state != AddressState::Resting);
        let Some(it) = found else {
            free_already += 1;
            continue;
        };
        if let Some(reason) = refusal(it, &handle, sequence, asked.force) {
            refused.push((address, reason));
            continue;
        }
        let handle = Some(first_line(&handle).to_owned()).filter(|it| !it.is_empty());
        wanted.entry(it.block.cidr).or_default().push(ToRelease { address, handle, sequence });
    }
    let mut released = 0;
    for (block, wanted) in wanted {
        released += of_block(cluster, block, &wanted, rest, &mut refused).await?;
    }
    let (deleted, kept) = delete_handles(cluster, handles, rest).await?;
    let mut text = format!("addresses released: {released}\nhandles deleted: {deleted}\n");
    if free_already > 0 {
        let _ = writeln!(text, "addresses that are free already: {free_already}");
    }
    if kept > 0 {
        let _ = writeln!(text, "handles that are gone or have changed: {kept}");
    }
    if !refused.is_empty() {
        let row = |(address, reason): &(IpAddr, String)| [Cell::new(address), Cell::new(reason)];
        text.push('\n');
        text.push_str(&output::table(
            ["not released", "why"],
            &[],
            refused.iter().map(row).collect(),
        ));
    }
    Ok((text, refused.is_empty()))
}

/// The contents that all reports share: unused addresses, and handles without addresses.
async fn leaked<W: Writes + Sync>(
    files: &[PathBuf],
    cluster: &Cluster<W>,
) -> Result<(BTreeSet<Leaked>, BTreeSet<LeakedHandle>), Error> {
    let information = cluster.information().await?.unwrap_or_default();
    let mut all: Option<(BTreeSet<Leaked>, BTreeSet<LeakedHandle>)> = None;
    for file in files {
        let report = Report::read(file)?;
        let (of_report, of_cluster) = (&report.cluster_guid, &information.guid);
        if of_report != of_cluster && !of_report.is_empty() && !of_cluster.is_empty() {
            return Err(Error::Invalid(format!(
                "report {}: found the cluster {of_report}, expected {of_cluster}: it is another cluster's",
                file.display()
            )));
        }
        let unused = report.allocations.into_iter().flat_map(|(address, all)| {
            let unused = all.into_iter().filter(|it| !it.in_use && !it.cooling);
            unused.map(move |it| (address, it.handle, it.sequence_number))
        });
        let unused: BTreeSet<Leaked> = unused.collect();
        let handles: BTreeSet<LeakedHandle> = report.leaked_handles.into_iter().collect();
        all = Some(match all {
            None => (unused, handles),
            Some((addresses, known)) => (&addresses & &unused, &known & &handles),
        });
    }
    Ok(all.unwrap_or_default())
}

/// The reason why an address of a report is not released. `None`: it is released.
fn refusal(it: &Allocated<'_>, handle: &str, sequence: Option<u64>, force: bool) -> Option<String> {
    let again = "it was given out again since the report";
    let Some(sequence) = sequence else {
        return Some("found no sequence number in the report, expected one".to_owned());
    };
    if sequence != it.allocation.sequence {
        let found = it.allocation.sequence;
        return Some(format!("found sequence number {found}, expected {sequence}: {again}"));
    }
    if it.allocation.handle.as_deref().unwrap_or_default() != handle {
        let found = it.allocation.handle.as_deref().unwrap_or("none");
        return Some(format!("found handle {found}, expected {handle}: {again}"));
    }
    user_of(it).filter(|_| !force)
}

/// Releases addresses of one block together. If another program has changed some of these addresses
/// meanwhile, releases each address by itself.
async fn of_block<W: Writes + Sync>(
    cluster: &Cluster<W>,
    block: IpNet,
    wanted: &[ToRelease],
    rest: Rest,
    refused: &mut Vec<(IpAddr, String)>,
) -> Result<usize, Error> {
    match release(&cluster.store, block, wanted, rest).await {
        Ok(released) => return Ok(released.len()),
        Err(ReleaseError::Outdated(_)) => {}
        Err(error) => return Err(release_error(error)),
    }
    let mut number = 0;
    for one in wanted {
        match release(&cluster.store, block, std::slice::from_ref(one), rest).await {
            Ok(released) => number += released.len(),
            Err(ReleaseError::Outdated(outdated)) => {
                refused.push((one.address, outdated.to_string()));
            }
            Err(error) => return Err(release_error(error)),
        }
    }
    Ok(number)
}

/// Deletes the handles that have not changed. Returns the numbers of deleted and of changed
/// handles.
async fn delete_handles<W: Writes + Sync>(
    cluster: &Cluster<W>,
    wanted: BTreeSet<LeakedHandle>,
    rest: Rest,
) -> Result<(usize, usize), Error> {
    if wanted.is_empty() {
        return Ok((0, 0));
    }
    let mut deleted = 0;
    for (record, known) in cluster.store.list(&Which::Handles).await.map_err(store_error)? {
        let Record::Handle(handle) = record else { continue };
        if wanted.contains(&LeakedHandle::new(&handle.id, &known))
            && delete_handle(&cluster.store, handle, known, rest).await.map_err(assign_error)?
        {
            deleted += 1;
        }
    }
    Ok((deleted, wanted.len() - deleted))
}
