//! The connection of a rig to the network of its caller, by pasta.

use std::process::Command;

use manx_fixtures::skip::{Need, skip};

use crate::bench::Bench;

/// The script runs in its own network with a server, which is the rig's outside world.
const SCRIPT: &str = r#"
manx=$0 rig=$1
world=198.51.100.1
ip link set lo up && ip link add up0 type veth peer name up1 && ip addr add $world/24 dev up0 &&
    ip link set up0 up && ip link set up1 up && ip route add default via 198.51.100.254 || exit 9
# The server is at the caller's loopback, too. It ends by itself, and holds nothing open for which somebody may wait.
while echo answered | timeout 60 nc.openbsd -N -l 8080; do :; done >/dev/null 2>&1 &
served=$!
"$manx" rig run "$rig" --name demo --keep --ttl 5m --no-samples --world pasta >/dev/null || exit 8
ask() {
    said=$("$manx" rig exec --rig demo "$1" -- timeout 2 bash -c "cat </dev/tcp/$2/8080 2>/dev/null")
    echo "$1: $? $said"
}
for party in crawl/crawler-1 crawl/index-1 crawl/crawler-2 node/worker-1 outside; do
    ask $party $world
done
# What pasta would map to the caller's loopback.
ask crawl/crawler-1 198.51.100.254
"$manx" rig down demo >/dev/null && echo "down"
kill $(pgrep -P $served) $served
"#;

/// A policy denies the index pod all egress. The second crawler's pool has no `natOutgoing`, and
/// the outside host is no node.
#[test]
fn pods_reach_the_callers_network_by_their_nodes_as_policy_allows() {
    let Some(bench) = Bench::with_device("tun") else { return };
    if Command::new("pasta").arg("--version").output().is_err() {
        let reason = "no program pasta (apt-get install passt)";
        return skip(Need::Pasta, "a rig in the network of its caller", reason);
    }
    let rig = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/rigs/way-out");
    let flags = if nix::unistd::geteuid().is_root() { "-n" } else { "-Urn" };
    let output = Command::new("unshare")
        .args([flags, "bash", "-c", SCRIPT, env!("CARGO_BIN_EXE_manx"), rig])
        .env("XDG_RUNTIME_DIR", bench.folder.path())
        .env("TMPDIR", bench.folder.path())
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{error}");
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(
        said.lines().collect::<Vec<_>>(),
        [
            "crawl/crawler-1: 0 answered",
            "crawl/index-1: 124 ",
            "crawl/crawler-2: 1 ",
            "node/worker-1: 0 answered",
            "outside: 1 ",
            "crawl/crawler-1: 124 ",
            "down",
        ]
    );
    bench.assert_nothing_left();
}

#[test]
fn what_is_missing_for_the_callers_network_is_told() {
    let Some(bench) = Bench::new() else { return };
    let output = bench.run(&["--world", "pasta"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("expected `services: manx` in rig.yaml"), "{said}");
    let way_out = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/rigs/way-out");
    let mut command = bench.command(&["rig", "run", way_out, "--name", "demo", "--world", "pasta"]);
    let output = command.env("PATH", bench.folder.path()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(said.contains("no program pasta in PATH"), "{said}");
}
