//! `manx bench`: the command line.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::builder::{PossibleValue, PossibleValuesParser};
use clap::{Parser, Subcommand};
use manx::output;
use manx_bench::error::{Error, io};
use manx_bench::host::cores::Placement;
use manx_bench::host::machine::Machine;
use manx_bench::host::namespaces;
use manx_bench::host::within::{self, WITHIN};
use manx_bench::path::agents::agent::{self, AGENT};
use manx_bench::path::bare::forwarder::{self, BARE};
use manx_bench::report::figures::Report;
use manx_bench::report::progress::Progress;
use manx_bench::report::table;
use manx_bench::run::{Run, Settings};
use manx_bench::sections::bgp::device::manx::{self as speakers, SPEAKERS};
use manx_bench::sections::fairness::attack::{self, ATTACK};
use manx_bench::sections::{self, SECTIONS, pipeline};

/// Measure Manx beside others, in turn, and by itself; write a table and a chart
///
/// Everything happens in namespaces of its own and ends with this program. Rows that need a program that is not
/// installed are not measured, and the report says so.
#[derive(Debug, Parser)]
#[command(name = "manx bench", bin_name = "manx bench", version, max_term_width = 100)]
#[command(args_conflicts_with_subcommands = true)]
struct Arguments {
    /// Only these rows or sections (see --list)
    #[arg(long, value_name = "ROW", value_delimiter = ',', num_args = 1.., hide_possible_values = true,
        value_parser = PossibleValuesParser::new(names()))]
    only: Vec<String>,
    /// List what can be measured
    #[arg(long)]
    list: bool,
    /// Measure less often and for a shorter time: shows that everything works; not to be quoted
    #[arg(long)]
    quick: bool,
    /// The folder of results.json, results.md and results.svg
    #[arg(long, value_name = "DIR", default_value = "manx-bench-results")]
    output: PathBuf,
    /// How long one measurement takes [default: 1; with --quick 0.5]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    seconds: Option<Duration>,
    /// How often each measurement is made [default: 5; with --quick 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    rounds: Option<u16>,
    /// Rules in each of the two policies besides the one that allows the traffic, and in the kernel's filters
    #[arg(long, default_value_t = 1000, value_name = "N")]
    rules: usize,
    /// Placement of the workers of the agents: a core, `ends` (each on the core of the end on its node) or `scheduler`.
    /// Default: the third core that this process may use, else `ends`
    #[arg(long, value_name = "CORE")]
    agent_core: Option<Placement>,
    /// Also compare every cell of the large tables with the reference
    #[arg(long)]
    prove: bool,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Pass packets of a row of the pipeline once and measure nothing
    ///
    /// For `valgrind --tool=callgrind --toggle-collect='*Setup*more*' manx-bench instructions flows-1k`.
    Instructions {
        /// The row
        row: String,
        /// How many packets
        #[arg(long, default_value_t = 1 << 20)]
        packets: u64,
    },
}

fn main() -> ExitCode {
    let arguments = std::env::args().skip(1);
    // The bench starts itself in these roles, in separate processes.
    let result = match std::env::args().nth(1).as_deref() {
        Some(AGENT) => agent::run(arguments),
        Some(BARE) => forwarder::run(arguments),
        Some(ATTACK) => attack::run(arguments),
        Some(SPEAKERS) => speakers::run(arguments),
        Some(WITHIN) => within::run(arguments),
        _ => return bench(&Arguments::parse()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("manx bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn bench(arguments: &Arguments) -> ExitCode {
    let result = match &arguments.command {
        Some(Command::Instructions { row, packets }) => pipeline::pass_packets(row, *packets)
            .and_then(|text| print(&format!("{text}\n")))
            .map(|()| ExitCode::SUCCESS),
        None if arguments.list => print(&list()).map(|()| ExitCode::SUCCESS),
        None => run(arguments),
    };
    result.unwrap_or_else(|error| {
        eprintln!("manx bench: {error}");
        ExitCode::FAILURE
    })
}

/// The names of all sections and of all rows.
fn names() -> Vec<PossibleValue> {
    let mut names = Vec::new();
    for section in &SECTIONS {
        names.push(PossibleValue::new(section.name).help(section.description));
        let rows = (section.rows)(&Settings::full());
        let others = rows.into_iter().filter(|row| row.name != section.name);
        names.extend(others.map(|row| PossibleValue::new(row.name).help(row.description)));
    }
    names
}

fn list() -> String {
    let mut text = String::new();
    for section in &SECTIONS {
        let _ = writeln!(text, "{}: {}", section.name, section.description);
        for row in (section.rows)(&Settings::full()) {
            let _ = writeln!(text, "  {:<28} {}", row.name, row.description);
        }
    }
    text
}

/// Prints a text. A pipe that its reader has closed (`| head`) is not an error.
fn print(text: &str) -> Result<(), Error> {
    output::print(text).map_err(|error| Error::Failed(error.to_string()))
}

fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse() {
        Ok(seconds) if (0.05..=3600.0).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err(format!("found \"{text}\", expected seconds from 0.05 to 3600")),
    }
}

fn settings(arguments: &Arguments) -> Settings {
    let basis = if arguments.quick { Settings::quick() } else { Settings::full() };
    let mut cores = basis.cores;
    cores.agent = arguments.agent_core.unwrap_or(cores.agent);
    Settings {
        length: arguments.seconds.unwrap_or(basis.length),
        rounds: arguments.rounds.map_or(basis.rounds, usize::from),
        rules: arguments.rules,
        prove: arguments.prove,
        cores,
        ..basis
    }
}

fn run(arguments: &Arguments) -> Result<ExitCode, Error> {
    let settings = settings(arguments);
    let wanted = |section: &str, row: &str| {
        arguments.only.is_empty() || arguments.only.iter().any(|it| it == section || it == row)
    };
    let (mut chosen, mut estimate) = (BTreeSet::new(), Duration::ZERO);
    for section in &SECTIONS {
        for row in (section.rows)(&settings) {
            if wanted(section.name, row.name) {
                chosen.insert(row.name);
                estimate += row.estimate;
            }
        }
    }
    let machine = Machine::detect();
    // A process that has a second thread cannot enter a user namespace.
    let entered = namespaces::enter();
    let folder = &arguments.output;
    fs::create_dir_all(folder).map_err(io(format!("{} cannot be made", folder.display())))?;
    for line in machine.lines() {
        eprintln!("{line}");
    }
    let mut run = Run {
        report: Report::new(machine, settings.conditions()),
        progress: Progress::new(estimate),
        settings,
        chosen,
        no_namespaces: entered.err().map(|error| error.to_string()),
        output: folder.clone(),
    };
    let measured = sections::measure(&mut run);
    run.progress.end();
    let written =
        format!("written: results.json, results.md and results.svg in {}\n", folder.display());
    print(&(table::markdown(&run.report) + "\n" + &written))?;
    measured?;
    let report = &run.report;
    Ok(if report.missing.iter().any(|missing| missing.failed) {
        ExitCode::FAILURE
    } else if report.is_empty() && !report.missing.is_empty() {
        ExitCode::from(NOTHING_MEASURED)
    } else {
        ExitCode::SUCCESS
    })
}

/// The exit code of a run that can measure nothing on this machine. The program `manx` uses the same code.
const NOTHING_MEASURED: u8 = 3;
