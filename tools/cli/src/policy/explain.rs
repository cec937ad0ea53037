//! `manx policy explain`.

use std::collections::{BTreeSet, HashSet};
use std::fmt::Write as _;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use clap::Args;
use comfy_table::Cell;
use serde::Serialize;

use super::assume::{Assume, Completed};
use super::live::Live;
use super::manifests::report_invalid;
use super::service_settings::{ServiceSettings, Translator};
use crate::Error;
use crate::output::{self, Output};
use crate::socket::Socket;
use manx_analysis::explain::{Asked, Explainer};
use manx_api::explain::{ExplainRequest, Explanation, PacketSpec};
use manx_datastore::read_paths;
use manx_oracle::Packet;
use manx_rig::world::setup::{NodeState, State};

/// The name of a node's uplink if none is given.
pub(super) const UPLINK: &str = "eth0";

/// The settings of `manx policy explain`.
#[derive(Debug, Clone, Args)]
pub struct Explain {
    /// Source: NAMESPACE/POD, POD, node/NAME, outside or an address; svc/NAMESPACE/NAME (or
    /// svc/NAME) stands for each of its endpoints, and a name with * or ? for each pod or node that
    /// matches
    #[arg(long, value_name = "PARTY")]
    pub from: String,
    /// Destination, in the same form; a service's address or port stands for the endpoints that a
    /// new connection of the source may get. svc/NAME:PORT also names the port of the Service
    #[arg(long, value_name = "PARTY")]
    pub to: String,
    /// Packet: tcp/80, udp/53, sctp/9, icmp (an echo), icmp/TYPE/CODE, protocol/NUMBER; tcp alone is a later fragment.
    /// Required, unless --to names a Service's port
    #[arg(long, value_name = "PACKET", value_parser = PacketSpec::parse)]
    pub port: Option<PacketSpec>,
    /// Source port
    #[arg(long, value_name = "PORT", default_value_t = Packet::EPHEMERAL)]
    pub source_port: u16,
    /// Use the IPv6 addresses of parties that have both families
    #[arg(long, short = '6')]
    pub ipv6: bool,
    /// The nodes' interface towards each other, which host endpoints may name [default: the running
    /// agent's, or eth0]
    #[arg(long, value_name = "IFACE")]
    pub uplink: Option<String>,
    /// Deny what no route of Manx leads to. Without this flag the verdict is policy's, and a second
    /// line is about the route. With a running agent the routes always count
    #[arg(long)]
    pub routes: bool,
    /// What translates services. A running agent uses its own settings instead
    #[arg(long, value_enum, default_value_t)]
    pub services: Translator,
    #[command(flatten)]
    #[expect(missing_docs, reason = "clap would take it for the command's own description")]
    pub settings: ServiceSettings,
    #[command(flatten)]
    #[expect(missing_docs, reason = "clap would take it for the command's own description")]
    pub assume: Assume,
    /// Form of the explanation
    #[arg(long, short, value_enum, default_value_t)]
    pub output: Output,
    #[command(flatten)]
    #[expect(missing_docs, reason = "clap would take it for the command's own description")]
    pub socket: Socket,
    /// Enter subdirectories of directories, too
    #[arg(long, short = 'R')]
    pub recursive: bool,
    /// Directories of manifests, and manifests; - is standard input [default: what the running agent has loaded]
    #[arg(value_name = "DIR|FILE", conflicts_with_all = ["live", "kubeconfig", "context"])]
    pub paths: Vec<PathBuf>,
    #[command(flatten)]
    #[expect(missing_docs, reason = "clap would take it for the command's own description")]
    pub live: Live,
}

impl Explain {
    fn request(&self, from: &str, to: &str, packet: PacketSpec) -> ExplainRequest {
        ExplainRequest {
            from: from.to_owned(),
            to: to.to_owned(),
            packet,
            source_port: self.source_port,
            ipv6: self.ipv6,
            uplink: self.uplink.clone(),
            routes: self.routes,
        }
    }
}

/// The error if no packet is given.
const NO_PORT: &str =
    "--port is missing: expected a packet, such as tcp/80, or --to svc/NAMESPACE/NAME:PORT";

/// The explanation of one connection, or the explanations of several connections.
#[derive(Debug)]
enum Answer {
    One(Box<Explanation>),
    Several(Vec<Explanation>),
}

/// The explanations of several connections.
#[derive(Serialize)]
struct Explanations<'a> {
    explanations: &'a [Explanation],
}

/// Prints the explanations. Exit code 0 if all connections pass, 1 if one does not, 2 if that is
/// unknown.
pub fn run(explain: &Explain) -> Result<(), Error> {
    let live = explain.live.is_asked_for();
    let answer = if explain.paths.is_empty() && !live {
        Answer::One(Box::new(by_agent(explain)?))
    } else if let Some(rig) = &explain.socket.rig {
        return Err(Error::Invalid(format!(
            "--rig {rig} asks an agent, and manifests or a live cluster are given, too: leave one of them out"
        )));
    } else {
        let paths = explain.paths.iter().map(PathBuf::as_path);
        let contents =
            if live { explain.live.read()? } else { read_paths(paths, explain.recursive) };
        report_invalid(&contents)?;
        let Some(completed) = explain.assume.complete(contents)? else { return Ok(()) };
        explain_by_manifests(explain, &completed).map_err(Error::Invalid)?
    };
    let (passes, text) = match &answer {
        Answer::One(one) => (one.story.allowed, one.to_string()),
        Answer::Several(all) => (all.iter().all(|one| one.story.allowed), short(all)),
    };
    match (explain.output, &answer) {
        (Output::Text, _) => output::print(&text)?,
        (Output::Json, Answer::One(one)) => output::print_json(one)?,
        (Output::Json, Answer::Several(all)) => {
            output::print_json(&Explanations { explanations: all })?;
        }
    }
    if passes { Ok(()) } else { Err(Error::Deviation) }
}

/// Finds a node whose agent listens, or takes the first node if none does. Any agent will do, because every agent of a
/// rig has all objects.
fn find_listening(rig: &State) -> Option<&NodeState> {
    rig.nodes.iter().find(|node| UnixStream::connect(&node.socket).is_ok()).or(rig.nodes.first())
}

fn by_agent(explain: &Explain) -> Result<Explanation, Error> {
    for end in [&explain.from, &explain.to] {
        if end.contains(['*', '?']) || end.starts_with("svc/") {
            return Err(Error::Invalid(format!(
                "{end} stands for several ends, and an agent explains one connection: name one end, or give manifests"
            )));
        }
    }
    let agent = explain.socket.connect(find_listening).map_err(|error| match error {
        Error::Environment(text) => Error::Environment(format!("{text}; or give manifests")),
        other => other,
    });
    let packet = explain.port.ok_or_else(|| Error::Invalid(NO_PORT.to_owned()))?;
    let request = explain.request(&explain.from, &explain.to, packet);
    Ok(agent?.explain(ExplainRequest { routes: true, ..request })?)
}

fn explain_by_manifests(explain: &Explain, completed: &Completed) -> Result<Answer, String> {
    let Completed { contents, assumed } = completed;
    let explainer = Explainer::new(contents, &assumed.addresses, UPLINK)
        .translated_by(explain.settings.translates(explain.services));
    let (to, packet) = match (explainer.service_port(&explain.to)?, explain.port) {
        (Some(of_service), None) => of_service,
        (None, Some(packet)) => (explain.to.clone(), packet),
        (None, None) => return Err(NO_PORT.to_owned()),
        (Some(_), Some(_)) => {
            return Err(format!(
                "{} names a port, and --port is given, too: leave one of them out",
                explain.to
            ));
        }
    };
    let from = explainer.ends(&explain.from)?;
    let (mut asked, mut notes) = (Vec::new(), Vec::new());
    let mut known = HashSet::new();
    for from in &from {
        let one = explainer.connections(from, &to, packet)?;
        asked.extend(one.asked.into_iter().filter(|it| known.insert(it.clone())));
        notes.extend(one.notes.into_iter().filter(|it| !notes.contains(it)).collect::<Vec<_>>());
    }
    let ask = |asked: &Asked| {
        let request = explain.request(&asked.from, &asked.to, asked.packet);
        let mut one = explainer.explain_asked(&request, asked)?;
        one.stand_ins.extend_from_slice(&notes);
        Ok::<_, String>(one)
    };
    if let [one] = asked.as_slice() {
        return ask(one).map(|one| Answer::One(Box::new(one)));
    }
    let all = asked.iter().filter(|it| it.from != it.to).map(ask).collect::<Result<_, _>>()?;
    Ok(Answer::Several(all))
}

/// A line for each connection: both ends, the verdict, and the rule that stops it or lets it in.
fn short(all: &[Explanation]) -> String {
    let rows = all.iter().map(|Explanation { story, .. }| {
        let stages = story.leaving.iter().chain(&story.arriving);
        let mut sides = vec![("egress", &story.egress), ("ingress", &story.ingress)];
        let stages = stages.flat_map(|interface| &interface.stages);
        let enforced = stages.filter(|stage| stage.enforced && stage.decides);
        sides.extend(enforced.map(|stage| (stage.stage.as_str(), &stage.side)));
        let denies = sides.into_iter().find(|(_, side)| !side.allowed);
        let why = match (denies, &story.no_route) {
            (Some((place, side)), _) => format!("{place}: {}", side.why),
            (None, Some(why)) => format!("no route: {why}"),
            (None, None) => story.ingress.why.clone(),
        };
        let verdict = if story.allowed { "ALLOWED" } else { "DENIED" };
        [&story.from, &story.to, &verdict.to_owned(), &why].map(Cell::new)
    });
    let mut text = output::table(["from", "to", "verdict", "why"], &[], rows.collect());
    let stand_ins: BTreeSet<&String> = all.iter().flat_map(|one| &one.stand_ins).collect();
    let assumed: BTreeSet<&str> =
        all.iter().flat_map(|one| one.assumed.iter().map(String::as_str)).collect();
    // Writing to a String cannot fail.
    if !stand_ins.is_empty() || !assumed.is_empty() {
        let _ = writeln!(text);
    }
    for stand_in in stand_ins {
        let _ = writeln!(text, "{stand_in}");
    }
    if !assumed.is_empty() {
        let assumed = assumed.into_iter().collect::<Vec<_>>().join(", ");
        let _ = writeln!(text, "no address in the manifests, assumed: {assumed}");
    }
    text
}

#[cfg(test)]
mod tests {
    use manx_analysis::explain::packet as packet_of;

    use super::*;
    use crate::values::{NODE_PORTS, node_ports};
    use manx_objects::contents::Contents;

    const NODES: &str = "
{apiVersion: projectcalico.org/v3, kind: IPPool, metadata: {name: p}, spec: {cidr: 10.1.0.0/16, ipipMode: Never}}
---
{apiVersion: v1, kind: Node, metadata: {name: n1}, spec: {podCIDRs: [10.1.1.0/24, 'fd00:1::/64']}, status: {addresses: [{type: InternalIP, address: 172.18.0.2}]}}
---
{apiVersion: v1, kind: Node, metadata: {name: n2}, spec: {podCIDR: 10.1.2.0/24}, status: {addresses: [{type: InternalIP, address: 172.18.0.3}]}}
---
{apiVersion: v1, kind: Node, metadata: {name: n3}, spec: {podCIDR: 10.1.3.0/24}}
---
{apiVersion: v1, kind: Pod, metadata: {name: a, labels: {app: a}}, spec: {nodeName: n1, containers: [{name: c}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: b, labels: {app: b}}, spec: {nodeName: n1, containers: [{name: c}]}, status: {podIPs: [{ip: 10.1.1.2}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: c, namespace: far}, spec: {nodeName: n2, containers: [{name: c}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: h}, spec: {nodeName: n2, hostNetwork: true, containers: [{name: c}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: x}, spec: {nodeName: 5}}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: only-80}
spec: {podSelector: {matchLabels: {app: b}}, ingress: [{ports: [{port: 80}]}]}
";

    fn asked(from: &str, to: &str, port: &str) -> Explain {
        Explain {
            from: from.to_owned(),
            to: to.to_owned(),
            port: (!port.is_empty()).then(|| PacketSpec::parse(port).unwrap()),
            source_port: Packet::EPHEMERAL,
            ipv6: false,
            output: Output::Text,
            socket: Socket::default(),
            routes: false,
            services: Translator::default(),
            settings: ServiceSettings {
                node_ports: node_ports(NODE_PORTS).unwrap(),
                external_ips: vec!["203.0.113.0/24".parse().unwrap()],
            },
            assume: Assume::default(),
            uplink: None,
            recursive: false,
            paths: Vec::new(),
            live: Live::default(),
        }
    }

    fn one(explain: &Explain, completed: &Completed) -> Result<Explanation, String> {
        match explain_by_manifests(explain, completed)? {
            Answer::One(one) => Ok(*one),
            Answer::Several(all) => panic!("{}", short(&all)),
        }
    }

    fn explain(explain: &Explain) -> Result<Explanation, String> {
        one(explain, &completed(NODES))
    }

    fn completed(text: &str) -> Completed {
        Completed::new(Contents::from_texts([("objects.yaml", text)]), None).unwrap()
    }

    const SERVICES: &str = "
---
{apiVersion: v1, kind: Service, metadata: {name: sliced}, spec: {ports: [{port: 80}]}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: sliced-1, labels: {kubernetes.io/service-name: sliced}}, addressType: IPv4, endpoints: [{addresses: [10.1.1.2]}, {addresses: [198.51.100.7]}], ports: [{port: 80}]}
---
{apiVersion: v1, kind: Service, metadata: {name: selecting}, spec: {selector: {app: b}, ports: [{port: 80}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: nobody}, spec: {selector: {app: none}, ports: [{port: 80}]}}
";

    /// Services whose ports differ from those of their endpoints.
    const TRANSLATING: &str = "
---
{apiVersion: v1, kind: Pod, metadata: {name: web, labels: {app: web}}, spec: {nodeName: n1, containers: [{name: c, ports: [{name: web, containerPort: 8000}]}]}, status: {podIPs: [{ip: 10.1.1.9}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: front}, spec: {clusterIP: 10.96.0.7, selector: {app: b}, ports: [{port: 8080, targetPort: 80}, {port: 8443, targetPort: web}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: named}, spec: {selector: {app: web}, ports: [{port: 80, targetPort: web}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: headless}, spec: {clusterIP: None, selector: {app: b}, ports: [{port: 8080, targetPort: 80}]}}
";

    fn several(from: &str, to: &str, port: &str) -> String {
        let text = format!("{NODES}{SERVICES}");
        match explain_by_manifests(&asked(from, to, port), &completed(&text)) {
            Ok(Answer::Several(all)) => short(&all),
            Ok(Answer::One(one)) => one.to_string().lines().next().unwrap().to_owned(),
            Err(error) => error,
        }
    }

    #[test]
    fn a_services_address_and_port_are_judged_as_those_of_its_endpoints() {
        let asked = |to: &str, port: &str| {
            let text = format!("{NODES}{TRANSLATING}");
            match explain_by_manifests(&asked("a", to, port), &completed(&text)) {
                Ok(Answer::One(one)) => {
                    let text = one.to_string();
                    let notes = one.stand_ins.iter().map(String::as_str);
                    text.lines().take(1).chain(notes).collect::<Vec<_>>().join("\n")
                }
                Ok(Answer::Several(all)) => short(&all),
                Err(error) => error,
            }
        };
        insta::assert_snapshot!(asked("svc/default/front", "tcp/8080"), @r"
        default/a (10.1.1.3) -> default/b (10.1.1.2), TCP from port 49152 to port 80: ALLOWED
        port 8080 of Service default/front is port 80 of its endpoints
        ");
        insta::assert_snapshot!(asked("10.96.0.7", "tcp/8080"), @r"
        default/a (10.1.1.3) -> default/b (10.1.1.2), TCP from port 49152 to port 80: ALLOWED
        10.96.0.7 is an address of Service default/front: judged at its endpoints
        port 8080 of Service default/front is port 80 of its endpoints
        ");
        insta::assert_snapshot!(asked("svc/default/named", "tcp/80"), @r"
        default/a (10.1.1.3) -> default/web (10.1.1.9), TCP from port 49152 to port 8000: ALLOWED
        port 80 of Service default/named is port 8000 of its endpoints
        ");
        insta::assert_snapshot!(asked("svc/default/headless", "tcp/8080"), @"default/a (10.1.1.3) -> default/b (10.1.1.2), TCP from port 49152 to port 8080: DENIED");
        insta::assert_snapshot!(asked("svc/default/front", "udp/8080"), @"default/a (10.1.1.3) -> default/b (10.1.1.2), UDP from port 49152 to port 8080: DENIED");
        insta::assert_snapshot!(asked("svc/default/front", "tcp/8443"), @"no endpoint of Service default/front has the port that its port 8443 names");
        insta::assert_snapshot!(asked("10.96.0.8", "tcp/8080"), @"default/a (10.1.1.3) -> 10.96.0.8, TCP from port 49152 to port 8080: ALLOWED");
        insta::assert_snapshot!(asked("svc/default/front", "icmp"), @"default/a (10.1.1.3) -> default/b (10.1.1.2), ICMP type 8 code 0: DENIED");
    }

    #[test]
    fn patterns_and_services_get_a_short_answer_for_each_pair() {
        insta::assert_snapshot!("patterns", several("*/*", "default/b", "tcp/81"));
        insta::assert_snapshot!("a_service", several("a", "svc/default/sliced", "tcp/81"));
        insta::assert_snapshot!(several("a", "svc/default/selecting", "tcp/80"), @"default/a (10.1.1.3) -> default/b (10.1.1.2), TCP from port 49152 to port 80: ALLOWED");
        insta::assert_snapshot!(several("a", "svc/default/nobody", "tcp/80"), @"the service default/nobody has no endpoint");
        insta::assert_snapshot!(several("a", "svc/default/none", "tcp/80"), @"there is no Service or EndpointSlice of default/none in the manifests");
        insta::assert_snapshot!(several("a", "svc/none", "tcp/80"), @"there is no Service or EndpointSlice of default/none in the manifests");
        insta::assert_snapshot!(several("z*", "b", "tcp/80"), @"no pod and no node fits z*; found default/a, default/b, far/c");
        insta::assert_snapshot!(several("outside", "b", "tcp/80"), @"203.0.113.1 -> default/b (10.1.1.2), TCP from port 49152 to port 80: ALLOWED");
    }

    fn says(from: &str, to: &str, port: &str) -> String {
        match explain(&asked(from, to, port)) {
            Ok(explanation) => explanation.to_string(),
            Err(error) => error,
        }
    }

    #[test]
    fn a_denial_is_told_with_the_term_that_failed() {
        insta::assert_snapshot!(says("a", "default/b", "tcp/81"), @r"
        default/a (10.1.1.3) -> default/b (10.1.1.2), TCP from port 49152 to port 81: DENIED

        egress of default/a (10.1.1.3): no policy decides, and profile kns.default allows everything
          profile kns.default

        ingress of default/b (10.1.1.2): isolated by default/only-80, and no rule allows it
          tier default, order 1000000, then Deny
            default/only-80, order 1000 (objects.yaml:20:1)
              ingress[0] Allow: no match: ports: TCP 80

        no address in the manifests, assumed: default/a (10.1.1.3)
        ");
    }

    const HOSTS: &str = "
---
{apiVersion: projectcalico.org/v3, kind: HostEndpoint, metadata: {name: h, labels: {role: node}}, spec: {node: n1, interfaceName: eth0}}
---
{apiVersion: projectcalico.org/v3, kind: GlobalNetworkPolicy, metadata: {name: untracked}, spec: {selector: role == 'node', doNotTrack: true, applyOnForward: true, ingress: [{action: Deny, protocol: TCP, destination: {ports: [81]}}]}}
---
{apiVersion: projectcalico.org/v3, kind: GlobalNetworkPolicy, metadata: {name: before-nat}, spec: {selector: role == 'node', preDNAT: true, applyOnForward: true, ingress: [{action: Allow, protocol: TCP, destination: {ports: [82]}}]}}
---
{apiVersion: projectcalico.org/v3, kind: GlobalNetworkPolicy, metadata: {name: forwarded}, spec: {selector: role == 'node', applyOnForward: true, types: [Ingress, Egress], ingress: [{action: Allow, protocol: TCP, destination: {ports: ['79:81', 90]}}], egress: [{action: Allow, protocol: UDP}]}}
---
{apiVersion: projectcalico.org/v3, kind: GlobalNetworkPolicy, metadata: {name: own}, spec: {selector: role == 'node', ingress: [{action: Deny, protocol: TCP, destination: {ports: [91]}}]}}
";

    fn at_hosts(from: &str, to: &str, port: &str) -> Explanation {
        let objects = format!("{NODES}{HOSTS}").replace("port: 80}", "endPort: 99, port: 1}");
        one(&asked(from, to, port), &completed(&objects)).unwrap()
    }

    #[test]
    fn at_a_nodes_interface_every_stage_is_told_with_what_is_enforced_there() {
        insta::assert_snapshot!(at_hosts("far/c", "b", "tcp/81").to_string());
        insta::assert_snapshot!(at_hosts("192.0.2.1", "node/n1", "tcp/91").to_string());
    }

    #[test]
    fn what_passes_is_what_is_enforced_and_what_is_meant_is_told_beside_it() {
        let judged = |from: &str, to: &str, port: &str| {
            let Explanation { story, .. } = at_hosts(from, to, port);
            (story.allowed, story.intended)
        };
        assert_eq!(judged("far/c", "b", "tcp/80"), (true, true), "applyOnForward allows");
        assert_eq!(judged("far/c", "b", "tcp/83"), (false, false), "applyOnForward does not");
        assert_eq!(judged("far/c", "b", "tcp/81"), (true, false), "doNotTrack denies");
        assert_eq!(judged("far/c", "b", "tcp/82"), (false, true), "preDNAT allows");
        assert_eq!(judged("b", "far/c", "tcp/80"), (false, false), "what leaves is judged");
        assert_eq!(judged("b", "192.0.2.1", "udp/80"), (true, true), "what leaves is judged");
        assert_eq!(judged("a", "b", "tcp/83"), (true, true), "on one node nothing is passed");
        assert_eq!(judged("192.0.2.1", "node/n1", "tcp/90"), (true, true), "the node's own");
        assert_eq!(judged("192.0.2.1", "node/n1", "tcp/91"), (true, false), "the node's own");
        assert_eq!(judged("192.0.2.1", "node/n1", "tcp/22"), (true, true), "a failsafe port");
        assert_eq!(judged("node/n1", "far/c", "tcp/80"), (true, false), "the node's own");
    }

    #[test]
    fn the_uplink_that_is_named_finds_the_host_endpoint() {
        let objects = format!("{NODES}{HOSTS}");
        let completed_objects = completed(&objects);
        let uplink = Some("ens1".to_owned());
        let explain = Explain { uplink, ..asked("far/c", "b", "tcp/83") };
        let arriving = one(&explain, &completed_objects).unwrap().story.arriving.unwrap();
        assert_eq!((arriving.host_endpoint, arriving.allowed), (None, true));
        let tunnelled = completed(&objects.replace("ipipMode: Never", "ipipMode: Always"));
        let story = one(&asked("far/c", "b", "tcp/83"), &tunnelled).unwrap().story;
        assert_eq!(story.arriving.unwrap().interface, "its tunnels");
    }

    #[test]
    fn in_json_the_rule_that_decides_has_fields() {
        let json = serde_json::to_value(at_hosts("far/c", "b", "tcp/80")).unwrap();
        let rule = &json["arriving"]["stages"][2]["rule"];
        let expected = serde_json::json!({
            "kind": "GlobalNetworkPolicy", "api_version": "projectcalico.org/v3", "namespace": "",
            "name": "forwarded", "direction": "ingress", "index": 0, "place": "objects.yaml:32:1",
        });
        assert_eq!(*rule, expected, "{json:#}");
        let denied = serde_json::to_value(explain(&asked("a", "b", "tcp/81")).unwrap()).unwrap();
        assert_eq!(denied["ingress"]["tier_end"], "default");
        assert_eq!(denied["ingress"]["rule"], serde_json::Value::Null);
    }

    #[test]
    fn in_json_it_is_the_same() {
        let json =
            serde_json::to_value(explain(&asked("172.18.0.2", "b", "tcp/80")).unwrap()).unwrap();
        assert_eq!(json["from"], "node n1 (172.18.0.2)");
        assert_eq!(json["allowed"], true);
        assert_eq!(json["ingress"]["why"], "a node always reaches its own pods");
        let json =
            serde_json::to_value(explain(&asked("10.1.1.3", "b", "udp/80")).unwrap()).unwrap();
        assert_eq!(json["from"], "default/a (10.1.1.3)");
        assert_eq!(json["assumed"], serde_json::json!(["default/a (10.1.1.3)"]));
        let rule = &json["ingress"]["tiers"][0]["policies"][0]["rules"][0];
        let expected = serde_json::json!({"rule": 0, "action": "Allow", "failed": "ports: TCP 80"});
        assert_eq!(*rule, expected);
    }

    #[test]
    fn parties_are_pods_nodes_and_addresses() {
        let first = |from, to| says(from, to, "icmp").lines().next().unwrap().to_owned();
        insta::assert_snapshot!(first("a", "far/c"), @"default/a (10.1.1.3) -> far/c (10.1.2.2), ICMP type 8 code 0: ALLOWED");
        insta::assert_snapshot!(first("far/c", "192.0.2.1"), @"far/c (10.1.2.2) -> 192.0.2.1, ICMP type 8 code 0: ALLOWED");
        insta::assert_snapshot!(first("a", "node/n1"), @"default/a (10.1.1.3) -> node n1 (172.18.0.2), ICMP type 8 code 0: ALLOWED");
        insta::assert_snapshot!(first("a", "2001:db8::1"), @"default/a (fd00:1::2) -> 2001:db8::1, ICMPv6 type 128 code 0: ALLOWED");
        let six = Explain { ipv6: true, ..asked("a", "b", "tcp/80") };
        insta::assert_snapshot!(explain(&six).unwrap_err(), @"a and b have no addresses of the IPv6 family");
    }

    #[test]
    fn who_cannot_be_asked_about_is_said_why() {
        insta::assert_snapshot!(says("nobody", "b", "tcp/80"), @"Pod default/nobody is not in the manifests; expected NAMESPACE/POD, POD of the namespace default, node/NAME, svc/NAMESPACE/NAME, outside or an address");
        insta::assert_snapshot!(says("x", "b", "tcp/80"), @"Pod default/x is not valid, so it is no endpoint and nothing passes");
        insta::assert_snapshot!(says("node/n9", "b", "tcp/80"), @"there is no node n9 with an InternalIP in the manifests");
        insta::assert_snapshot!(says("b", "fd00:9::9", "tcp/80"), @"b and fd00:9::9 have no addresses of one family");
    }

    #[test]
    fn a_pod_that_is_no_endpoint_is_told_with_the_one_cause() {
        let told = |metadata: &str, spec: &str, status: &str| {
            let pod = format!(
                "---\n{{apiVersion: v1, kind: Pod, metadata: {{name: p, {metadata}}}, spec: {{{spec}}}, status: {{{status}}}}}\n"
            );
            let contents = Contents::from_texts([("o", format!("{NODES}{pod}").as_str())]);
            let assumed = manx_assume::Assumed::default();
            let completed = Completed { contents, assumed };
            let from = if metadata.contains("namespace") { "w/p" } else { "p" };
            explain_by_manifests(&asked(from, "b", "tcp/80"), &completed).unwrap_err()
        };
        insta::assert_snapshot!(told("", "", ""), @"Pod default/p is no endpoint: it has no address: status.podIPs is empty");
        insta::assert_snapshot!(told("", "", "phase: Failed, podIP: 10.1.1.9"), @"Pod default/p is no endpoint: it is finished, so its addresses are another's");
        insta::assert_snapshot!(told("", "hostNetwork: true, nodeName: n3", ""), @"Pod default/p is no endpoint: it is on the network of node n3, which has no InternalIP in the manifests");
        insta::assert_snapshot!(told("", "hostNetwork: true", ""), @"Pod default/p is no endpoint: it is on its host's network, and has no node");
    }

    #[test]
    fn a_pod_on_the_hosts_network_is_judged_as_its_node() {
        let explanation = explain(&asked("h", "b", "tcp/80")).unwrap();
        assert_eq!(explanation.story.from, "node n2 (172.18.0.3)");
        let told = explanation.to_string();
        assert!(
            told.contains("Pod default/h is on its host's network: judged as node n2"),
            "{told}"
        );
    }

    /// A dump of a cluster with another plugin: no pool, and addresses outside of all podCIDRs.
    #[test]
    fn the_verdict_is_policys_and_the_route_is_a_second_line() {
        let objects = "
{apiVersion: v1, kind: Node, metadata: {name: n1}, spec: {podCIDR: 10.1.1.0/24}, status: {addresses: [{type: InternalIP, address: 172.18.0.2}]}}
---
{apiVersion: v1, kind: Node, metadata: {name: n2}, spec: {podCIDR: 10.1.2.0/24}, status: {addresses: [{type: InternalIP, address: 172.18.0.3}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {nodeName: n1, containers: [{name: c}]}, status: {podIP: 10.1.1.2}}
---
{apiVersion: v1, kind: Pod, metadata: {name: b}, spec: {nodeName: n2, containers: [{name: c}]}, status: {podIP: 10.1.2.2}}
";
        let contents = Contents::from_texts([("o", objects)]);
        let completed = Completed { contents, assumed: manx_assume::Assumed::default() };
        let counted = Explain { routes: true, ..asked("a", "b", "tcp/80") };
        for (explain, allowed) in [(asked("a", "b", "tcp/80"), true), (counted, false)] {
            let explanation = one(&explain, &completed).unwrap();
            assert_eq!(explanation.story.allowed, allowed);
            let told = explanation.to_string();
            let second = told.lines().nth(1).unwrap();
            assert!(second.starts_with("no route: node n1 has no route to 10.1.2.2"), "{told}");
        }
    }

    #[test]
    fn what_a_cluster_would_make_of_manifests_is_judged_as_if_it_were_there() {
        let objects = "
{apiVersion: argoproj.io/v1alpha1, kind: Rollout, metadata: {name: web, namespace: s}, spec: {template: {metadata: {labels: {app: web}}, spec: {containers: [{name: c}]}}}}
---
{apiVersion: v1, kind: Service, metadata: {name: sql, namespace: s}, spec: {ports: [{port: 5432}]}}
---
{apiVersion: v1, kind: Endpoints, metadata: {name: sql, namespace: s}, subsets: [{addresses: [{ip: 198.51.100.7}], ports: [{port: 5432}]}]}
---
apiVersion: projectcalico.org/v3
kind: NetworkPolicy
metadata: {name: only-sql, namespace: s}
spec: {selector: app == 'web', egress: [{action: Allow, destination: {services: {name: sql}}}]}
---
{apiVersion: apps/v1, kind: StatefulSet, metadata: {name: db, namespace: s}, spec: {replicas: 2, template: {metadata: {labels: {app: db}}, spec: {containers: [{name: c}]}}}}
---
{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: closed, namespace: s}, spec: {podSelector: {matchLabels: {statefulset.kubernetes.io/pod-name: db-0}}}}
---
{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: hash, namespace: s}, spec: {podSelector: {matchLabels: {controller-revision-hash: db-5f6d7}}}}
";
        let completed = completed(objects);
        for (from, to, port, allowed) in [
            ("s/web-1", "198.51.100.7", "tcp/5432", true),
            ("s/web-1", "198.51.100.7", "tcp/80", false),
            ("s/web-1", "198.51.100.8", "tcp/5432", false),
            ("198.51.100.7", "s/db-0", "tcp/80", false),
            // A label that only a cluster knows has no effect here.
            ("198.51.100.7", "s/db-1", "tcp/80", true),
        ] {
            let explanation = one(&asked(from, to, port), &completed).unwrap();
            assert_eq!(explanation.story.allowed, allowed, "{from} {to} {port}: {explanation}");
        }
    }

    #[test]
    fn packets_are_protocols_and_ports_or_types_and_codes() {
        let packet =
            |text| PacketSpec::parse(text).map(|wanted| packet_of(wanted, true, 1).to_string());
        for (text, expected) in [
            ("tcp/80", "TCP from port 1 to port 80"),
            ("UDP/53", "UDP from port 1 to port 53"),
            ("sctp/9", "SCTP from port 1 to port 9"),
            ("tcp", "TCP without ports"),
            ("protocol/47", "protocol 47"),
            ("icmp", "ICMP type 8 code 0"),
            ("icmp/3", "ICMP type 3 code 0"),
            ("icmp/3/1", "ICMP type 3 code 1"),
        ] {
            assert_eq!(packet(text).as_deref(), Ok(expected));
        }
        for wrong in
            ["", "80", "tcp/", "tcp/65536", "tcp/80/1", "http", "icmp/a", "47/1", "protocol/256"]
        {
            assert!(packet(wrong).is_err(), "{wrong}");
        }
        assert_eq!(packet_of(PacketSpec::Icmp(Some((1, 4))), false, 1), Packet::icmp(58, 1, 4));
    }
}
