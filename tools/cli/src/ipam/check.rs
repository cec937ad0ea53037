//! `manx ipam check`.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use comfy_table::Cell;
use manx_block_ipam::block::describe;
use manx_block_ipam::check::{AddressState, Allocated, Checked, Counts, Finding, Kind, check};
use manx_block_ipam::store::{Store as _, Which};
use manx_datastore::Writes;

use super::cluster::{Cluster, Seen, store_error};
use super::report::Report;
use crate::Error;
use crate::datastore::ServerOptions;
use crate::output;

/// The time until the second check.
const SECOND_LOOK: Duration = Duration::from_secs(1);

/// The settings of `manx ipam check`.
#[derive(Debug, Clone, Args)]
pub struct Check {
    /// List every allocated address, its state and its users; and every problem
    #[arg(long)]
    pub show_all_ips: bool,
    /// List every problem
    #[arg(long)]
    pub show_problem_ips: bool,
    /// Write a report for `manx ipam release --from-report` (JSON)
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,
    #[command(flatten)]
    #[expect(missing_docs, reason = "clap would take it for the command's own description")]
    pub server: ServerOptions,
}

/// Prints the findings.
pub(super) async fn run<W: Writes + Sync>(
    check: &Check,
    cluster: &Cluster<W>,
) -> Result<(), Error> {
    let (text, is_sound) = text(check, cluster, SECOND_LOOK).await?;
    output::print(&text)?;
    if is_sound { Ok(()) } else { Err(Error::Deviation) }
}

/// Returns the text to print, and whether there are no findings. A finding counts only if it is
/// still there after `pause`, because objects are read one after the other while nodes write them.
pub(super) async fn text<W: Writes + Sync>(
    asked: &Check,
    cluster: &Cluster<W>,
    pause: Duration,
) -> Result<(String, bool), Error> {
    let mut seen = cluster.look().await?;
    let mut checked = of(&seen);
    if !checked.findings.is_empty() {
        // The thread may block, because no other task runs on it.
        std::thread::sleep(pause);
        seen = cluster.look().await?;
        let before = std::mem::replace(&mut checked, of(&seen)).findings;
        // A set is used because there may be tens of thousands of findings.
        let before: HashSet<String> = before.iter().map(|it| format!("{it:?}")).collect();
        checked.findings.retain(|it| before.contains(&format!("{it:?}")));
    }
    if let Some(file) = &asked.output {
        let handles = cluster.store.list(&Which::Handles).await.map_err(store_error)?;
        let report = Report::new(&seen, &checked, cluster.information().await?, &handles);
        let text = output::versioned_json(&report)?;
        std::fs::write(file, text).map_err(|error| {
            let file = file.display();
            Error::Failed(format!("the report cannot be written to {file}: {error}"))
        })?;
    }
    let mut text = counts(&checked.counts);
    if asked.show_all_ips {
        text.push('\n');
        text.push_str(&addresses(&seen.records.allocated(&seen.users)));
    }
    text.push('\n');
    text.push_str(&problems(&checked, asked.show_all_ips || asked.show_problem_ips));
    Ok((text, checked.findings.is_empty()))
}

fn of(seen: &Seen) -> Checked {
    check(&seen.records, &seen.pools, &seen.users)
}

fn counts(counts: &Counts) -> String {
    let Counts {
        pools,
        blocks,
        blocks_of_nobody,
        affinities,
        unconfirmed,
        handles,
        addresses,
        in_use,
        unused,
        resting,
        reserved,
        borrowed,
        used,
    } = *counts;
    let row = |name: &str, number: usize, note: String| {
        [Cell::new(name), Cell::new(number), Cell::new(note)]
    };
    let of = |number: usize, text: &str| match number {
        0 => String::new(),
        number => format!("{number} {text}"),
    };
    let rows = vec![
        row("IPPools", pools, String::new()),
        row("blocks", blocks, of(blocks_of_nobody, "of nobody")),
        row("affinities", affinities, of(unconfirmed, "not confirmed")),
        row("handles", handles, String::new()),
        row("addresses of pods and tunnels", used, String::new()),
        row("addresses of blocks", addresses, String::new()),
        row("  in use", in_use, of(borrowed, "borrowed")),
        row("  unused", unused, String::new()),
        row("  resting after their release", resting, String::new()),
        row("  kept by Windows nodes", reserved, String::new()),
        row("  free", counts.free(), String::new()),
    ];
    output::table(["checked", "number", "of these"], &[1], rows)
}

fn addresses(allocated: &[Allocated<'_>]) -> String {
    let rows = allocated.iter().map(|it| {
        let to = match it.state {
            AddressState::Resting => "-".to_owned(),
            _ => describe(it.allocation),
        };
        let users: Vec<String> = it.users.iter().map(ToString::to_string).collect();
        let or_none = |text: String| if text.is_empty() { "-".to_owned() } else { text };
        [
            Cell::new(it.address),
            Cell::new(it.state),
            Cell::new(to),
            Cell::new(or_none(users.join(", "))),
            Cell::new(it.allocation.handle.as_deref().unwrap_or("-")),
        ]
    });
    output::table(["address", "state", "allocated to", "used by", "handle"], &[], rows.collect())
}

fn problems(checked: &Checked, in_full: bool) -> String {
    let findings = &checked.findings;
    if findings.is_empty() {
        return "no problem found\n".to_owned();
    }
    let of_kind =
        |kind: Kind| findings.iter().filter(move |finding: &&Finding| finding.kind() == kind);
    let mut text = String::new();
    if in_full {
        for kind in Kind::ALL.into_iter().filter(|kind| of_kind(*kind).next().is_some()) {
            let _ = writeln!(text, "{}:", kind.title());
            for finding in of_kind(kind) {
                let _ = writeln!(text, "  {finding}");
            }
        }
        text.push('\n');
    }
    let rows = Kind::ALL.into_iter().filter_map(|kind| {
        let number = of_kind(kind).count();
        let row = [Cell::new(number), Cell::new(kind.title()), Cell::new(kind.remedy())];
        (number > 0).then_some(row)
    });
    text.push_str(&output::table(["found", "problem", "what to do"], &[0], rows.collect()));
    let how = if in_full { "" } else { "; --show-problem-ips lists them" };
    let all = match findings.len() {
        1 => "1 problem".to_owned(),
        number => format!("{number} problems"),
    };
    let _ = writeln!(text, "\n{all} found{how}");
    text
}
