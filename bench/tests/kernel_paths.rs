//! The kernel's paths carry every kind of traffic.
//!
//! Without the test harness: a user namespace can only be entered by a process with a single thread.

use std::process::ExitCode;
use std::time::Duration;

use manx_bench::cores::Cores;
use manx_bench::error::Error;
use manx_bench::filter::Filter;
use manx_bench::kernel::Ends;
use manx_bench::path::Between;
use manx_bench::{kernel, traffic, world};

fn main() -> ExitCode {
    if let Err(error) = world::enter() {
        if std::env::var_os("MANX_REQUIRE_NETNS").is_some_and(|value| value == "1") {
            eprintln!("kernel_paths may not be skipped (MANX_REQUIRE_NETNS=1): {error}");
            return ExitCode::FAILURE;
        }
        eprintln!("SKIPPED kernel_paths: {error}");
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

/// A path that carries nothing is an error of the traffic's.
fn every_traffic_arrives() -> Result<(), Error> {
    let (length, cores) = (Duration::from_millis(100), Cores::of_this_machine());
    let filtered = |filter: Filter| {
        let path = kernel::routing()?;
        if let Between::KernelRouting(router) = &path.between {
            filter.load(router, 10)?;
        }
        Ok::<_, Error>(path)
    };
    let mut paths = vec![
        ("routing", kernel::routing()?),
        ("vxlan", kernel::vxlan(false, Ends::Nodes)?),
        ("vxlan between pods", kernel::vxlan(false, Ends::Pods)?),
        ("vxlan between pods, whole", kernel::vxlan(true, Ends::Pods)?),
    ];
    for (name, filter) in [("nftables", Filter::Nftables), ("iptables", Filter::Iptables)] {
        match filter.is_missing() {
            Some(why) => println!("{name}: not measured: {why}"),
            None => paths.push((name, filtered(filter)?)),
        }
    }
    for (name, path) in paths {
        println!("{name}, two streams: {:.2} Gbit/s", traffic::streams(&path, 2, length, cores)?);
        println!("{name}, flood: {:.3} Mpps", traffic::flood(&path, length, cores)?);
        println!("{name}, ping-pong: {:.1} us", traffic::ping_pong(&path, 50, length, cores)?);
    }
    Ok(())
}
