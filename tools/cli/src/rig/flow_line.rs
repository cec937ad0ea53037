//! A line of `manx rig watch`.

use std::collections::HashMap;
use std::net::IpAddr;

use humantime::format_rfc3339_millis;
use serde::Serialize;

use super::flow::{FlowEnds, FlowVerdict, Verdict};
use crate::Error;
use crate::output::{self, Output};
use manx_rig::world::setup::State;

/// The names of a rig's parties by their addresses.
#[derive(Default)]
pub(super) struct Names(HashMap<IpAddr, String>);

impl Names {
    pub(super) fn new(state: &State) -> Self {
        let named = |addresses: &[IpAddr], name: String| {
            let addresses: Vec<IpAddr> = addresses.to_vec();
            addresses.into_iter().map(move |address| (address, name.clone()))
        };
        let mut names: HashMap<IpAddr, String> =
            named(&state.outside, "outside".to_owned()).collect();
        for node in &state.nodes {
            names.extend(named(&node.addresses, format!("node/{}", node.name)));
        }
        for pod in &state.pods {
            names.extend(named(&pod.addresses, pod.name.to_string()));
        }
        Self(names)
    }
}

/// One end of a flow.
#[derive(Debug, Serialize)]
struct End {
    /// The pod, node or outside host, if the address is one of the rig's.
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    address: IpAddr,
    /// The port; absent for protocols without ports.
    #[serde(skip_serializing_if = "Option::is_none")]
    port: Option<u16>,
}

/// See the module.
#[derive(Debug, Serialize)]
pub(super) struct Line {
    /// The time (RFC 3339).
    time: String,
    verdict: Verdict,
    source: End,
    destination: End,
    /// The protocol's name, or its number.
    protocol: String,
    /// The rule of the source's egress policy that decided. Absent if no agent of the rig decides it, or if ingress policy
    /// denied the flow.
    #[serde(skip_serializing_if = "Option::is_none")]
    egress: Option<String>,
    /// The rule of the destination's ingress policy that decided.
    #[serde(skip_serializing_if = "Option::is_none")]
    ingress: Option<String>,
}

/// Flows that are not shown.
#[derive(Serialize)]
struct Missing {
    missing: u64,
}

impl Line {
    pub(super) fn new(ends: &FlowEnds, decided: &FlowVerdict, Names(names): &Names) -> Self {
        let end = |(address, port): (IpAddr, u16)| End {
            name: names.get(&address).cloned(),
            address,
            port: (port != 0).then_some(port),
        };
        Self {
            time: format_rfc3339_millis(decided.at).to_string(),
            verdict: decided.verdict,
            source: end(ends.source),
            destination: end(ends.destination),
            protocol: protocol(ends.protocol),
            egress: decided.egress.clone(),
            ingress: decided.ingress.clone(),
        }
    }

    pub(super) fn show(&self, form: Output) -> Result<String, Error> {
        match form {
            Output::Json => output::json_line(self),
            Output::Text => Ok(self.text()),
        }
    }

    fn text(&self) -> String {
        let Self { time, verdict, source, destination, protocol, egress, ingress, .. } = self;
        let verdict = match verdict {
            Verdict::Allowed => "allowed",
            Verdict::Denied => "DENIED ",
        };
        let port = destination.port.map(|port| format!("/{port}")).unwrap_or_default();
        let (from, to) = (source.text(), destination.text());
        let mut rules: Vec<&str> = egress.iter().chain(ingress).map(String::as_str).collect();
        if rules.is_empty() {
            rules.push("a rule that is gone");
        }
        format!("{time} {verdict} {from} -> {to} {protocol}{port} by {}\n", rules.join("; "))
    }
}

impl End {
    fn text(&self) -> String {
        self.name.clone().unwrap_or_else(|| self.address.to_string())
    }
}

fn protocol(number: u8) -> String {
    match number {
        1 => "icmp".to_owned(),
        6 => "tcp".to_owned(),
        17 => "udp".to_owned(),
        58 => "icmpv6".to_owned(),
        132 => "sctp".to_owned(),
        other => format!("protocol/{other}"),
    }
}

/// The number of flows that are not shown.
pub(super) fn show_missing(missing: u64, form: Output) -> Result<String, Error> {
    match form {
        Output::Json => output::json_line(&Missing { missing }),
        Output::Text => Ok(format!(
            "up to {missing} flows are missing here: there were more than the agents keep or one interval shows\n"
        )),
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    fn line(
        protocol: u8,
        destination: (&str, u16),
        rules: [Option<&str>; 2],
        verdict: Verdict,
    ) -> Line {
        let address = |text: &str| text.parse().unwrap();
        let ends = FlowEnds {
            source: (address("10.244.1.2"), 40_000),
            destination: (address(destination.0), destination.1),
            protocol,
        };
        let at = UNIX_EPOCH + Duration::from_millis(1_700_000_000_123);
        let [egress, ingress] = rules.map(|rule| rule.map(str::to_owned));
        let names = Names([(address("10.244.1.2"), "shop/web".to_owned())].into());
        Line::new(&ends, &FlowVerdict { at, verdict, egress, ingress }, &names)
    }

    #[test]
    fn lines_read_like_this() {
        let lines = [
            line(
                6,
                ("10.9.9.9", 443),
                [Some("a egress[0]"), Some("b ingress[1]")],
                Verdict::Allowed,
            ),
            line(1, ("10.244.1.2", 0), [None, Some("isolated by b")], Verdict::Denied),
            line(47, ("fd00::1", 0), [Some("c egress[0]"), None], Verdict::Denied),
        ];
        let text: String = lines.iter().map(|line| line.show(Output::Text).unwrap()).collect();
        insta::assert_snapshot!(text + &show_missing(7, Output::Text).unwrap(), @r"
        2023-11-14T22:13:20.123Z allowed shop/web -> 10.9.9.9 tcp/443 by a egress[0]; b ingress[1]
        2023-11-14T22:13:20.123Z DENIED  shop/web -> shop/web icmp by isolated by b
        2023-11-14T22:13:20.123Z DENIED  shop/web -> fd00::1 protocol/47 by c egress[0]
        up to 7 flows are missing here: there were more than the agents keep or one interval shows
        ");
        let json = lines[0].show(Output::Json).unwrap() + &show_missing(7, Output::Json).unwrap();
        insta::assert_snapshot!(json, @r#"
        {"schemaVersion":1,"time":"2023-11-14T22:13:20.123Z","verdict":"allowed","source":{"name":"shop/web","address":"10.244.1.2","port":40000},"destination":{"address":"10.9.9.9","port":443},"protocol":"tcp","egress":"a egress[0]","ingress":"b ingress[1]"}
        {"schemaVersion":1,"missing":7}
        "#);
    }
}
