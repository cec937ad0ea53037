//! The oracle's own parser of Calico's selector language.
//!
//! ```text
//! or       = and { "||" and }
//! and      = not { "&&" not }
//! not      = { "!" } primary
//! primary  = "(" or ")" | "all(" ")" | "has(" key ")" | key operator
//! operator = ( "==" | "!=" | "contains" | "starts" "with" | "ends" "with" ) string | [ "not" ] "in" "{" strings "}"
//! ```
//!
//! A `namespaceSelector` may also be `global()` alone. Whitespace consists of spaces and tabs. A word is a label key
//! unless a parenthesis follows it directly (`has(`). So every keyword may also be the key of a label. Source: Calico's
//! documentation of selectors, and the behaviour of its parser.

use std::fmt;

/// The maximum length of a label's key.
const KEY_MAX: usize = 512;

/// The labels that a selector's keys refer to, and the meaning of `all()`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Language {
    /// Labels of endpoints and network sets; `all()` matches all of them.
    Endpoints,
    /// Labels of the members' namespaces. `all()` matches members that have a namespace. `global()`, which must be
    /// alone, matches members that have no namespace.
    Namespaces,
    /// Labels of the members' service accounts. `all()` matches all members, with or without an account.
    Accounts,
    /// Labels of the service accounts of the endpoints that a global policy selects. `all()` matches members that have
    /// a service account.
    SubjectsAccounts,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Selector {
    All,
    Global,
    /// `has(key)`.
    Has(String),
    /// `key operator 'value'`.
    Compare(String, Comparison, String),
    /// `key in {..}` (true) or `key not in {..}` (false).
    Listed(String, bool, Vec<String>),
    /// `!`.
    Not(Box<Selector>),
    /// `&&`.
    And(Vec<Selector>),
    /// `||`.
    Or(Vec<Selector>),
}

/// How a label's value is compared with a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Comparison {
    /// `==`.
    Equal,
    /// `!=`.
    Unequal,
    Contains,
    StartsWith,
    EndsWith,
}

/// The reason why a text is not a selector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SyntaxError {
    at: usize,
    expected: &'static str,
}

impl fmt::Display for SyntaxError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} expected at byte {}", self.expected, self.at)
    }
}

impl Selector {
    /// Returns whether the selector matches a member with these labels. `all` and `global` are the values of `all()`
    /// and `global()` for this member.
    ///
    /// If the label is absent, `!=` and `not in` are true, and every other comparison is false.
    pub(super) fn holds<'a>(
        &self,
        all: bool,
        global: bool,
        label: &dyn Fn(&str) -> Option<&'a str>,
    ) -> bool {
        match self {
            Self::All => all,
            Self::Global => global,
            Self::Has(key) => label(key).is_some(),
            Self::Compare(key, comparison, wanted) => {
                let Some(value) = label(key) else { return *comparison == Comparison::Unequal };
                match comparison {
                    Comparison::Equal => value == wanted,
                    Comparison::Unequal => value != wanted,
                    Comparison::Contains => value.contains(wanted.as_str()),
                    Comparison::StartsWith => value.starts_with(wanted.as_str()),
                    Comparison::EndsWith => value.ends_with(wanted.as_str()),
                }
            }
            Self::Listed(key, wanted, values) => {
                let listed = label(key).is_some_and(|value| values.iter().any(|v| v == value));
                listed == *wanted
            }
            Self::Not(inner) => !inner.holds(all, global, label),
            Self::And(parts) => parts.iter().all(|part| part.holds(all, global, label)),
            Self::Or(parts) => parts.iter().any(|part| part.holds(all, global, label)),
        }
    }
}

/// Parses a selector. A text that contains only whitespace means `all()`.
pub(super) fn parse(text: &str, language: Language) -> Result<Selector, SyntaxError> {
    let mut reader = Reader { text, at: 0 };
    reader.space();
    if reader.rest().is_empty() {
        return Ok(Selector::All);
    }
    let alone = Reader { text, at: reader.at }.only_global();
    if alone && language == Language::Namespaces {
        return Ok(Selector::Global);
    }
    let selector = reader.or()?;
    if reader.rest().is_empty() { Ok(selector) } else { Err(reader.expected("&&, || or the end")) }
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Reader<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn expected(&self, expected: &'static str) -> SyntaxError {
        SyntaxError { at: self.at, expected }
    }

    fn space(&mut self) {
        let rest = self.rest();
        self.at += rest.len() - rest.trim_start_matches([' ', '\t']).len();
    }

    /// Returns whether the text is `global()` alone.
    fn only_global(mut self) -> bool {
        self.take("global(") && self.take(")") && self.rest().is_empty()
    }

    /// Takes a word or an operator, and the whitespace after it.
    fn take(&mut self, word: &str) -> bool {
        let there = self.rest().starts_with(word);
        if there {
            self.at += word.len();
            self.space();
        }
        there
    }

    /// Takes either both words or nothing.
    fn take_two(&mut self, first: &str, second: &str) -> bool {
        let at = self.at;
        let there = self.take(first) && self.take(second);
        if !there {
            self.at = at;
        }
        there
    }

    fn or(&mut self) -> Result<Selector, SyntaxError> {
        let mut parts = vec![self.and()?];
        while self.take("||") {
            parts.push(self.and()?);
        }
        Ok(one_or(parts, Selector::Or))
    }

    fn and(&mut self) -> Result<Selector, SyntaxError> {
        let mut parts = vec![self.not()?];
        while self.take("&&") {
            parts.push(self.not()?);
        }
        Ok(one_or(parts, Selector::And))
    }

    fn not(&mut self) -> Result<Selector, SyntaxError> {
        let mut negated = false;
        while self.take("!") {
            negated = !negated;
        }
        let primary = self.primary()?;
        Ok(if negated { Selector::Not(Box::new(primary)) } else { primary })
    }

    fn primary(&mut self) -> Result<Selector, SyntaxError> {
        if self.take("(") {
            let inner = self.or()?;
            return self.closed(inner);
        }
        if self.take("all(") {
            return self.closed(Selector::All);
        }
        if self.rest().starts_with("global(") {
            return Err(
                self.expected("anything but global(), which stands alone in a namespaceSelector,")
            );
        }
        if self.take("has(") {
            let key = self.key()?;
            return self.closed(Selector::Has(key));
        }
        let key = self.key()?;
        self.operator(key)
    }

    fn closed(&mut self, selector: Selector) -> Result<Selector, SyntaxError> {
        if self.take(")") { Ok(selector) } else { Err(self.expected("a closing parenthesis")) }
    }

    fn key(&mut self) -> Result<String, SyntaxError> {
        let rest = self.rest();
        let outside = |c: char| !(c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '/' | '-'));
        let length = rest.find(outside).unwrap_or(rest.len());
        if length == 0 || length > KEY_MAX {
            return Err(self.expected("a label's key of 1 to 512 letters, digits, _, ., / or -"));
        }
        self.at += length;
        self.space();
        Ok(rest[..length].to_owned())
    }

    fn operator(&mut self, key: String) -> Result<Selector, SyntaxError> {
        let comparison = if self.take("==") {
            Comparison::Equal
        } else if self.take("!=") {
            Comparison::Unequal
        } else if self.take("contains") {
            Comparison::Contains
        } else if self.take_two("starts", "with") {
            Comparison::StartsWith
        } else if self.take_two("ends", "with") {
            Comparison::EndsWith
        } else if self.take("in") {
            return Ok(Selector::Listed(key, true, self.list()?));
        } else if self.take_two("not", "in") {
            return Ok(Selector::Listed(key, false, self.list()?));
        } else {
            return Err(self.expected("an operator"));
        };
        Ok(Selector::Compare(key, comparison, self.string()?))
    }

    fn list(&mut self) -> Result<Vec<String>, SyntaxError> {
        if !self.take("{") {
            return Err(self.expected("a list in braces"));
        }
        let mut values = Vec::new();
        while !self.take("}") {
            values.push(self.string()?);
            if !self.take(",") && !self.rest().starts_with('}') {
                return Err(self.expected("a comma or a closing brace"));
            }
        }
        Ok(values)
    }

    fn string(&mut self) -> Result<String, SyntaxError> {
        let rest = self.rest();
        let quote = match rest.as_bytes().first() {
            Some(b'"') => '"',
            Some(b'\'') => '\'',
            _ => return Err(self.expected("a string in quotes")),
        };
        let Some(length) = rest[1..].find(quote) else {
            return Err(self.expected("a string that ends"));
        };
        self.at += length + 2;
        self.space();
        Ok(rest[1..=length].to_owned())
    }
}

fn one_or(mut parts: Vec<Selector>, several: fn(Vec<Selector>) -> Selector) -> Selector {
    match (parts.len(), parts.pop()) {
        (1, Some(only)) => only,
        (_, Some(last)) => {
            parts.push(last);
            several(parts)
        }
        (_, None) => several(parts),
    }
}
