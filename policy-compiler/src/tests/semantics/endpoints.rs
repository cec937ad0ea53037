//! Tests which pods are endpoints of the model, and which members have an address.

use crate::compile::Compiler;
use crate::model::*;
use crate::tests::build::*;

fn shop() -> Cluster {
    Cluster::new()
        .namespace("shop", "team=a")
        .pod("shop/web", "app=web", "10.0.0.1 fd00::1")
        .pod("shop/db", "app=db", "10.0.0.2")
        .policy(kubernetes("shop/web").selects("app == 'web'").ingress([
            allow().tcp("1").from([who("app == 'db'")]),
            allow().tcp("2").from([nets("10.0.0.0/24")]),
        ]))
}

const ISOLATED: &str = "deny: isolated by shop/web for ingress, no rule allows";

#[test]
fn an_address_of_no_endpoint_matches_nets_only() {
    shop().says(&format!(
        "shop/web < 10.0.0.77 tcp 1 = {ISOLATED}
         shop/web < 10.0.0.77 tcp 2 = allow: shop/web ingress[1]"
    ));
}

#[test]
fn a_pod_that_is_gone_is_gone_from_every_set_at_once() {
    let mut cluster = shop();
    cluster.says("shop/web < 10.0.0.2 tcp 1 = allow: shop/web ingress[0]");
    cluster.model.endpoints.remove(&name("shop/db"));
    cluster.says(&format!("shop/web < 10.0.0.2 tcp 1 = {ISOLATED}"));
}

#[test]
fn an_address_of_two_pods_is_in_the_sets_of_both_until_both_are_gone() {
    let mut cluster = shop().pod("shop/new", "app=new", "10.0.0.2");
    cluster.says("shop/web < 10.0.0.2 tcp 1 = allow: shop/web ingress[0]");
    cluster.model.endpoints.remove(&name("shop/db"));
    cluster.says(&format!("shop/web < 10.0.0.2 tcp 1 = {ISOLATED}"));
    let mut twins = shop().pod("shop/db-2", "app=db", "10.0.0.2");
    twins.model.endpoints.remove(&name("shop/db"));
    twins.says("shop/web < 10.0.0.2 tcp 1 = allow: shop/web ingress[0]");
}

#[test]
fn no_member_with_the_address_matches_a_negated_selector() {
    let cluster = shop().pod("shop/new", "app=new", "10.0.0.2").policy(
        global("early")
            .order(1.0)
            .selects("app == 'web'")
            .ingress([allow().from([not_who("app == 'db'")]), deny().tcp("1")]),
    );
    cluster.says(
        "shop/web < 10.0.0.2 tcp 1 = deny: GlobalNetworkPolicy early ingress[1]
         shop/web < 10.0.0.3 tcp 1 = allow: GlobalNetworkPolicy early ingress[0]",
    );
}

#[test]
fn the_local_end_of_a_pods_packet_is_that_pod_whoever_else_has_its_address() {
    let cluster = shop().pod_with("shop/ghost", "app=ghost", "10.0.0.1", "http=tcp/80").policy(
        global("early").order(1.0).selects("app == 'web'").ingress([
            deny().to([who("app == 'ghost'")]),
            deny().tcp("http"),
            allow().tcp("80").to([who("app == 'web'")]),
        ]),
    );
    cluster.says("shop/web < 10.0.0.2 tcp 80 = allow: GlobalNetworkPolicy early ingress[2]");
}

#[test]
fn a_network_set_round_the_local_end_counts_for_it() {
    let cluster = shop().network_set("zone", "zone=x", "10.0.0.0/24").policy(
        global("early")
            .order(1.0)
            .selects("app == 'web'")
            .ingress([deny().to([who("zone == 'x'")])]),
    );
    cluster.says(
        "shop/web < 10.0.0.2 tcp 1 = deny: GlobalNetworkPolicy early ingress[0]
         shop/web < fd00::2 tcp 1 = deny: isolated by GlobalNetworkPolicy early for ingress, no rule allows",
    );
}

#[test]
fn addresses_of_one_pod_that_policy_tells_apart_are_judged_each_for_itself() {
    let cluster = Cluster::new()
        .pod("shop/web", "", "10.0.0.1 10.0.1.1")
        .policy(global("p").egress([allow().from([nets("10.0.0.0/24")])]));
    let image = cluster.image();
    assert_eq!(image.counts().linear, 1, "egress");
    let chain = image.chain(&name("shop/web"), Direction::Egress).unwrap();
    let decide = |own: &str| {
        let (own, peer) = (image.identity(ip(own)), image.identity(ip("192.0.2.1")));
        image.path(image.classify(chain, own, peer, Transport::bare(50))).verdict
    };
    assert_eq!(decide("10.0.0.1"), Verdict::Allow);
    assert_eq!(decide("10.0.1.1"), Verdict::Deny);
}

#[test]
fn what_nobody_knows_enough_about_is_denied_as_a_peer_and_as_the_local_end() {
    let cluster = shop().unknown("10.0.0.2").policy(global("open").order(1.0).ingress([allow()]));
    cluster.says(
        "shop/web < 10.0.0.2 tcp 1 = deny: unknown peer, ingress
         shop/web > 10.0.0.2 tcp 1 = deny: unknown peer, egress
         shop/db < 10.0.0.1 tcp 1 = deny: unknown peer, ingress
         shop/web < 10.0.0.3 tcp 1 = allow: GlobalNetworkPolicy open ingress[0]",
    );
}

#[test]
fn for_an_endpoint_that_the_model_does_not_have_nothing_passes() {
    let cluster = shop();
    let ghost = name("shop/ghost");
    let image = Compiler::new().compile(&cluster.model, &[ghost.clone()].into());
    assert_eq!(image.chain(&ghost, Direction::Ingress), None);
    assert_eq!(image.counts().endpoints, 0);
    crate::reference::prove(&cluster.model, &[ghost].into(), &image).unwrap();
}

#[test]
fn before_the_first_tables_nothing_passes() {
    let image = crate::image::Image::default();
    let cluster = shop();
    for endpoint in cluster.all() {
        assert_eq!(image.chain(&endpoint, Direction::Ingress), None);
    }
    let identity = image.identity(ip("10.0.0.1"));
    let path = image.classify(crate::image::ChainId(0), identity, identity, Transport::bare(6));
    assert_eq!(image.path(path).decision.reason, Reason::Unknown(Direction::Ingress));
    assert!(crate::reference::prove(&cluster.model, &cluster.all(), &image).is_err());
}

#[test]
fn a_pod_whose_namespace_is_missing_is_in_it_without_labels() {
    let cluster = shop().pod("lost/p", "", "10.0.3.1").policy(
        global("early").order(1.0).selects("app == 'web'").ingress([
            allow().tcp("1").from([who("projectcalico.org/namespace == 'lost'")]),
            allow().tcp("2").from([who("pcns.team != 'a'")]),
            deny().tcp("3").from([who("has(pcns.team)")]),
        ]),
    );
    cluster.says(
        "shop/web < 10.0.3.1 tcp 1 = allow: GlobalNetworkPolicy early ingress[0]
         shop/web < 10.0.3.1 tcp 2 = allow: GlobalNetworkPolicy early ingress[1]
         shop/web < 10.0.3.1 tcp 3 = deny: isolated by GlobalNetworkPolicy early for ingress, no rule allows",
    );
}
