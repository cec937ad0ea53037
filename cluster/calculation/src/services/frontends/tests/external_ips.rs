//! `externalIPs`: which of them take effect, and that they take no address from others.

use super::*;
use crate::services::bounds::MOST_EXTERNAL_IPS;

fn service(name: &str, created: u8, spec: &str) -> String {
    format!(
        "---\n{{apiVersion: v1, kind: Service, metadata: {{name: {name}, namespace: a, creationTimestamp: \
         '2026-01-0{created}T00:00:00Z'}}, spec: {{ports: [{{port: 80}}], {spec}}}"
    )
}

/// Returns the Service at port 80 of an address, and whether clients outside the cluster get other
/// endpoints there.
fn at(found: &Frontends, address: &str) -> Option<(String, bool)> {
    let key = FrontendKey { address: ip(address).into(), protocol: protocol::TCP, port: 80 };
    let frontend = found.table().frontend(&key)?;
    let object = &found.claims.first(&key).unwrap().0.rank.object;
    Some((object.name.clone(), frontend.for_outside.is_some()))
}

#[test]
fn an_external_ip_counts_in_the_nets_of_the_settings_and_takes_nothing_from_others() {
    // The nets are those of `EXTERNAL`.
    let given =
        |address: &str| format!("status: {{loadBalancer: {{ingress: [{{ip: {address}}}]}}}}}}\n");
    let thief = "clusterIP: 10.96.7.1, externalTrafficPolicy: Local, \
                 externalIPs: [10.96.0.2, 192.0.2.1, 192.0.2.2, 192.0.2.16, 'fd00:96::1', 10.244.0.1]";
    let text = [
        service("thief", 1, thief) + "}\n",
        service("late", 2, "clusterIP: 10.96.7.2, externalIPs: [192.0.2.1, 192.0.2.3]") + "}\n",
        service("balanced", 3, "type: LoadBalancer, clusterIP: 10.96.7.3")
            + ", "
            + &given("192.0.2.2"),
        service("web", 4, "clusterIP: 10.96.0.2") + "}\n",
    ];
    let found = compiled(&text.concat());
    let named = |name: &str, is_local| Some((name.to_owned(), is_local));
    assert_eq!(at(&found, "192.0.2.1"), named("thief", true), "it is older than late");
    assert_eq!(at(&found, "192.0.2.2"), named("balanced", false), "a balancer has given it");
    assert_eq!(at(&found, "192.0.2.3"), named("late", false));
    assert_eq!(at(&found, "10.96.0.2"), named("web", false), "it is a cluster IP");
    assert_eq!([at(&found, "192.0.2.16"), at(&found, "fd00:96::1")], [None, None]);
    let mut sorted = ["10.96.0.2", "192.0.2.3", "192.0.2.1", "192.0.2.2"].map(ip);
    found.sort_by_claim(&mut sorted);
    let by_age = ["192.0.2.2", "10.96.0.2", "192.0.2.1", "192.0.2.3"].map(ip);
    assert_eq!(sorted, by_age, "external IPs last");
    let told: Vec<_> = found.omissions().map(|(of, it)| format!("{of}: {it}")).collect();
    insta::assert_snapshot!(told.join("\n"), @"
    Service a/late: Service a/thief, which comes first, has 192.0.2.1 with TCP port 80, too, and gets the connections: give one of them another address or port
    Service a/thief: its external IP 10.244.0.1 is not translated, because it lies in no net that the cluster leaves to externalIPs: expected one of --external-ips (MANX_EXTERNAL_IPS), or none
    Service a/thief: its external IP 192.0.2.16 is not translated, because it lies in no net that the cluster leaves to externalIPs: expected one of --external-ips (MANX_EXTERNAL_IPS), or none
    Service a/thief: Service a/web, which comes first, has 10.96.0.2 with TCP port 80, too, and gets the connections: give one of them another address or port
    Service a/thief: Service a/balanced, which comes first, has 192.0.2.2 with TCP port 80, too, and gets the connections: give one of them another address or port
    ");

    // Without a setting, no external IP takes effect.
    let contents = Contents::from_texts([("a.yaml", text.concat().as_str())]);
    let mut without = Frontends::new("n1", node_ports());
    without.follow(&contents, &Changes::Everything, |_| true);
    assert_eq!(at(&without, "192.0.2.1"), None);
    assert_eq!(at(&without, "192.0.2.2"), named("balanced", false));

    let many: Vec<_> = (0..20).map(|it| format!("'fd00:96::{it:x}'")).collect();
    let many = format!("clusterIP: 'fd00:97::1', externalIPs: [{}]", many.join(", "));
    let found = compiled(&(service("many", 1, &many) + "}\n"));
    assert_eq!(found.addresses().len(), MOST_EXTERNAL_IPS + 1);
    assert!(found.omissions().all(|(_, it)| it == Omission::TooManyExternalIps));
    assert_eq!(found.omissions().count(), 1);
}
