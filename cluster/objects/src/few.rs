//! Lists in messages that stay short, however many items there are.

use std::fmt::Display;

/// Joins the first `most` items, and adds the number of the others: `a, b and 3 more`.
pub fn few<T: Display>(items: impl IntoIterator<Item = T>, most: usize) -> String {
    let mut items = items.into_iter();
    let shown: Vec<_> = items.by_ref().take(most).map(|it| it.to_string()).collect();
    let shown = shown.join(", ");
    match items.count() {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_names_the_first_and_counts_the_rest() {
        let items = ["a", "b", "c", "d"];
        let lists = [0, 1, 2, 3, 4].map(|all| few(&items[..all], 2));
        assert_eq!(lists, ["", "a", "a, b", "a, b and 1 more", "a, b and 2 more"]);
    }
}
