//! Sends generated packets through real workers: see docs/fuzzing.md.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use manx_tests::fuzz::sabotage::Sabotage;
use manx_tests::fuzz::{Options, run};

/// Sends generated packets through real workers and judges the outcome with an independent oracle.
///
/// Exit status: 0 nothing was found; 1 a fault was found, which is reported with the packet, the
/// tables and the command that reproduces it; 2 wrong usage; 3 no fault was found, but the coverage
/// is too low.
#[derive(Parser)]
struct Arguments {
    /// The seed of packets and worlds [default: the time]
    #[arg(long)]
    seed: Option<u64>,
    /// End after this many packets [default: 10,000,000, or as many as the seconds allow]
    #[arg(long)]
    packets: Option<u64>,
    /// End after this many seconds
    #[arg(long)]
    seconds: Option<u64>,
    /// Run only this world of the seed
    #[arg(long)]
    world: Option<u64>,
    /// Add a deliberate fault, which must be found: policy, stale, clock, source, bit, forget,
    /// loss, twice, backend, reply, masquerade, port, local, choice, full
    #[arg(long)]
    sabotage: Option<Sabotage>,
    /// Let the nodes of half of the worlds translate services
    #[arg(long)]
    services: bool,
    /// The least number of times that everything must be covered; short runs do not cover
    /// everything
    #[arg(long, default_value_t = 1, conflicts_with = "world")]
    least: u64,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let time = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let seed = arguments.seed.unwrap_or_else(|| time.map_or(0, |it| it.as_secs()));
    let unlimited = if arguments.seconds.is_some() { u64::MAX } else { 10_000_000 };
    let options = Options {
        seed,
        packets: arguments.packets.unwrap_or(unlimited),
        time: arguments.seconds.map(Duration::from_secs),
        first: arguments.world.unwrap_or(0),
        only: arguments.world.is_some(),
        sabotage: arguments.sabotage,
        services: arguments.services,
    };
    println!("seed {seed}");
    let start = Instant::now();
    let mut told = start;
    let outcome = run(&options, |coverage| {
        if told.elapsed() >= Duration::from_secs(10) {
            told = Instant::now();
            let rate = coverage.packets as f64 / start.elapsed().as_secs_f64();
            println!(
                "{} packets, {} worlds, {rate:.0} packets a second",
                coverage.packets, coverage.worlds
            );
        }
    });
    let coverage = match outcome {
        Ok(coverage) => coverage,
        Err(failure) => {
            println!("{failure}");
            return ExitCode::FAILURE;
        }
    };
    println!("{coverage}");
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "nothing was found in {seconds:.1} s, {:.0} packets a second",
        coverage.packets as f64 / seconds
    );
    let lacks = coverage.lacks(arguments.least, arguments.services);
    if lacks.is_empty() || options.only {
        return ExitCode::SUCCESS;
    }
    println!("not met often enough:\n  {}", lacks.join("\n  "));
    ExitCode::from(3)
}
