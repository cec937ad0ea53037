//! The explanation of a search.

use std::fmt;

use super::cluster::{
    Cluster, TCP, UDP, at_order, db, egress, from, in_tier, ingress, lab, matching, pairs, rule,
    stranger, to, web,
};
use crate::{Oracle, Packet, Party};
use manx_api::trace::SideTrace;
use manx_objects::object::calico::Action::{Allow, Deny, Log, Pass};
use manx_objects::object::calico::{
    EntityRule, IcmpMatch, Port, Rule, ServiceAccountMatch, ServiceMatch,
};
use manx_objects::object::cluster::{
    ClusterAction, ClusterMatch, ClusterPeer, ClusterProtocol, ClusterRule, ClusterTier, Pods,
};
use manx_objects::object::{ClusterNetworkPolicy, Kind, LabelSelector, Object, Protocol};

const KUBERNETES: &str = "
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: k, namespace: shop}
spec:
  podSelector: {matchLabels: {app: db}}
  ingress:
  - from: [{podSelector: {matchLabels: {app: x}}}]
  - ports: [{port: 443}, {port: 8000, endPort: 8080, protocol: UDP}, {port: http}, {protocol: SCTP}]
";

/// The steps at one end.
struct Steps<'a>(&'a SideTrace, &'static str);

impl fmt::Display for Steps<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.write(f, self.1)
    }
}

fn tell(oracle: &Oracle, from: &Party, to: &Party) -> String {
    oracle.explain((from, None), (to, None), Packet::to_port(TCP, Some(80))).to_string()
}

#[test]
fn a_story_goes_tier_by_tier_and_names_the_first_term_that_failed() {
    let cluster = Cluster::new()
        .text(KUBERNETES)
        .tier("mine", Some(7.5), Deny)
        .policy(
            "a",
            in_tier(
                "mine",
                1.0,
                ingress("app == 'db'", vec![rule(Log), from(Pass, matching("app == 'web'"))]),
            ),
        )
        .policy("b", in_tier("mine", 2.0, ingress("app == 'db'", vec![rule(Deny)])))
        .policy("c", egress("app == 'web'", vec![from(Deny, matching("app == 'x'")), rule(Allow)]))
        .with(
            Kind::StagedGlobalNetworkPolicy,
            "s",
            Object::CalicoPolicy(Box::new(at_order(1.0, ingress("", vec![rule(Deny)])))),
        );
    insta::assert_snapshot!(tell(&cluster.oracle(), &web(), &db()), @r"
    shop/web (10.0.1.1) -> shop/db (10.0.1.2), TCP from port 49152 to port 80: DENIED

    egress of shop/web (10.0.1.1): allowed by GlobalNetworkPolicy c egress[1]
      tier default, order 1000000, then Deny
        GlobalNetworkPolicy c, order last
          egress[0] Deny: no match: source: selector app == 'x'
          egress[1] Allow: matches

    ingress of shop/db (10.0.1.2): isolated by shop/k, and no rule allows it (after GlobalNetworkPolicy a ingress[0], GlobalNetworkPolicy a ingress[1])
      tier mine, order 7.5, then Deny
        GlobalNetworkPolicy a, order 1
          ingress[0] Log: matches
          ingress[1] Pass: matches
      tier default, order 1000000, then Deny
        StagedGlobalNetworkPolicy s, order 1, staged
          ingress[0] Deny: matches
        shop/k, order 1000
          ingress[0] Allow: no match: from: podSelector app=x
          ingress[1] Allow: no match: ports: TCP 443, UDP 8000-8080, TCP http, SCTP

    staged, not enforced
      Deny by StagedGlobalNetworkPolicy s ingress[0]
    ");
}

#[test]
fn where_nobody_is_asked_it_says_so() {
    insta::assert_snapshot!(tell(&Cluster::new().oracle(), &stranger(), &lab()), @r"
    192.0.2.1 -> lab/web (10.0.2.1), TCP from port 49152 to port 80: ALLOWED

    egress of 192.0.2.1: no pod, no policy

    ingress of lab/web (10.0.2.1): no policy decides, and profile kns.lab allows everything
      profile kns.lab
    ");
    insta::assert_snapshot!(tell(&Cluster::new().oracle(), &web(), &web()), @r"
    shop/web (10.0.1.1) -> shop/web (10.0.1.1), TCP from port 49152 to port 80: ALLOWED

    egress of shop/web (10.0.1.1): a pod always reaches itself

    ingress of shop/web (10.0.1.1): a pod always reaches itself
    ");
}

#[test]
fn a_policy_that_nobody_can_evaluate_says_why() {
    let cluster = Cluster::new().policy("p", ingress("app = 'db'", vec![]));
    insta::assert_snapshot!(tell(&cluster.oracle(), &stranger(), &db()), @r"
    192.0.2.1 -> shop/db (10.0.1.2), TCP from port 49152 to port 80: DENIED

    egress of 192.0.2.1: no pod, no policy

    ingress of shop/db (10.0.1.2): denied by GlobalNetworkPolicy p, which cannot be evaluated
      GlobalNetworkPolicy p: one of its selectors cannot be read: an operator expected at byte 4
    ");
}

#[test]
fn peers_are_told_as_they_were_written() {
    let policy = "
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: k, namespace: shop}
spec:
  podSelector: {}
  policyTypes: [Egress]
  egress:
  - to:
    - podSelector: {}
    - namespaceSelector: {matchExpressions: [{key: a, operator: In, values: [b, c]}, {key: d, operator: Exists}]}
      podSelector: {matchLabels: {x: z}, matchExpressions: [{key: e, operator: DoesNotExist}, {key: f, operator: NotIn, values: [g]}]}
    - ipBlock: {cidr: 10.9.0.0/16, except: [10.9.1.0/24, 10.9.2.0/24]}
    - ipBlock: {cidr: 10.8.0.0/16}
";
    let pods = |namespaces, pods| ClusterPeer::Pods(Pods { namespaces, pods });
    let app = LabelSelector { match_labels: pairs(&[("app", "x")]), ..LabelSelector::default() };
    let networks = ClusterPeer::Networks(vec!["10.7.0.0/16".parse().unwrap()]);
    let matches = ClusterMatch::Of {
        peers: vec![pods(LabelSelector::default(), app), networks],
        protocols: None,
    };
    let narrow = ClusterMatch::Of {
        peers: vec![ClusterPeer::Networks(vec!["0.0.0.0/0".parse().unwrap()])],
        protocols: Some(vec![
            ClusterProtocol::Ports { protocol: Protocol::Udp, ports: Some((5, 6)) },
            ClusterProtocol::Ports { protocol: Protocol::Sctp, ports: None },
            ClusterProtocol::Named("dns".to_owned()),
        ]),
    };
    let rule = |action, matches| ClusterRule { name: None, action, matches };
    let cluster_policy = ClusterNetworkPolicy {
        tier: ClusterTier::Admin,
        priority: 3,
        subject: Pods { namespaces: LabelSelector::default(), pods: LabelSelector::default() },
        ingress: vec![],
        egress: vec![
            rule(ClusterAction::Deny, matches),
            rule(ClusterAction::Deny, narrow),
            rule(ClusterAction::Accept, ClusterMatch::Unsupported),
        ],
    };
    let object = Object::ClusterNetworkPolicy(Box::new(cluster_policy));
    let cluster = Cluster::new().text(policy).with(Kind::ClusterNetworkPolicy, "c", object);
    let story =
        cluster.oracle().explain((&web(), None), (&lab(), None), Packet::to_port(TCP, Some(80)));
    insta::assert_snapshot!(Steps(&story.egress, "egress"), @r"
      tier kube-admin, order 1000, then Pass
        ClusterNetworkPolicy c, order 3
          egress[0] Deny: no match: to: namespaces (any) and pods app=x, networks 10.7.0.0/16
          egress[1] Deny: no match: protocols: UDP 5-6, SCTP, dns
          egress[2] Allow: no match: it asks for what cannot be decided here, and an Accept counts as not there
      tier default, order 1000000, then Deny
        shop/k, order 1000
          egress[0] Allow: no match: to: podSelector (any), namespaceSelector a in (b,c),d and podSelector x=z,!e,f notin (g), ipBlock 10.9.0.0/16 except 10.9.1.0/24, 10.9.2.0/24, ipBlock 10.8.0.0/16
    ");
}

#[test]
fn every_term_of_calicos_rules_has_its_words() {
    let end = EntityRule::default;
    let ports = || vec![Port::Range(1, 2), Port::Range(3, 3), Port::Name("dns".to_owned())];
    let nets = |net: &str| vec![net.parse().unwrap()];
    let text = |text: &str| Some(text.to_owned());
    let accounts = ServiceAccountMatch { names: vec!["x".to_owned()], selector: text("a == 'b'") };
    let service = ServiceMatch { name: "svc".to_owned(), namespace: Some("shop".to_owned()) };
    let rules = vec![
        Rule { ip_version: Some(6), ..rule(Deny) },
        from(Deny, EntityRule { not_nets: nets("fd00::/8"), ..end() }),
        Rule { http: true, ..rule(Allow) },
        Rule { protocol: Some(UDP), ..rule(Deny) },
        Rule { not_protocol: Some(TCP), ..rule(Deny) },
        Rule { icmp: Some(IcmpMatch { kind: Some(8), code: Some(0) }), ..rule(Deny) },
        from(Deny, EntityRule { ports: ports(), ..end() }),
        to(Deny, EntityRule { not_ports: vec![Port::Range(80, 80)], ..end() }),
        from(Deny, EntityRule { nets: nets("10.9.0.0/16"), ..end() }),
        from(Deny, EntityRule { not_nets: nets("10.0.0.0/8"), ..end() }),
        to(
            Deny,
            EntityRule {
                namespace_selector: text("global()"),
                service_accounts: Some(accounts),
                ..matching("has(q)")
            },
        ),
        from(Deny, EntityRule { not_selector: text("has(app)"), ..end() }),
        from(Deny, EntityRule { service: Some(service), ..end() }),
        rule(Deny),
    ];
    let cluster = Cluster::new().policy("p", ingress("app == 'db'", rules));
    let story =
        cluster.oracle().explain((&web(), None), (&db(), None), Packet::to_port(TCP, Some(80)));
    insta::assert_snapshot!(Steps(&story.ingress, "ingress"), @r"
      tier default, order 1000000, then Deny
        GlobalNetworkPolicy p, order last
          ingress[0] Deny: no match: ipVersion: 6
          ingress[1] Deny: no match: nets, notNets: none of the packet's IP version
          ingress[2] Allow: no match: http: cannot be decided here
          ingress[3] Deny: no match: protocol: 17
          ingress[4] Deny: no match: notProtocol: 6
          ingress[5] Deny: no match: icmp: type 8 code 0
          ingress[6] Deny: no match: source.ports: 1-2, 3, dns
          ingress[7] Deny: no match: destination.notPorts: 80
          ingress[8] Deny: no match: source.nets: 10.9.0.0/16
          ingress[9] Deny: no match: source.notNets: 10.0.0.0/8
          ingress[10] Deny: no match: destination: selector has(q) and namespaceSelector global() and serviceAccounts.selector a == 'b' and serviceAccounts.names x
          ingress[11] Deny: no match: source.notSelector: has(app)
          ingress[12] Deny: no match: source.services: svc
          ingress[13] Deny: matches
    ");
}

#[test]
fn a_story_says_what_the_judgement_says() {
    let clusters = [
        Cluster::new(),
        Cluster::new().text(KUBERNETES),
        Cluster::new()
            .policy("p", egress("", vec![from(Deny, matching("app == 'web'")), rule(Allow)])),
    ];
    for cluster in clusters {
        let oracle = cluster.oracle();
        for source in [web(), db(), lab(), stranger()] {
            for destination in [web(), db(), lab()] {
                let packet = Packet::to_port(TCP, Some(80));
                let story = oracle.explain((&source, None), (&destination, None), packet);
                let judgement = oracle.judge(&source, &destination, packet);
                assert_eq!(story.egress.why, judgement.egress.to_string());
                assert_eq!(story.ingress.why, judgement.ingress.to_string());
                assert_eq!(story.allowed, judgement.allowed());
                assert_eq!(story.allowed, story.egress.allowed && story.ingress.allowed);
            }
        }
    }
}
