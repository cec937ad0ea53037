//! One worker's pipeline over ports in memory, without system calls: what each packet costs.
//!
//! UDP packets of 64 bytes, IP header included, by tables that the real compiler and calculation have made, with all checks
//! on: header checksums, source check, flow state and generations, counters of ports, rules and drops, hop limit, MTU.
//! Cycles are those of the time-stamp counter, whose rate is constant, whatever the core's frequency is at the moment.
//! What generator and sink cost is measured by runs without a decision between them, and taken off.

mod beside;
mod node;
mod rows;
mod station;
mod stream;

use std::error::Error;
use std::time::Instant;

use clap::Parser;
use comfy_table::{Table, presets::ASCII_MARKDOWN};
use manx_bench::cores::processors;
use manx_dataplane::sys::clock::{UNIT, ticks};

use rows::{ROWS, Row};

/// Measures the pipeline in memory.
#[derive(Debug, Parser)]
struct Arguments {
    /// Rows to measure, or beginnings of their names; all without any.
    rows: Vec<String>,
    /// Runs of each row; the median counts.
    #[arg(long, default_value_t = 9)]
    rounds: usize,
    /// Packets of each run.
    #[arg(long, default_value_t = 1 << 20)]
    packets: u64,
    /// Passes `--packets` of this row once and measures nothing: for
    /// `valgrind --tool=callgrind --toggle-collect='*Node::run' pipeline --instructions ROW`.
    #[arg(long, value_name = "ROW")]
    instructions: Option<String>,
    /// The core to stay on.
    #[arg(long, default_value_t = 1)]
    core: usize,
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments = Arguments::parse();
    if !manx_bench::cores::pin(arguments.core) {
        eprintln!("cannot stay on core {}: the scheduler chooses", arguments.core);
    }
    if let Some(name) = &arguments.instructions {
        return instructions(name, arguments.packets);
    }
    let wanted = |name: &str| {
        arguments.rows.is_empty() || arguments.rows.iter().any(|it| name.starts_with(&**it))
    };
    let rate = rate();
    describe(&arguments, rate);
    let rows: Vec<&Row> = ROWS.iter().filter(|row| wanted(row.name)).collect();
    let besides: Vec<_> = beside::ALL.iter().filter(|(name, _)| wanted(name)).collect();
    if rows.is_empty() && besides.is_empty() {
        let known = ROWS.iter().map(|row| row.name).chain(beside::ALL.iter().map(|it| it.0));
        let known = known.collect::<Vec<_>>().join(", ");
        return Err(format!("found {:?}, expected of {known}", arguments.rows).into());
    }
    let mut table = Table::new();
    table.load_preset(ASCII_MARKDOWN).set_header([
        "row",
        "what passes",
        &format!("{UNIT} per packet (lowest-highest)"),
        "Mpps",
        "generator and sink",
        "goal",
    ]);
    for row in &rows {
        eprintln!("{}: {}", row.name, row.what);
        let figures = rows::measure(row, arguments.rounds, arguments.packets)?;
        table.add_row([
            row.name.to_owned(),
            row.what.to_owned(),
            figures.packet.show(0),
            format!("{:.1}", rate / figures.packet.median / 1e6),
            format!("{:.0}", figures.empty),
            format!("<= {}", row.goal),
        ]);
    }
    if !rows.is_empty() {
        println!("{table}\n");
    }
    for (_, beside) in besides {
        println!("- {}", beside(arguments.rounds)?);
    }
    Ok(())
}

fn instructions(name: &str, packets: u64) -> Result<(), Box<dyn Error>> {
    let Some(row) = ROWS.iter().find(|row| row.name == name) else {
        let known = ROWS.iter().map(|row| row.name).collect::<Vec<_>>().join(", ");
        return Err(format!("found the row {name:?}, expected one of {known}").into());
    };
    let mut setup = row.set_up()?;
    let warm = setup.node.counters.packets.read();
    setup.cycles(packets)?;
    println!("{warm} packets to set {name} up, and {packets} more");
    Ok(())
}

/// Ticks a second.
fn rate() -> f64 {
    let (start, from) = (Instant::now(), ticks());
    while start.elapsed().as_millis() < 50 {
        std::hint::spin_loop();
    }
    ticks().wrapping_sub(from) as f64 / start.elapsed().as_secs_f64()
}

fn describe(arguments: &Arguments, rate: f64) {
    println!("{}, {UNIT} at {:.2} GHz, core {}", processors(), rate / 1e9, arguments.core);
    println!("{} runs of {} packets each\n", arguments.rounds, arguments.packets);
    if cfg!(debug_assertions) {
        println!("NOT OPTIMISED: build it with --release\n");
    }
}
