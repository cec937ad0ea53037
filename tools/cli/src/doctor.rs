//! `manx doctor`.

use std::fmt::Write as _;

use clap::Args;
use comfy_table::{Cell, Color};
use manx_api::node_address::NodeAddress;
use serde::Serialize;

use super::node_address::{self, AddressOptions};
use super::output::{self, Output};
use super::{Error, output::table};
use manx_linux::doctor::{self, Report};

/// The settings of `manx doctor`.
#[derive(Debug, Clone, Args)]
pub struct Doctor {
    #[command(flatten)]
    #[expect(missing_docs, reason = "clap would take it for the command's own description")]
    pub addresses: AddressOptions,
    /// Form of the report
    #[arg(long, short, value_enum, default_value_t)]
    pub output: Output,
}

/// Prints what the environment allows. Exit code 3 if the rig cannot run.
pub fn run(doctor: &Doctor) -> Result<(), Error> {
    let findings =
        Findings { report: examine()?, addresses: node_address::look(&doctor.addresses)? };
    match doctor.output {
        Output::Text => output::print(&render(&findings))?,
        Output::Json => output::print_json(&findings)?,
    }
    if findings.report.rig { Ok(()) } else { Err(Error::Obstructed) }
}

/// The printed report.
#[derive(Serialize)]
struct Findings {
    #[serde(flatten)]
    report: Report,
    /// The node's address of each family that the settings find on this machine.
    addresses: Vec<NodeAddress>,
}

pub(crate) fn examine() -> Result<Report, Error> {
    doctor::examine().map_err(|error| Error::Failed(format!("nothing could be examined: {error}")))
}

fn render(Findings { report, addresses }: &Findings) -> String {
    let rows = report.checks.iter().map(|entry| {
        let state = match (entry.allowed, entry.capability.needed_by_rig()) {
            (true, _) => Cell::new("yes").fg(Color::Green),
            (false, true) => Cell::new("NO").fg(Color::Red),
            (false, false) => Cell::new("no").fg(Color::Yellow),
        };
        [Cell::new(entry.capability.name()), state, Cell::new(&entry.found)]
    });
    let mut text = table(["capability", "there", "found"], &[], rows.collect());
    for entry in &report.checks {
        if let (Some(cost), Some(remedy)) = (&entry.cost, &entry.remedy) {
            let name = entry.capability.name();
            // Writing to a String cannot fail.
            let _ = write!(text, "\nWithout {name}: {cost}\n  {remedy}\n");
        }
    }
    if report.seccomp == 2 && report.checks.iter().any(|entry| !entry.allowed) {
        text.push_str("\nA seccomp filter is in force here, as in a container; it may be behind what is refused.\n");
    }
    if !addresses.is_empty() {
        text.push_str("\nThe node's address:\n");
        text.extend(addresses.iter().map(node_address::lines));
    }
    text.push_str(if report.rig {
        "\nThe rig can run here.\n"
    } else {
        "\nThe rig cannot run here: what is marked NO is needed.\n"
    });
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use manx_linux::doctor::{Capability, Lack};

    fn allowed(capability: Capability, found: &str) -> (Capability, doctor::Check) {
        (capability, Ok(found.to_owned()))
    }

    fn lacking(capability: Capability, found: &str) -> (Capability, doctor::Check) {
        let (found, cost, remedy) =
            (found.to_owned(), "it is slower".to_owned(), "to mend it: sudo mend".to_owned());
        (capability, Err(Lack { capability, found, cost, remedy }))
    }

    fn alone(report: Report) -> Findings {
        Findings { report, addresses: Vec::new() }
    }

    #[test]
    fn a_report_lists_each_capability_and_each_remedy() {
        let found = vec![
            lacking(Capability::Tun, "/dev/net/tun may not be opened"),
            allowed(Capability::UserNamespaces, "they can be made"),
        ];
        insta::assert_snapshot!(render(&alone(Report::new(found, 0))), @r"
        CAPABILITY       THERE  FOUND
        user-namespaces  yes    they can be made
        tun              no     /dev/net/tun may not be opened

        Without tun: it is slower
          to mend it: sudo mend

        The rig can run here.
        ");
    }

    #[test]
    fn what_the_rig_needs_decides() {
        let found = vec![
            lacking(Capability::UserNamespaces, "they cannot be made"),
            allowed(Capability::Cores, "2 cores may be used"),
        ];
        let report = Report::new(found, 2);
        assert!(!report.rig);
        insta::assert_snapshot!(render(&alone(report.clone())), @r"
        CAPABILITY       THERE  FOUND
        user-namespaces  NO     they cannot be made
        cores            yes    2 cores may be used

        Without user-namespaces: it is slower
          to mend it: sudo mend

        A seccomp filter is in force here, as in a container; it may be behind what is refused.

        The rig cannot run here: what is marked NO is needed.
        ");
        insta::assert_snapshot!(serde_json::to_string_pretty(&report).unwrap(), @r#"
        {
          "checks": [
            {
              "capability": "user-namespaces",
              "allowed": false,
              "found": "they cannot be made",
              "cost": "it is slower",
              "remedy": "to mend it: sudo mend"
            },
            {
              "capability": "cores",
              "allowed": true,
              "found": "2 cores may be used"
            }
          ],
          "seccomp": 2,
          "rig": false
        }
        "#);
    }
}
