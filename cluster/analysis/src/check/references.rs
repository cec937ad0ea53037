//! Finds names in manifests that no manifest defines. Each object is valid by itself; a missing definition is visible
//! only in all objects together.
//!
//! Selectors are not names and are not checked here. The exception is `namespaceSelector: global()` of a rule, which
//! matches network sets and host endpoints, because these are usually defined in advance.

use std::collections::{BTreeMap, BTreeSet};
use std::iter;

use manx_policy_compiler::model::NAMESPACE;
use manx_policy_compiler::model::Tier;
use manx_policy_compiler::selector::{LabelSource, Selector};

use manx_calculation::import::is_evaluated;
use manx_objects::code::Code;
use manx_objects::contents::Contents;
use manx_objects::object::calico::{EntityRule, HostEndpoint, Rule};
use manx_objects::object::{Kind, Object, ObjectKey, Pairs};
use manx_objects::problem::Cause;

use super::report::Report;

/// The namespaces that every cluster has.
const ALWAYS_THERE: [&str; 4] = ["default", "kube-system", "kube-public", "kube-node-lease"];

/// Reports every name without a definition, and the consequence. An invalid definition is reported elsewhere and counts
/// as a definition here.
pub(super) fn check<'a>(contents: &'a Contents, report: &mut Report<'a>) {
    let known = Known::new(contents);
    nodes_of_pods(contents, &known, report);
    for (key, object) in contents.all_valid() {
        let names = &mut Names { key, report };
        known.policys_namespace(key, names);
        match object {
            // A staged policy with the action Delete, Learn or Ignore is not evaluated.
            Object::CalicoPolicy(policy) if is_evaluated(policy.staged_action) => {
                if let Some(tier) = &policy.tier
                    && Tier::built_in(tier).is_none()
                    && !known.has(Kind::Tier, "", tier)
                {
                    let follows = if key.kind.staged() {
                        "enforced, it would come after every other tier, and deny what its policies do not decide"
                    } else {
                        "it comes after every other tier, and denies what its policies do not decide"
                    };
                    names.undefined(
                        "spec.tier",
                        Code::NoSuchTier,
                        &format!("tier {tier}"),
                        follows,
                    );
                }
                let namespace = key.kind.namespaced().then_some(key.namespace.as_str());
                known.rules(namespace, "spec.ingress", &policy.ingress, names);
                known.rules(namespace, "spec.egress", &policy.egress, names);
            }
            Object::Profile(profile) => {
                known.rules(None, "spec.ingress", &profile.ingress, names);
                known.rules(None, "spec.egress", &profile.egress, names);
            }
            Object::HostEndpoint(host) => known.host_endpoint(host, names),
            _ => {}
        }
    }
}

/// Reports each node that pods name and that no object defines. The report is at the first of these pods. If the input
/// contains no nodes at all, nothing is reported.
fn nodes_of_pods<'a>(contents: &'a Contents, known: &Known<'a>, report: &mut Report<'a>) {
    if !known.has_nodes() {
        return;
    }
    let mut missing: BTreeMap<&str, (&ObjectKey, usize)> = BTreeMap::new();
    for (key, stored) in contents.of_kind(Kind::Pod) {
        if let Some(Object::Pod(pod)) = stored.state.valid()
            && let Some(node) = &pod.node_name
            && !known.has(Kind::Node, "", node)
        {
            missing.entry(node).or_insert((key, 0)).1 += 1;
        }
    }
    for (node, (key, pods)) in missing {
        let follows = match pods {
            1 => "no agent attaches the pod, and nothing is routed to it".to_owned(),
            pods => format!(
                "no agent attaches this pod and {} others, and nothing is routed to them",
                pods - 1
            ),
        };
        let what = format!("node {node}");
        Names { key, report }.undefined("spec.nodeName", Code::NoSuchNode, &what, &follows);
    }
}

/// Reports the names of one object that are not defined.
struct Names<'r, 'a> {
    key: &'a ObjectKey,
    report: &'r mut Report<'a>,
}

impl Names<'_, '_> {
    fn undefined(&mut self, field: &str, code: Code, what: &str, follows: &str) {
        self.report.tell(self.key, field, code, format!("{what} is not defined: {follows}"));
    }
}

/// Everything that a name can refer to.
struct Known<'a> {
    contents: &'a Contents,
    /// The namespaces that are defined, or that contain any object except policies.
    inhabited: BTreeSet<&'a str>,
    /// The namespaces of objects whose kinds Manx does not read.
    skipped_in: BTreeSet<&'a str>,
    /// Whether the input has any object that runs or is reached: a pod or its controller, a service account, or a
    /// service. If it has none, the input is probably a folder of policies, without the objects that the rules name.
    inhabitants: bool,
    /// Namespaces and names of service accounts, including accounts that appear only in pods.
    accounts: BTreeSet<(&'a str, &'a str)>,
    /// Namespaces and names of services that have endpoints or a selector.
    services: BTreeSet<(&'a str, &'a str)>,
    /// The labels of objects without a namespace, which are global network sets and host endpoints.
    global: Vec<Inherited<'a>>,
    /// Whether an object in `global` is invalid, so that its labels are not known.
    global_in_doubt: bool,
}

/// An object's own labels, then the labels of each of its profiles.
struct Inherited<'a> {
    own: &'a Pairs,
    profiles: Vec<&'a Pairs>,
}

impl LabelSource for Inherited<'_> {
    fn label(&self, key: &str) -> Option<&str> {
        let all = iter::once(self.own).chain(self.profiles.iter().copied());
        all.filter_map(|labels| labels.get(key)).map(String::as_str).next()
    }
}

impl<'a> Known<'a> {
    fn new(contents: &'a Contents) -> Self {
        let mut known = Self {
            contents,
            inhabited: BTreeSet::new(),
            skipped_in: BTreeSet::new(),
            inhabitants: false,
            accounts: BTreeSet::new(),
            services: BTreeSet::new(),
            global: Vec::new(),
            global_in_doubt: false,
        };
        for problem in &contents.problems {
            if let Cause::UnknownKind { namespaces, .. } = &problem.cause {
                known.skipped_in.extend(namespaces.iter().map(String::as_str));
            }
        }
        let mut profiles: BTreeMap<&str, &Pairs> = BTreeMap::new();
        let mut hosts = Vec::new();
        for (key, stored) in &contents.objects {
            known.note_key(key);
            let Some(object) = stored.state.valid() else {
                known.global_in_doubt |=
                    matches!(key.kind, Kind::GlobalNetworkSet | Kind::HostEndpoint | Kind::Profile);
                continue;
            };
            match object {
                Object::Profile(profile) => {
                    profiles.insert(&key.name, &profile.labels);
                }
                Object::HostEndpoint(host) => hosts.push(host),
                _ => known.note_object(key, object),
            }
        }
        for host in hosts {
            let inherited = host.profiles.iter().filter_map(|name| profiles.get(&**name).copied());
            known.global.push(Inherited { own: &host.labels, profiles: inherited.collect() });
        }
        known
    }

    /// Records what follows from the kind and the names of an object, even if the object is invalid.
    fn note_key(&mut self, key: &'a ObjectKey) {
        if key.kind == Kind::Namespace {
            self.inhabited.insert(&key.name);
        } else if key.kind.namespaced() && !is_policy(key.kind) {
            self.inhabited.insert(&key.namespace);
        }
        self.inhabitants |= matches!(
            key.kind,
            Kind::Pod
                | Kind::Workload(_)
                | Kind::ServiceAccount
                | Kind::Service
                | Kind::EndpointSlice
        );
        if key.kind == Kind::ServiceAccount {
            self.accounts.insert((&key.namespace, &key.name));
        }
    }

    /// Records the service account, the service or the labels that a valid object defines. Profiles and host endpoints
    /// are recorded by the caller, because a host endpoint inherits the labels of its profiles.
    fn note_object(&mut self, key: &'a ObjectKey, object: &'a Object) {
        match object {
            Object::Workload(workload) => {
                let account = workload.template.service_account.as_deref();
                self.accounts.insert((&key.namespace, account.unwrap_or("default")));
            }
            Object::Pod(pod) => {
                let account = pod.service_account.as_deref().unwrap_or("default");
                self.accounts.insert((&key.namespace, account));
            }
            Object::EndpointSlice(slice) => {
                let service = slice.service.as_deref();
                self.services.extend(service.map(|service| (key.namespace.as_str(), service)));
            }
            // The endpoints of a Service either follow from its selector or are written by hand.
            Object::Service(service)
                if !service.selector.is_empty()
                    || self.contents.copied_endpoints(key, service).is_some() =>
            {
                self.services.insert((&key.namespace, &key.name));
            }
            Object::NetworkSet(set) if !key.kind.namespaced() => {
                self.global.push(Inherited { own: &set.labels, profiles: Vec::new() });
            }
            _ => {}
        }
    }

    fn has(&self, kind: Kind, namespace: &str, name: &str) -> bool {
        self.contents.objects.contains_key(&ObjectKey::new(kind, namespace, name))
    }

    fn host_endpoint(&self, host: &HostEndpoint, names: &mut Names<'_, '_>) {
        if self.has_nodes() && !self.has(Kind::Node, "", &host.node) {
            let what = format!("node {}", host.node);
            let follows = "the host endpoint belongs to no node";
            names.undefined("spec.node", Code::NoSuchNode, &what, follows);
        }
        for (index, name) in host.profiles.iter().enumerate() {
            let made = name == "projectcalico-default-allow"
                || name.starts_with("ksa.")
                || name.strip_prefix("kns.").is_some_and(|namespace| self.has_namespace(namespace));
            if !made && !self.has(Kind::Profile, "", name) {
                let field = format!("spec.profiles[{index}]");
                let what = format!("profile {name}");
                names.undefined(&field, Code::NoSuchProfile, &what, "it denies");
            }
        }
    }

    fn has_nodes(&self) -> bool {
        self.contents.of_kind(Kind::Node).next().is_some()
    }

    /// Returns whether a namespace is defined, or has an object.
    fn has_namespace(&self, name: &str) -> bool {
        let held = |key: &ObjectKey| key.kind.namespaced() && key.namespace == name;
        self.has(Kind::Namespace, "", name) || self.contents.objects.keys().any(held)
    }

    /// Reports the namespace of a policy if it is not defined and contains only policies. Input often leaves out
    /// Namespace objects; then only the namespaces of the pods are known.
    fn policys_namespace(&self, key: &ObjectKey, names: &mut Names<'_, '_>) {
        let namespace = key.namespace.as_str();
        if is_policy(key.kind)
            && key.kind.namespaced()
            && !self.inhabited.is_empty()
            && !self.inhabited.contains(namespace)
            && !self.skipped_in.contains(namespace)
            && !ALWAYS_THERE.contains(&namespace)
        {
            let what = format!("namespace {namespace}");
            let follows = "the policy selects nothing";
            names.undefined("metadata.namespace", Code::NoSuchNamespace, &what, follows);
        }
    }

    fn rules(
        &self,
        namespace: Option<&str>,
        path: &str,
        rules: &[Rule],
        names: &mut Names<'_, '_>,
    ) {
        for (index, rule) in rules.iter().enumerate() {
            for (side, entity) in [("source", &rule.source), ("destination", &rule.destination)] {
                self.entity(namespace, &format!("{path}[{index}].{side}"), entity, names);
            }
        }
    }

    fn entity(
        &self,
        namespace: Option<&str>,
        path: &str,
        entity: &EntityRule,
        names: &mut Names<'_, '_>,
    ) {
        if self.inhabitants {
            self.services_and_accounts(namespace, path, entity, names);
        }
        self.global_entity(path, entity, names);
    }

    fn services_and_accounts(
        &self,
        namespace: Option<&str>,
        path: &str,
        entity: &EntityRule,
        names: &mut Names<'_, '_>,
    ) {
        if let Some(service) = &entity.service {
            let of = service.namespace.as_deref().or(namespace).unwrap_or_default();
            if !self.services.contains(&(of, service.name.as_str())) {
                let what = if self.has(Kind::Service, of, &service.name) {
                    format!("an EndpointSlice of service {of}/{}", service.name)
                } else {
                    format!("service {of}/{}", service.name)
                };
                let field = format!("{path}.services");
                names.undefined(&field, Code::NoSuchService, &what, "it matches nothing");
            }
        }
        let accounts = entity.service_accounts.iter().flat_map(|accounts| &accounts.names);
        for (index, name) in accounts.enumerate() {
            // A `namespaceSelector` may match any namespace, so the account may be in any namespace.
            let own = namespace.filter(|_| entity.namespace_selector.is_none());
            let defined = match own {
                Some(own) => name == "default" || self.accounts.contains(&(own, name.as_str())),
                None => name == "default" || self.accounts.iter().any(|(_, other)| other == name),
            };
            if !defined {
                let what = match own {
                    Some(own) => format!("service account {own}/{name}"),
                    None => format!("service account {name}, in any namespace,"),
                };
                let field = format!("{path}.serviceAccounts.names[{index}]");
                names.undefined(&field, Code::NoSuchServiceAccount, &what, "it matches nothing");
            }
        }
    }

    fn global_entity(&self, path: &str, entity: &EntityRule, names: &mut Names<'_, '_>) {
        let namespaces = entity.namespace_selector.as_deref().map(Selector::parse_namespace);
        if self.global_in_doubt || namespaces != Some(Ok(Selector::not_has(NAMESPACE))) {
            return;
        }
        let selector = Selector::parse(entity.selector.as_deref().unwrap_or_default());
        if let Ok(selector) = selector
            && !self.global.iter().any(|labels| selector.matches(labels))
        {
            let what = "a global network set or host endpoint that this selects";
            let field = format!("{path}.namespaceSelector");
            names.undefined(&field, Code::NoSuchNetworkSet, what, "it matches nothing");
        }
    }
}

fn is_policy(kind: Kind) -> bool {
    kind.enforced_policy() || kind.staged()
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use crate::check::report::Report;
    use manx_objects::contents::Contents;

    /// Returns the warnings of manifests without other problems, one per line.
    fn warnings(text: &str) -> String {
        let contents = Contents::from_texts([("all.yaml", text)]);
        assert!(contents.problems.is_empty(), "{:#?}", contents.problems);
        let mut lines = String::new();
        let mut report = Report::new(&contents);
        super::check(&contents, &mut report);
        for problem in report.finish() {
            writeln!(lines, "{}", problem.summary()).unwrap();
        }
        lines
    }

    const POLICY: &str = "
apiVersion: projectcalico.org/v3
kind: NetworkPolicy
metadata: {name: p, namespace: shop}
spec:
  tier: security
  ingress:
  - {action: Allow, source: {serviceAccounts: {names: [web, default]}}}
  - {action: Allow, source: {namespaceSelector: all(), serviceAccounts: {names: [db]}}}
  - {action: Deny, source: {namespaceSelector: global(), selector: bad == 'yes'}}
  egress:
  - {action: Allow, destination: {services: {name: dns, namespace: kube-system}}}
  - {action: Allow, destination: {services: {name: cache}}}
---
apiVersion: v1
kind: Service
metadata: {name: cache, namespace: shop}
---
apiVersion: projectcalico.org/v3
kind: HostEndpoint
metadata: {name: h}
spec: {node: n1, interfaceName: '*', profiles: [open, projectcalico-default-allow, kns.shop, kns.none, ksa.shop.web]}
";

    #[test]
    fn what_nobody_defines_is_told_with_what_follows() {
        insta::assert_snapshot!(warnings(POLICY));
    }

    #[test]
    fn a_staged_policys_tier_is_told_if_the_policy_would_be_set() {
        let of = |kind: &str, action: &str| {
            let global = kind.contains("Global");
            let namespace = if global { "" } else { ", namespace: shop" };
            warnings(&format!(
                "apiVersion: projectcalico.org/v3\nkind: {kind}\nmetadata: {{name: p{namespace}}}\n\
                 spec: {{tier: ghost{action}}}\n"
            ))
        };
        for kind in ["StagedGlobalNetworkPolicy", "StagedNetworkPolicy"] {
            for action in ["Delete", "Learn", "Ignore"] {
                assert_eq!(of(kind, &format!(", stagedAction: {action}")), "", "{kind} {action}");
            }
            for action in ["", ", stagedAction: Set"] {
                let told = of(kind, action);
                assert!(told.contains("enforced, it would come after"), "{kind} {action}: {told}");
            }
        }
        assert!(of("GlobalNetworkPolicy", "").contains("it comes after every other tier"));
    }

    #[test]
    fn of_very_many_names_that_nobody_defines_the_first_are_told_and_the_others_counted() {
        let profiles: Vec<String> = (0..250).map(|n| format!("p{n}")).collect();
        let profiles = profiles.join(", ");
        let host = format!(
            "apiVersion: projectcalico.org/v3\nkind: HostEndpoint\nmetadata: {{name: h}}\n\
             spec: {{node: n1, interfaceName: '*', profiles: [{profiles}]}}\n"
        );
        let told = warnings(&host);
        assert_eq!(told.lines().count(), 101);
        insta::assert_snapshot!(told.lines().last().unwrap(), @"all.yaml:1:1: HostEndpoint h: 150 further problems of this object are not shown: correct those above first");
    }

    #[test]
    fn what_is_defined_is_not_told() {
        let rest = "
---
{apiVersion: projectcalico.org/v3, kind: Tier, metadata: {name: security}}
---
{apiVersion: v1, kind: ServiceAccount, metadata: {name: web, namespace: shop}}
---
{apiVersion: v1, kind: Pod, metadata: {name: db-0, namespace: far}, spec: {serviceAccountName: db}}
---
{apiVersion: projectcalico.org/v3, kind: GlobalNetworkSet, metadata: {name: bad, labels: {bad: 'yes'}}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: d, namespace: kube-system, labels: {kubernetes.io/service-name: dns}}, addressType: IPv4, endpoints: []}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: c, namespace: shop, labels: {kubernetes.io/service-name: cache}}, addressType: IPv4, endpoints: []}
---
{apiVersion: projectcalico.org/v3, kind: Profile, metadata: {name: open}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: none}}
---
{apiVersion: v1, kind: Node, metadata: {name: n1}}
";
        assert_eq!(warnings(&format!("{POLICY}{rest}")), "");
        let elsewhere =
            rest.replace("kind: Node, metadata: {name: n1}", "kind: Node, metadata: {name: n2}");
        assert!(warnings(&format!("{POLICY}{elsewhere}")).contains("node n1"));
    }
}
