//! How many instructions a packet takes, stage by stage: counted by valgrind, which runs this program once more. They are the
//! same in every run to one in a thousand, whatever else the machine does.

use std::collections::{BTreeMap, HashMap};
use std::env;
use std::io::Read as _;
use std::process::{Command, Stdio};

use manx_dataplane::stage::Stage;

use super::Failure;
use crate::process::Process;
use crate::switch::WITHIN;

/// A row that is counted, and the stages that its packets do not pass.
pub(super) type Row = (&'static str, &'static [Stage]);
/// Those with few flows, which are soon set up.
pub(super) const ROWS: [Row; 9] = [
    ("flows-1k", &[Stage::Decapsulate]),
    ("ethernet-1k", &[Stage::Decapsulate]),
    ("both-1k", &[Stage::Decapsulate]),
    ("vector-1", &[Stage::Decapsulate]),
    ("new-1k", &[Stage::Decapsulate]),
    ("stateless-1k", &[Stage::Decapsulate, Stage::Guess]),
    ("stateless-1k-any", &[Stage::Decapsulate, Stage::Guess]),
    ("encap-1k", &[Stage::Decapsulate]),
    ("decap-1", &[]),
];
/// What a second run takes more than a first is what packets cost; setting up is in both.
const PACKETS: [u64; 2] = [20_000, 60_000];
/// Counting goes on while a function of this name runs: [`Setup::more`](super::setup::Setup::more).
const COUNTING: &str = "--toggle-collect=*Setup*more*";

/// What the generator and the sink are in a profile; they are taken off.
const GENERATOR: &str = "Station as manx_dataplane::port::PacketIo>::receive";
const SINK: &str = "Station as manx_dataplane::port::PacketIo>::transmit";

/// The function that a stage is.
const fn function(stage: Stage) -> &'static str {
    match stage {
        Stage::Decapsulate => "manx_dataplane::pipeline::Pipeline::unwrap",
        Stage::Read => "manx_dataplane::pipeline::Pipeline::read",
        Stage::Guess => "manx_dataplane::pipeline::Pipeline::guess",
        Stage::Forward => "manx_dataplane::pipeline::Pipeline::forward",
        Stage::Send => "manx_dataplane::outbox::Outbox::send",
    }
}

/// Instructions of one packet of a row: all, of each stage, and of what is left of the worker's turns.
pub(super) fn count((row, omitted): Row) -> Result<Vec<(&'static str, f64)>, Failure> {
    let [fewer, more] = PACKETS.map(|packets| profile(row, packets));
    let (fewer, more) = (fewer?, more?);
    let of_one = |function: &str| {
        let spent = more.of(function) as f64 - fewer.of(function) as f64;
        spent / (PACKETS[1] - PACKETS[0]) as f64
    };
    let stages = Stage::ALL.into_iter().filter(|stage| !omitted.contains(stage)).map(function);
    for needed in stages.chain([GENERATOR, SINK]) {
        if more.of(needed) == 0 {
            return Err(format!(
                "found no call of {needed} in what valgrind counted, expected one a batch: was this program built \
                 otherwise than by cargo build --release, or are its symbols named in another way?"
            )
            .into());
        }
    }
    let all = (more.all as f64 - fewer.all as f64) / (PACKETS[1] - PACKETS[0]) as f64;
    let all = all - of_one(GENERATOR) - of_one(SINK);
    let mut turns = all;
    let mut parts = vec![("all", all)];
    for stage in Stage::ALL {
        let sink = if stage == Stage::Send { of_one(SINK) } else { 0.0 };
        let spent = of_one(function(stage)) - sink;
        turns -= spent;
        parts.push((stage.name(), spent));
    }
    parts.push(("turns", turns));
    Ok(parts)
}

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

/// What a profile in callgrind's format says (valgrind's manual, "Callgrind Format Specification").
#[derive(Debug, Default, PartialEq, Eq)]
struct Profile {
    all: u64,
    /// Of each function that was called, with all that it calls.
    inclusive: BTreeMap<String, u64>,
}

impl Profile {
    fn read(text: &str) -> Result<Self, Failure> {
        let mut found = Self::default();
        // A name is written once, with a number, which stands for it from then on.
        let mut names = HashMap::new();
        let mut called = None;
        let mut is_of_a_call = false;
        for line in text.lines() {
            if let Some(name) = line.strip_prefix("cfn=") {
                called = named(&mut names, name);
            } else if let Some(name) = line.strip_prefix("fn=") {
                named(&mut names, name);
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

    /// Of the functions whose name ends so.
    fn of(&self, function: &str) -> u64 {
        self.inclusive
            .iter()
            .filter(|(name, _)| name.ends_with(function))
            .map(|(_, cost)| cost)
            .sum()
    }
}

/// The name that is meant by `(number) name`, or by `(number)` alone.
fn named(names: &mut HashMap<String, String>, said: &str) -> Option<String> {
    let (number, name) = said.split_once(')')?;
    if !name.is_empty() {
        names.insert(number.to_owned(), name.trim().to_owned());
    }
    names.get(number).cloned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_is_what_all_its_calls_cost() {
        let text = "3000 packets\nsummary: 1000\n\nfn=(1) a::outer\n10 5\ncfn=(2) a::inner\ncalls=3 20\n+1 70\n\n\
            fn=(3) b::outer\ncfi=(9) file\ncfn=(2)\ncalls=1 20\n* 30\n12 4\ntotals: 1000\n";
        let profile = Profile::read(text).unwrap();
        assert_eq!((profile.all, profile.of("inner"), profile.of("outer")), (1000, 100, 0));
        assert!(Profile::read("").is_err());
        assert!(Profile::read("summary: 1\nfn=(1) a\ncfn=(2) b\ncalls=1 1\nrubbish\n").is_err());
    }

    #[test]
    fn every_row_that_is_counted_is_one() {
        for (name, _) in ROWS {
            assert!(super::super::rows::Row::named(name).is_some(), "{name}");
        }
    }
}
