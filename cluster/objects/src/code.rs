//! The code of every problem: its name, severity, meaning, and advice.
//!
//! A name is stable: programs filter by it, and `docs/check.md` has a section with an example for
//! each.

use std::fmt;

use super::severity::Severity::{self, Error, Note, Warning};

/// Defines [`Code`] from one table. A code's meaning is also its documentation.
macro_rules! codes {
    ($($code:ident $name:literal $severity:ident $meaning:literal $help:expr;)+) => {
        /// The kind of a problem.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Code {
            $(#[doc = $meaning] $code,)+
        }

        impl Code {
            /// All codes, in the order of their numbers.
            pub const ALL: &[Self] = &[$(Self::$code),+];

            const fn row(self) -> Row {
                match self {
                    $(Self::$code => Row { name: $name, severity: $severity, meaning: $meaning, help: $help },)+
                }
            }
        }
    };
}

/// A row of the table.
struct Row {
    name: &'static str,
    severity: Severity,
    meaning: &'static str,
    help: Option<&'static str>,
}

impl Code {
    /// Returns the name in messages, in JSON and in SARIF.
    pub const fn name(self) -> &'static str {
        self.row().name
    }

    /// Returns the severity of every problem with this code.
    pub const fn severity(self) -> Severity {
        self.row().severity
    }

    /// Returns the meaning of the code, in one sentence.
    pub const fn meaning(self) -> &'static str {
        self.row().meaning
    }

    /// Advice on how to write what was meant. `None` if the problem's message already says what was
    /// expected.
    pub const fn help(self) -> Option<&'static str> {
        self.row().help
    }

    /// Returns the code with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|code| code.name() == name)
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

const CONTENT_UNKNOWN: Option<&str> = Some(
    "its content is not known: an agent that starts now passes nothing, and a running agent keeps what it read before",
);

codes! {
    // Files.
    Unreadable "unreadable-file" Error
        "A file or directory cannot be read." CONTENT_UNKNOWN;
    NoManifest "no-manifest" Error
        "A directory contains no manifest."
        Some("name the files or the directory that hold the manifests");
    SkippedFolder "skipped-folder" Warning
        "A directory has subdirectories with manifests, which are not entered."
        Some("say --recursive (-R) to read them, too; if they are not meant, name the files");
    NoObject "no-object" Error
        "Nothing that was named contains an object that Manx reads."
        Some("name the files or the directory that hold the manifests; if kubectl wrote them, it found nothing: check its namespace (-n, or -A for all) and the kinds");
    EmptyList "empty-list" Warning
        "A list has no items."
        Some("kubectl found nothing: check its namespace (-n, or -A for all) and the kind; if there is nothing, remove the file");
    EmptiedFile "emptied-file" Error
        "A file that a running agent reads held objects and holds none any more; they stay in force." None;
    ShrunkFile "shrunk-file" Error
        "A file that a running agent reads has less content than before, and may be half written." None;
    NotYaml "not-yaml" Error
        "A file is neither YAML nor JSON, or exceeds a limit." CONTENT_UNKNOWN;
    UnrenderedTemplate "unrendered-template" Error
        "A file is a template of Helm, not a manifest."
        Some("run `helm template RELEASE CHART | manx policy check -`, which checks what Helm makes of it");
    NotAnObject "not-an-object" Error
        "A document of a file that was named is no Kubernetes object."
        Some("every object has apiVersion, kind and metadata: name only files that hold objects");
    SkippedDocument "skipped-document" Warning
        "A document in a directory is no Kubernetes object, and is skipped."
        Some("if it is meant to be an object, it needs apiVersion, kind and metadata; if not, keep it elsewhere");
    FurtherErrors "further-errors" Error
        "An object or a file has more errors than are shown." None;
    FurtherWarnings "further-warnings" Warning
        "An object or a file has more warnings than are shown." None;
    NotAllChecked "not-all-checked" Note
        "The input is too large to compare everything with everything: problems may be missing."
        Some("check parts of the input, each with the pods and namespaces that its policies are about");

    // Invalid objects.
    DuplicateKey "duplicate-key" Error
        "A mapping has a key twice." None;
    NotJsonTypes "not-json-types" Error
        "A document has keys, tags or merges that JSON's types do not allow." None;
    UnexpectedValue "unexpected-value" Error
        "A field has a value that it may not have." None;
    BadSelector "bad-selector" Error
        "A selector does not parse." None;
    MissingField "missing-field" Error
        "A required field is missing." None;
    ConflictingFields "conflicting-fields" Error
        "Fields exclude each other." None;
    UnknownField "unknown-field" Error
        "A policy has a field that its kind does not have, and that may have been meant to restrict it." None;
    UnsupportedPolicy "unsupported-policy" Error
        "An object is a policy of a kind that Manx does not read: it is not enforced."
        Some("it has no effect: write it as a kind that Manx reads");
    DuplicateObject "duplicate-object" Error
        "An object is defined twice, differently." None;
    RestsOnInvalid "rests-on-invalid" Error
        "A policy or profile needs another object that is not valid." Some("correct the other object first");
    OverlappingPools "overlapping-pools" Error
        "Two pools have addresses in common." None;
    PoolHoldsNodes "pool-holds-nodes" Error
        "A pool of pod addresses holds addresses of nodes."
        Some("give the pool addresses that no host has");
    OverlappingPodCidrs "overlapping-pod-cidrs" Error
        "Pod CIDRs of two nodes have addresses in common."
        Some("give each node podCIDRs of its own");

    // Settings without effect.
    IgnoredField "ignored-field" Warning
        "An object has a field that its kind does not have; it is ignored."
        Some("correct its spelling or its place, or remove it; if a later version of the API has it, what it promises is not done");
    IgnoredAnnotation "ignored-annotation" Warning
        "An annotation has a value that it may not have; it is ignored."
        Some("remove it, or correct it");
    UnknownKind "unknown-kind" Warning
        "Objects of a file are of a kind that Manx does not read, and that is not one of Kubernetes' own." None;
    KindOfAnotherProject "kind-of-another-project" Note
        "Objects of a file are of another project's kind, which Manx does not read." None;
    RepeatedObject "repeated-object" Warning
        "An object is defined twice, with the same content." Some("keep one of them");
    UnsupportedRule "unsupported-rule" Warning
        "A rule has a condition that Manx cannot decide, and fails closed."
        Some("write the rule with pods, namespaces, nets and ports only");
    HostPolicyNotEnforced "host-policy-not-enforced" Warning
        "A host endpoint's policies are enforced for forwarded traffic only." None;
    ProtectionNotDone "protection-not-done" Warning
        "A setting promises protection that Manx does not give." None;
    NoVxlanOfIpv6 "no-vxlan-of-ipv6" Warning
        "A pool asks for VXLAN between IPv6 addresses, which Manx does not do."
        Some("say vxlanMode: Never, if the nodes' network routes IPv6 itself");
    SettingWithoutEffect "setting-without-effect" Warning
        "A setting of one of Calico's kinds, or an annotation, has no effect." None;
    UnusedConfiguration "unused-configuration" Warning
        "No node obeys a FelixConfiguration of this name." Some("name it default, or node.NAME");
    PortWithoutNumber "port-without-number" Warning
        "A port of an EndpointSlice has no number, and is no port." Some("give it a number");

    // Names that no object defines.
    NoSuchNamespace "no-such-namespace" Warning
        "A policy is in a namespace that no object defines: it selects nothing."
        Some("correct metadata.namespace, or add the Namespace");
    NoSuchNode "no-such-node" Warning
        "An object names a node that no object defines."
        Some("correct the node's name, or add the Node");
    NoSuchTier "no-such-tier" Warning
        "A policy is in a tier that no object defines."
        Some("correct spec.tier, or add the Tier");
    NoSuchProfile "no-such-profile" Warning
        "A host endpoint names a profile that no object defines: it denies."
        Some("correct the profile's name, or add the Profile");
    NoSuchService "no-such-service" Warning
        "A rule names a service without endpoints in the input: it matches nothing."
        Some("correct the service's name and namespace, or add the Service with its EndpointSlices");
    NoSuchServiceAccount "no-such-service-account" Warning
        "A rule names a service account that no object defines and no pod has: it matches nothing."
        Some("correct the account's name, or add the ServiceAccount");
    NoSuchNetworkSet "no-such-network-set" Warning
        "A rule selects global network sets or host endpoints, and there is none: it matches nothing."
        Some("correct the selector, or add the set with its labels");
    NoSuchPort "no-such-port" Warning
        "A rule names a port that no container has where the rule looks: it matches nothing."
        Some("give the container's port this name, or say its number");

    // Policies that probably do not do what their author meant.
    SelectorMatchesNothing "selector-matches-nothing" Warning
        "A selector matches no pod, host endpoint or network set of the input."
        Some("correct the selector, or the labels of what it is meant for; labels of namespaces are known only if the input has the Namespaces");
    SelectorMayMatchSkipped "selector-may-match-skipped" Note
        "A selector matches nothing of the input, but objects that are skipped may make pods that it matches."
        Some("if an operator makes these pods, add them to the input (kubectl get pods -o yaml) to be certain; if not, correct the selector");
    OnlyHostNetwork "only-host-network" Warning
        "A selector matches only pods on their nodes' network, which no policy and no rule means."
        Some("policy knows these pods by their nodes' addresses only; if they are meant to be out of its reach, say --allow only-host-network");
    NodesMatchNothing "nodes-match-nothing" Warning
        "A `nodes` peer of a cluster-wide policy fits no Node of the input: it matches nothing."
        Some("correct the labels, or add the Node with its labels and its InternalIP");
    OwnSideMatchesNothing "own-side-matches-nothing" Warning
        "The own side of a rule of Calico fits no endpoint that the policy selects: the rule matches nothing."
        Some("in an ingress rule the peer is the source, and in an egress rule the destination: move the condition there, or remove it");
    ServiceAddress "service-address" Warning
        "A net holds addresses of Services only, and policy sees the addresses behind a Service."
        Some("select the pods behind the Service, or say the addresses of its endpoints; a rule of Calico may name the Service (services)");
    ServicePort "service-port" Warning
        "A rule names a port that only a Service has, and policy sees the port of the pod."
        Some("say the port of the pod (the Service's targetPort), as a number or by its name");
    SharedAddress "shared-address" Warning
        "Two pods have one address."
        Some("give each pod an address of its own, or remove the pod that is gone");
    EmptySelector "empty-selector" Warning
        "A rule of Calico has an empty selector, which there is no condition."
        Some("remove it; to match every endpoint, say all()");
    EmptyCondition "empty-condition" Warning
        "A rule has an empty list, which is no condition."
        Some("fill the list; if everything is meant, leave the field out");
    HostBits "host-bits" Warning
        "A net has bits beyond its mask; they are ignored."
        Some("say the net without these bits, or one address as /32 (/128)");
    EmptySpec "empty-spec" Warning
        "A policy has no spec: it selects everything, and allows nothing to it."
        Some("if this is meant, say so: an empty selector and the types, with no rules");
    PassSkipsPolicies "pass-skips-policies" Warning
        "A Pass in Calico's tier default skips Kubernetes' policies, which are in the same tier."
        Some("to let Kubernetes' policies decide, put the policy into a tier of its own with an order below 1000000; to allow, say Allow");
    OnlyDenies "only-denies" Warning
        "A policy of Calico only denies or logs, and closes everything else, because the end of its tier denies."
        Some("add a last rule: Pass lets the next tier decide (after the last tier everything is allowed), Allow ends the search; if everything is to be denied, add a last rule that says so: Deny");
    AllowSkipsPolicies "allow-skips-policies" Warning
        "An Allow in Calico's tier default opens most ports to everyone before Kubernetes' policies, which deny some of it, are asked."
        Some("to deny some packets and leave the others to Kubernetes' policies, put the policy into a tier of its own with an order below 1000000, and say Pass; if everything is meant to be open, say --allow allow-skips-policies");
    UnreachableRule "unreachable-rule" Warning
        "No packet reaches a rule of an ordered policy: what it matches is taken before."
        Some("put the rule before what takes it, narrow what takes it, or remove the rule; a tier goes on to the next one only by Pass");
    ConflictingPriority "conflicting-priority" Warning
        "Two cluster-wide policies of one priority decide the same packets differently."
        Some("give them different priorities: the lower number decides first");
    SeparatePeers "separate-peers" Warning
        "A podSelector and a namespaceSelector are two peers, of which one is enough."
        Some("if both must hold, write them as one item: remove the second dash; if either is enough, say --allow separate-peers");
    SeparateRules "separate-rules" Warning
        "A rule that has only peers stands before a rule that has only ports; each of them allows by itself."
        Some("if both must hold, write them as one rule: remove the second dash; if either is enough, say --allow separate-rules");
    RulesWithoutType "rules-without-type" Warning
        "A policy has rules of a direction that its policyTypes (Calico: types) do not name: they have no effect."
        Some("add the direction to policyTypes (Calico: types), or remove the rules");
    EmptyWithoutType "empty-without-type" Warning
        "A policy has an empty list of rules and no policyTypes (Calico: types): the list has no effect."
        Some("to close the direction, add policyTypes (Calico: types) with it; if not, remove the list");
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_words_and_distinct_and_meanings_are_one_sentence() {
        let names: BTreeSet<&str> = Code::ALL.iter().map(|code| code.name()).collect();
        assert_eq!(names.len(), Code::ALL.len());
        for code in Code::ALL {
            let word = |word: &str| {
                !word.is_empty()
                    && word.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
            };
            assert!(code.name().split('-').all(word), "{code}");
            assert!(code.meaning().ends_with('.'), "{code}");
            assert!(code.help().is_none_or(|help| !help.ends_with('.')), "{code}");
            assert_eq!(Code::from_name(code.name()), Some(*code));
        }
    }
}
