//! Flows out of the cluster that got no port for address translation, because other flows have all ports that were
//! tried. The log and `manx status` name the owner of most of these flows, unless they belong to other workers.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use manx_dataplane::flow::Owner;
use manx_dataplane::report::PortRefused;
use manx_dataplane::wire::protocol;

/// The shortest time between two lines of the log.
const LOG_EVERY: Duration = Duration::from_secs(10);
/// The time for which `manx status` warns.
const WARN_FOR: Duration = Duration::from_mins(5);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct RefusedPorts {
    last: Option<(Instant, String)>,
    logged: Option<Instant>,
}

impl RefusedPorts {
    /// Records a refusal; `name` describes an owner of flows. Logs it, unless another line was logged recently.
    pub(super) fn note(
        &mut self,
        refused: &PortRefused,
        name: impl Fn(Owner) -> String,
        now: Instant,
    ) {
        let text = text(refused, name);
        if self.logged.is_none_or(|at| now.duration_since(at) >= LOG_EVERY) {
            self.logged = Some(now);
            tracing::warn!("{text}");
        }
        self.last = Some((now, text));
    }

    /// A warning about the last refusal, if it is recent.
    pub(super) fn warning(&self, now: Instant) -> Option<String> {
        let (at, text) = self.last.as_ref()?;
        let ago = now.duration_since(*at);
        (ago < WARN_FOR).then(|| format!("{} s ago {text}", ago.as_secs()))
    }
}

fn text(
    &PortRefused { owner, protocol, destination, destination_port, holders, most }: &PortRefused,
    name: impl Fn(Owner) -> String,
) -> String {
    let protocol = match protocol {
        protocol::TCP => "TCP".to_owned(),
        protocol::UDP => "UDP".to_owned(),
        protocol::SCTP => "SCTP".to_owned(),
        number => format!("protocol {number}"),
    };
    let to = match destination_port {
        0 => destination.to_string(),
        port => SocketAddr::new(destination, port).to_string(),
    };
    let most = most.map_or_else(
        || "other workers have those that were tried".to_owned(),
        |(owner, count)| {
            format!("of {holders} that were tried and are taken {} has most, {count}", name(owner))
        },
    );
    format!(
        "{} got no free port of the way out (--egress-ports) to {protocol} {to}: {most}",
        name(owner)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_who_has_most_and_is_told_for_a_time() {
        let names = |owner: Owner| match owner.endpoint_index() {
            None => "the node".to_owned(),
            Some(index) => format!("pod shop/web-{index}"),
        };
        let refused = PortRefused {
            owner: Owner::endpoint(1),
            protocol: protocol::TCP,
            destination: "192.0.2.7".parse().unwrap(),
            destination_port: 443,
            holders: 32,
            most: Some((Owner::endpoint(4), 31)),
        };
        let of_others = PortRefused {
            protocol: 1,
            destination_port: 0,
            most: None,
            owner: Owner::NODE,
            ..refused
        };
        let (mut ports, start) = (RefusedPorts::default(), Instant::now());
        let after = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(ports.warning(start), None);
        ports.note(&refused, names, start);
        assert_eq!((ports.logged, ports.warning(after(300))), (Some(start), None));
        ports.note(&of_others, names, after(9));
        assert_eq!(ports.logged, Some(start), "no line each time");
        let told = ports.warning(after(12)).unwrap();
        ports.note(&refused, names, after(10));
        assert_eq!(ports.logged, Some(after(10)));
        insta::assert_snapshot!([ports.warning(after(12)).unwrap(), told].join("\n"), @r"
        2 s ago pod shop/web-1 got no free port of the way out (--egress-ports) to TCP 192.0.2.7:443: of 32 that were tried and are taken pod shop/web-4 has most, 31
        3 s ago the node got no free port of the way out (--egress-ports) to protocol 1 192.0.2.7: other workers have those that were tried
        ");
    }
}
