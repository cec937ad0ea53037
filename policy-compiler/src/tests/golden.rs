//! The whole output for a small cluster, so that a change of it is read by somebody.

use super::build::*;
use crate::model::*;

fn shop() -> Cluster {
    Cluster::default()
        .namespace("shop", &[("team", "a")])
        .namespace("ops", &[("role", "monitoring")])
        .pod_with_ports(
            "shop/web",
            &[("app", "web")],
            &["10.0.0.1", "fd00::1"],
            &[("http", Protocol::Tcp, 8080)],
        )
        .pod_with_ports("shop/db", &[("app", "db")], &["10.0.0.2"], &[("sql", Protocol::Tcp, 5432)])
        .pod("ops/scraper", &[], &["10.0.9.1"])
        .ingress(
            "shop/web",
            &[("app", "web")],
            vec![
                rule(&[block("0.0.0.0/0", &["10.0.0.0/8"])], &[named("http")]),
                from(&[across(&[("role", "monitoring")], &[])]),
            ],
        )
        .egress(
            "shop/web-out",
            &[("app", "web")],
            vec![
                rule(&[here(&[("app", "db")])], &[named("sql")]),
                on(&[service(Protocol::Udp, PortMatch::Range { first: 53, last: 53 })]),
            ],
        )
        .ingress("shop/db", &[("app", "db")], vec![rule(&[here(&[("app", "web")])], &[port(5432)])])
}

#[test]
fn the_compiled_shop() {
    insta::assert_snapshot!(shop().image().to_string());
}

#[test]
fn the_image_before_any_other() {
    insta::assert_snapshot!(crate::image::Image::default().to_string(), @r"
    endpoints
    addresses
      any other: identity 0, unknown
    classes
    chains
    rows
    ");
}
