//! Reads a text as documents of YAML, or of JSON with a separate reader.
//!
//! Reading has limits, because a manifest may come from anywhere: [`MAX_BYTES`] of text, [`MAX_DEPTH`] levels of
//! nesting, and [`MAX_NODES`] values in a file, including those that aliases repeat. The memory for a file is
//! proportional to its length, because anchors and aliases may repeat at most its length plus [`MAX_REPEATED`].

use std::borrow::Cow;
use std::collections::HashMap;
use std::collections::hash_map;

use saphyr_parser::{Event, Parser, ScalarStyle, ScanError, Span, Tag};

use super::json;
use super::scalar;
use super::tree::{
    Document, Entry, Flaw, FlawKind, MAX_DEPTH, MAX_NODES, Node, Position, Value, shown,
};

/// The maximum size of a file, in bytes.
pub const MAX_BYTES: usize = 256 << 20;
/// The number of bytes, as JSON, that the anchors and aliases of a file may repeat in addition to the file's own
/// length. kubectl's parser instead limits the number of values that come from aliases: to 400,000 in a short document
/// (goyaml, `allowedAliasRatio`). A limit in bytes also covers long texts.
pub const MAX_REPEATED: usize = 1 << 20;

/// The reason why a file has no usable documents.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SyntaxError {
    #[error("{message}")]
    NotYaml { at: Position, message: String },
    /// Lists and mappings are nested too deep.
    #[error("nested deeper than {MAX_DEPTH} levels")]
    TooDeep { at: Position },
    /// There are too many values.
    #[error("more than {MAX_NODES} values in one file")]
    TooMany { at: Position },
    /// Anchors and aliases repeat too much, perhaps through aliases of aliases.
    #[error(
        "anchors and aliases repeat more than {most} bytes, the length of the file and {MAX_REPEATED}: write out what they stand for"
    )]
    Repeats {
        at: Position,
        /// The limit, in bytes.
        most: usize,
    },
    /// The file is too long.
    #[error("{found} bytes are more than the {MAX_BYTES} that a manifest may have")]
    TooLong {
        /// The length of the file, in bytes.
        found: usize,
    },
}

impl SyntaxError {
    /// Returns the place of the error. A file that is too long has none.
    pub fn position(&self) -> Option<Position> {
        match self {
            Self::NotYaml { at, .. }
            | Self::TooDeep { at }
            | Self::TooMany { at }
            | Self::Repeats { at, .. } => Some(*at),
            Self::TooLong { .. } => None,
        }
    }
}

/// Returns all documents of `text` that are not empty. The text may also be JSON or JSON Lines.
pub fn parse(text: &str) -> Result<Vec<Document<'_>>, SyntaxError> {
    parse_either(text, text.len() + MAX_REPEATED)
}

/// Like [`parse`], but refuses a text with anchors or aliases.
pub fn parse_json(text: &str) -> Result<Vec<Document<'_>>, SyntaxError> {
    parse_either(text, 0)
}

fn parse_either(text: &str, may_repeat: usize) -> Result<Vec<Document<'_>>, SyntaxError> {
    if text.len() > MAX_BYTES {
        return Err(SyntaxError::TooLong { found: text.len() });
    }
    let text = text.trim_start_matches('\u{feff}');
    match json::parse(text) {
        Some(documents) => Ok(documents),
        None => parse_yaml(text, may_repeat),
    }
}

/// Parses as YAML, even if the text is JSON.
pub(super) fn parse_yaml(text: &str, may_repeat: usize) -> Result<Vec<Document<'_>>, SyntaxError> {
    let mut builder = Builder { may_repeat, ..Builder::default() };
    let mut parser = Parser::new_from_str(text);
    while let Some(event) = parser.next_event() {
        let (event, span) = event.map_err(|error| not_yaml(&error))?;
        builder.take(event, &span)?;
    }
    Ok(builder.documents)
}

fn not_yaml(error: &ScanError) -> SyntaxError {
    let marker = error.marker();
    SyntaxError::NotYaml {
        at: Position { line: marker.line(), column: marker.col() + 1 },
        message: error.info().to_owned(),
    }
}

/// A list or mapping that is not closed yet.
struct Open<'a> {
    at: Position,
    anchor: usize,
    content: Content<'a>,
}

enum Content<'a> {
    Sequence(Vec<Node<'a>>),
    Mapping {
        entries: Vec<Entry<'a>>,
        /// The position of each key that the mapping itself contains. Keys that come from `<<` are left out, so that
        /// the mapping's own keys override them.
        explicit: HashMap<Cow<'a, str>, Position>,
        /// The key for the next value.
        key: Option<Key<'a>>,
        /// The values of `<<`, which are merged when the mapping closes.
        merges: Vec<Node<'a>>,
    },
}

#[derive(Default)]
struct Builder<'a> {
    documents: Vec<Document<'a>>,
    number: usize,
    stack: Vec<Open<'a>>,
    root: Option<Node<'a>>,
    flaws: Vec<Flaw>,
    anchors: HashMap<usize, Node<'a>>,
    nodes: usize,
    /// The number of bytes, as JSON, that anchors store and aliases have repeated so far. `may_repeat` is its limit.
    repeated: usize,
    may_repeat: usize,
}

impl<'a> Builder<'a> {
    fn take(&mut self, event: Event<'a>, span: &Span) -> Result<(), SyntaxError> {
        let at = Position { line: span.start.line(), column: span.start.col() + 1 };
        match event {
            Event::Nothing | Event::StreamStart | Event::StreamEnd => {}
            Event::DocumentStart(_) => {
                self.number += 1;
                self.anchors.clear();
            }
            Event::DocumentEnd => self.close_document(),
            Event::Alias(anchor) => {
                // The parser refuses unknown anchors, so this anchor is inside its own value and not complete yet.
                let Some(target) = self.anchors.get(&anchor) else {
                    let message = "an alias inside the value that it names".to_owned();
                    return Err(SyntaxError::NotYaml { at, message });
                };
                let node = target.clone();
                self.repeat(&node, at)?;
                if self.stack.len() + node.depth() > MAX_DEPTH {
                    return Err(SyntaxError::TooDeep { at });
                }
                self.add(node, false);
            }
            Event::Scalar(text, style, anchor, tag) => {
                self.count(1, at)?;
                let merges = style == ScalarStyle::Plain && tag.is_none() && text == "<<";
                let node = Node { at, value: self.scalar(at, text, style, tag.as_deref()) };
                self.remember(anchor, &node)?;
                self.add(node, merges);
            }
            Event::SequenceStart(anchor, tag) => {
                self.collection_tag(at, tag.as_deref(), "seq");
                self.open(at, anchor, Content::Sequence(Vec::new()))?;
            }
            Event::MappingStart(anchor, tag) => {
                self.collection_tag(at, tag.as_deref(), "map");
                let content = Content::Mapping {
                    entries: Vec::new(),
                    explicit: HashMap::new(),
                    key: None,
                    merges: Vec::new(),
                };
                self.open(at, anchor, content)?;
            }
            Event::SequenceEnd | Event::MappingEnd => self.close()?,
        }
        Ok(())
    }

    fn count(&mut self, nodes: usize, at: Position) -> Result<(), SyntaxError> {
        self.nodes += nodes;
        if self.nodes > MAX_NODES { Err(SyntaxError::TooMany { at }) } else { Ok(()) }
    }

    /// Counts a node that an anchor stores or an alias repeats.
    fn repeat(&mut self, node: &Node<'a>, at: Position) -> Result<(), SyntaxError> {
        self.count(node.size(), at)?;
        self.repeated += node.json_len();
        let most = self.may_repeat;
        if self.repeated > most { Err(SyntaxError::Repeats { at, most }) } else { Ok(()) }
    }

    fn open(
        &mut self,
        at: Position,
        anchor: usize,
        content: Content<'a>,
    ) -> Result<(), SyntaxError> {
        self.count(1, at)?;
        if self.stack.len() >= MAX_DEPTH {
            return Err(SyntaxError::TooDeep { at });
        }
        self.stack.push(Open { at, anchor, content });
        Ok(())
    }

    fn close(&mut self) -> Result<(), SyntaxError> {
        let Some(Open { at, anchor, content }) = self.stack.pop() else { return Ok(()) };
        let value = match content {
            Content::Sequence(nodes) => Value::Sequence(nodes),
            Content::Mapping { mut entries, mut explicit, merges, .. } => {
                for merge in merges {
                    self.merge(&mut entries, &mut explicit, merge);
                }
                Value::Mapping(entries)
            }
        };
        let node = Node { at, value };
        self.remember(anchor, &node)?;
        self.add(node, false);
        Ok(())
    }

    fn close_document(&mut self) {
        let flaws = std::mem::take(&mut self.flaws);
        if let Some(root) = self.root.take()
            && (root.value != Value::Null || !flaws.is_empty())
        {
            self.documents.push(Document { number: self.number, root, flaws });
        }
    }

    /// Stores the node of an anchor. The anchor number 0 means that there is no anchor.
    fn remember(&mut self, anchor: usize, node: &Node<'a>) -> Result<(), SyntaxError> {
        if anchor != 0 {
            self.repeat(node, node.at)?;
            self.anchors.insert(anchor, node.clone());
        }
        Ok(())
    }

    /// Adds a finished node to its list or mapping. `merges_here` says whether the node is a plain `<<`, which is the
    /// merge key if it is a key of a mapping.
    fn add(&mut self, node: Node<'a>, merges_here: bool) {
        let Some(open) = self.stack.last_mut() else {
            self.root = Some(node);
            return;
        };
        match &mut open.content {
            Content::Sequence(nodes) => nodes.push(node),
            Content::Mapping { entries, explicit, key, merges } => {
                let Some(Key { at, kind }) = key.take() else {
                    let kind = if merges_here { KeyKind::Merge } else { key_kind(node.value) };
                    *key = Some(Key { at: node.at, kind });
                    return;
                };
                match kind {
                    KeyKind::Illegal(found) => {
                        self.flaws.push(Flaw { at, kind: FlawKind::KeyNotText { found } });
                    }
                    KeyKind::Merge => merges.push(node),
                    KeyKind::Text(text) => {
                        if let Some(first) = explicit.get(&text) {
                            let key = shown(&text).into_owned();
                            let kind = FlawKind::DuplicateKey { key, first: *first };
                            self.flaws.push(Flaw { at, kind });
                        } else {
                            explicit.insert(text.clone(), at);
                            entries.push(Entry { key: text, at, node });
                        }
                    }
                }
            }
        }
    }

    /// Merges the values of `<<`. A key of the mapping itself takes precedence. If several merged mappings have a key,
    /// the first one counts. `keys` are the keys of `entries`.
    fn merge(
        &mut self,
        entries: &mut Vec<Entry<'a>>,
        keys: &mut HashMap<Cow<'a, str>, Position>,
        from: Node<'a>,
    ) {
        match from.value {
            Value::Mapping(more) => {
                for entry in more {
                    if let hash_map::Entry::Vacant(vacant) = keys.entry(entry.key.clone()) {
                        vacant.insert(entry.at);
                        entries.push(entry);
                    }
                }
            }
            Value::Sequence(nodes)
                if nodes.iter().all(|node| matches!(node.value, Value::Mapping(_))) =>
            {
                for node in nodes {
                    self.merge(entries, keys, node);
                }
            }
            other => {
                let kind = FlawKind::MergeOfNoMapping { found: other.type_name() };
                self.flaws.push(Flaw { at: from.at, kind });
            }
        }
    }

    fn scalar(
        &mut self,
        at: Position,
        text: Cow<'a, str>,
        style: ScalarStyle,
        tag: Option<&Tag>,
    ) -> Value<'a> {
        let Some(tag) = tag else {
            return match style {
                ScalarStyle::Plain => scalar::plain(text),
                _ => Value::String(text),
            };
        };
        if !tag.is_yaml_core_schema() {
            // `! text` has YAML's non-specific tag, so it is a string.
            if !(tag.handle.is_empty() && tag.suffix == "!") {
                self.flaws.push(Flaw { at, kind: unknown(tag) });
            }
            return Value::String(text);
        }
        if tag.suffix == "str" {
            return Value::String(text);
        }
        let value = scalar::plain(text.clone());
        let fits = match tag.suffix.as_str() {
            "int" => matches!(value, Value::Integer(_)),
            "float" => matches!(value, Value::Integer(_) | Value::Float(_)),
            "bool" => matches!(value, Value::Boolean(_)),
            "null" => matches!(value, Value::Null),
            _ => {
                self.flaws.push(Flaw { at, kind: unknown(tag) });
                return value;
            }
        };
        if !fits {
            let text = shown(&text).into_owned();
            let kind = FlawKind::TagContradicted { tag: tag.to_string(), text };
            self.flaws.push(Flaw { at, kind });
        }
        value
    }

    fn collection_tag(&mut self, at: Position, tag: Option<&Tag>, own: &str) {
        if let Some(tag) = tag
            && !(tag.is_yaml_core_schema() && tag.suffix == own)
        {
            self.flaws.push(Flaw { at, kind: unknown(tag) });
        }
    }
}

fn unknown(tag: &Tag) -> FlawKind {
    FlawKind::UnknownTag(shown(&tag.to_string()).into_owned())
}

/// A key that waits for its value.
struct Key<'a> {
    at: Position,
    kind: KeyKind<'a>,
}

enum KeyKind<'a> {
    Text(Cow<'a, str>),
    /// A plain `<<`.
    Merge,
    /// A key that is not text, and the name of its type.
    Illegal(&'static str),
}

/// Converts a key into text, as JSON requires. A number or a boolean becomes the text that JSON would write.
fn key_kind(value: Value<'_>) -> KeyKind<'_> {
    match value {
        Value::String(text) | Value::Float(text) => KeyKind::Text(text),
        Value::Integer(number) => KeyKind::Text(number.to_string().into()),
        Value::Boolean(truth) => KeyKind::Text(truth.to_string().into()),
        other @ (Value::Null | Value::Sequence(_) | Value::Mapping(_)) => {
            KeyKind::Illegal(other.type_name())
        }
    }
}
