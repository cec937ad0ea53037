//! Finds parts of a policy that are valid but probably not what the author meant.

use ipnet::IpNet;

use super::code::Code;
use super::cursor::{Cursor, Findings};
use super::object::{LabelSelector, Peer, PolicyType, Port, PortNumber, Rule};
use super::syntax::{CIDR, cidr};
use super::tree::Value;

/// Reads a net and keeps its host bits.
pub(super) fn net(cursor: &Cursor<'_>, out: &mut Findings) -> Option<IpNet> {
    let net = cursor.parsed(out, CIDR, cidr)?;
    if net != net.trunc() {
        let one = IpNet::from(net.addr());
        let message = format!("has host bits, which are ignored: it is {}, not {one}", net.trunc());
        cursor.told(out, Code::HostBits, message);
    }
    Some(net)
}

/// Warns that a policy has no `spec`.
pub(super) fn no_spec(root: &Cursor<'_>, selects: &str, out: &mut Findings) {
    let message = format!("is empty: the policy selects {selects}, and allows no ingress to it");
    root.absent("spec").told(out, Code::EmptySpec, message);
}

/// Warns of rules in a direction that the policy's types do not contain. An absent or empty list contains every
/// direction that has rules.
pub(super) fn rules_without_type(
    spec: &Cursor<'_>,
    name: &str,
    types: Option<&[PolicyType]>,
    out: &mut Findings,
) {
    let Some(types) = types.filter(|types| !types.is_empty()) else { return };
    for (key, direction, word) in
        [("ingress", PolicyType::Ingress, "Ingress"), ("egress", PolicyType::Egress, "Egress")]
    {
        if !types.contains(&direction)
            && let Some(rules) = spec.field(key)
            && matches!(&rules.node.value, Value::Sequence(rules) if !rules.is_empty())
        {
            let message = format!(
                "has no effect, because {name} does not have {word}: {key} is not restricted"
            );
            rules.told(out, Code::RulesWithoutType, message);
        }
    }
}

/// Warns of an empty list of rules (the field `key`) in a policy without types. Such a policy covers the direction of
/// the list only if the list has rules.
pub(super) fn empty_without_type(
    spec: &Cursor<'_>,
    (name, types): (&str, Option<&[PolicyType]>),
    key: &str,
    out: &mut Findings,
) {
    if types.is_none_or(<[_]>::is_empty)
        && let Some(rules) = spec.field(key)
        && is_empty_list(&rules)
    {
        let message = format!(
            "has no effect: without {name} an empty list does not close {key}, so {key} is not restricted"
        );
        rules.told(out, Code::EmptyWithoutType, message);
    }
}

/// Warns if the list `key` of a rule is empty. An empty list is no condition: the rule matches every peer, port or
/// address. `every` is the word for it in the message. Null is not an empty list: the API server treats it as an absent
/// field, and templates often write it.
pub(super) fn empty_condition(rule: &Cursor<'_>, key: &str, every: &str, out: &mut Findings) {
    if let Some(list) = rule.field(key)
        && is_empty_list(&list)
    {
        let message = format!("is empty, which is no condition: every {every} matches");
        list.told(out, Code::EmptyCondition, message);
    }
}

fn is_empty_list(cursor: &Cursor<'_>) -> bool {
    matches!(&cursor.node.value, Value::Sequence(items) if items.is_empty())
}

/// Ports that are often opened to everyone: name resolution, web, time, and the API server.
const OF_EVERYBODY: [u16; 6] = [53, 80, 123, 443, 5353, 6443];

/// Warns if all rules of a list come in pairs: one rule with peers only, and one with ports only. There is one warning
/// for each list.
///
/// A list with a common pair causes no warning. There are two kinds of common pair. In the first, the peers are all
/// pods of the policy's own namespace. In the second, which is egress, every port is in `OF_EVERYBODY` or has a name
/// that begins with `dns`. A list with a pair whose `ports` are empty causes no warning here either.
pub(super) fn separate_rules(list: &Cursor<'_>, rules: &[Rule], egress: bool, out: &mut Findings) {
    let own = Peer::Selectors { pods: Some(LabelSelector::default()), namespaces: None };
    let is_common = |peers: &[Peer], ports: &[Port]| {
        let of_everybody = |port: &Port| match &port.port {
            Some(PortNumber::Number { port, end: None }) => OF_EVERYBODY.contains(port),
            Some(PortNumber::Name(name)) => name.starts_with("dns"),
            _ => false,
        };
        ports.is_empty()
            || peers.iter().all(|peer| *peer == own)
            || (egress && ports.iter().all(of_everybody))
    };
    let is_pair = |pair: &[Rule]| match pair {
        [Rule { peers: Some(peers), ports: None }, Rule { peers: None, ports: Some(ports) }] => {
            !is_common(peers, ports)
        }
        _ => false,
    };
    // If there are errors, `rules` may lack some rules of the list, so the pairs are not known.
    if out.errors() || !rules.chunks(2).all(is_pair) {
        return;
    }
    let Some(second) = list.item(1) else { return };
    let (all, peers) = if egress { ("to everywhere", "to") } else { ("from everywhere", "from") };
    let message = format!(
        "is a rule of its own beside the one before it: these ports are allowed {all}, and every port {peers} the peers of that rule"
    );
    second.told(out, Code::SeparateRules, message);
}

/// Warns if a list of peers has a `podSelector` followed by a `namespaceSelector` as a separate peer. There is one
/// warning for each list. `podSelector: {}` next to a `namespaceSelector` means all pods of the policy's own namespace,
/// and is common.
pub(super) fn separate_peers(list: &Cursor<'_>, peers: &[Peer], out: &mut Findings) {
    let second = peers.windows(2).position(|pair| {
        let [
            Peer::Selectors { pods: a, namespaces: b },
            Peer::Selectors { pods: c, namespaces: d },
        ] = pair
        else {
            return false;
        };
        match (a, b, c, d) {
            (Some(pods), None, None, Some(_)) | (None, Some(_), Some(pods), None) => {
                *pods != LabelSelector::default()
            }
            _ => false,
        }
    });
    // If there are errors, `peers` may lack some peers of the list, so an index in `peers` may be another one in
    // `list`.
    let Some(second) = second.filter(|_| !out.errors()).and_then(|first| list.item(first + 1))
    else {
        return;
    };
    let message = "is a peer of its own beside the one before it: every pod of the namespaces matches, and so do the selected pods of the policy's own namespace";
    second.told(out, Code::SeparatePeers, message);
}

#[cfg(test)]
mod tests {
    use super::super::object::{Object, Peer};
    use super::super::problem::Problem;
    use super::super::{State, read};

    /// Reads a policy with this spec. Returns it, and the summaries of its problems without their places.
    fn policy(spec: &str) -> (Object, Vec<String>) {
        let head = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: p}\n";
        let manifest = read("a.yaml", &format!("{head}{spec}")).unwrap();
        let State::Valid(object) = &manifest.entries[0].state else { panic!("{manifest:?}") };
        ((**object).clone(), told_of(&manifest.problems))
    }

    fn told_of(problems: &[Problem]) -> Vec<String> {
        problems.iter().map(|it| format!("{} {}", it.code(), it.field)).collect()
    }

    fn summaries(text: &str) -> Vec<String> {
        told_of(&read("a.yaml", text).unwrap().problems)
    }

    fn told(spec: &str) -> Vec<String> {
        policy(spec).1
    }

    #[test]
    fn a_policy_without_a_spec_is_told_and_one_that_says_what_it_means_is_not() {
        for spec in ["", "spec:\n", "spec: null\n"] {
            assert_eq!(told(spec), ["empty-spec spec"], "{spec}");
        }
        assert!(told("spec: {podSelector: {}, policyTypes: [Ingress]}").is_empty());
    }

    #[test]
    fn host_bits_are_kept_and_told() {
        let (object, told) = policy(
            "spec: {ingress: [{from: [{ipBlock: {cidr: 10.1.2.3/8, except: [10.1.0.0/16, 10.2.0.1/16]}}]}]}",
        );
        let block = "spec.ingress[0].from[0].ipBlock";
        assert_eq!(
            told,
            [format!("host-bits {block}.cidr"), format!("host-bits {block}.except[1]")]
        );
        let Object::NetworkPolicy(policy) = object else { panic!("a policy") };
        let rule = &policy.ingress.unwrap()[0];
        let Some([Peer::IpBlock(block)]) = rule.peers.as_deref() else { panic!("a block") };
        assert_eq!(block.cidr.to_string(), "10.1.2.3/8");
    }

    #[test]
    fn rules_of_a_direction_that_the_types_leave_out_are_told() {
        assert_eq!(
            told("spec: {policyTypes: [Ingress], egress: [{}]}"),
            ["rules-without-type spec.egress"]
        );
        assert_eq!(
            told("spec: {policyTypes: [Egress], ingress: [{}]}"),
            ["rules-without-type spec.ingress"]
        );
        for fine in [
            "policyTypes: [Ingress], egress: []",
            "policyTypes: [], egress: [{}]",
            "egress: [{}]",
            "policyTypes: [Ingress, Egress], egress: [{}]",
        ] {
            assert!(told(&format!("spec: {{{fine}}}")).is_empty(), "{fine}");
        }
    }

    #[test]
    fn an_empty_list_of_rules_that_nothing_covers_is_told() {
        assert_eq!(told("spec: {egress: []}"), ["empty-without-type spec.egress"]);
        assert_eq!(
            told("spec: {policyTypes: [], ingress: [{}], egress: []}"),
            ["empty-without-type spec.egress"]
        );
        for fine in
            ["ingress: []", "policyTypes: [Ingress, Egress], egress: []", "ingress: [], egress:"]
        {
            assert!(told(&format!("spec: {{{fine}}}")).is_empty(), "{fine}");
        }
        let calico = |spec: &str| {
            let head =
                "apiVersion: projectcalico.org/v3\nkind: NetworkPolicy\nmetadata: {name: p}\n";
            summaries(&format!("{head}spec: {{{spec}}}\n"))
        };
        assert_eq!(calico("egress: []"), ["empty-without-type spec.egress"]);
        assert_eq!(
            calico("ingress: [], egress: [{action: Allow}]"),
            ["empty-without-type spec.ingress"]
        );
        for fine in ["ingress: []", "types: [Egress], egress: []", "egress: [{action: Allow}]"] {
            assert!(calico(fine).is_empty(), "{fine}");
        }
    }

    #[test]
    fn an_empty_list_where_a_rule_seems_to_restrict_is_told() {
        for (rules, field) in [
            ("ingress: [{from: []}]", "ingress[0].from"),
            ("ingress: [{}, {from: [], ports: [{port: 80}]}]", "ingress[1].from"),
            ("egress: [{to: []}]", "egress[0].to"),
            ("ingress: [{from: [{podSelector: {}}], ports: []}]", "ingress[0].ports"),
        ] {
            let expected = format!("empty-condition spec.{field}");
            assert_eq!(told(&format!("spec: {{{rules}}}")), [expected], "{rules}");
        }
        // In these rules, the author means everything, or a template had nothing to write.
        for fine in
            ["{}", "{from: , ports: }", "{from: [{ipBlock: {cidr: 10.0.0.0/8, except: []}}]}"]
        {
            assert!(told(&format!("spec: {{ingress: [{fine}]}}")).is_empty(), "{fine}");
        }
        let calico = |rule: &str| {
            let head = "apiVersion: projectcalico.org/v3\nkind: GlobalNetworkPolicy\nmetadata: {name: p}\n";
            summaries(&format!("{head}spec: {{ingress: [{{action: Deny, {rule}}}]}}\n"))
        };
        for (rule, field) in [
            ("source: {nets: []}", "source.nets"),
            ("source: {serviceAccounts: {names: []}}", "source.serviceAccounts.names"),
            ("protocol: TCP, destination: {ports: []}", "destination.ports"),
        ] {
            let expected = format!("empty-condition spec.ingress[0].{field}");
            assert_eq!(calico(rule), [expected], "{rule}");
        }
        for fine in [
            "source: {}",
            "source: {notNets: []}",
            "source: {nets: [], selector: app == 'web'}",
            "source: {nets: [], services: {name: s, namespace: far}}",
        ] {
            assert!(calico(fine).is_empty(), "{fine}");
        }
    }

    #[test]
    fn rules_that_are_peers_and_ports_apart_are_told_and_common_ones_are_not() {
        let web = "{podSelector: {matchLabels: {app: web}}}";
        let pair = |key: &str, peer: &str, ports: &str| {
            format!("{{{key}: [{peer}]}}, {{ports: [{ports}]}}")
        };
        let of = |direction: &str, rules: &str| {
            told(&format!("spec: {{policyTypes: [Ingress, Egress], {direction}: [{rules}]}}"))
        };
        let sql = "{port: 5432}";
        let ingress = pair("from", web, sql);
        assert_eq!(of("ingress", &ingress), ["separate-rules spec.ingress[1]"]);
        assert_eq!(
            of("ingress", &format!("{ingress}, {ingress}")),
            ["separate-rules spec.ingress[1]"]
        );
        assert_eq!(of("egress", &pair("to", web, sql)), ["separate-rules spec.egress[1]"]);
        assert_eq!(
            of("ingress", &pair("from", web, "{port: 443}")),
            ["separate-rules spec.ingress[1]"]
        );
        for (direction, fine) in [
            ("ingress", pair("from", "{podSelector: {}}", sql)),
            ("ingress", format!("{ingress}, {{from: [{web}], ports: [{sql}]}}")),
            ("ingress", format!("{{ports: [{sql}]}}, {{from: [{web}]}}")),
            ("egress", pair("to", web, "{port: 53, protocol: UDP}, {port: dns-tcp}")),
            ("egress", pair("to", web, "{port: 443}")),
        ] {
            assert!(of(direction, &fine).is_empty(), "{fine}");
        }
    }

    #[test]
    fn who_asks_for_icmp_reads_what_has_it() {
        let text = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: p}\n\
                    spec: {ingress: [{ports: [{protocol: ICMP}]}]}\n";
        let problems = read("a.yaml", text).unwrap().problems;
        insta::assert_snapshot!(problems[0].finding(), @r#"spec.ingress[0].ports[0].protocol: found the string "ICMP", expected TCP, UDP or SCTP: Kubernetes' policies have no ICMP. A rule without ports allows it, with all else of its peers; for ICMP alone write Calico's NetworkPolicy (projectcalico.org/v3), where a rule may have protocol: ICMP"#);
        let tcp = read("a.yaml", &text.replace("ICMP", "tcp")).unwrap().problems;
        assert!(tcp[0].finding().ends_with("expected TCP, UDP or SCTP"), "{}", tcp[0]);
    }

    #[test]
    fn two_selectors_that_are_neighbours_are_told_once_for_each_list() {
        let pods = "{podSelector: {matchLabels: {app: web}}}";
        let namespaces = "{namespaceSelector: {matchLabels: {team: a}}}";
        let both = "{podSelector: {matchLabels: {app: web}}, namespaceSelector: {}}";
        let own = "{podSelector: {}}";
        let block = "{ipBlock: {cidr: 10.0.0.0/8}}";
        let of = |peers: &[&str]| {
            let peers = peers.join(", ");
            told(&format!("spec: {{ingress: [{{from: [{peers}]}}, {{from: [{peers}]}}]}}"))
        };
        let each = |index: usize| {
            [0, 1].map(|rule| format!("separate-peers spec.ingress[{rule}].from[{index}]"))
        };
        assert_eq!(of(&[pods, namespaces]), each(1));
        assert_eq!(of(&[namespaces, pods]), each(1));
        assert_eq!(of(&[pods, "{namespaceSelector: {}}"]), each(1));
        assert_eq!(of(&[block, namespaces, pods, namespaces]), each(2));
        for fine in
            [&[pods, pods][..], &[both, namespaces], &[own, namespaces], &[pods, block, namespaces]]
        {
            assert!(of(fine).is_empty(), "{fine:?}");
        }
    }
}
