//! Which members a selector matches. Each selector is looked up once, among the members that have a label which it
//! requires.

use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;

use manx_objects::object::{ObjectKey, Pairs, Workload};
use manx_policy_compiler::model::{
    Direction, Entity, KUBERNETES, NAMESPACE, NAMESPACE_PREFIX, ORCHESTRATOR, Policy, Rule,
    SERVICE_ACCOUNT, SERVICE_ACCOUNT_PREFIX,
};
use manx_policy_compiler::selector::{LabelSource as _, Selector};

use super::fields::Side;
use super::scene::{Member, Role};

/// The number of times that a check may look at a member.
const MOST_LOOKS: usize = 3_000_000;

/// See the module. A check has a bound of [`MOST_LOOKS`]; when it is used up, every answer is `None`.
pub(super) struct Selected<'m> {
    pub(super) members: &'m [Member<'m>],
    /// The members by each of their own labels, and by their namespaces.
    labelled: ByLabel<'m>,
    /// The members that have labels of profiles, too: these may have any label.
    inheriting: Vec<usize>,
    /// One of each kind of workload: what its controller gives its pods.
    workloads: Vec<(&'m ObjectKey, &'m Workload)>,
    found: HashMap<Selector, Rc<[usize]>>,
    left: usize,
}

impl<'m> Selected<'m> {
    pub(super) fn new(members: &'m [Member<'m>]) -> Self {
        let workloads = members.iter().filter_map(|member| member.workload);
        // Of those that number their pods and of those that do not.
        let workloads: HashMap<_, _> =
            workloads.map(|it| ((it.0.kind, it.1.numbers.is_some()), it)).collect();
        let workloads = workloads.into_values().collect();
        let (labelled, inheriting) = by_label(members);
        Self { members, labelled, inheriting, workloads, found: HashMap::new(), left: MOST_LOOKS }
    }

    /// Begins a check, which has its own bound.
    pub(super) fn begin(&mut self) {
        self.left = MOST_LOOKS;
    }

    /// Whether the bound is used up: not everything was looked at.
    pub(super) fn is_spent(&self) -> bool {
        self.left == 0
    }

    /// Whether the input has anything to which policy applies.
    pub(super) fn has_endpoints(&self) -> bool {
        self.members.iter().any(|member| member.role == Role::Endpoint)
    }

    /// Counts work that a look-up leads to.
    pub(super) fn spend(&mut self, looks: usize) -> Option<()> {
        self.left = self.left.saturating_sub(looks);
        (self.left > 0).then_some(())
    }

    /// The members that a selector matches, pods on their nodes' network among them.
    pub(super) fn find(&mut self, selector: &Selector) -> Option<Rc<[usize]>> {
        if let Some(found) = self.found.get(selector).map(Rc::clone) {
            // The caller looks at these.
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

    /// The members with a label that the selector requires, in order; `None` if it requires none. Of several such labels
    /// the rarest is taken.
    fn having_required<'s>(&'s self, selector: &'s Selector) -> Option<Vec<usize>> {
        let having =
            |(key, values): (&'s str, Option<Vec<&'s str>>)| -> Option<Vec<&'s Vec<usize>>> {
                let lists = values?.into_iter().map(|value| self.labelled.get(&(key, value)));
                (is_own(key) && !self.may_be_given(key)).then(|| lists.flatten().collect())
            };
        let required = selector.required_labels().into_iter().filter_map(having);
        let rarest = required.min_by_key(|lists| lists.iter().map(|it| it.len()).sum::<usize>())?;
        let rarest = rarest.into_iter().flatten();
        let mut all: Vec<usize> = rarest.chain(&self.inheriting).copied().collect();
        all.sort_unstable();
        Some(all)
    }

    /// Whether a controller may give its pods this label.
    fn may_be_given(&self, key: &str) -> bool {
        self.workloads.iter().any(|(of, workload)| workload.may_give(of, key, None))
    }

    /// The members of some namespaces.
    pub(super) fn within<'s>(
        &'s self,
        namespaces: Vec<&'s str>,
    ) -> impl Iterator<Item = &'m Member<'m>> + 's {
        let lists = namespaces.into_iter().filter_map(|it| self.labelled.get(&(NAMESPACE, it)));
        lists.flatten().map(|it| &self.members[*it])
    }

    /// The members that an end of a rule selects. Its nets are not asked.
    pub(super) fn of_entity(&mut self, entity: &Entity) -> Option<Vec<usize>> {
        let all = self.find(&entity.selector.clone().unwrap_or_else(Selector::all))?;
        let excluded = match &entity.not_selector {
            Some(selector) => self.find(selector)?,
            None => Rc::from([]),
        };
        self.spend(all.len())?;
        let seen = all.iter().copied().filter(|it| self.members[*it].role != Role::OnHost);
        Some(seen.filter(|it| excluded.binary_search(it).is_err()).collect())
    }

    /// The members that may be at a side of a rule, as far as labels tell.
    pub(super) fn at_side(
        &mut self,
        policy: &Policy,
        direction: Direction,
        rule: &Rule,
        side: Side,
    ) -> Option<BTreeSet<usize>> {
        let every = [Entity::default()];
        let mut all = BTreeSet::new();
        for entity in side.of(rule).entities.as_deref().unwrap_or(&every) {
            all.extend(self.of_entity(entity)?);
        }
        if side == Side::own(direction) {
            let own = self.find(&policy.selector)?;
            let is_own = |it: &usize| {
                self.members[*it].role == Role::Endpoint && own.binary_search(it).is_ok()
            };
            all.retain(is_own);
        }
        Some(all)
    }

    /// The pods behind a Service, by its selector.
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

type ByLabel<'m> = HashMap<(&'m str, &'m str), Vec<usize>>;

/// The members by their labels, and those that may have any.
fn by_label<'m>(members: &'m [Member<'m>]) -> (ByLabel<'m>, Vec<usize>) {
    let (mut labelled, mut inheriting) = (ByLabel::new(), Vec::new());
    for (index, member) in members.iter().enumerate() {
        let view = &member.labels;
        if !view.inherited.is_empty() {
            inheriting.push(index);
            continue;
        }
        for key in view.own.keys().map(String::as_str).chain([NAMESPACE]) {
            if let Some(value) = view.label(key) {
                let those = labelled.entry((key, value)).or_default();
                if those.last() != Some(&index) {
                    those.push(index);
                }
            }
        }
    }
    (labelled, inheriting)
}

/// Whether a label is a member's own, or its namespace.
fn is_own(key: &str) -> bool {
    ![ORCHESTRATOR, SERVICE_ACCOUNT].contains(&key)
        && ![NAMESPACE_PREFIX, SERVICE_ACCOUNT_PREFIX].iter().any(|it| key.starts_with(it))
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
        ] {
            let selector = Selector::parse(text).unwrap();
            let one_by_one: Vec<usize> =
                (0..members.len()).filter(|it| selector.matches(&members[*it].labels)).collect();
            assert_eq!(&*selected.find(&selector).unwrap(), &one_by_one[..], "{text}");
        }
    }

    #[test]
    fn very_much_work_is_not_begun() {
        let contents = Contents::from_texts([("all.yaml", TEXT)]);
        let scene = Scene::new(&contents);
        let members = scene.members();
        let mut selected = Selected { left: 2 * members.len() + 1, ..Selected::new(&members) };
        assert!(selected.find(&Selector::all()).is_some());
        assert!(selected.find(&Selector::all()).is_some());
        assert!(selected.find(&Selector::all()).is_none());
        assert!(selected.find(&Selector::has("app")).is_none());
    }
}
