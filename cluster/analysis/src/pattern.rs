//! Patterns of names: `*` stands for any text, `?` for one character. Nets and addresses are
//! patterns, too.

use std::net::IpAddr;

use ipnet::IpNet;

/// Parses a net, and removes its host bits. An address is a net of one address.
pub(crate) fn net(text: &str) -> Option<IpNet> {
    let address = || text.parse::<IpAddr>().ok().map(IpNet::from);
    text.parse::<IpNet>().ok().map(|net| net.trunc()).or_else(address)
}

/// Returns whether a text is a pattern, not a name.
pub(crate) fn is_pattern(text: &str) -> bool {
    text.contains(['*', '?'])
}

/// Returns whether a name matches a pattern, in which `*` stands for any text and `?` for one
/// character.
pub(crate) fn fits(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) =
        (pattern.chars().collect(), name.chars().collect());
    let (mut at, mut from) = (0, 0);
    // The index after the last star, and the end of the part of the name that this star matches.
    let mut star: Option<(usize, usize)> = None;
    while from < name.len() {
        match pattern.get(at) {
            Some('*') => {
                star = Some((at, from));
                at += 1;
            }
            Some(wanted) if *wanted == '?' || *wanted == name[from] => {
                at += 1;
                from += 1;
            }
            _ => {
                let Some((star_at, taken)) = star else { return false };
                star = Some((star_at, taken + 1));
                (at, from) = (star_at + 1, taken + 1);
            }
        }
    }
    pattern[at..].iter().all(|rest| *rest == '*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_is_any_text_and_a_question_mark_one_character() {
        for (pattern, name, expected) in [
            ("shop/*", "shop/web-1", true),
            ("*/web-*", "shop/web-1", true),
            ("*/web-*", "shop/api-web", false),
            ("shop/web-?", "shop/web-1", true),
            ("shop/web-?", "shop/web-10", false),
            ("*a*a*", "banana", true),
            ("*aa*", "banana", false),
            ("", "", true),
            ("*", "", true),
            ("?", "", false),
            ("web", "web-1", false),
        ] {
            assert_eq!(fits(pattern, name), expected, "{pattern} {name}");
        }
    }
}
