//! Finds the members that a selector matches. Each selector is evaluated once, and only for the members that have a
//! label which the selector requires.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;

use manx_objects::object::{Controller, Kind, ObjectKey, Pairs, Workload};
use manx_policy_compiler::model::{
    Direction, Entity, KUBERNETES, Labels, NAMESPACE, NAMESPACE_PREFIX, ORCHESTRATOR, Policy, Rule,
    SERVICE_ACCOUNT, SERVICE_ACCOUNT_PREFIX,
};
use manx_policy_compiler::selector::{LabelSource as _, Selector};

use super::fields::Side;
use super::scene::{Member, Role};

/// The maximum number of members that one check may examine. A member counts each time it is examined.
const MOST_LOOKS: usize = 3_000_000;

/// The label whose value is the name of a namespace.
const NAME: &str = "projectcalico.org/name";

/// The kind of workloads that stand for objects of kinds that Manx does not read. Their pods may have labels that are
/// not in the template.
const OTHER: Kind = Kind::Workload(Controller::Other);

/// See the module. Each check may examine at most [`MOST_LOOKS`] members. A lookup that would exceed this bound returns
/// `None`.
pub(super) struct Selected<'m> {
    pub(super) members: &'m [Member<'m>],
    /// An index of the members by labels, made at first use.
    index: OnceCell<Index<'m>>,
    /// One or two workloads of each kind: one that numbers its pods, and one that does not. They show which labels the
    /// kind's controller gives to pods.
    workloads: Vec<(&'m ObjectKey, &'m Workload)>,
    found: HashMap<Selector, Rc<[usize]>>,
    left: usize,
    /// Whether a lookup exceeded the bound.
    incomplete: bool,
}

impl<'m> Selected<'m> {
    pub(super) fn new(members: &'m [Member<'m>]) -> Self {
        let workloads = members.iter().filter_map(|member| member.workload);
        // For each kind, one workload that numbers its pods and one that does not.
        let workloads: HashMap<_, _> = workloads
            .filter(|(key, _)| key.kind != OTHER)
            .map(|it| ((it.0.kind, it.1.numbers.is_some()), it))
            .collect();
        let workloads = workloads.into_values().collect();
        Self {
            members,
            index: OnceCell::new(),
            workloads,
            found: HashMap::new(),
            left: MOST_LOOKS,
            incomplete: false,
        }
    }

    /// Begins a check. Each check has its own bound.
    pub(super) fn begin(&mut self) {
        self.left = MOST_LOOKS;
        self.incomplete = false;
    }

    /// Returns whether the check is incomplete because of the bound.
    pub(super) fn is_incomplete(&self) -> bool {
        self.incomplete
    }

    /// Records that the check is incomplete.
    pub(super) fn leave_out(&mut self) {
        self.incomplete = true;
    }

    /// Returns whether the input has any endpoint of policy.
    pub(super) fn has_endpoints(&self) -> bool {
        self.members.iter().any(|member| member.role == Role::Endpoint)
    }

    /// Counts members before the check examines them. Returns `None` if the bound would be exceeded; the caller must
    /// then not examine them.
    pub(super) fn spend(&mut self, looks: usize) -> Option<()> {
        let left = self.left.checked_sub(looks);
        self.incomplete |= left.is_none();
        self.left = left?;
        Some(())
    }

    /// Returns the members that a selector matches, including pods on their nodes' network.
    pub(super) fn find(&mut self, selector: &Selector) -> Option<Rc<[usize]>> {
        if let Some(found) = self.found.get(selector).map(Rc::clone) {
            // The caller will examine each of these members.
            self.spend(found.len())?;
            return Some(found);
        }
        let members = self.members;
        let matches = |index: &usize| members[*index].fits(selector);
        let found: Rc<[usize]> = if let Some(having) = self.having_required(selector) {
            self.spend(having.len())?;
            having.into_iter().filter(matches).collect()
        } else {
            self.spend(members.len())?;
            (0..members.len()).filter(matches).collect()
        };
        self.found.insert(selector.clone(), Rc::clone(&found));
        Some(found)
    }

    /// Returns the members with a label that the selector requires, in order. Returns `None` if the selector requires
    /// no label. If the selector requires several labels, the rarest one is used.
    fn having_required<'s>(&'s self, selector: &'s Selector) -> Option<Vec<usize>> {
        let index = self.index();
        let having =
            |(key, values): (&'s str, Option<Vec<&'s str>>)| -> Option<Vec<&'s Vec<usize>>> {
                let lists = values?.into_iter().flat_map(|value| index.having(key, value));
                (is_indexed(key) && !self.may_be_given(key)).then(|| lists.collect())
            };
        let required = selector.required_labels().into_iter().filter_map(having);
        let rarest = required.min_by_key(|lists| lists.iter().map(|it| it.len()).sum::<usize>())?;
        let rarest = rarest.into_iter().flatten();
        let mut all: Vec<usize> = rarest.chain(&index.of_any_label).copied().collect();
        all.sort_unstable();
        all.dedup();
        Some(all)
    }

    fn index(&self) -> &Index<'m> {
        self.index.get_or_init(|| Index::new(self.members))
    }

    /// Returns whether a controller may give its pods this label.
    fn may_be_given(&self, key: &str) -> bool {
        let is_own = key != NAMESPACE && !key.starts_with(NAMESPACE_PREFIX);
        is_own && self.workloads.iter().any(|(of, workload)| workload.may_give(of, key, None))
    }

    /// Returns the members of some namespaces.
    pub(super) fn within<'s>(
        &'s self,
        namespaces: Vec<&'s str>,
    ) -> impl Iterator<Item = &'m Member<'m>> + 's {
        let index = self.index();
        let lists = namespaces.into_iter().flat_map(|it| index.having(NAMESPACE, it));
        lists.flatten().map(|it| &self.members[*it])
    }

    /// Returns the members that an entity of a rule may select. Its nets are ignored.
    pub(super) fn of_entity(&mut self, entity: &Entity) -> Option<Vec<usize>> {
        let all = self.find(&entity.selector.clone().unwrap_or_else(Selector::all))?;
        self.spend(all.len())?;
        let may_be = |it: &usize| {
            let Member { role, labels, .. } = &self.members[*it];
            // A controller may add labels that the `notSelector` does not match. So a pod is excluded only if the match
            // is certain.
            *role != Role::OnHost
                && !entity.not_selector.as_ref().is_some_and(|it| it.matches(labels))
        };
        Some(all.iter().copied().filter(may_be).collect())
    }

    /// Returns the members that may be at a side of a rule, by their labels.
    pub(super) fn at_side(
        &mut self,
        policy: &Policy,
        direction: Direction,
        rule: &Rule,
        side: Side,
    ) -> Option<BTreeSet<usize>> {
        let is_own = side == Side::own(direction);
        let may_be: BTreeSet<usize> = if is_own {
            let own = self.find(&policy.selector)?;
            self.spend(own.len())?;
            let is_endpoint = |it: &usize| self.members[*it].role == Role::Endpoint;
            own.iter().copied().filter(is_endpoint).collect()
        } else if side.of(rule).entities.is_none() {
            self.of_entity(&Entity::default())?.into_iter().collect()
        } else {
            BTreeSet::new()
        };
        let Some(entities) = &side.of(rule).entities else { return Some(may_be) };
        let mut selected = BTreeSet::new();
        for entity in entities {
            selected.extend(self.of_entity(entity)?);
        }
        Some(if is_own { &selected & &may_be } else { selected })
    }

    /// Returns the pods behind a Service, found by the Service's selector.
    pub(super) fn behind(&mut self, namespace: &str, selector: &Pairs) -> Option<Rc<[usize]>> {
        if selector.is_empty() {
            return Some(Rc::from([]));
        }
        let labels = selector.iter().map(|(key, value)| Selector::equals(key, value));
        let pods = [(NAMESPACE, namespace), (ORCHESTRATOR, KUBERNETES)];
        let pods = pods.map(|(key, value)| Selector::equals(key, value));
        self.find(&Selector::and(pods.into_iter().chain(labels)))
    }
}

/// An index of the members by the labels that selectors require.
struct Index<'m> {
    /// The members by key and value of each of their own labels, and by their namespaces.
    labelled: HashMap<(&'m str, &'m str), Vec<usize>>,
    /// The namespaces by key and value of their labels.
    namespaces: HashMap<(&'m str, &'m str), BTreeSet<&'m str>>,
    /// The members that may have any label: members with profiles, and pods of kinds that Manx does not read.
    of_any_label: Vec<usize>,
}

impl<'m> Index<'m> {
    fn new(members: &'m [Member<'m>]) -> Self {
        let (mut labelled, mut of_any_label) = (HashMap::<_, Vec<usize>>::new(), Vec::new());
        let mut of_namespaces: BTreeMap<&str, &Labels> = BTreeMap::new();
        for (number, member) in members.iter().enumerate() {
            let view = &member.labels;
            of_namespaces.extend(view.namespace);
            let of_other = member.workload.is_some_and(|(key, _)| key.kind == OTHER);
            if of_other || !view.inherited.is_empty() {
                of_any_label.push(number);
            }
            for key in view.own.keys().map(String::as_str).chain([NAMESPACE]) {
                if let Some(value) = view.label(key) {
                    let those = labelled.entry((key, value)).or_default();
                    if those.last() != Some(&number) {
                        those.push(number);
                    }
                }
            }
        }
        let mut namespaces: HashMap<_, BTreeSet<&str>> = HashMap::new();
        for (name, labels) in of_namespaces {
            for (key, value) in labels {
                namespaces.entry((key.as_str(), value.as_str())).or_default().insert(name);
            }
        }
        Self { labelled, namespaces, of_any_label }
    }

    /// Returns the members that have a label; the key has the form that selectors use.
    fn having<'s>(&'s self, key: &'s str, value: &'s str) -> Vec<&'s Vec<usize>> {
        let Some(key) = key.strip_prefix(NAMESPACE_PREFIX) else {
            return self.labelled.get(&(key, value)).into_iter().collect();
        };
        let namespaces = self.namespaces.get(&(key, value)).into_iter().flatten();
        namespaces.filter_map(|name| self.labelled.get(&(NAMESPACE, *name))).collect()
    }
}

/// Returns whether members are indexed by this label. Labels of accounts, the orchestrator's label and the label of the
/// namespace's name are not indexed.
fn is_indexed(key: &str) -> bool {
    ![ORCHESTRATOR, SERVICE_ACCOUNT].contains(&key)
        && !key.starts_with(SERVICE_ACCOUNT_PREFIX)
        && key.strip_prefix(NAMESPACE_PREFIX) != Some(NAME)
}

#[cfg(test)]
mod tests {
    use manx_objects::contents::Contents;

    use super::super::scene::Scene;
    use super::*;

    const TEXT: &str = "
{apiVersion: v1, kind: Namespace, metadata: {name: shop, labels: {team: a}}}
---
{apiVersion: v1, kind: Pod, metadata: {name: web, namespace: shop, labels: {app: web, tier: front}}}
---
{apiVersion: v1, kind: Pod, metadata: {name: forged, namespace: far, labels: {app: web, pcns.team: a, projectcalico.org/namespace: shop}}}
---
{apiVersion: apps/v1, kind: StatefulSet, metadata: {name: db, namespace: shop}, spec: {replicas: 2, template: {metadata: {labels: {app: db}}, spec: {containers: [{name: c}]}}}}
---
{apiVersion: argoproj.io/v1alpha1, kind: Rollout, metadata: {name: api, namespace: far}, spec: {template: {metadata: {labels: {app: api}}, spec: {containers: [{name: c}]}}}}
---
{apiVersion: v1, kind: Pod, metadata: {name: host, namespace: shop, labels: {app: web}}, spec: {hostNetwork: true}}
---
{apiVersion: projectcalico.org/v3, kind: GlobalNetworkSet, metadata: {name: set, labels: {app: web}}, spec: {}}
---
{apiVersion: projectcalico.org/v3, kind: Profile, metadata: {name: edge}, spec: {labelsToApply: {app: web, edge: 'yes'}}}
---
{apiVersion: projectcalico.org/v3, kind: HostEndpoint, metadata: {name: h}, spec: {node: n1, interfaceName: eth0, profiles: [edge]}}
";

    #[test]
    fn a_look_up_finds_what_every_member_one_by_one_says() {
        let contents = Contents::from_texts([("all.yaml", TEXT)]);
        let scene = Scene::new(&contents);
        let members = scene.members();
        let mut selected = Selected::new(&members);
        for text in [
            "all()",
            "app == 'web'",
            "app == 'web' && tier == 'front'",
            "app in {'web', 'db'}",
            "app == 'web' || tier == 'front'",
            "projectcalico.org/namespace == 'shop'",
            "projectcalico.org/orchestrator == 'k8s' && app == 'web'",
            "pcns.team == 'a'",
            "edge == 'yes'",
            "!has(tier)",
            "app == 'none'",
            "app == 'db'",
            "app == 'api'",
            "app == 'api' && projectcalico.org/namespace == 'far'",
            "rollouts-pod-template-hash == 'abc'",
            "statefulset.kubernetes.io/pod-name == 'db-0'",
            "statefulset.kubernetes.io/pod-name == 'db-0' && app == 'db'",
            "pcns.kubernetes.io/metadata.name == 'far'",
            "pcns.projectcalico.org/name == 'far'",
        ] {
            let selector = Selector::parse(text).unwrap();
            let one_by_one: Vec<usize> =
                (0..members.len()).filter(|it| members[*it].fits(&selector)).collect();
            assert_eq!(&*selected.find(&selector).unwrap(), &one_by_one[..], "{text}");
        }
    }

    #[test]
    fn very_much_work_is_not_begun() {
        let contents = Contents::from_texts([("all.yaml", TEXT)]);
        let scene = Scene::new(&contents);
        let members = scene.members();
        let mut selected = Selected { left: 2 * members.len(), ..Selected::new(&members) };
        assert!(selected.find(&Selector::all()).is_some());
        assert!(selected.find(&Selector::all()).is_some());
        assert!(!selected.is_incomplete());
        assert!(selected.find(&Selector::all()).is_none() && selected.is_incomplete());
        assert!(selected.find(&Selector::has("app")).is_none());
    }
}
