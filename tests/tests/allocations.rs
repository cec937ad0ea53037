//! A worker allocates nothing for the packets of established flows, and a manifest costs memory in proportion to its
//! length.

use manx_analysis::check::problems;
use manx_calculation::import::import;
use manx_dataplane::packet::Offload;
use manx_dataplane::port::memory::Frame;
use manx_dataplane::tables::PortId;
use manx_objects::contents::Contents;
use manx_tests::allocations::{Counting, allocations};
use manx_tests::fabric::{HOST, RAW, UNDERLAY};
use manx_tests::packet::{TCP, Tuple, UDP, super_packet, tunnelled};
use manx_tests::shop::{self, A, A6, B, B6, FAR};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn an_allocation_is_counted() {
    let one = allocations(|| drop(std::hint::black_box(Box::new(1_u64))));
    assert_eq!((one.times, one.bytes), (1, 8));
    assert_eq!(allocations(|| drop(std::hint::black_box(Vec::<u8>::new()))).times, 0);
}

const ROUNDS: usize = 300;
const WARM_UP: usize = 100;

#[test]
fn established_flows_allocate_nothing() {
    let (mut fabric, a, b) = shop::fabric();
    // The test's own ends of the ports get enough memory here: for more packets than are under way,
    // each of the largest size. The number of packets under way, and the memory used next, depend
    // on the time that the ports have taken.
    for wire in fabric.nodes[0].wires.values() {
        for _ in 0..64 {
            wire.recycle(Frame { bytes: Vec::with_capacity(1 << 16), ..Frame::default() });
        }
    }
    let near = Tuple::new(A, B, TCP, 80);
    let near6 = Tuple::new(A6, B6, UDP, 53);
    let away = Tuple::new(A, FAR, TCP, 80);
    let out = Tuple::new(A, "192.0.2.1", UDP, 53);
    let denied = Tuple::new(B, A, UDP, 53).from_port(9);
    for opening in [near, near6, away, out] {
        assert_eq!(fabric.send("shop/a", &opening.opening()).len(), 1);
    }
    let (bulk, offload) = super_packet(away, &[7; 20_000], 1440);
    let plain = Offload::default();
    let out_of_tunnel = |at: u32| {
        let mut answer = away.reversed().data(&[1; 1000]);
        answer[24..28].copy_from_slice(&at.to_be_bytes());
        tunnelled(UNDERLAY[1], UNDERLAY[0], &answer, 0)
    };
    // Packets to each port, and the packets that come out of the node for it.
    let round: Vec<(PortId, Vec<u8>, Offload)> = vec![
        (a, near.data(b"request"), plain),
        (b, near.reversed().data(b"reply"), plain),
        (a, near6.data(b"request"), plain),
        (b, near6.reversed().data(b"reply"), plain),
        (a, out.data(b"request"), plain),
        (HOST, out.reversed().data(b"reply"), plain),
        (a, away.data(b"request"), plain),
        (a, bulk, offload),
        (RAW, out_of_tunnel(1), plain),
        (RAW, out_of_tunnel(1001), plain),
        (b, denied.opening(), plain),
    ];
    let node = &mut fabric.nodes[0];
    let (mut counted, mut forwarded) = (0, 0);
    for number in 0..WARM_UP + ROUNDS {
        for (port, bytes, offload) in &round {
            node.inject_with(*port, bytes, *offload);
        }
        // A port's queue holds one batch; a port that has used too much time is served in the next
        // turn.
        let mut found = 0;
        let in_turns = allocations(|| {
            while found < round.len() {
                match node.turn() {
                    0 => break,
                    packets => found += packets,
                }
            }
        });
        assert_eq!(found, round.len());
        for wire in node.wires.values() {
            while let Some(frame) = wire.collect() {
                forwarded += usize::from(number >= WARM_UP);
                wire.recycle(frame);
            }
        }
        counted += if number < WARM_UP { 0 } else { in_turns.times };
    }
    assert!(forwarded >= ROUNDS * 20, "only {forwarded} packets came out");
    assert_eq!(counted, 0, "allocations in {ROUNDS} rounds");
}

/// Texts that require much memory, each with a name.
fn greedy() -> Vec<(&'static str, String)> {
    const POD: &str = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\n";
    fn each(count: usize, one: impl Fn(usize) -> String) -> String {
        (0..count).map(one).collect()
    }
    let bomb = |bottom: &str, separator: &str| {
        let level =
            |n: usize| format!("a{n}: &a{n} [{}]{separator}", format!("*a{}, ", n - 1).repeat(10));
        format!("a0: &a0 {bottom}{separator}{}", each(8, |n| level(n + 1)))
    };
    let harmless =
        format!("{POD}a: &a [{}]\nb: [{}]\n---\n", "x, ".repeat(300), "*a, ".repeat(500));
    let long = "x".repeat(1_000_000);
    let unknown = each(1000, |n| format!("f{n}: 1, "));
    let doubles = "a: 1, ".repeat(3000);
    let labels = each(100_000, |n| format!("l{n}: v, "));
    let stored = |n| {
        let metadata = format!(
            "{{name: t, annotations: {{projectcalico.org/metadata: '{{{}}}'}}}}",
            bomb("x", ", ")
        );
        format!(
            "---\napiVersion: crd.projectcalico.org/v1\nkind: Tier\nmetadata: {}\n",
            metadata.replace("t,", &format!("t{n},"))
        )
    };
    let pod = |n| {
        format!(
            "--- {{apiVersion: v1, kind: Pod, metadata: {{name: p}}, status: {{podIP: 10.0.{}.{}}}}}\n",
            n / 256,
            n % 256
        )
    };
    let node = |n| {
        format!(
            "--- {{apiVersion: v1, kind: Node, metadata: {{name: n{n}}}, spec: {{podCIDR: 10.0.0.0/24}}}}\n"
        )
    };
    let many = each(20_000, |n| format!("l{n}: v, "));
    let host = |n| {
        format!(
            "--- {{apiVersion: projectcalico.org/v3, kind: HostEndpoint, metadata: {{name: h{n}, labels: {{of: v{n}}}}}, spec: \
             {{node: n1, interfaceName: '*', profiles: [p]}}}}\n"
        )
    };
    vec![
        ("aliases of aliases", format!("{POD}{}", bomb("[x, x]", "\n"))),
        ("aliases of long texts", format!("{POD}{}", bomb(&format!("[{long}]"), "\n"))),
        ("documents of harmless aliases", harmless.repeat(200)),
        ("metadata of Calico's own", each(50, stored)),
        (
            "labels",
            format!("apiVersion: v1\nkind: Pod\nmetadata: {{name: p, labels: {{{labels}}}}}\n"),
        ),
        (
            "wrong labels",
            format!(
                "apiVersion: v1\nkind: Pod\nmetadata: {{name: p, labels: {{{}}}}}\n",
                labels.replace('l', "-")
            ),
        ),
        (
            "unknown fields of a long name",
            format!("apiVersion: v1\nkind: Pod\nmetadata: {{name: {long}}}\nspec: {{{unknown}}}\n"),
        ),
        (
            "flawed items",
            format!(
                "apiVersion: v1\nkind: PodList\nitems: [{}]\nmore: {{{doubles}}}\n",
                "{metadata: {name: p}}, ".repeat(3000)
            ),
        ),
        (
            "items of a long kind",
            format!("apiVersion: v1\nkind: {long}List\nitems: [{}]\n", "{}, ".repeat(3000)),
        ),
        ("definitions of one pod", each(3000, pod)),
        ("nodes of one block", each(2000, node)),
        (
            "host endpoints of one profile",
            format!(
                "{{apiVersion: projectcalico.org/v3, kind: Profile, metadata: {{name: p}}, spec: {{labelsToApply: {{{many}}}}}}}\n{}",
                each(400, host)
            ),
        ),
    ]
}

#[test]
fn a_manifest_costs_in_proportion_to_its_length() {
    let mut costly = Vec::new();
    for (name, text) in greedy() {
        let cost = allocations(|| {
            let contents = Contents::from_texts([("file.yaml", &*text)]);
            drop((import(&contents), problems(&contents)));
        });
        let most = 50 * (text.len() as u64 + (1 << 20));
        if cost.bytes > most {
            costly.push(format!("{name}: {cost:?} for {} bytes of text", text.len()));
        }
    }
    assert_eq!(costly, [""; 0]);
}
