//! Manx and what it is compared with, measured in turn in one run: throughput, small packets, latency, and what an idle agent
//! costs.

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use clap::builder::{PossibleValue, PossibleValuesParser};
use comfy_table::{Table, presets::ASCII_MARKDOWN};
use manx_bench::agents::{self, AGENT};
use manx_bench::bare::{self, BARE};
use manx_bench::comparison::{self, Comparison};
use manx_bench::cores::{Cores, Placement, processors};
use manx_bench::error::Error;
use manx_bench::ground::Paths;
use manx_bench::path::Between;
use manx_bench::statistics::{Pair, Summary};
use manx_bench::world;

/// Measure Manx beside the kernel, in turn in one run.
#[derive(Debug, Parser)]
#[command(name = "side-by-side", version)]
struct Arguments {
    /// How long one measurement takes
    #[arg(long, default_value_t = 2.0, value_name = "SECONDS")]
    seconds: f64,
    /// How many pairs of measurements are made of each comparison
    #[arg(long, default_value_t = 7, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// Only these
    #[arg(long, value_name = "COMPARISON", value_delimiter = ',',
        value_parser = PossibleValuesParser::new(comparison::ALL.iter().map(|it| PossibleValue::new(it.name).help(it.words))))]
    only: Vec<String>,
    /// Rules in each of the two policies besides the one that allows the traffic, and in the kernel's filters
    #[arg(long, default_value_t = 1000, value_name = "N")]
    rules: usize,
    /// Where the agents' workers run: a core, `ends` (each beside the end on its node) or `scheduler`. Default: the third core
    /// that this process may use, else `ends`
    #[arg(long, value_name = "CORE")]
    agent_core: Option<Placement>,
}

fn main() -> ExitCode {
    let arguments = std::env::args().skip(1);
    let result = match std::env::args().nth(1).as_deref() {
        Some(AGENT) => agents::run_agent(arguments),
        Some(BARE) => bare::run(arguments),
        _ => run(&Arguments::parse()).map_err(|error| error.to_string()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("side-by-side: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<(), Error> {
    let mut cores = Cores::of_this_machine();
    cores.agent = arguments.agent_core.unwrap_or(cores.agent);
    world::enter()?;
    describe(arguments, cores);
    let mut table = Table::new();
    table.load_preset(ASCII_MARKDOWN);
    table.set_header(["median (lowest-highest)", "beside it", "Manx", "Manx / beside", "goal"]);
    let mut remarks = Vec::new();
    let chosen = |it: &&Comparison| {
        arguments.only.is_empty() || arguments.only.iter().any(|name| name == it.name)
    };
    let chosen: Vec<&Comparison> = comparison::ALL.iter().filter(chosen).collect();
    for together in chosen.chunk_by(|one, next| one.ground == next.ground) {
        let ground = together[0].ground;
        if let Some(why) = ground.is_missing() {
            for comparison in together {
                eprintln!("{}: NOT MEASURED: {why}", comparison.words);
                remarks.push(format!("not measured: {}: {why}", comparison.words));
            }
            continue;
        }
        let paths = Paths::build(ground, arguments.rules, cores)?;
        remarks.extend(idle(&paths)?);
        for comparison in together {
            table.add_row(measure(comparison, &paths, arguments)?);
        }
        remarks.extend(paths.accounts()?);
    }
    println!("{table}\n");
    for remark in remarks {
        println!("- {remark}");
    }
    Ok(())
}

fn describe(arguments: &Arguments, cores: Cores) {
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    println!("{}, Linux {}", processors(), kernel.trim());
    println!(
        "{} pairs (the other, Manx, the other, Manx, ...) of {} s each",
        arguments.rounds, arguments.seconds
    );
    println!("{}", cores.describe());
    println!(
        "Manx: default deny both ways, {} rules in each of two policies, one flow",
        arguments.rules + 1
    );
    println!(
        "same node: MTU 1500, offloads as the devices have them by default; kernel: veth, routing, veth; no rules,\n\
         or, where the row says so, connection tracking and as many rules in one chain\n\
         across nodes: one veth pair of MTU 1500; kernel: VXLAN devices on the nodes themselves (MTU 1450), tunnel\n\
         segmentation off unless the row says otherwise; Manx: between pods (MTU 1480 by IPIP, 1450 by VXLAN)\n"
    );
    if cfg!(debug_assertions) {
        println!("THIS IS A DEBUG BUILD: the figures of Manx mean nothing; use --release\n");
    }
}

fn measure(
    comparison: &Comparison,
    paths: &Paths,
    arguments: &Arguments,
) -> Result<Vec<String>, Error> {
    let length = Duration::from_secs_f64(arguments.seconds.clamp(0.1, 3600.0));
    let pairs = (0..arguments.rounds)
        .map(|round| {
            let pair = comparison.pair(paths, length)?;
            eprintln!(
                "{} {}/{}: {:.2}, Manx {:.2}",
                comparison.words,
                round + 1,
                arguments.rounds,
                pair.beside,
                pair.manx
            );
            Ok(pair)
        })
        .collect::<Result<Vec<_>, Error>>()?;
    let column = |value: fn(&Pair) -> f64| {
        let values: Vec<f64> = pairs.iter().map(value).collect();
        Summary::of(&values).map_or_else(String::new, |summary| summary.show(2))
    };
    Ok(vec![
        comparison.words.to_owned(),
        column(|pair| pair.beside),
        column(|pair| pair.manx),
        column(Pair::ratio),
        comparison.goal.map_or_else(String::new, |goal| goal.to_string()),
    ])
}

/// What the agents cost before any traffic.
fn idle(paths: &Paths) -> Result<Vec<String>, Error> {
    let Between::Manx(cluster) = &paths.manx.between else { return Ok(Vec::new()) };
    if cluster.is_busy() {
        return Ok(Vec::new());
    }
    let settled = Duration::from_secs(1);
    std::thread::sleep(settled);
    let usage = cluster.usage(Duration::from_secs(5))?;
    Ok(usage
        .iter()
        .map(|(core, mib)| {
            format!(
                "idle agent: {:.1} % of a core (goal < 2), {mib:.0} MiB resident (goal < 64)",
                core * 100.0
            )
        })
        .collect())
}
