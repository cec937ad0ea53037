//! `manx ipam show`.

use std::fmt::Write as _;
use std::net::IpAddr;

use clap::Args;
use comfy_table::Cell;
use manx_block_ipam::affinity::Owner;
use manx_block_ipam::block::{Attributes, describe};
use manx_block_ipam::check::{AddressState, Allocated};
use manx_block_ipam::config::Config;
use manx_block_ipam::pool::around;
use manx_block_ipam::utilization::{Numbers, Row, Utilization, utilization};
use manx_datastore::Writes;

use super::cluster::{Cluster, Seen, store_error};
use crate::Error;
use crate::datastore::ServerOptions;
use crate::output;

/// The settings of `manx ipam show`.
#[derive(Debug, Clone, Args)]
pub struct Show {
    /// Also show the blocks of each IPPool
    #[arg(long)]
    pub show_blocks: bool,
    /// Show who has this address
    #[arg(long, value_name = "ADDRESS", conflicts_with_all = ["show_blocks", "show_borrowed", "show_configuration"])]
    pub ip: Option<IpAddr>,
    /// Show the addresses that nodes have from blocks that are not their own
    #[arg(long, conflicts_with_all = ["show_blocks", "show_configuration"])]
    pub show_borrowed: bool,
    /// Show the settings of the whole cluster
    #[arg(long, conflicts_with = "show_blocks")]
    pub show_configuration: bool,
    #[command(flatten)]
    #[expect(missing_docs, reason = "clap would take it for the command's own description")]
    pub server: ServerOptions,
}

/// Shows the requested table.
pub(super) async fn run<W: Writes + Sync>(show: &Show, cluster: &Cluster<W>) -> Result<(), Error> {
    output::print(&text(show, cluster).await?)
}

pub(super) async fn text<W: Writes + Sync>(
    show: &Show,
    cluster: &Cluster<W>,
) -> Result<String, Error> {
    if show.show_configuration {
        return Ok(settings(&cluster.store.config().await.map_err(store_error)?));
    }
    let seen = cluster.look().await?;
    let allocated = seen.records.allocated(&seen.users);
    if let Some(address) = show.ip {
        return Ok(of_address(address, &allocated, &seen));
    }
    if show.show_borrowed {
        return Ok(borrowed(&allocated));
    }
    let reserved = cluster.store.reserved().await.map_err(store_error)?;
    let all = utilization(&seen.pools, &seen.records.blocks, &reserved);
    Ok(of_pools(&all, show.show_blocks))
}

/// A table of the cluster's settings.
pub(super) fn settings(config: &Config) -> String {
    let Config { strict_affinity, claims_blocks, max_blocks, cooldown } = config;
    let most = match max_blocks {
        0 => format!("not set: {}", config.limit()),
        most => most.to_string(),
    };
    let rows = [
        ("StrictAffinity", strict_affinity.to_string()),
        ("AutoAllocateBlocks", claims_blocks.to_string()),
        ("MaxBlocksPerHost", most),
        ("IPCooldownSeconds", cooldown.as_secs().to_string()),
    ];
    let rows = rows.map(|(name, value)| [Cell::new(name), Cell::new(value)]);
    output::table(["property", "value"], &[], rows.into())
}

fn of_pools(all: &[Utilization], with_blocks: bool) -> String {
    let row = |kind: &str, row: &Row| {
        let Row { cidr, numbers } = row;
        let Numbers { total, in_use, reserved, free, resting } = *numbers;
        let share = |of: u128| {
            let percent = 100.0 * of as f64 / total as f64;
            Cell::new(format!("{} ({percent:.0}%)", number(of)))
        };
        [
            Cell::new(kind),
            Cell::new(cidr),
            Cell::new(number(total)),
            share(in_use),
            share(reserved),
            share(free),
            share(resting),
        ]
    };
    let mut rows = Vec::new();
    let mut without_pool = 0;
    for Utilization { pool, blocks } in all {
        match pool {
            Some(pool) => rows.push(row("IP Pool", pool)),
            None => without_pool = blocks.len(),
        }
        if with_blocks {
            rows.extend(blocks.iter().map(|it| row("Block", it)));
        }
    }
    let header =
        ["grouping", "cidr", "ips total", "ips in use", "ips reserved", "ips free", "ips cooling"];
    let mut text = output::table(header, &[2, 3, 4, 5, 6], rows);
    if without_pool > 0 {
        let shown = if with_blocks { "" } else { "; --show-blocks shows them" };
        let _ = writeln!(text, "\n{without_pool} of the blocks are in no IPPool{shown}");
    }
    text
}

/// Formats a number of addresses. IPv6 pools have too many for a plain number.
fn number(of: u128) -> String {
    if of < 1_000_000_000 { of.to_string() } else { format!("{:.4e}", of as f64) }
}

fn borrowed(allocated: &[Allocated<'_>]) -> String {
    let rows = allocated.iter().filter_map(|it| {
        let node = it.borrower()?;
        let owner = &it.allocation.owner;
        let of = |key: &str| owner.get(key).map_or("", String::as_str);
        let kind = if owner.contains_key("pod") { "pod" } else { of("type") };
        let to = match (of("namespace"), of("pod")) {
            (_, "") => String::new(),
            (namespace, pod) => format!("{namespace}/{pod}"),
        };
        let block_owner = it.block.owner.as_ref().map_or("", Owner::name);
        let or_none = |text: &str| Cell::new(if text.is_empty() { "-" } else { text });
        Some([
            Cell::new(it.address),
            Cell::new(node),
            Cell::new(it.block.cidr),
            or_none(block_owner),
            or_none(kind),
            or_none(&to),
        ])
    });
    let header = ["ip", "borrowing-node", "block", "block owner", "type", "allocated-to"];
    let mut text = output::table(header, &[], rows.collect());
    // The address of a Service belongs to no node.
    let is_unknown = |it: &&Allocated<'_>| {
        let allocation = it.allocation;
        let has_owner = allocation.owner.contains_key("node") || allocation.service().is_some();
        it.state == AddressState::InUse && !has_owner
    };
    let unknown = allocated.iter().filter(is_unknown).count();
    if unknown > 0 {
        let _ = writeln!(text, "\nof {unknown} addresses it is not known which node has them");
    }
    text
}

fn of_address(address: IpAddr, allocated: &[Allocated<'_>], seen: &Seen) -> String {
    let found = allocated.iter().find(|it| it.address == address);
    let Some(it) = found else { return not_allocated(address, seen) };
    let owner = it.block.owner.as_ref().map_or("nobody".to_owned(), ToString::to_string);
    let mut text = match it.state {
        AddressState::Resting => format!("{address}: {}\n", it.state),
        state => format!("{address}: allocated to {}, {state}\n", describe(it.allocation)),
    };
    let mut line = |name: &str, value: &str| {
        if !value.is_empty() {
            let _ = writeln!(text, "  {name}: {value}");
        }
    };
    line("block", &format!("{} of {owner}", it.block.cidr));
    line("handle", it.allocation.handle.as_deref().unwrap_or_default());
    line("sequence number", &it.allocation.sequence.to_string());
    line("owner", &pairs(&it.allocation.owner));
    line("alternate owner", &pairs(&it.allocation.alternate));
    let users: Vec<String> = it.users.iter().map(ToString::to_string).collect();
    line("used by", &users.join(", "));
    line("borrowed by", it.borrower().unwrap_or_default());
    text
}

fn pairs(attributes: &Attributes) -> String {
    let all = attributes.iter().map(|(key, value)| format!("{key}={value}"));
    all.collect::<Vec<_>>().join(", ")
}

fn not_allocated(address: IpAddr, seen: &Seen) -> String {
    let place = match around(&seen.pools, address) {
        None => "it is in no IPPool".to_owned(),
        Some(pool) => {
            match seen.records.blocks.iter().find(|block| block.cidr.contains(&address)) {
                Some(block) => {
                    format!("it is free in block {} of IPPool {}", block.cidr, pool.name)
                }
                None => format!("it is in IPPool {}, of which it has no block yet", pool.name),
            }
        }
    };
    let users = seen.users.by_address().remove(&address).unwrap_or_default();
    let users: Vec<String> = users.iter().map(ToString::to_string).collect();
    let used = if users.is_empty() {
        String::new()
    } else {
        format!("  used by: {} (manx ipam check tells of it)\n", users.join(", "))
    };
    format!("{address}: not allocated; {place}\n{used}")
}
