//! Which pods are endpoints, from manifests.

use super::{calico, kubernetes, lets_in, object, says, says_of_what_is_not_valid};

/// A pod of `shop` with label `app: new`.
fn pod(name: &str, spec: &str, status: &str) -> String {
    format!(
        "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}, namespace: shop, labels: {{app: new}}}}, \
         spec: {{nodeName: n1, {spec}}}, status: {{{status}}}}}\n---\n"
    )
}

/// The pods' node, whose blocks have all of their addresses, and a pool around these.
fn places() -> String {
    let node = "podCIDRs: [10.0.0.0/16, 'fd00:1::/64']";
    object("v1", "Node", "n1", node) + &calico("IPPool", "p", "cidr: 10.0.0.0/16")
}

fn only_new() -> String {
    lets_in("source: {selector: app == 'new'}")
}

#[test]
fn host_network_pods_are_never_endpoints_and_match_by_the_nodes_address_only() {
    let host = pod("h", "hostNetwork: true", "podIP: 172.18.0.2");
    says(
        &(host.clone() + &only_new()),
        "shop/h < shop/web tcp 80 = deny: unknown peer, ingress
         shop/db < 172.18.0.2 tcp 80 = deny: isolated by GlobalNetworkPolicy p for ingress, no rule allows",
    );
    says(
        &(host + &lets_in("source: {nets: [172.18.0.2/32]}")),
        "shop/db < 172.18.0.2 tcp 80 = allow",
    );
}

#[test]
fn finished_pods_and_released_addresses_are_in_no_set() {
    let there = "shop/db < 10.0.1.9 tcp 80 = allow";
    let gone = "shop/db < 10.0.1.9 tcp 80 = deny";
    for phase in ["Pending", "Running", "Unknown"] {
        let status = format!("phase: {phase}, podIP: 10.0.1.9");
        says(&(pod("new", "", &status) + &only_new()), there);
    }
    for phase in ["Succeeded", "Failed", "Completed"] {
        let status = format!("phase: {phase}, podIP: 10.0.1.9");
        says(&(pod("new", "", &status) + &only_new()), gone);
    }
    // Calico's and Amazon's plugins empty their annotation when they have released the addresses.
    let noted = |deleted: &str, annotation: &str| {
        pod("new", "", "podIP: 10.0.1.9")
            .replace("name: new,", &format!("name: new, {deleted} annotations: {{{annotation}}},"))
            + &only_new()
    };
    let deleted = "deletionTimestamp: '2024-01-01T00:00:00Z',";
    for name in ["cni.projectcalico.org/podIP", "vpc.amazonaws.com/pod-ips"] {
        says(&noted(deleted, &format!("{name}: 10.0.1.9")), there);
        says(&noted(deleted, &format!("{name}: ''")), gone);
        says(&noted("", &format!("{name}: ''")), there);
    }
    says(&noted(deleted, "cni.projectcalico.org/podIPs: ''"), there);
    // A wrong annotation does not have this meaning.
    says(&noted(deleted, "cni.projectcalico.org/podIP: none"), there);
}

#[test]
fn a_pod_with_one_wrong_address_closes_the_others() {
    let noted = |addresses: &str| {
        let annotation = format!("annotations: {{cni.projectcalico.org/podIPs: '{addresses}'}}");
        let pod = pod("new", "", "").replace("name: new,", &format!("name: new, {annotation},"));
        pod + &places()
    };
    says_of_what_is_not_valid(
        &noted("10.0.1.9/32,fd00:1::zz/128"),
        "shop/web > 10.0.1.9 tcp 80 = deny: unknown peer, egress
         shop/web < 10.0.1.9 tcp 80 = deny: unknown peer, ingress
         shop/web > 10.0.1.8 tcp 80 = allow",
    );
    says_of_what_is_not_valid(
        &noted("10.0.1.9/24"),
        "shop/web > 10.0.1.9 tcp 80 = deny: unknown peer, egress",
    );
    // An address that no pod can have, and one that another pod has.
    says_of_what_is_not_valid(
        &noted("192.0.2.9,10.0.1.1,x"),
        "shop/web > 192.0.2.9 tcp 80 = allow
         shop/db > 10.0.1.1 tcp 80 = allow",
    );
}

#[test]
fn addresses_are_pod_ips_before_pod_ip_before_the_annotations() {
    let (list, one, amazons) = (
        "cni.projectcalico.org/podIPs: '10.0.1.7/32,fd00:1::7/128'",
        "cni.projectcalico.org/podIP: 10.0.1.6/32",
        "vpc.amazonaws.com/pod-ips: '10.0.1.4,10.0.1.5'",
    );
    let noted = |annotations: &str, status: &str| {
        pod("new", "", status)
            .replace("name: new,", &format!("name: new, annotations: {{{annotations}}},"))
            + &only_new()
            + &places()
    };
    let with = |status: &str| noted(&format!("{amazons}, {one}, {list}"), status);
    says(
        &with("podIP: 10.0.1.8, podIPs: [{ip: 10.0.1.9}]"),
        "shop/db < 10.0.1.9 tcp 80 = allow
         shop/db < 10.0.1.8 tcp 80 = deny
         shop/db < 10.0.1.7 tcp 80 = deny",
    );
    says(
        &with("podIP: 10.0.1.8"),
        "shop/db < 10.0.1.8 tcp 80 = allow
         shop/db < 10.0.1.7 tcp 80 = deny",
    );
    says(
        &with(""),
        "shop/db < 10.0.1.7 tcp 80 = allow
         shop/db < fd00:1::7 tcp 80 = allow
         shop/db < 10.0.1.6 tcp 80 = deny
         shop/db < 10.0.1.5 tcp 80 = deny",
    );
    says(
        &noted(&format!("{amazons}, {one}"), ""),
        "shop/db < 10.0.1.6 tcp 80 = allow
         shop/db < 10.0.1.5 tcp 80 = deny",
    );
    says(
        &noted(amazons, ""),
        "shop/db < 10.0.1.4 tcp 80 = allow
         shop/db < 10.0.1.5 tcp 80 = deny",
    );
}

#[test]
fn an_address_on_two_pods_is_the_first_ones_and_then_the_others() {
    let one = pod("one", "", "podIP: 10.0.1.9");
    let two = pod("two", "", "podIP: 10.0.1.9");
    let [other, others_first] = [two.clone(), pod("aaa", "", "podIP: 10.0.1.9")]
        .map(|pod| pod.replace("app: new", "app: other"));
    let [allowed, denied] =
        ["allow", "deny"].map(|verdict| format!("shop/db < 10.0.1.9 tcp 80 = {verdict}"));
    says(&(one.clone() + &two + &only_new()), &allowed);
    says(&(two + &only_new()), &allowed);
    says(&(one.clone() + &other + &only_new()), &allowed);
    says(&(one.clone() + &others_first + &only_new()), &denied);
    says(&(other + &only_new()), &denied);
    let made = one.replace("name: one,", "name: one, creationTimestamp: '2026-01-01T00:00:00Z',");
    says(&(made + &others_first + &only_new()), &allowed);
}

#[test]
fn a_failsafe_port_0_is_that_port_alone_and_the_rest_of_felixs_settings_stays_valid() {
    let host = calico("HostEndpoint", "eth0", "node: n1, interfaceName: eth0");
    let felix = |ports: &str| {
        calico("FelixConfiguration", "default", &format!("failsafeInboundHostPorts: {ports}"))
    };
    for ports in ["[{protocol: TCP, port: 0}]", "['tcp:0']", "'0'"] {
        says(
            &(host.clone() + &felix(ports)),
            "eth0@host < out tcp 0 = allow: failsafe port, ingress
             eth0@host < out tcp 1 = deny
             eth0@host < out tcp 22 = deny
             eth0@host < out udp 0 = deny",
        );
    }
}

#[test]
fn an_object_that_is_not_valid_closes() {
    let broken = calico("GlobalNetworkPolicy", "odd", "selector: app == 'db', order: first");
    says_of_what_is_not_valid(
        &broken,
        "shop/db < shop/web tcp 80 = deny: GlobalNetworkPolicy odd is not valid and denies ingress
         shop/db > shop/web tcp 80 = deny: GlobalNetworkPolicy odd is not valid and denies egress
         shop/web < lab/web tcp 80 = allow",
    );
    let isolates = kubernetes("shop/odd", "podSelector: {matchLabels: {app: db}}, ingress: 5");
    says_of_what_is_not_valid(
        &isolates,
        "shop/db < shop/web tcp 80 = deny: isolated by shop/odd for ingress, no rule allows
         shop/db > shop/web tcp 80 = deny: isolated by shop/odd for egress, no rule allows
         shop/web < lab/web tcp 80 = allow",
    );
}
