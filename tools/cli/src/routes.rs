//! `manx routes`.

use std::net::IpAddr;

use clap::Args;
use comfy_table::Cell;
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

/// Prints the routes of all sources, and which of them are used.
pub fn run(routes: &Routes) -> Result<(), Error> {
    let found = routes.socket.connect(|_| None)?.routes(routes.address)?;
    match routes.output {
        Output::Text => output::print(&render(&found.routes)),
        Output::Json => output::print_json(&found),
    }
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
    fn the_route_that_is_used_is_marked() {
        let mut unused = route("10.1.2.0/24", "pool", false);
        unused.via = "nowhere".to_owned();
        unused.reason = Some("it is part of an IPPool and of no node's blocks".to_owned());
        let text = render(&[unused, route("10.1.2.0/24", "own block", true)]);
        insta::assert_snapshot!(text, @r"
        PREFIX       USED  SOURCE     OBJECT  VIA
        10.1.2.0/24        pool       -       nowhere: it is part of an IPPool and of no node's blocks
        10.1.2.0/24  *     own block  -       host
        ");
    }
}
