//! `manx bench`: everything side by side, on the user's own machine.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::builder::{PossibleValue, PossibleValuesParser};
use clap::{Parser, Subcommand};
use manx::output;
use manx_bench::agents::{self, AGENT};
use manx_bench::bare::{self, BARE};
use manx_bench::cores::Placement;
use manx_bench::error::{Error, io};
use manx_bench::fairness::{self, ATTACK};
use manx_bench::machine::Machine;
use manx_bench::pipeline;
use manx_bench::progress::Progress;
use manx_bench::report::Report;
use manx_bench::run::{Run, SECTIONS, Settings};
use manx_bench::switch::{self, WITHIN};
use manx_bench::world;

/// Measure Manx beside others, in turn, and by itself; write a table and a chart
///
/// Everything happens in namespaces of its own and ends with this program. Rows beside a program that is not installed are not
/// measured, and the report says so.
#[derive(Debug, Parser)]
#[command(name = "manx bench", bin_name = "manx bench", version, max_term_width = 100)]
#[command(args_conflicts_with_subcommands = true)]
struct Arguments {
    /// Only these rows or sections (see --list)
    #[arg(long, value_name = "ROW", value_delimiter = ',', num_args = 1.., hide_possible_values = true,
        value_parser = PossibleValuesParser::new(names()))]
    only: Vec<String>,
    /// Say what can be measured, and end
    #[arg(long)]
    list: bool,
    /// Measure less often and shorter: to see that it works, not to quote
    #[arg(long)]
    quick: bool,
    /// Where results.json, results.md and results.svg are written
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
    /// Where the agents' workers run: a core, `ends` (each beside the end on its node) or `scheduler`. Default: the third core
    /// that this process may use, else `ends`
    #[arg(long, value_name = "CORE")]
    agent_core: Option<Placement>,
    /// Compare every cell of the large tables with the reference, too
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
    let played = match std::env::args().nth(1).as_deref() {
        Some(AGENT) => agents::run_agent(arguments),
        Some(BARE) => bare::run(arguments),
        Some(ATTACK) => fairness::run_attack(arguments),
        Some(WITHIN) => switch::run_within(arguments),
        _ => return bench(&Arguments::parse()),
    };
    match played {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("manx bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn bench(arguments: &Arguments) -> ExitCode {
    let done = match &arguments.command {
        Some(Command::Instructions { row, packets }) => pipeline::instructions(row, *packets)
            .and_then(|said| print(&format!("{said}\n")))
            .map(|()| ExitCode::SUCCESS),
        None if arguments.list => print(&list()).map(|()| ExitCode::SUCCESS),
        None => run(arguments),
    };
    done.unwrap_or_else(|error| {
        eprintln!("manx bench: {error}");
        ExitCode::FAILURE
    })
}

/// Names of all sections and of all their rows.
fn names() -> Vec<PossibleValue> {
    let mut names = Vec::new();
    for section in &SECTIONS {
        names.push(PossibleValue::new(section.name).help(section.words));
        let rows = (section.rows)(&Settings::whole());
        let others = rows.into_iter().filter(|row| row.name != section.name);
        names.extend(others.map(|row| PossibleValue::new(row.name).help(row.words)));
    }
    names
}

fn list() -> String {
    let mut text = String::new();
    for section in &SECTIONS {
        let _ = writeln!(text, "{}: {}", section.name, section.words);
        for row in (section.rows)(&Settings::whole()) {
            let _ = writeln!(text, "  {:<20} {}", row.name, row.words);
        }
    }
    text
}

/// Prints. A reader that has seen enough (`| head`) is no error.
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
    let basis = if arguments.quick { Settings::quick() } else { Settings::whole() };
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
                estimate += row.takes;
            }
        }
    }
    let machine = Machine::this();
    // Before there is a second thread, which keeps a process out of a namespace of users.
    let world = world::enter();
    let folder = &arguments.output;
    fs::create_dir_all(folder).map_err(io(format!("{} cannot be made", folder.display())))?;
    for line in machine.lines() {
        eprintln!("{line}");
    }
    let mut run = Run {
        report: Report::new(machine, settings.conditions()),
        progress: Progress::of(estimate),
        settings,
        chosen,
        world: world.err().map(|error| error.to_string()),
        output: folder.clone(),
    };
    let measured = run.measure();
    run.progress.end();
    let written =
        format!("written: results.json, results.md and results.svg in {}\n", folder.display());
    print(&(run.report.markdown() + "\n" + &written))?;
    measured?;
    let report = &run.report;
    Ok(if report.missing.iter().any(|missing| missing.failed) {
        ExitCode::FAILURE
    } else if report.is_empty() && !report.missing.is_empty() {
        ExitCode::from(NOT_HERE)
    } else {
        ExitCode::SUCCESS
    })
}

/// The exit code of a run that this machine lacks everything for, as `manx`'s own.
const NOT_HERE: u8 = 3;
