//! The kernel's paths carry every kind of traffic.
//!
//! Without the test harness: a user namespace can only be entered by a process with a single thread.

use manx_fixtures::skip::{Need, skip};
use std::process::ExitCode;
use std::time::Duration;

use manx_bench::error::Error;
use manx_bench::host::cores::Cores;
use manx_bench::host::namespaces;
use manx_bench::path::ends::Path as _;
use manx_bench::path::filter::Filter;
use manx_bench::path::kernel::{self, TunnelEnds};
use manx_bench::path::traffic;

fn main() -> ExitCode {
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

/// Traffic over a path that carries nothing is an error.
fn every_traffic_arrives() -> Result<(), Error> {
    let (length, cores) = (Duration::from_millis(100), Cores::detect());
    let mut paths = vec![
        ("routing", kernel::routing(None)?),
        ("vxlan", kernel::vxlan(false, TunnelEnds::Nodes)?),
        ("vxlan between pods", kernel::vxlan(false, TunnelEnds::Pods)?),
        ("vxlan between pods, whole", kernel::vxlan(true, TunnelEnds::Pods)?),
    ];
    for (name, filter) in [("nftables", Filter::Nftables), ("iptables", Filter::Iptables)] {
        match filter.why_missing() {
            Some(why) => println!("{name}: not measured: {why}"),
            None => paths.push((name, kernel::routing(Some((filter, 10)))?)),
        }
    }
    for (name, path) in paths {
        let ends = path.ends();
        println!(
            "{name}, two streams: {:.2} Gbit/s",
            traffic::tcp_streams(ends, 2, length, cores)?
        );
        println!("{name}, flood: {:.3} Mpps", traffic::udp_flood(ends, length, cores)?);
        println!("{name}, ping-pong: {:.1} us", traffic::ping_pong(ends, 50, length, cores)?);
    }
    Ok(())
}
