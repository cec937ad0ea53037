//! A manifest's values, each with its position: the input of the decoders.

use std::borrow::Cow;
use std::fmt;

/// A place in a file: line and column (in characters), both counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    pub line: usize,
    pub column: usize,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

/// The maximum number of levels of nested lists and mappings.
pub const MAX_DEPTH: usize = 64;
/// The maximum number of values in a file.
pub const MAX_NODES: usize = 16 << 20;

/// A value and its position.
#[derive(Debug, Clone, PartialEq)]
pub struct Node<'a> {
    pub at: Position,
    pub value: Value<'a>,
}

/// A value of one of JSON's types. YAML is converted to JSON's types, as in kubectl. A text is borrowed from the file
/// if the file contains it without escapes, as most do.
#[derive(Debug, Clone, PartialEq)]
pub enum Value<'a> {
    /// No value, `null` or `~`.
    Null,
    /// A boolean. YAML 1.1 has many words for each of the two values, such as `yes` and `on` for `true`.
    Boolean(bool),
    Integer(i128),
    /// A number that is not whole, kept as it was written.
    Float(Cow<'a, str>),
    String(Cow<'a, str>),
    Sequence(Vec<Node<'a>>),
    /// Keys and values, in the order of the file; no key occurs twice.
    Mapping(Vec<Entry<'a>>),
}

/// A key, its position, and its value.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry<'a> {
    pub key: Cow<'a, str>,
    pub at: Position,
    /// The value.
    pub node: Node<'a>,
}

/// One document of a file.
#[derive(Debug, Clone, PartialEq)]
pub struct Document<'a> {
    /// The number of the document in the file, counted from 1.
    pub number: usize,
    pub root: Node<'a>,
    /// The errors of the document that did not prevent parsing.
    pub flaws: Vec<Flaw>,
}

/// A fault that makes the document's object invalid, independently of the object's kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flaw {
    pub at: Position,
    pub kind: FlawKind,
}

/// The kinds of [`Flaw`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FlawKind {
    /// A key occurs twice in one mapping. The first value is kept.
    #[error("the key `{key}` is there already, at {first}")]
    DuplicateKey {
        key: String,
        /// The position of the first value.
        first: Position,
    },
    /// A key of a mapping is null, a list or a mapping.
    #[error("a key must be text, and this is {found}")]
    KeyNotText {
        /// The type of the key.
        found: &'static str,
    },
    /// The value of the merge key `<<` is not a mapping or a list of mappings.
    #[error("`<<` takes a mapping or a list of mappings, and this is {found}")]
    MergeOfNoMapping {
        /// The type of the value.
        found: &'static str,
    },
    /// A tag other than those of JSON's types.
    #[error("the tag `{0}` has no meaning in a manifest")]
    UnknownTag(String),
    /// The value does not fit its tag, which is one of JSON's types.
    #[error("`{text}` is not of the type that its tag `{tag}` says")]
    TagContradicted { tag: String, text: String },
}

impl Value<'_> {
    /// Returns the type's name in messages.
    pub const fn type_name(&self) -> &'static str {
        match self {
            Self::Null => "nothing",
            Self::Boolean(_) => "a boolean",
            Self::Integer(_) | Self::Float(_) => "a number",
            Self::String(_) => "a string",
            Self::Sequence(_) => "a list",
            Self::Mapping(_) => "a mapping",
        }
    }

    /// Returns a description for messages: the type, and the value if it is short.
    pub fn describe(&self) -> String {
        match self {
            Self::Null | Self::Sequence(_) | Self::Mapping(_) => self.type_name().to_owned(),
            Self::Boolean(value) => format!("the boolean {value}"),
            Self::Integer(value) => format!("the number {value}"),
            Self::Float(text) => format!("the number {text}"),
            Self::String(text) if text.chars().count() > 80 => {
                format!("the string {:?}...", text.chars().take(77).collect::<String>())
            }
            Self::String(text) => format!("the string {text:?}"),
        }
    }
}

/// Returns a text of a manifest for messages. The text is cut if it is longer than any legal name, kind or field.
pub(super) fn shown(text: &str) -> Cow<'_, str> {
    const MOST: usize = 320;
    match text.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}...", &text[..end]).into(),
        None => text.into(),
    }
}

impl<'a> Node<'a> {
    /// Returns the number of bytes of the value as JSON without white space. An escape sequence counts as the character
    /// that it stands for.
    pub fn json_len(&self) -> usize {
        match &self.value {
            Value::Null | Value::Boolean(true) => 4,
            Value::Boolean(false) => 5,
            Value::Integer(number) => {
                let digits = number.unsigned_abs().checked_ilog10().unwrap_or(0) as usize + 1;
                digits + usize::from(*number < 0)
            }
            Value::Float(text) => text.len(),
            Value::String(text) => text.len() + 2,
            // Two brackets, and a comma between each two values.
            Value::Sequence(nodes) => {
                let values: usize = nodes.iter().map(|node| node.json_len() + 1).sum();
                1 + values.max(1)
            }
            // Brackets and commas as for a list, and two quotes and a colon for each key.
            Value::Mapping(entries) => {
                let pairs = entries.iter().map(|entry| entry.key.len() + entry.node.json_len() + 4);
                1 + pairs.sum::<usize>().max(1)
            }
        }
    }

    /// Returns the number of values within this value, including itself.
    pub(super) fn size(&self) -> usize {
        1 + self.children().map(Self::size).sum::<usize>()
    }

    /// Returns the number of levels of lists and mappings.
    pub(super) fn depth(&self) -> usize {
        match &self.value {
            Value::Sequence(_) | Value::Mapping(_) => {
                1 + self.children().map(Self::depth).max().unwrap_or(0)
            }
            _ => 0,
        }
    }

    fn children(&self) -> impl Iterator<Item = &Self> {
        let (nodes, entries): (&[Self], &[Entry<'a>]) = match &self.value {
            Value::Sequence(nodes) => (nodes, &[]),
            Value::Mapping(entries) => (&[], entries),
            _ => (&[], &[]),
        };
        nodes.iter().chain(entries.iter().map(|entry| &entry.node))
    }

    /// Returns the value of `key`, if this is a mapping with that key.
    pub fn get(&self, key: &str) -> Option<&Self> {
        match &self.value {
            Value::Mapping(entries) => {
                entries.iter().find(|entry| entry.key == key).map(|entry| &entry.node)
            }
            _ => None,
        }
    }
}
