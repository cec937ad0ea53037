//! The kernel's paths, and those of pasta and slirp4netns, carry every kind of traffic.
//!
//! This test does without the test harness, because only a process with a single thread can enter a user namespace.

use manx_fixtures::skip::{Need, skip};
use std::env;
use std::process::ExitCode;
use std::time::Duration;

use manx_bench::error::Error;
use manx_bench::host::cores::Cores;
use manx_bench::host::namespaces;
use manx_bench::host::within::{self, WITHIN};
use manx_bench::path::connections;
use manx_bench::path::ends::{Path, PathEnds};
use manx_bench::path::filter::Filter;
use manx_bench::path::gateway::Gateway;
use manx_bench::path::kernel::{self, TunnelEnds};
use manx_bench::path::traffic;
use manx_bench::path::translating;
use manx_bench::path::way::Way;

const LENGTH: Duration = Duration::from_millis(100);
/// The largest number of measurements until traffic arrives. On a busy machine, a stream may wait longer than
/// [`LENGTH`] for a core or for a retransmission.
const TRIES: usize = 3;

fn main() -> ExitCode {
    // Other programs are started through this program.
    if env::args().nth(1).as_deref() == Some(WITHIN) {
        return within::run(env::args().skip(1)).map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS);
    }
    if let Err(error) = namespaces::enter() {
        skip(Need::Namespaces, "kernel_paths", &error.to_string());
        return ExitCode::SUCCESS;
    }
    match every_traffic_arrives() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("kernel_paths: {error}");
            ExitCode::FAILURE
        }
    }
}

/// A measurement over a path that carries nothing must return an error.
fn every_traffic_arrives() -> Result<(), Error> {
    let cores = Cores::detect();
    let mut paths: Vec<(&str, Box<dyn Path>)> = vec![
        ("routing", Box::new(kernel::routing(None)?)),
        ("vxlan", Box::new(kernel::vxlan(false, TunnelEnds::Nodes)?)),
        ("vxlan between pods", Box::new(kernel::vxlan(false, TunnelEnds::Pods)?)),
        ("vxlan between pods, whole", Box::new(kernel::vxlan(true, TunnelEnds::Pods)?)),
    ];
    for (name, filter) in [("nftables", Filter::Nftables), ("iptables", Filter::Iptables)] {
        match filter.why_missing() {
            Some(why) => println!("{name}: not measured: {why}"),
            None => paths.push((name, Box::new(kernel::routing(Some((filter, 10)))?))),
        }
    }
    for (name, path) in paths {
        measure(name, path.ends(), cores)?;
    }
    let mut translating: Vec<(&str, Box<dyn Path>)> = Vec::new();
    for (name, way) in
        [("cluster IP", Way::ClusterIp), ("node port", Way::NodePort), ("way out", Way::Out)]
    {
        match Filter::Nftables.why_missing() {
            Some(why) => println!("{name}: not measured: {why}"),
            None => translating.push((name, Box::new(translating::path(way, 10)?))),
        }
    }
    for (name, gateway) in [("pasta", Gateway::Pasta), ("slirp4netns", Gateway::Slirp4netns)] {
        match gateway.why_missing() {
            Some(why) => println!("{name}: not measured: {why}"),
            None => translating.push((name, Box::new(gateway.path(cores)?))),
        }
    }
    for (name, path) in translating {
        measure(name, path.ends(), cores)?;
        let ends = path.ends();
        let connections = arrives(|| connections::tcp_connections(ends, 1, LENGTH, cores))?;
        println!("{name}, connections: {connections:.0}/s");
        let backwards = arrives(|| traffic::tcp_backwards(ends, LENGTH, cores))?;
        println!("{name}, backwards: {backwards:.2} Gbit/s");
    }
    Ok(())
}

fn measure(name: &str, ends: &PathEnds, cores: Cores) -> Result<(), Error> {
    let streams = arrives(|| traffic::tcp_streams(ends, 2, LENGTH, cores))?;
    println!("{name}, two streams: {streams:.2} Gbit/s");
    let flood = arrives(|| traffic::udp_flood(ends, LENGTH, cores))?;
    println!("{name}, flood: {flood:.3} Mpps");
    let ping_pong = arrives(|| traffic::ping_pong(ends, 50, LENGTH, cores))?;
    println!("{name}, ping-pong: {ping_pong:.1} us");
    Ok(())
}

/// The first result of up to [`TRIES`] measurements for which any traffic arrived.
fn arrives(measure: impl Fn() -> Result<f64, Error>) -> Result<f64, Error> {
    for _ in 1..TRIES {
        match measure() {
            Err(Error::Nothing(nothing)) => println!("again: {nothing}"),
            measured => return measured,
        }
    }
    measure()
}
