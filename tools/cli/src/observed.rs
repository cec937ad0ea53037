//! The settings for the addresses at which an agent serves its health and metrics. They come from Manx's own or from
//! Felix's variables. A third address is for the health checks of load balancers, which kube-proxy serves otherwise.

use std::env;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use clap::Args;

use crate::Error;
use manx_agent::settings::Addresses;

/// The addresses of an agent's health and metrics.
#[derive(Debug, Clone, Args)]
pub struct ObserveOptions {
    /// Address on which /liveness and /readiness are served [default: off, or what `FELIX_HEALTHENABLED`,
    /// `FELIX_HEALTHHOST` and `FELIX_HEALTHPORT` say]
    #[arg(long, env = "MANX_HEALTH_ADDRESS", value_name = "ADDRESS:PORT")]
    pub health_address: Option<String>,
    /// Address on which /metrics is served [default: off, or what `FELIX_PROMETHEUSMETRICSENABLED`,
    /// `FELIX_PROMETHEUSMETRICSHOST` and `FELIX_PROMETHEUSMETRICSPORT` say]
    #[arg(long, env = "MANX_METRICS_ADDRESS", value_name = "ADDRESS:PORT")]
    pub metrics_address: Option<String>,
    /// Address on which /healthz and /livez are served for load balancers, as kube-proxy serves them, or `off` [default
    /// with --services manx: `[::]:10256`, which is all addresses of IPv4, too]
    #[arg(long, env = "MANX_PROXY_HEALTH_ADDRESS", value_name = "ADDRESS:PORT|off")]
    pub proxy_health_address: Option<String>,
}

/// The address where balancers expect the health of a node's proxy (`--healthz-bind-address` of kube-proxy).
const PROXY_HEALTH: SocketAddr = SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), 10_256);

/// Felix's variables for the health server (on or off, host, port), and the default port.
const HEALTH: ([&str; 3], u16) =
    (["FELIX_HEALTHENABLED", "FELIX_HEALTHHOST", "FELIX_HEALTHPORT"], 9099);
const METRICS: ([&str; 3], u16) = (
    [
        "FELIX_PROMETHEUSMETRICSENABLED",
        "FELIX_PROMETHEUSMETRICSHOST",
        "FELIX_PROMETHEUSMETRICSPORT",
    ],
    9091,
);

impl ObserveOptions {
    /// The addresses. `translates`: the agent itself translates services.
    pub fn addresses(&self, translates: bool) -> Result<Addresses, Error> {
        let variable = |name: &str| env::var(name).ok().filter(|value| !value.is_empty());
        Ok(Addresses {
            health: choose("--health-address", self.health_address.as_deref(), HEALTH, variable)?,
            metrics: choose(
                "--metrics-address",
                self.metrics_address.as_deref(),
                METRICS,
                variable,
            )?,
            proxy: proxy_health(self.proxy_health_address.as_deref(), translates)?,
        })
    }
}

/// The address for load balancers' health checks. There is none by default if kube-proxy translates services, because
/// kube-proxy answers these checks itself.
fn proxy_health(own: Option<&str>, translates: bool) -> Result<Option<SocketAddr>, Error> {
    const NAME: &str = "--proxy-health-address (MANX_PROXY_HEALTH_ADDRESS)";
    match own.filter(|own| !own.is_empty()) {
        None => Ok(translates.then_some(PROXY_HEALTH)),
        Some("off") => Ok(None),
        Some(_) if !translates => Err(Error::Invalid(format!(
            "{NAME} is for --services manx (MANX_SERVICES): set both or neither"
        ))),
        Some(own) => parse(NAME, own, "off or ADDRESS:PORT, e.g. [::]:10256").map(Some),
    }
}

/// Warns about Felix's other variables: Manx reads such settings from objects, and does not have some of them.
pub fn warn_about_felix_variables() {
    let own = [HEALTH.0, METRICS.0].concat();
    let variables = env::vars_os().filter_map(|(name, value)| {
        Some((name.into_string().ok()?, value.to_string_lossy().into_owned()))
    });
    for (name, value) in variables.filter(|(name, _)| !own.contains(&name.as_str())) {
        if let Some(warning) = manx_objects::settings::of_variable(&name, &value) {
            tracing::warn!(variable = name, "{name} {warning}");
        }
    }
}

/// Chooses an address: Manx's own setting if it is set and not empty, otherwise that of Felix's variables.
fn choose(
    flag: &str,
    own: Option<&str>,
    ([enabled, host, port], usual): ([&str; 3], u16),
    variable: impl Fn(&str) -> Option<String>,
) -> Result<Option<SocketAddr>, Error> {
    if let Some(own) = own.filter(|own| !own.is_empty()) {
        return parse(flag, own, "ADDRESS:PORT, e.g. 127.0.0.1:9099").map(Some);
    }
    let is_on = match variable(enabled) {
        None => false,
        Some(value) => match value.to_lowercase().as_str() {
            "true" | "1" | "yes" | "y" | "t" => true,
            "false" | "0" | "no" | "n" | "f" => false,
            _ => return Err(wrong(enabled, &value, "true or false")),
        },
    };
    if !is_on {
        return Ok(None);
    }
    let address = match variable(host).as_deref() {
        None | Some("localhost") => IpAddr::V4(Ipv4Addr::LOCALHOST),
        Some(address) => parse(host, address, "an IP address or localhost")?,
    };
    let port = match variable(port) {
        None => usual,
        Some(value) => parse(port, &value, "a port, 1 to 65535")?,
    };
    Ok(Some(SocketAddr::new(address, port)))
}

fn parse<T: std::str::FromStr>(name: &str, value: &str, expected: &str) -> Result<T, Error> {
    value.parse().map_err(|_| wrong(name, value, expected))
}

fn wrong(name: &str, value: &str, expected: &str) -> Error {
    Error::Invalid(format!("{name}: found {value:?}, expected {expected}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn health(own: Option<&str>, variables: &[(&str, &str)]) -> Result<Option<String>, String> {
        let variable = |name: &str| {
            let found = variables.iter().find(|(it, _)| *it == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        let chosen = choose("--health-address", own, HEALTH, variable);
        chosen.map(|it| it.map(|it| it.to_string())).map_err(|error| error.to_string())
    }

    #[test]
    fn nothing_is_served_unless_it_is_asked_for_and_then_on_loopback() {
        let on = ("FELIX_HEALTHENABLED", "true");
        let at = |address: &str| Ok(Some(address.to_owned()));
        assert_eq!(health(None, &[]), Ok(None));
        assert_eq!(health(Some(""), &[("FELIX_HEALTHPORT", "9100")]), Ok(None));
        assert_eq!(health(None, &[on]), at("127.0.0.1:9099"));
        assert_eq!(health(None, &[on, ("FELIX_HEALTHHOST", "localhost")]), at("127.0.0.1:9099"));
        assert_eq!(
            health(None, &[on, ("FELIX_HEALTHHOST", "::"), ("FELIX_HEALTHPORT", "80")]),
            at("[::]:80")
        );
        assert_eq!(health(Some("10.0.0.1:1"), &[on]), at("10.0.0.1:1"));
        assert_eq!(health(None, &[("FELIX_HEALTHENABLED", "0")]), Ok(None));
    }

    #[test]
    fn balancers_are_answered_where_the_agent_translates_unless_it_is_switched_off() {
        let at = |own, translates| {
            let found = proxy_health(own, translates);
            found.map(|it| it.map(|it| it.to_string())).map_err(|error| error.to_string())
        };
        let address = |address: &str| Ok(Some(address.to_owned()));
        assert_eq!(at(None, true), address("[::]:10256"));
        assert_eq!(at(Some(""), true), address("[::]:10256"));
        assert_eq!(at(Some("10.0.0.1:1"), true), address("10.0.0.1:1"));
        assert_eq!(at(Some("off"), true), Ok(None));
        for own in [None, Some(""), Some("off")] {
            assert_eq!(at(own, false), Ok(None));
        }
        assert_eq!(
            at(Some("10256"), true).unwrap_err(),
            "--proxy-health-address (MANX_PROXY_HEALTH_ADDRESS): found \"10256\", expected off or ADDRESS:PORT, e.g. [::]:10256"
        );
        assert_eq!(
            at(Some("10.0.0.1:1"), false).unwrap_err(),
            "--proxy-health-address (MANX_PROXY_HEALTH_ADDRESS) is for --services manx (MANX_SERVICES): set both or neither"
        );
    }

    #[test]
    fn a_wrong_value_is_refused_with_its_name_and_what_is_allowed() {
        let on = ("FELIX_HEALTHENABLED", "true");
        for (own, variables, told) in [
            (
                Some("9099"),
                vec![],
                "--health-address: found \"9099\", expected ADDRESS:PORT, e.g. 127.0.0.1:9099",
            ),
            (
                None,
                vec![("FELIX_HEALTHENABLED", "on")],
                "FELIX_HEALTHENABLED: found \"on\", expected true or false",
            ),
            (
                None,
                vec![on, ("FELIX_HEALTHHOST", "node")],
                "FELIX_HEALTHHOST: found \"node\", expected an IP address or localhost",
            ),
            (
                None,
                vec![on, ("FELIX_HEALTHPORT", "99999")],
                "FELIX_HEALTHPORT: found \"99999\", expected a port, 1 to 65535",
            ),
        ] {
            assert_eq!(health(own, &variables).unwrap_err(), told);
        }
    }
}
