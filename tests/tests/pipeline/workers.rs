//! Several workers: what holds for one holds for three, whichever of them reads a packet.

use std::process::Command;

/// This very suite, on nodes with three workers, each packet read by any of them: a flow's two ways, and its ICMP errors, mostly by
/// different ones.
#[test]
fn it_all_holds_with_three_workers() {
    let suite = Command::new(std::env::current_exe().unwrap())
        .args(["--skip", "it_all_holds_with_three_workers"])
        .env("MANX_TEST_WORKERS", "3")
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&suite.stdout);
    assert!(suite.status.success(), "{printed}\n{}", String::from_utf8_lossy(&suite.stderr));
    let passed = printed.split("test result: ok. ").nth(1).and_then(|rest| rest.split(' ').next());
    assert!(passed.is_some_and(|passed| passed.parse::<u32>().unwrap() >= 80), "{printed}");
}
