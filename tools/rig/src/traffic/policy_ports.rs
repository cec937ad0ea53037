//! The ports that policies name, at the probers that their rules can concern. They are probed even
//! if nothing listens there. For a range, the first and the last port are probed; for a named port,
//! the number that the pod gives it.
//!
//! This only chooses the probes, so it reads policies as agents do. The expected results come from the oracle.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use manx_calculation::import;
use manx_objects::contents::Contents;
use manx_policy_compiler::model::{
    Endpoint, Entity, LabelView, Model, ObjectName, Policy, PortMatch, Protocol, Rule,
};

use crate::plan::Plan;
use crate::plan::addresses::Addresses;
use crate::plan::port::Port;
use crate::plan::prober::Prober;

/// The most ports that are probed at one prober only because policies name them.
pub(crate) const MOST: usize = 8;

/// The ports that policies name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct PolicyPorts {
    /// The ports that are probed at each prober.
    pub probed: BTreeMap<Prober, BTreeSet<Port>>,
    /// The number of ports that are left out at all probers together.
    pub left_out: usize,
}

impl PolicyPorts {
    /// Finds the ports. Ports on which a prober listens are probed in any case and do not count. A pod on its host's
    /// network has the ports of its node.
    pub(crate) fn find(contents: &Contents, plan: &Plan, addresses: &Addresses) -> Self {
        let model = import::import(contents).model;
        let mut found = Self::default();
        for (prober, addresses) in addresses.iter().filter(|(it, _)| plan.acting(it) == **it) {
            let target = Target::of(&model, prober, addresses);
            let mut ports = BTreeSet::new();
            for (_, policy) in &model.policies {
                let selects = target.is_selected(policy);
                for rule in policy.ingress.iter().flatten().filter(|_| selects) {
                    target.collect(rule, &mut ports);
                }
                for rule in policy.egress.iter().flatten() {
                    target.collect(rule, &mut ports);
                }
            }
            let known = plan.listening_there(prober);
            let more = ports.difference(&known).filter(|port| port.number != 0);
            let (probed, rest): (Vec<_>, Vec<_>) = more.enumerate().partition(|(at, _)| *at < MOST);
            found.left_out += rest.len();
            found
                .probed
                .insert(prober.clone(), probed.into_iter().map(|(_, port)| *port).collect());
        }
        found
    }

    /// A note about the ports that are left out.
    pub(crate) fn note(&self) -> Option<String> {
        let left_out = self.left_out;
        (left_out > 0).then(|| {
            format!(
                "{left_out} ports that policies name are not probed: of each pod, node and the outside host the first \
                 {MOST} are; name the others in rig.yaml (ports)"
            )
        })
    }
}

/// A prober as policy sees it.
struct Target<'m> {
    addresses: &'m [IpAddr],
    pod: Option<&'m Endpoint>,
    views: Vec<LabelView<'m>>,
}

impl<'m> Target<'m> {
    fn of(model: &'m Model, prober: &Prober, addresses: &'m [IpAddr]) -> Self {
        let mut target = Self { addresses, pod: None, views: Vec::new() };
        match prober {
            Prober::Pod(pod) => {
                let name = ObjectName::new(&pod.namespace, &pod.name);
                if let Some((name, endpoint)) = model.endpoints.get_key_value(&name) {
                    target.pod = Some(endpoint);
                    target.views.push(model.pod_view(name, endpoint));
                }
            }
            Prober::Node(node) => {
                let hosts = model.host_endpoints.values().filter(|host| host.node == *node);
                target.views.extend(hosts.map(|host| Model::host_view(host)));
            }
            Prober::Outside => {}
        }
        target
    }

    fn is_selected(&self, policy: &Policy) -> bool {
        self.views.iter().any(|view| policy.selector.matches(view))
    }

    /// Adds the ports of a rule that can concern packets to the target.
    fn collect(&self, rule: &Rule, ports: &mut BTreeSet<Port>) {
        let end = &rule.destination;
        let concerned =
            end.entities.as_ref().is_none_or(|any| any.iter().any(|entity| self.fits(entity)));
        // Ports without a protocol are for any protocol; TCP is probed.
        let protocol = rule.protocol.map_or(Some(Protocol::Tcp), Protocol::from_number);
        let Some(protocol) = protocol.filter(|_| concerned) else { return };
        for port in end.ports.iter().chain(&end.not_ports) {
            match port {
                PortMatch::Range { first, last } => {
                    ports.extend([*first, *last].map(|number| Port { protocol, number }));
                }
                PortMatch::Named(name) => {
                    let named = self.pod.into_iter().flat_map(|pod| &pod.named_ports);
                    let named = named.filter(|port| {
                        port.name == *name
                            && rule.protocol.is_none_or(|it| it == port.protocol.number())
                    });
                    ports.extend(named.map(|it| Port { protocol: it.protocol, number: it.port }));
                }
            }
        }
    }

    /// Whether an entity can have one of the addresses. Endpoints of services are not looked up.
    fn fits(&self, entity: &Entity) -> bool {
        let within = |address: &IpAddr| {
            (entity.nets.is_empty() || entity.nets.iter().any(|net| net.contains(address)))
                && !entity.not_nets.iter().any(|net| net.contains(address))
        };
        let selected = entity
            .selector
            .as_ref()
            .is_none_or(|selector| self.views.iter().any(|view| selector.matches(view)));
        let excluded = entity
            .not_selector
            .as_ref()
            .is_some_and(|selector| self.views.iter().any(|view| selector.matches(view)));
        selected && !excluded && self.addresses.iter().any(within)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::settings::Settings;

    const OBJECTS: &str = "
{apiVersion: v1, kind: Node, metadata: {name: n1}, spec: {podCIDR: 10.1.1.0/24}, status: {addresses: [{type: InternalIP, address: 172.18.0.2}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: web, labels: {app: web}}, spec: {nodeName: n1, containers: [{name: c, ports: [{name: http, containerPort: 8080}]}]}, status: {podIPs: [{ip: 10.1.1.3}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: db, labels: {app: db}}, spec: {nodeName: n1, containers: [{name: c}]}, status: {podIPs: [{ip: 10.1.1.4}]}}
";

    /// The ports found at `web`, `db`, the node and outside, with these policies.
    fn found(policies: &str) -> (Vec<String>, usize) {
        let contents = Contents::from_texts([("objects", OBJECTS), ("policies", policies)]);
        assert_eq!(contents.problems, []);
        let party = |name: &str, address: &str| {
            (Prober::from(name.to_owned()), vec![address.parse().unwrap()])
        };
        let addresses = [
            party("web", "10.1.1.3"),
            party("db", "10.1.1.4"),
            party("node/n1", "172.18.0.2"),
            party("outside", "172.18.0.254"),
        ];
        let plan = Plan::make(&contents, &Settings::default()).unwrap();
        let found = PolicyPorts::find(&contents, &plan, &addresses.into());
        let shown =
            found.probed.iter().filter(|(_, ports)| !ports.is_empty()).map(|(it, ports)| {
                let ports: Vec<String> = ports.iter().map(ToString::to_string).collect();
                format!("{it}: {}", ports.join(", "))
            });
        (shown.collect(), found.left_out)
    }

    #[test]
    fn numbers_ranges_and_names_are_found_at_the_pods_that_a_policy_selects() {
        let (ports, _) = found(
            "
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: p}
spec:
  podSelector: {matchLabels: {app: web}}
  ingress: [{ports: [{port: 80}, {port: http}, {protocol: UDP, port: 1000, endPort: 2000}]}]
",
        );
        assert_eq!(ports, ["default/web: TCP 80, UDP 1000, UDP 2000"]);
    }

    #[test]
    fn ports_of_egress_are_found_at_the_rules_destinations() {
        let (ports, _) = found(
            "
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: p}
spec:
  podSelector: {matchLabels: {app: web}}
  policyTypes: [Egress]
  egress:
  - {to: [{podSelector: {matchLabels: {app: db}}}], ports: [{port: 5432}]}
  - {to: [{ipBlock: {cidr: 172.18.0.0/24, except: [172.18.0.2/32]}}], ports: [{port: 443}]}
  - {ports: [{protocol: UDP, port: 53}]}
",
        );
        let expected = [
            "default/db: TCP 5432, UDP 53",
            "default/web: UDP 53",
            "node/n1: UDP 53",
            "outside: TCP 443, UDP 53",
        ];
        assert_eq!(ports, expected);
    }

    #[test]
    fn every_api_names_ports() {
        let (ports, _) = found(
            "
apiVersion: projectcalico.org/v3
kind: GlobalNetworkPolicy
metadata: {name: g}
spec:
  selector: app == 'web'
  ingress: [{action: Deny, protocol: SCTP, destination: {ports: [7, '10:20'], notPorts: [15]}}]
---
apiVersion: policy.networking.k8s.io/v1alpha1
kind: AdminNetworkPolicy
metadata: {name: a}
spec:
  priority: 1
  subject: {namespaces: {}}
  ingress:
  - {name: r, action: Deny, from: [{namespaces: {}}], ports: [{portRange: {protocol: TCP, start: 70, end: 79}}]}
---
apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {name: c}
spec:
  tier: Admin
  priority: 1
  subject: {pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: db}}}}
  ingress:
  - {name: r, action: Deny, from: [{namespaces: {}}], protocols: [{tcp: {destinationPort: {number: 99}}}]}
",
        );
        let expected = [
            "default/db: TCP 70, TCP 79, TCP 99",
            "default/web: TCP 70, TCP 79, SCTP 7, SCTP 10, SCTP 15, SCTP 20",
        ];
        assert_eq!(ports, expected);
    }

    #[test]
    fn what_is_beyond_the_bound_is_counted() {
        let ports: Vec<String> = (1..=10).map(|port| format!("{{port: {port}}}")).collect();
        let (found, left_out) = found(&format!(
            "
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {{name: p}}
spec: {{podSelector: {{matchLabels: {{app: web}}}}, ingress: [{{ports: [{}]}}]}}
",
            ports.join(", ")
        ));
        assert_eq!(left_out, 10 - MOST);
        assert_eq!(found.len(), 1);
        assert!(found[0].ends_with("TCP 8"), "{found:?}");
    }
}
