//! BIRD 2: one process for each speaker, without routes in the kernel.

use std::fmt::Write as _;
use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;

use crate::error::{Error, io};
use crate::sections::bgp::scenario::{NET, SYSTEM, Scenario, Shape};

/// The command line of the speaker at an address. Its files are next to `at`.
pub(super) fn program(
    scenario: &Scenario,
    speaker: Ipv4Addr,
    at: &Path,
) -> Result<Vec<String>, Error> {
    let path = at.with_extension("conf");
    fs::write(&path, configuration(scenario, speaker)).map_err(io("no configuration for BIRD"))?;
    let file = |extension: &str| at.with_extension(extension).display().to_string();
    let words = ["bird", "-f", "-c", &file("conf"), "-s", &file("socket"), "-P", &file("pid")];
    Ok(words.map(str::to_owned).to_vec())
}

/// The configuration file of a speaker. The routes to next hops are in a separate table, so that the main table holds
/// only routes to announce. The connect times are the same as in Calico's nodes.
fn configuration(scenario: &Scenario, speaker: Ipv4Addr) -> String {
    let mut text = format!(
        "log stderr {{ warning, error, fatal, bug }};\n\
         router id {speaker};\n\
         ipv4 table hops;\n\
         protocol device {{ scan time 3600; }}\n\
         protocol static {{ ipv4 {{ table hops; }}; route {NET} via \"lo\"; }}\n\
         template bgp speaker {{ local {speaker} as {SYSTEM}; strict bind on; multihop; hold time 240; \
         connect delay time 2; connect retry time 5; }}\n"
    );
    let all = if scenario.shape == Shape::Table { "none" } else { "all" };
    for (at, peer) in scenario.peers().iter().filter(|it| it.speaker == speaker).enumerate() {
        let more = if scenario.reflects() {
            format!("rr client; rr cluster id {speaker};")
        } else {
            String::new()
        };
        let export = if peer.announced == 0 { "none" } else { all };
        let _ = writeln!(
            text,
            "protocol bgp peer{at} from speaker {{ neighbor {} as {}; passive on; {more} \
             ipv4 {{ igp table hops; import all; export {export}; next hop keep; }}; }}",
            peer.address, peer.system
        );
    }
    for (at, other) in scenario.speakers().into_iter().enumerate().filter(|(_, it)| *it != speaker)
    {
        let passive = if other > speaker { "on" } else { "off" };
        let _ = writeln!(
            text,
            "protocol bgp node{at} from speaker {{ neighbor {other} as {SYSTEM}; passive {passive}; \
             ipv4 {{ igp table hops; import all; export all; next hop keep; }}; }}"
        );
    }
    text
}
