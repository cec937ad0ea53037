//! Parses text into a selector.

use std::collections::BTreeSet;

use super::expression::{Comparison, Node, Selector};
use super::labels::{NAMESPACE, NAMESPACE_PREFIX, SERVICE_ACCOUNT, SERVICE_ACCOUNT_PREFIX};

/// The depth to which parentheses may nest. The canonical form of a selector with [`LEVELS`] levels never nests deeper.
const DEPTH: u32 = 2 * LEVELS;

/// The depth to which alternatives and conjunctions may nest.
const LEVELS: u32 = 64;

/// The largest number of characters of a key.
const KEY: usize = 512;

/// The error that a text is not a selector, with the first place at which it is wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("found {found} at character {character}, expected {expected}")]
pub struct SelectorError {
    /// The offset of the place from the beginning of the text, in bytes.
    pub at: usize,
    /// The number of the character at the place, counted from 1.
    pub character: usize,
    /// The text at this place.
    pub found: String,
    /// What the parser accepts at this place.
    pub expected: &'static str,
}

impl Selector {
    /// Parses a selector. The empty text is [`all`](Self::all).
    pub fn parse(text: &str) -> Result<Self, SelectorError> {
        selector(text)
    }

    /// Parses a namespace selector into a selector over the labels that a member [shows](crate::model::LabelView). Its
    /// keys refer to the labels of the namespace. Anywhere in it, `all()` means that there is a namespace. `global()`
    /// must stand alone, and means that there is none. As in Calico, a negation is true of a member without a
    /// namespace.
    pub fn parse_namespace(text: &str) -> Result<Self, SelectorError> {
        if is_global(text) {
            return Ok(Self::not_has(NAMESPACE));
        }
        Ok(Self::parse(text)?.replaced(NAMESPACE_PREFIX, &Self::has(NAMESPACE)))
    }

    /// Parses a rule's service account selector into a selector over the labels that a member
    /// [shows](crate::model::LabelView). Its keys refer to the labels of the service account. As in Calico, `all()` and
    /// a negation are also true of members without a service account: host endpoints and network sets.
    pub fn parse_service_account(text: &str) -> Result<Self, SelectorError> {
        Ok(Self::parse(text)?.replaced(SERVICE_ACCOUNT_PREFIX, &Self::all()))
    }

    /// Parses the service account selector of a global policy's subject. In a rule's selector `all()` matches
    /// everything. Here it means that the member has a service account.
    pub fn parse_subjects_account(text: &str) -> Result<Self, SelectorError> {
        Ok(Self::parse(text)?.replaced(SERVICE_ACCOUNT_PREFIX, &Self::has(SERVICE_ACCOUNT)))
    }
}

/// See [`Selector::parse`].
fn selector(text: &str) -> Result<Selector, SelectorError> {
    let mut parser = Parser { text, at: 0, depth: 0 };
    parser.space();
    if parser.rest().is_empty() {
        return Ok(Selector::all());
    }
    let selector = parser.alternative()?;
    if !parser.rest().is_empty() {
        Err(parser.expected("&&, || or the end"))
    } else if levels(&selector) > LEVELS {
        Err(parser.expected("no more than 64 of && and || within each other"))
    } else {
        Ok(selector)
    }
}

/// The depth to which alternatives and conjunctions nest.
fn levels(selector: &Selector) -> u32 {
    match selector.node() {
        Node::Not(one) => levels(one),
        Node::And(all) | Node::Or(all) => 1 + all.iter().map(levels).max().unwrap_or(0),
        Node::All | Node::Has(_) | Node::Compare { .. } | Node::Among { .. } => 0,
    }
}

/// Whether the text is `global()`.
fn is_global(text: &str) -> bool {
    let mut parser = Parser { text, at: 0, depth: 0 };
    parser.space();
    parser.call("global(") && parser.eat(")") && parser.rest().is_empty()
}

struct Parser<'t> {
    text: &'t str,
    at: usize,
    depth: u32,
}

impl<'t> Parser<'t> {
    fn rest(&self) -> &'t str {
        self.text.get(self.at..).unwrap_or_default()
    }

    /// Skips spaces and tabs, but no line breaks.
    fn space(&mut self) {
        let rest = self.rest();
        self.at += rest.len() - rest.trim_start_matches([' ', '\t']).len();
    }

    /// Takes a token and the space after it.
    fn eat(&mut self, token: &str) -> bool {
        let there = self.rest().starts_with(token);
        if there {
            self.at += token.len();
            self.space();
        }
        there
    }

    /// Takes two words, with or without space between them, or takes nothing.
    fn eat_both(&mut self, first: &str, second: &str) -> bool {
        let before = self.at;
        let there = self.eat(first) && self.eat(second);
        if !there {
            self.at = before;
        }
        there
    }

    /// Takes a function's name and its parenthesis, which must follow directly.
    fn call(&mut self, name: &str) -> bool {
        self.eat(name)
    }

    fn expected(&self, expected: &'static str) -> SelectorError {
        let found = if self.rest().is_empty() {
            "the end".to_owned()
        } else {
            let word: String = self.rest().chars().take(12).collect();
            format!("{word:?}")
        };
        let before = self.text.get(..self.at).unwrap_or_default();
        let character = before.chars().count() + 1;
        SelectorError { at: self.at, character, found, expected }
    }

    fn alternative(&mut self) -> Result<Selector, SelectorError> {
        let mut all = vec![self.conjunction()?];
        while self.eat("||") {
            all.push(self.conjunction()?);
        }
        Ok(one_or(all, Node::Or))
    }

    fn conjunction(&mut self) -> Result<Selector, SelectorError> {
        let mut all = vec![self.term()?];
        while self.eat("&&") {
            all.push(self.term()?);
        }
        Ok(one_or(all, Node::And))
    }

    /// Takes a term. Two adjacent `!` cancel each other. If a parenthesis is between them, both are kept.
    fn term(&mut self) -> Result<Selector, SelectorError> {
        let mut negated = false;
        while self.rest().starts_with('!') && !self.rest().starts_with("!=") {
            self.eat("!");
            negated = !negated;
        }
        let operand = self.operand()?;
        Ok(if negated { Node::Not(operand).into() } else { operand })
    }

    fn operand(&mut self) -> Result<Selector, SelectorError> {
        if self.rest().starts_with('(') {
            if self.depth == DEPTH {
                return Err(self.expected("no more than 128 parentheses within each other"));
            }
            self.eat("(");
            self.depth += 1;
            let inner = self.alternative()?;
            self.depth -= 1;
            return if self.eat(")") { Ok(inner) } else { Err(self.expected("&&, || or )")) };
        }
        if self.call("has(") {
            let key = self.key("the key of a label")?;
            self.space();
            return if self.eat(")") { Ok(Selector::has(key)) } else { Err(self.expected(")")) };
        }
        if self.call("all(") {
            return if self.eat(")") { Ok(Selector::all()) } else { Err(self.expected(")")) };
        }
        if self.rest().starts_with("global(") {
            return Err(self.expected(
                "a term: global() may only stand alone, and only in a namespaceSelector",
            ));
        }
        let key = self.key("a term: the key of a label, has(KEY), all(), ! or (")?.to_owned();
        self.space();
        self.operator(key)
    }

    fn key(&mut self, expected: &'static str) -> Result<&'t str, SelectorError> {
        let rest = self.rest();
        let is_key = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '/' | '-');
        let len = rest.find(|c| !is_key(c)).unwrap_or(rest.len());
        match rest.get(..len) {
            Some(key) if (1..=KEY).contains(&len) => {
                self.at += len;
                Ok(key)
            }
            _ if len > KEY => Err(self.expected("a key of at most 512 characters")),
            _ => Err(self.expected(expected)),
        }
    }

    fn operator(&mut self, key: String) -> Result<Selector, SelectorError> {
        const EXPECTED: &str =
            "an operator: ==, !=, in, not in, contains, starts with or ends with";
        let comparison = if self.eat("==") {
            Some(Comparison::Equal)
        } else if self.eat("!=") {
            Some(Comparison::NotEqual)
        } else if self.eat("contains") {
            Some(Comparison::Contains)
        } else if self.eat_both("starts", "with") {
            Some(Comparison::StartsWith)
        } else if self.eat_both("ends", "with") {
            Some(Comparison::EndsWith)
        } else {
            None
        };
        if let Some(how) = comparison {
            return Ok(Selector::compare(key, how, self.value()?));
        }
        let negated = self.eat_both("not", "in");
        if negated || self.eat("in") {
            let values = self.set()?;
            return Ok(Node::Among { key, values, negated }.into());
        }
        Err(self.expected(EXPECTED))
    }

    /// Takes the text between two equal quotes. No character in it has a special meaning.
    fn value(&mut self) -> Result<String, SelectorError> {
        let rest = self.rest();
        let quote = rest.chars().next().filter(|c| matches!(c, '"' | '\''));
        let Some(quote) = quote else {
            return Err(self.expected("a value in quotes"));
        };
        let Some((value, _)) = rest.get(1..).and_then(|rest| rest.split_once(quote)) else {
            return Err(self.expected("a value with a quote at its end, too"));
        };
        self.at += value.len() + 2;
        self.space();
        Ok(value.to_owned())
    }

    /// Takes values in braces. There may be no value, and a comma may follow the last one.
    fn set(&mut self) -> Result<BTreeSet<String>, SelectorError> {
        if !self.eat("{") {
            return Err(self.expected("a set of values in braces"));
        }
        let mut values = BTreeSet::new();
        while self.rest().starts_with(['"', '\'']) {
            values.insert(self.value()?);
            if !self.eat(",") {
                break;
            }
        }
        if self.eat("}") {
            Ok(values)
        } else {
            Err(self.expected("a value in quotes, a comma or }"))
        }
    }
}

fn one_or(mut all: Vec<Selector>, many: fn(Vec<Selector>) -> Node) -> Selector {
    match (all.len(), all.pop()) {
        (1, Some(one)) => one,
        (_, last) => {
            all.extend(last);
            many(all).into()
        }
    }
}
