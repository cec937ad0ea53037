use std::collections::VecDeque;

use manx_policy_compiler::model::Transport;

use super::*;
use crate::import::import;
use crate::interfaces::Interfaces;
use crate::topology::{Reserved, topology};
use manx_objects::contents::Contents;

const NODE: &str = "apiVersion: v1\nkind: Node\nmetadata: {name: node}\nspec: {podCIDR: 10.244.0.0/24}\n\
                    status: {addresses: [{type: InternalIP, address: 172.18.0.2}]}\n";
/// The number of versions of tables that the worker may still use.
const BEHIND: usize = 3;

/// Returns a cluster with a node, the pod `a` with the label `app: a`, and policies for the pod, each with one rule.
fn cluster(policies: &[String]) -> Cluster {
    let mut text = format!(
        "{NODE}---\napiVersion: v1\nkind: Pod\nmetadata: {{name: a, labels: {{app: a}}}}\n\
         spec: {{nodeName: node, containers: [{{name: c}}]}}\nstatus: {{podIP: 10.244.0.2}}\n"
    );
    let policy = |name: &String| {
        format!(
            "---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{name: {name}}}\n\
             spec: {{podSelector: {{}}, ingress: [{{from: [{{podSelector: {{}}}}]}}]}}\n"
        )
    };
    text += &policies.iter().map(policy).collect::<String>();
    let cluster = import(&Contents::from_texts([("all.yaml", text.as_str())]));
    assert!(cluster.problems.is_empty(), "{}", cluster.problems[0]);
    cluster
}

fn local(port: u16) -> LocalPod {
    LocalPod {
        index: 0,
        attachment: u32::from(port),
        port: PortId(port),
        host: None,
        addresses: vec!["10.244.0.2".parse().unwrap()],
        mtu: 1480,
    }
}

fn tables(
    calculation: &mut Calculation,
    cluster: &Cluster,
    locals: &BTreeMap<ObjectName, LocalPod>,
) -> Tables {
    calculation.tables(&Inputs {
        cluster,
        topology: &topology(cluster, "node", &Reserved::new()).unwrap(),
        locals: &locals.iter().collect(),
        underlay: &Underlay::new(1500, PortId(1)),
        host: Link::native(PortId(0), 1500),
        forwarded: None,
        own_addresses: &BTreeSet::new(),
        uplink: None,
        services: ServiceMode::Nobody,
        connections: TrackingSettings::default(),
        interfaces: Interfaces { node: "node-1", uplink: None, addresses: &[] },
    })
}

#[test]
fn churn_of_policies_is_bounded_and_no_packet_is_counted_for_another_rule() {
    let mut calculation = Calculation::default();
    let locals = BTreeMap::from([(ObjectName::new("default", "a"), local(2))]);
    let mut used: VecDeque<Tables> = VecDeque::new();
    let mut counters: BTreeMap<u32, u64> = BTreeMap::new();
    let mut packets = 0;
    let mut stays = 0;
    let mut folds = 0;
    for round in 0..2_500_u64 {
        let policies = ["stays".to_owned(), format!("p{round}"), format!("q{round}")];
        let before = calculation.counted.len();
        let next = tables(&mut calculation, &cluster(&policies), &locals);
        used.push_back(next);
        // A slot has the same meaning in all tables in use, because a slow worker may use any of them.
        let mut meaning: BTreeMap<u32, &Reason> = BTreeMap::new();
        for path in used.iter().flat_map(|tables| tables.image.paths()) {
            assert_eq!(
                *meaning.entry(path.slot).or_insert(&path.decision.reason),
                &path.decision.reason,
                "{round}"
            );
            *counters.entry(path.slot).or_default() += 1;
            packets += 1;
            stays += u64::from(path.decision.reason.to_string().contains("default/stays"));
        }
        for (slot, reason) in meaning {
            assert_eq!(calculation.reason(slot), Some(reason));
        }
        if used.len() > BEHIND {
            let retired = used.pop_front().unwrap();
            calculation
                .reclaim_slots(retired.version, |slot| counters.get(&slot).copied().unwrap_or(0));
        }
        folds += u32::from(calculation.counted.len() < before);
        assert!(calculation.counted.len() <= 2 * KEPT_SLOTS, "{}", calculation.counted.len());
        assert!(calculation.revisions.len() <= 1);
    }
    assert!(folds >= 3, "{folds}");
    assert!(counters.len() < 2 * KEPT_SLOTS, "{} slots", counters.len());
    let read = |slot| counters.get(&slot).copied().unwrap_or(0);
    let now: u64 = calculation.counts(read).map(|(_, count)| count).sum();
    let reclaimed =
        calculation.reclaimed_count(Verdict::Allow) + calculation.reclaimed_count(Verdict::Deny);
    assert_eq!(now + reclaimed, packets);
    let of_stays =
        calculation.counts(read).filter(|(r, _)| r.to_string().contains("default/stays"));
    assert_eq!(of_stays.map(|(_, count)| count).sum::<u64>(), stays);
}

#[test]
fn what_rules_and_the_ends_of_tiers_of_staged_policies_do_on_the_way_is_counted() {
    let policies = "---
apiVersion: projectcalico.org/v3
kind: StagedGlobalNetworkPolicy
metadata: {name: strict}
spec: {order: 1, selector: all(), ingress: [{action: Deny, protocol: UDP}]}
---
apiVersion: projectcalico.org/v3
kind: GlobalNetworkPolicy
metadata: {name: noisy}
spec: {selector: all(), ingress: [{action: Log}, {action: Allow, protocol: TCP}, {action: Pass}]}
---
apiVersion: projectcalico.org/v3
kind: Tier
metadata: {name: trial}
spec: {order: 1}
---
apiVersion: projectcalico.org/v3
kind: StagedNetworkPolicy
metadata: {name: trial.web, namespace: default}
spec: {tier: trial, ingress: [{action: Allow, protocol: TCP}]}
";
    let pod = "---\napiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {nodeName: node, containers: [{name: c}]}\n\
               status: {podIP: 10.244.0.2}\n";
    let text = format!("{NODE}{pod}{policies}");
    let cluster = import(&Contents::from_texts([("all.yaml", text.as_str())]));
    let mut calculation = Calculation::default();
    let locals = BTreeMap::from([(ObjectName::new("default", "a"), local(2))]);
    let image = tables(&mut calculation, &cluster, &locals).image;
    let chain = image.chain(&ObjectName::new("default", "a"), Direction::Ingress).unwrap();
    let [own, peer] = ["10.244.0.2", "192.0.2.1"].map(|ip| image.identity(ip.parse().unwrap()));
    let mut counters: BTreeMap<u32, u64> = BTreeMap::new();
    for (protocol, packets) in [(6, 5), (17, 3), (47, 1)] {
        let path = image.classify(chain, own, peer, Transport::bare(protocol));
        *counters.entry(image.path(path).slot).or_default() += packets;
    }
    let noted = calculation.noted(|slot| counters.get(&slot).copied().unwrap_or(0));
    let told = noted
        .iter()
        .filter(|(_, packets)| **packets > 0)
        .map(|(met, packets)| format!("{:?} {met} {packets}", met.action()));
    insta::assert_snapshot!(told.collect::<Vec<_>>().join("\n"), @r"
    Log GlobalNetworkPolicy noisy ingress[0] 9
    Pass GlobalNetworkPolicy noisy ingress[2] 4
    Allow StagedNetworkPolicy default/trial.web ingress[0] 5
    Deny StagedGlobalNetworkPolicy strict ingress[0] 3
    Deny StagedNetworkPolicy default/trial.web ingress[end of tier] 4
    ");
}

#[test]
fn no_two_meanings_have_one_revision_be_they_of_one_pod_or_of_one_address() {
    let mut calculation = Calculation::default();
    let mut seen: BTreeMap<u32, String> = BTreeMap::new();
    let mut policies = Vec::new();
    for round in 0..50_u16 {
        policies.push(format!("p{round}"));
        let cluster = cluster(&policies);
        // The pod is attached, detached and attached again. A revision that a flow stored the first time must not be
        // valid the second time.
        let locals = BTreeMap::from([(ObjectName::new("default", "a"), local(round))]);
        for locals in [locals.clone(), locals, BTreeMap::new()] {
            let tables = tables(&mut calculation, &cluster, &locals);
            assert_eq!(calculation.revisions.len(), locals.len());
            for endpoint in tables.endpoints.iter().flatten() {
                let meaning = policies.join(" ");
                assert_eq!(*seen.entry(endpoint.revision).or_insert(meaning.clone()), meaning);
            }
        }
    }
    assert_eq!(seen.len(), 50);
}

#[test]
fn routes_stand_while_nodes_and_attachments_do() {
    let mut calculation = Calculation::default();
    let mut locals = BTreeMap::from([(ObjectName::new("default", "a"), local(2))]);
    let first = tables(&mut calculation, &cluster(&["p".to_owned()]), &locals);
    let other = tables(&mut calculation, &cluster(&["q".to_owned()]), &locals);
    assert!(Arc::ptr_eq(&first.routes, &other.routes), "a policy changes none");
    let moved: IpAddr = "10.244.0.3".parse().unwrap();
    for local in locals.values_mut() {
        local.addresses = vec![moved];
    }
    let last = tables(&mut calculation, &cluster(&["q".to_owned()]), &locals);
    assert_eq!(last.routes.lookup(moved), NextHop::Endpoint(0).encode().0);
    assert_eq!(first.routes.lookup(moved), NextHop::Unreachable.encode().0);
}
