//! `GoBGP`: one process for each speaker, without routes in the kernel.

use std::fmt::Write as _;
use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;

use crate::error::{Error, io};
use crate::sections::bgp::scenario::{SYSTEM, Scenario};

/// The command line of the speaker at an address. Its files are next to `at`.
pub(super) fn program(
    scenario: &Scenario,
    speaker: Ipv4Addr,
    at: &Path,
) -> Result<Vec<String>, Error> {
    let path = at.with_extension("toml");
    fs::write(&path, configuration(scenario, speaker)).map_err(io("no configuration for GoBGP"))?;
    let api = format!("unix://{}", at.with_extension("socket").display());
    let words = ["gobgpd", "-f", &path.display().to_string(), "-t", "toml", "-l", "warn"];
    let words = words.into_iter().chain(["--pprof-disable", "--api-hosts", &api]);
    Ok(words.map(str::to_owned).collect())
}

fn configuration(scenario: &Scenario, speaker: Ipv4Addr) -> String {
    let mut text = format!(
        "[global.config]\nas = {SYSTEM}\nrouter-id = \"{speaker}\"\nport = 179\n\
         local-address-list = [\"{speaker}\"]\n"
    );
    for peer in scenario.peers().iter().filter(|it| it.speaker == speaker) {
        neighbour(&mut text, speaker, peer.address, peer.system, true);
        if scenario.reflects() {
            let _ = write!(
                text,
                "[neighbors.route-reflector.config]\nroute-reflector-client = true\n\
                 route-reflector-cluster-id = \"{speaker}\"\n"
            );
        }
    }
    let silent = scenario.peers().into_iter().filter(|it| it.announced == 0);
    let silent: Vec<String> = silent.map(|it| format!("\"{}/32\"", it.address)).collect();
    if !silent.is_empty() {
        let _ = write!(
            text,
            "[global.apply-policy.config]\nexport-policy-list = [\"silent\"]\n\
             default-export-policy = \"accept-route\"\n\
             [[defined-sets.neighbor-sets]]\nneighbor-set-name = \"routers\"\n\
             neighbor-info-list = [{}]\n\
             [[policy-definitions]]\nname = \"silent\"\n\
             [[policy-definitions.statements]]\n\
             [policy-definitions.statements.conditions.match-neighbor-set]\n\
             neighbor-set = \"routers\"\n\
             [policy-definitions.statements.actions]\nroute-disposition = \"reject-route\"\n",
            silent.join(", ")
        );
    }
    for other in scenario.speakers().into_iter().filter(|it| *it != speaker) {
        neighbour(&mut text, speaker, other, SYSTEM, other > speaker);
    }
    text
}

fn neighbour(
    text: &mut String,
    speaker: Ipv4Addr,
    address: Ipv4Addr,
    system: u32,
    is_passive: bool,
) {
    let _ = write!(
        text,
        "[[neighbors]]\n[neighbors.config]\nneighbor-address = \"{address}\"\npeer-as = {system}\n\
         [neighbors.timers.config]\nhold-time = 240\nkeepalive-interval = 80\nconnect-retry = 5\nidle-hold-time-after-reset = 1\n\
         [neighbors.transport.config]\nlocal-address = \"{speaker}\"\npassive-mode = {is_passive}\n"
    );
    if system != SYSTEM {
        *text += "[neighbors.ebgp-multihop.config]\nenabled = true\nmultihop-ttl = 64\n";
    }
}
