//! The Services that wait to be reconciled. One Service is taken from each namespace in turn. So
//! even if one namespace changes many Services all the time, at most one of them is reconciled
//! between two Services of another namespace. There is no clock and no I/O here.

use std::collections::{BTreeMap, BTreeSet};

use manx_block_ipam::services::ledger::Subject;

/// See the module. A Service that is added twice waits once.
#[derive(Debug, Default)]
pub(super) struct Pending {
    namespaces: BTreeMap<String, BTreeSet<Subject>>,
    /// The namespace from which a Service was taken last.
    last: String,
}

impl Pending {
    pub(super) fn put(&mut self, subject: Subject) {
        self.namespaces.entry(subject.namespace.clone()).or_default().insert(subject);
    }

    /// Takes the next Service.
    pub(super) fn take(&mut self) -> Option<Subject> {
        let after = (std::ops::Bound::Excluded(&self.last), std::ops::Bound::Unbounded);
        let next = self.namespaces.range::<String, _>(after).next();
        let namespace = next.or_else(|| self.namespaces.first_key_value())?.0.clone();
        let waiting = self.namespaces.get_mut(&namespace)?;
        let subject = waiting.pop_first();
        if waiting.is_empty() {
            self.namespaces.remove(&namespace);
        }
        self.last = namespace;
        subject
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespaces_take_turns_and_each_service_waits_once() {
        let subject = |namespace: &str, name: &str| Subject {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            handle: format!("lb-{name}"),
        };
        let mut pending = Pending::default();
        for at in 0..100 {
            pending.put(subject("crowd", &format!("{at:03}")));
            pending.put(subject("crowd", "000"));
        }
        pending.put(subject("quiet", "web"));
        pending.put(subject("another", "web"));
        let mut order = Vec::new();
        while let Some(Subject { namespace, name, .. }) = pending.take() {
            // This namespace's Service changes again while it waits for its turn.
            if namespace == "crowd" && order.len() < 2 {
                pending.put(subject("crowd", &name));
            }
            order.push(format!("{namespace}/{name}"));
        }
        assert_eq!(order[..3], ["another/web", "crowd/000", "quiet/web"]);
        assert_eq!(order.len(), 103);
    }
}
