//! What is valid in one policy, and probably not meant.

use ipnet::IpNet;

use super::code::Code;
use super::cursor::{Cursor, Findings};
use super::object::{LabelSelector, Peer, PolicyType};
use super::syntax::{CIDR, cidr};
use super::tree::Value;

/// Reads a net, which keeps its host bits.
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

/// Warns of rules of a direction that `types`, the field `name`, does not contain. An absent or empty list contains
/// every direction that has rules.
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

/// Warns of a `podSelector` and a `namespaceSelector` that are neighbours in a list of peers, once for each list.
/// `podSelector: {}` beside a `namespaceSelector` is all pods of the policy's own namespace, and common.
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
    // Peers that are not valid are not in `peers`.
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
    use super::super::{State, read};

    /// The policy of a spec, and its problems' summaries without their places.
    fn policy(spec: &str) -> (Object, Vec<String>) {
        let head = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: p}\n";
        let manifest = read("a.yaml", &format!("{head}{spec}")).unwrap();
        let State::Valid(object) = &manifest.entries[0].state else { panic!("{manifest:?}") };
        let told = manifest.problems.iter().map(|it| format!("{} {}", it.code(), it.field));
        ((**object).clone(), told.collect())
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
