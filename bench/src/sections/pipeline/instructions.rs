//! The number of instructions per packet, by stage. Valgrind counts them while it runs this program again. The counts
//! differ by less than one in a thousand from run to run, and do not depend on the load of the machine.

use std::collections::{BTreeMap, HashMap};
use std::env;
use std::io::Read as _;
use std::process::{Command, Stdio};

use manx_dataplane::stage::Stage;

use crate::error::Failure;
use crate::host::process::Process;
use crate::host::within::WITHIN;

/// The name of a row, and the stages that its packets do not pass.
pub(super) type Row = (&'static str, &'static [Stage]);
/// The rows that are counted. They have few flows, so their setup is quick.
pub(super) const ROWS: [Row; 11] = [
    ("flows-1k", &[Stage::Decapsulate]),
    ("ethernet-1k", &[Stage::Decapsulate]),
    ("both-1k", &[Stage::Decapsulate]),
    ("vector-1", &[Stage::Decapsulate]),
    ("new-1k", &[Stage::Decapsulate]),
    ("stateless-1k", &[Stage::Decapsulate, Stage::Guess]),
    ("stateless-1k-any", &[Stage::Decapsulate, Stage::Guess]),
    ("outward-1k", &[Stage::Decapsulate]),
    ("outward-new-1k", &[Stage::Decapsulate]),
    ("encap-1k", &[Stage::Decapsulate]),
    ("decap-1", &[]),
];
/// The numbers of packets of the two runs. Both runs include the same setup, so the difference of their costs is the
/// cost of the additional packets.
const PACKETS: [u64; 2] = [20_000, 60_000];
/// Valgrind counts only while this function runs: [`Setup::more`](super::setup::Setup::more).
const COUNTING: &str = "--toggle-collect=*Setup*more*";

/// The end of the generator's name in a profile. The cost of generator and sink is subtracted.
const GENERATOR: &str = "Station as manx_dataplane::port::PacketIo>::receive";
const SINK: &str = "Station as manx_dataplane::port::PacketIo>::transmit";

/// The function of a stage.
const fn function(stage: Stage) -> &'static str {
    match stage {
        Stage::Decapsulate => "manx_dataplane::pipeline::passes::Pipeline::decapsulate",
        Stage::Read => "manx_dataplane::pipeline::passes::Pipeline::parse_and_key",
        Stage::Guess => "manx_dataplane::pipeline::passes::Pipeline::guess_slots",
        Stage::Forward => "manx_dataplane::pipeline::passes::Pipeline::forward",
        Stage::Send => "manx_dataplane::pipeline::output::Outbox::send",
    }
}

/// The instructions per packet: in total, for each stage, and for the rest of the worker's turns.
pub(super) fn count((row, omitted): Row) -> Result<Vec<(&'static str, f64)>, Failure> {
    let [fewer, more] = PACKETS.map(|packets| profile(row, packets));
    let (fewer, more) = (fewer?, more?);
    let per_packet = |function: &str| {
        let spent = more.calls(function) as f64 - fewer.calls(function) as f64;
        spent / (PACKETS[1] - PACKETS[0]) as f64
    };
    let stages = Stage::ALL.into_iter().filter(|stage| !omitted.contains(stage)).map(function);
    for needed in stages.chain([GENERATOR, SINK]) {
        if more.calls(needed) == 0 {
            return Err(format!(
                "found no call of {needed} in what valgrind counted, expected one a batch: was this program built \
                 otherwise than by cargo build --release, or are its symbols named in another way?"
            )
            .into());
        }
    }
    let all = (more.all as f64 - fewer.all as f64) / (PACKETS[1] - PACKETS[0]) as f64;
    let all = all - per_packet(GENERATOR) - per_packet(SINK);
    let mut turns = all;
    let mut parts = vec![("all", all)];
    for stage in Stage::ALL {
        let sink = if stage == Stage::Send { per_packet(SINK) } else { 0.0 };
        let spent = per_packet(function(stage)) - sink;
        turns -= spent;
        parts.push((stage.name(), spent));
    }
    parts.push(("turns", turns));
    Ok(parts)
}

/// Counts the instructions of this many packets of a row.
fn profile(row: &str, packets: u64) -> Result<Profile, Failure> {
    let program = env::current_exe()?;
    let mut command = Command::new("/proc/self/exe");
    command.args([WITHIN, "--", "valgrind", "--tool=callgrind", COUNTING, "--quiet", "--vgdb=no"]);
    command.arg("--callgrind-out-file=/dev/stdout").arg(program);
    command.args(["instructions", row, "--packets", &packets.to_string()]);
    let mut valgrind = Process::start(command.stdin(Stdio::null()).stdout(Stdio::piped()))?;
    let mut text = String::new();
    if let Some(mut output) = valgrind.output() {
        let _ = output.read_to_string(&mut text)?;
    }
    match valgrind.wait()? {
        status if status.success() => Profile::read(&text),
        status => Err(format!("valgrind: {status}").into()),
    }
}

/// A profile in callgrind's format (valgrind's manual, "Callgrind Format Specification").
#[derive(Debug, Default, PartialEq, Eq)]
struct Profile {
    /// The instructions of the whole run.
    all: u64,
    /// For each function, the instructions of its calls, including those of the functions that it calls.
    inclusive: BTreeMap<String, u64>,
}

impl Profile {
    fn read(text: &str) -> Result<Self, Failure> {
        let mut found = Self::default();
        // In this format, the first mention of a name has a number in front, and later mentions are the number alone.
        let mut names = HashMap::new();
        let mut called = None;
        let mut is_of_a_call = false;
        for line in text.lines() {
            if let Some(name) = line.strip_prefix("cfn=") {
                called = full_name(&mut names, name);
            } else if let Some(name) = line.strip_prefix("fn=") {
                full_name(&mut names, name);
            } else if let Some(all) = line.strip_prefix("summary:") {
                found.all = all.trim().parse()?;
            } else if line.starts_with("calls=") {
                is_of_a_call = true;
            } else if std::mem::take(&mut is_of_a_call) {
                let cost = line.split(' ').nth(1).unwrap_or_default().parse::<u64>();
                let cost = cost.map_err(|_| {
                    format!("found {line:?}, expected a line's number and what a call cost")
                })?;
                if let Some(name) = called.take() {
                    *found.inclusive.entry(name).or_default() += cost;
                }
            }
        }
        if found.all == 0 {
            return Err("valgrind counted nothing: found no \"summary:\" in what it wrote".into());
        }
        Ok(found)
    }

    /// The cost of all functions whose names end in `function`.
    fn calls(&self, function: &str) -> u64 {
        self.inclusive
            .iter()
            .filter(|(name, _)| name.ends_with(function))
            .map(|(_, cost)| cost)
            .sum()
    }
}

/// The name in `(number) name`, or the name that `(number)` alone refers to.
fn full_name(names: &mut HashMap<String, String>, text: &str) -> Option<String> {
    let (number, name) = text.split_once(')')?;
    if !name.is_empty() {
        names.insert(number.to_owned(), name.trim().to_owned());
    }
    names.get(number).cloned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cost_of_a_function_is_that_of_all_its_calls() {
        let text = "3000 packets\nsummary: 1000\n\nfn=(1) a::outer\n10 5\ncfn=(2) a::inner\ncalls=3 20\n+1 70\n\n\
            fn=(3) b::outer\ncfi=(9) file\ncfn=(2)\ncalls=1 20\n* 30\n12 4\ntotals: 1000\n";
        let profile = Profile::read(text).unwrap();
        assert_eq!((profile.all, profile.calls("inner"), profile.calls("outer")), (1000, 100, 0));
        assert!(Profile::read("").is_err());
        assert!(Profile::read("summary: 1\nfn=(1) a\ncfn=(2) b\ncalls=1 1\nrubbish\n").is_err());
    }

    #[test]
    fn every_row_that_is_counted_exists() {
        for (name, _) in ROWS {
            assert!(super::super::rows::Row::find(name).is_some(), "{name}");
        }
    }
}
