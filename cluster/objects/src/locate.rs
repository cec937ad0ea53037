//! The place of an object's field in its text.

use super::problem::Problem;
use super::tree::{Node, Value};
use super::yaml;

/// Moves each problem from the place of its object to the place of its field, if the field can be
/// found. `text` is the content of the file that contains all these objects.
pub fn locate<'p>(text: &str, problems: impl IntoIterator<Item = &'p mut Problem>) {
    let Ok(documents) = yaml::parse(text) else { return };
    let lines: Vec<&str> = text.lines().collect();
    for problem in problems {
        let Some(at) = problem.place.at else { continue };
        let document = documents.iter().find(|it| it.number == problem.place.document);
        let object = document.and_then(|document| object_at(&document.root, &|node| node.at == at));
        let Some(object) = object else { continue };
        let at = field(object, &problem.field).at;
        problem.place.at = Some(at);
        problem.line = super::read::shown_line(&lines, at);
    }
}

/// Returns the node for which `is_it` is true: `node` itself, or an object in its `items`, at any depth.
fn object_at<'n>(node: &'n Node<'n>, is_it: &dyn Fn(&Node<'_>) -> bool) -> Option<&'n Node<'n>> {
    if is_it(node) {
        return Some(node);
    }
    let Value::Sequence(items) = &node.get("items")?.value else { return None };
    items.iter().find_map(|item| object_at(item, is_it))
}

/// Returns the value at a path such as `spec.ingress[0].from`, or the innermost value on that path
/// that exists.
fn field<'n>(object: &'n Node<'n>, path: &str) -> &'n Node<'n> {
    let mut node = object;
    for step in path.split(['.', '[']).filter(|step| !step.is_empty()) {
        let next = match (&node.value, step.strip_suffix(']')) {
            (Value::Sequence(items), Some(index)) => {
                index.parse().ok().and_then(|index: usize| items.get(index))
            }
            _ => node.get(step),
        };
        match next {
            Some(next) => node = next,
            None => break,
        }
    }
    node
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::problem::{Cause, Place, Problem};
    use super::super::tree::Position;
    use super::*;

    /// Returns the place of a field. The field's object is at this position of a document.
    fn place(text: &str, document: usize, (line, column): (usize, usize), field: &str) -> String {
        let file = Arc::from("a.yaml");
        let place = Place { file, document, at: Some(Position { line, column }) };
        let of_file = Problem::of_file(&place.file, Cause::EmptyList);
        let mut problem = Problem { place, field: field.to_owned(), ..of_file };
        locate(text, [&mut problem]);
        format!("{} {}", problem.place, problem.line.unwrap_or_default().trim())
    }

    #[test]
    fn a_problem_moves_to_its_field_or_to_what_is_around_it() {
        let text =
            "a: 1\n---\nkind: List\nitems:\n- spec:\n    egress:\n    - to: [{x: 1}, {y: 2}]\n";
        assert_eq!(
            place(text, 2, (5, 3), "spec.egress[0].to[0].x"),
            "a.yaml:7:16 - to: [{x: 1}, {y: 2}]"
        );
        assert_eq!(
            place(text, 2, (5, 3), "spec.egress[3].to"),
            "a.yaml:7:7 - to: [{x: 1}, {y: 2}]"
        );
        assert_eq!(place(text, 1, (1, 1), "spec"), "a.yaml:1:1 a: 1");
        // No object begins there.
        assert_eq!(place(text, 2, (1, 1), "spec"), "a.yaml:1:1 ");
    }
}
