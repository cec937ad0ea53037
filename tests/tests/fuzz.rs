//! The fuzzer finds nothing in a few worlds, and finds every fault that is added on purpose. `manx-fuzz` runs it for
//! longer: docs/fuzzing.md.

use std::process::{Command, Output};

use manx_tests::fuzz::coverage::Coverage;
use manx_tests::fuzz::sabotage::Sabotage;
use manx_tests::fuzz::{Failure, Options, run};

fn options(seed: u64, packets: u64) -> Options {
    Options { seed, packets, time: None, first: 0, only: false, sabotage: None, services: true }
}

#[test]
fn generated_packets_come_out_where_they_may_and_are_counted() {
    match run(&options(1, 120_000), |_| {}) {
        Ok(coverage) => assert_eq!(coverage.worlds, 2, "{coverage}"),
        Err(failure) => panic!("{failure}"),
    }
}

/// The failure that a sabotage causes.
fn found(sabotage: Sabotage, name: &str) -> Box<Failure> {
    // The first world of this seed has no services, so nothing in it depends on the choice of
    // backends.
    let options = Options { sabotage: Some(sabotage), ..options(5, 2_000_000) };
    match run(&options, |_| {}) {
        Ok(coverage) => {
            panic!("nothing is found of the sabotage {name} in {} packets", coverage.packets)
        }
        Err(failure) => failure,
    }
}

#[test]
fn whatever_is_made_wrong_on_purpose_is_found() {
    for (sabotage, name) in Sabotage::ALL {
        let failure = found(sabotage, name);
        println!("{name}: {}", failure.law().lines().next().unwrap_or_default());
    }
}

#[test]
fn what_is_found_is_told_with_all_that_finds_it_again() {
    let failure = found(Sabotage::Source, "source");
    let told = failure.to_string();
    for part in [
        "against the law at node",
        "it came out at port",
        "it had gone in at port",
        "kind: Pod",
        "on node 1",
    ] {
        assert!(told.contains(part), "{part:?} in {told}");
    }
    let command = format!("manx-fuzz --seed {} --world {}", failure.seed, failure.world);
    assert!(told.trim_end().ends_with(&command), "{command:?} at the end of {told}");

    // The same world is run alone.
    let again = Options {
        sabotage: Some(Sabotage::Source),
        first: failure.world,
        only: true,
        ..options(failure.seed, 2_000_000)
    };
    let Err(again) = run(&again, |_| {}) else { panic!("nothing is found again") };
    assert_eq!(again.law(), failure.law());
}

#[test]
fn what_a_run_has_not_met_is_told_by_name() {
    let lacks = Coverage::default().lacks(1, true);
    for name in [
        "with IPv4 options or IPv6",
        "policy-egress",
        "it was handed off",
        "time jumped",
        "it was translated back",
        "connection-taken",
    ] {
        assert!(lacks.iter().any(|lack| lack.contains(name)), "{name} in {lacks:?}");
    }
    assert_eq!(Coverage::default().lacks(0, true), [""; 0]);
}

fn manx_fuzz(arguments: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_manx-fuzz"));
    command.args(arguments.split(' ')).output().unwrap()
}

#[test]
fn the_exit_status_tells_what_came_of_it() {
    for (arguments, status, said) in [
        ("--seed 3 --packets 2000 --least 0", 0, "nothing was found"),
        ("--seed 3 --packets 2000", 3, "not met often enough"),
        ("--seed 2 --packets 2000000 --sabotage twice", 1, "it came out twice"),
        ("--sabotage thrice", 2, ""),
        ("--seed 3 --world 1 --least 5", 2, ""),
    ] {
        let output = manx_fuzz(arguments);
        let text = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(status), "{arguments}: {text}");
        assert!(text.contains(said), "{arguments}: {text}");
    }
}
