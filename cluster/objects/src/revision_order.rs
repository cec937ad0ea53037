//! Decides which of two documents with the same name in one text is the later one. `kubectl get --watch` prints an
//! object at each change, and may then print another object that has taken its name.

use std::sync::Arc;

use super::object::{Created, Kind};
use super::tree::{Node, Value};

/// The identity and the age of an object, from the fields that the API server sets.
#[derive(Debug)]
pub(super) struct Age {
    /// `metadata.uid`, which the API server gives to every object.
    pub(super) uid: Arc<str>,
    /// `metadata.resourceVersion`; a greater one is later.
    version: Option<u64>,
    /// `metadata.creationTimestamp`.
    created: Option<Created>,
}

/// The relation of a document to an earlier one of the same text with the same name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RevisionOrder {
    /// A later state of the object, or another object that has taken its name.
    Later,
    /// An earlier state of the object.
    Earlier,
    /// The relation is not known.
    Unknown,
}

impl Age {
    /// Reads the age. Returns `None` if the object has no `uid`, because it then does not come from an API server.
    pub(super) fn read(node: &Node) -> Option<Self> {
        let text = |key| match &node.get("metadata")?.get(key)?.value {
            Value::String(text) if !text.is_empty() => Some(&**text),
            _ => None,
        };
        Some(Self {
            uid: text("uid")?.into(),
            version: text("resourceVersion").and_then(|it| it.parse().ok()),
            created: text("creationTimestamp").and_then(Created::parse),
        })
    }

    /// Returns the relation of a later document to a document of this age.
    ///
    /// An object with another `uid` is a successor, unless its version or its time of creation is earlier. An object
    /// has no successor if policies may allow more without it: the file may contain the objects of two clusters, and a
    /// policy of one of them would be lost.
    pub(super) fn followed_by(&self, next: &Self, kind: Kind) -> RevisionOrder {
        let versions = self.version.zip(next.version);
        if self.uid == next.uid {
            return match versions {
                Some((this, next)) if next < this => RevisionOrder::Earlier,
                _ => RevisionOrder::Later,
            };
        }
        let may_follow = !(kind.enforced_policy() || kind.opens_if_absent())
            && versions.is_none_or(|(this, next)| this < next);
        let created = self.created.zip(next.created);
        if may_follow && created.is_none_or(|(this, next)| this <= next) {
            RevisionOrder::Later
        } else {
            RevisionOrder::Unknown
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::contents::Contents;
    use super::super::object::Object;
    use super::super::{State, read};

    /// Returns a document as an API server prints it, with a label that identifies the document.
    fn document(kind: &str, metadata: &str, which: &str) -> String {
        let (version, spec) = match kind {
            "Pod" => ("v1", "{\"containers\": []}"),
            _ => ("projectcalico.org/v3", "{}"),
        };
        format!(
            "{{\"apiVersion\": \"{version}\", \"kind\": \"{kind}\", \"metadata\": \
             {{\"name\": \"db-0\", \"namespace\": \"s\", \"labels\": {{\"which\": \"{which}\"}}{metadata}}}, \
             \"spec\": {spec}}}\n"
        )
    }

    fn age(uid: &str, version: &str, created: &str) -> String {
        let field = |key: &str, text: &str| match text {
            "" => String::new(),
            text => format!(", \"{key}\": \"{text}\""),
        };
        field("uid", uid)
            + &field("resourceVersion", version)
            + &field("creationTimestamp", created)
    }

    /// Returns the documents that the reader keeps.
    fn left(kind: &str, ages: [(&str, &str, &str); 2]) -> Vec<String> {
        let documents: Vec<String> = ages
            .iter()
            .zip(["first", "second"])
            .map(|((uid, version, created), which)| {
                document(kind, &age(uid, version, created), which)
            })
            .collect();
        let list = format!(
            "{{\"apiVersion\": \"v1\", \"kind\": \"List\", \"items\": [{}]}}",
            documents.join(", ")
        );
        let [lines, list] = [documents.concat(), list].map(|text| {
            let entries = read("pods.json", &text).unwrap().entries;
            let which = entries.iter().map(|entry| match &entry.state {
                State::Valid(object) => match &**object {
                    Object::Pod(pod) => pod.labels.get("which").unwrap().clone(),
                    Object::NetworkSet(set) => set.labels.get("which").unwrap().clone(),
                    other => panic!("{other:?}"),
                },
                State::Invalid(invalid) => panic!("{invalid:?}"),
            });
            which.collect::<Vec<String>>()
        });
        assert_eq!(lines, list);
        lines
    }

    const EARLY: &str = "2026-01-01T00:00:00Z";
    const LATE: &str = "2026-01-01T00:00:01Z";

    #[test]
    fn the_later_state_of_an_object_counts_and_the_object_that_took_its_place() {
        for (ages, expected) in [
            // The two documents are the same object.
            ([("1", "", ""), ("1", "", "")], "second"),
            ([("1", "8", EARLY), ("1", "9", EARLY)], "second"),
            ([("1", "9", EARLY), ("1", "10", EARLY)], "second"),
            ([("1", "9", EARLY), ("1", "8", EARLY)], "first"),
            // The two documents are different objects with one name.
            ([("1", "", ""), ("2", "", "")], "second"),
            ([("1", "8", EARLY), ("2", "9", LATE)], "second"),
            ([("1", "8", EARLY), ("2", "9", EARLY)], "second"),
        ] {
            assert_eq!(left("Pod", ages), [expected], "{ages:?}");
        }
    }

    #[test]
    fn two_objects_of_one_name_stay_two_if_it_is_not_known_which_is_later() {
        for ages in [
            [("", "", ""), ("", "", "")],
            [("1", "", ""), ("", "", "")],
            [("1", "9", EARLY), ("2", "8", LATE)],
            [("1", "8", LATE), ("2", "9", EARLY)],
            [("1", "9", EARLY), ("2", "9", EARLY)],
        ] {
            assert_eq!(left("Pod", ages), ["first", "second"], "{ages:?}");
        }
        // If an object of this kind is absent, policy may allow more; and the text may join the objects of two
        // clusters.
        let without_versions = [("1", "", EARLY), ("2", "", LATE)];
        assert_eq!(left("Pod", without_versions), ["second"]);
        assert_eq!(left("NetworkSet", without_versions), ["first", "second"]);
        let with_versions = [("1", "8", EARLY), ("2", "9", LATE)];
        assert_eq!(left("NetworkSet", with_versions), ["first", "second"]);
    }

    #[test]
    fn two_texts_have_no_order_and_a_message_names_both_uids() {
        let text = |uid: &str, which: &str| document("Pod", &age(uid, "", ""), which);
        let told = |first: &str, second: &str| {
            let texts = [text(first, "first"), text(second, "second")];
            let contents = Contents::from_texts([("a.json", &*texts[0]), ("b.json", &*texts[1])]);
            assert!(contents.objects.values().all(|it| matches!(it.state, State::Invalid(_))));
            contents.problems[0].cause.to_string()
        };
        assert_eq!(
            told("1", "2"),
            "defined differently at a.json:1:1 (its uid is 1, and here 2); neither definition is used"
        );
        assert_eq!(
            told("", "2"),
            "defined differently at a.json:1:1 (its uid is none, and here 2); neither definition is used"
        );
        assert_eq!(told("", ""), "defined differently at a.json:1:1; neither definition is used");
    }
}
