//! The proof can fail: every single change to the tables of a small cluster is found.

use super::build::*;
use crate::compile::Compiler;
use crate::image::{Identity, Image, PathId};
use crate::model::*;
use crate::prefix_map::PrefixMap;
use crate::prove::{Counterexample, prove};

/// Every class, row and path of it decides some packet, and no two rows or classes mean the same.
fn cluster() -> Cluster {
    Cluster::default()
        .namespace("shop", &[("team", "a")])
        .pod("shop/web", &[("app", "web")], &["10.0.0.1", "fd00::1"])
        .pod_with_ports("shop/db", &[("app", "db")], &["10.0.0.2"], &[("sql", Protocol::Tcp, 5432)])
        .pod("shop/job", &[("app", "job")], &["10.0.0.3"])
        .ingress(
            "shop/db",
            &[("app", "db")],
            vec![
                rule(
                    &[here(&[("app", "web")])],
                    &[named("sql"), service(Protocol::Sctp, PortMatch::All)],
                ),
                rule(
                    &[block("192.0.2.0/24", &["192.0.2.128/25"])],
                    &[service(Protocol::Udp, PortMatch::Range { first: 53, last: 60 })],
                ),
            ],
        )
        .egress(
            "shop/web",
            &[("app", "web")],
            vec![rule(&[here(&[("app", "db")])], &[named("sql")])],
        )
        .egress("shop/job", &[("app", "job")], vec![from(&[here(&[])])])
}

fn proof_of(mutate: impl FnOnce(&mut Image)) -> Result<(), Box<Counterexample>> {
    let cluster = cluster();
    let mut image = Compiler::new().compile(&cluster.model, &cluster.all());
    mutate(&mut image);
    prove(&cluster.model, &cluster.all(), &image).map(|_| ())
}

fn image() -> Image {
    let cluster = cluster();
    Compiler::new().compile(&cluster.model, &cluster.all())
}

#[test]
fn untouched_tables_are_proved() {
    proof_of(|_| ()).unwrap();
}

#[test]
fn a_flipped_verdict_is_found() {
    let image = image();
    for path in 0..image.paths.len() {
        if matches!(image.paths[path].reason, Reason::Unknown(_)) {
            continue; // No address is unknown to a fresh image.
        }
        let found = proof_of(|image| {
            let verdict = &mut image.paths[path].verdict;
            *verdict = match *verdict {
                Verdict::Allow => Verdict::Deny,
                Verdict::Deny => Verdict::Allow,
            };
        });
        assert!(found.is_err(), "{}", image.paths[path].reason);
    }
}

#[test]
fn a_wrong_reason_is_found() {
    for path in 2..image().paths.len() {
        let found = proof_of(|image| {
            let wrong = match &image.paths[path].reason {
                Reason::Rule(rule) => {
                    Reason::Rule(RuleName { index: rule.index + 1, ..rule.clone() })
                }
                other => Reason::Isolated(
                    Direction::Ingress,
                    name(&format!("x/{}", other.to_string().len())),
                ),
            };
            image.paths[path].reason = wrong;
        });
        assert!(found.is_err());
    }
}

#[test]
fn a_moved_interval_bound_is_found() {
    let image = image();
    let mut moved = 0;
    for at in 0..image.starts.len() {
        for by in [-1, 1] {
            let Some(start) =
                image.starts[at].checked_add_signed(by).filter(|_| image.starts[at] > 0)
            else {
                continue;
            };
            assert!(proof_of(|image| image.starts[at] = start).is_err(), "start {at} to {start}");
            moved += 1;
        }
    }
    assert!(moved >= 8, "{moved}");
}

#[test]
fn a_changed_path_in_a_row_is_found() {
    let image = image();
    let wrong =
        |path: PathId| PathId(if path.0 + 1 < image.paths.len() as u32 { path.0 + 1 } else { 0 });
    for at in 0..image.interval_paths.len() {
        assert!(proof_of(|i| i.interval_paths[at] = wrong(i.interval_paths[at])).is_err(), "{at}");
    }
    for row in 0..image.rows.len() {
        for protocol in 0..3 {
            let found = proof_of(|image| {
                let path = &mut image.rows[row].portless[protocol];
                *path = wrong(*path);
            });
            assert!(found.is_err(), "row {row}, protocol {protocol}");
        }
        assert!(proof_of(|image| image.rows[row].other = wrong(image.rows[row].other)).is_err());
    }
}

#[test]
fn a_changed_row_of_a_cell_is_found() {
    let image = image();
    for cell in 0..image.cells.len() {
        for row in 0..=image.rows.len() as u32 {
            if row != image.cells[cell] {
                assert!(
                    proof_of(|image| image.cells[cell] = row).is_err(),
                    "cell {cell}, row {row}"
                );
            }
        }
    }
}

#[test]
fn a_changed_class_of_an_identity_is_found() {
    let image = image();
    for identity in 0..image.classes.len() {
        for class in 0..=image.class_truths.len() as u32 {
            if class != image.classes[identity] {
                let found = proof_of(|image| image.classes[identity] = class);
                assert!(found.is_err(), "identity {identity}, class {class}\n{image}");
            }
        }
    }
}

#[test]
fn a_changed_identity_of_a_prefix_is_found() {
    let image = image();
    for entry in 0..image.entries.len() {
        let found = proof_of(|image| {
            let entries = image.entries.iter().enumerate().map(|(at, (net, identity))| {
                (*net, if at == entry { Identity::UNKNOWN.0 } else { identity.0 })
            });
            image.prefixes = PrefixMap::build(image.default_identity.0, entries);
        });
        assert!(found.is_err(), "{}", image.entries[entry].0);
    }
}

#[test]
fn a_missing_and_an_exchanged_chain_are_found() {
    let image = image();
    for endpoint in image.endpoints.keys() {
        let found = proof_of(|image| {
            image.endpoints.remove(endpoint);
        });
        assert!(found.is_err(), "{endpoint}");
        let found = proof_of(|image| {
            let chains = &mut image.endpoints.get_mut(endpoint).unwrap().chains;
            chains.swap(0, 1);
        });
        assert!(found.is_err(), "{endpoint}");
    }
}

#[test]
fn a_counterexample_names_the_packet_and_both_answers() {
    let found =
        proof_of(|image| image.paths.iter_mut().for_each(|path| path.verdict = Verdict::Allow));
    insta::assert_snapshot!(
        found.unwrap_err().to_string(),
        @"shop/db ingress, peer 0.0.0.0, protocol 0: expected Deny (isolated by shop/db for ingress, no rule allows), found Allow (isolated by shop/db for ingress, no rule allows)"
    );
}
