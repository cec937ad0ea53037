//! A process with `CAP_NET_ADMIN` in a pod takes over a queue of the pod's device.

use crate::bench::{Bench, json};
use crate::traffic::{Talker, assert_flows};

#[test]
fn a_pod_whose_device_is_changed_goes_on_is_told_of_and_is_nobody_elses_concern() {
    for device in ["tun", "tap"] {
        changes_its_device(device);
    }
}

fn changes_its_device(device: &str) {
    let Some(bench) = Bench::with_device(device) else { return };
    bench.keep_open(&["--workers", "2", "--pod-device", device]);
    let status = json(&bench.manx(&["status", "--output", "json", "--socket", &bench.socket(0)]));
    assert_eq!(status["endpoints"][0]["device"], device);
    let [web, stranger] = ["demo/web", "demo/stranger"].map(|pod| bench.address(0, pod));
    let _at_web = Talker::start(&bench, "demo/web", &[]);
    let at_stranger = Talker::start(&bench, "demo/stranger", &[]);
    let talker = Talker::start(&bench, "demo/client", &[web, stranger]);
    let to = |peer| ["tcp", "udp"].map(|transport| (&talker, format!("back {transport} {peer}")));
    assert_flows(&[to(web), to(stranger)].concat());
    for len in [70, 70_000] {
        let lost = at_stranger.heard("lost");
        let _changer = Talker::header(&bench, "demo/web", device, len);
        bench.await_log(&format!(
            r#""port":"pod:demo/web","found":"a header of {len} bytes instead of 10""#
        ));
        assert_flows(&[to(web), to(stranger)].concat());
        assert_eq!(
            (talker.heard("lost"), at_stranger.heard("lost")),
            (0, lost),
            "connections live"
        );
    }
}
