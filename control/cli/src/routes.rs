//! `manx routes`.

use std::net::IpAddr;

use clap::Args;
use comfy_table::Cell;
use ipnet::IpNet;
use manx_api::SourceRoute;

use super::Error;
use super::output::{self, Output, table};
use super::socket::Socket;

/// The settings of `manx routes`.
#[derive(Debug, Clone, Args)]
pub struct Routes {
    /// Only the routes of the longest prefix that contains this address
    #[arg(value_name = "ADDRESS")]
    pub address: Option<IpAddr>,
    #[command(flatten)]
    #[expect(missing_docs, reason = "clap would take it for the command's own description")]
    pub socket: Socket,
    /// Form of the list
    #[arg(long, short, value_enum, default_value_t)]
    pub output: Output,
}

/// Prints where each prefix leads, by which source, and what other sources say.
pub fn run(routes: &Routes) -> Result<(), Error> {
    let mut found = routes.socket.connect(|_| None)?.routes()?;
    if let Some(address) = routes.address {
        found.routes = around(found.routes, address);
    }
    match routes.output {
        Output::Text => output::print(&render(&found.routes)),
        Output::Json => output::print_json(&found),
    }
}

/// The routes of the longest prefix that contains an address.
fn around(mut routes: Vec<SourceRoute>, address: IpAddr) -> Vec<SourceRoute> {
    let length = |route: &SourceRoute| {
        let prefix: IpNet = route.prefix.parse().ok()?;
        prefix.contains(&address).then(|| prefix.prefix_len())
    };
    let longest = routes.iter().filter_map(length).max();
    routes.retain(|route| longest.is_some() && length(route) == longest);
    routes
}

fn render(routes: &[SourceRoute]) -> String {
    let rows = routes.iter().map(|route| {
        let SourceRoute { prefix, source, object, via, reason, used } = route;
        let via = match reason {
            Some(reason) => format!("{via}: {reason}"),
            None => via.clone(),
        };
        [
            Cell::new(prefix),
            Cell::new(if *used { "*" } else { "" }),
            Cell::new(source),
            Cell::new(object.as_deref().unwrap_or("-")),
            Cell::new(via),
        ]
    });
    table(["prefix", "used", "source", "object", "via"], &[], rows.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(prefix: &str, source: &str, used: bool) -> SourceRoute {
        SourceRoute {
            prefix: prefix.to_owned(),
            source: source.to_owned(),
            object: None,
            via: "host".to_owned(),
            reason: None,
            used,
        }
    }

    #[test]
    fn an_address_is_looked_up_by_its_longest_prefix() {
        let all = [
            route("0.0.0.0/0", "world", true),
            route("10.1.0.0/16", "pool", true),
            route("10.1.2.0/24", "pool", false),
            route("10.1.2.0/24", "own block", true),
            route("::/0", "world", true),
        ];
        let found = |address: &str| {
            let found = around(all.to_vec(), address.parse().unwrap());
            found.into_iter().map(|it| (it.prefix, it.source)).collect::<Vec<_>>()
        };
        let pair = |prefix: &str, source: &str| (prefix.to_owned(), source.to_owned());
        let own = [pair("10.1.2.0/24", "pool"), pair("10.1.2.0/24", "own block")];
        assert_eq!(found("10.1.2.3"), own);
        assert_eq!(found("10.1.3.3"), [pair("10.1.0.0/16", "pool")]);
        assert_eq!(found("fd00::1"), [pair("::/0", "world")]);
    }

    #[test]
    fn the_route_that_is_used_is_marked() {
        let mut unused = route("10.1.2.0/24", "pool", false);
        unused.via = "nowhere".to_owned();
        unused.reason = Some("it is part of an IPPool and of no node's pod CIDRs".to_owned());
        let text = render(&[unused, route("10.1.2.0/24", "own block", true)]);
        insta::assert_snapshot!(text, @r"
        PREFIX       USED  SOURCE     OBJECT  VIA
        10.1.2.0/24        pool       -       nowhere: it is part of an IPPool and of no node's pod CIDRs
        10.1.2.0/24  *     own block  -       host
        ");
    }
}
