//! Reads JSON (RFC 8259) into a [`tree`](super::tree), with the position of every value.
//!
//! JSON is also YAML in flow style, except for long keys, tabs and surrogate escapes. This reader returns `None` for a
//! text that is not JSON or that exceeds the limits of a [`tree`](super::tree). The YAML reader then reads the text or
//! reports its errors. Law: if both readers accept a text, their results are equal.

use std::borrow::Cow;
use std::collections::HashMap;
use std::mem;

use super::scalar;
use super::tree::{
    Document, Entry, Flaw, FlawKind, MAX_DEPTH, MAX_NODES, Node, Position, Value, shown,
};

/// The number of keys from which an object gets an index of its keys. A smaller object is searched without an index.
const SMALL: usize = 16;

/// Returns the documents of a text that consists of JSON objects or lists and white space. There is one document, or
/// several as in JSON Lines. A key that occurs twice is a flaw.
pub(super) fn parse(text: &str) -> Option<Vec<Document<'_>>> {
    let is_ascii = text.is_ascii();
    let mut reader = Reader { rest: text, is_ascii, line: 1, column: 1, ..Reader::default() };
    let mut documents = Vec::new();
    reader.skip_space();
    while reader.rest.starts_with(['{', '[']) {
        let root = reader.value(0)?;
        let flaws = mem::take(&mut reader.flaws);
        documents.push(Document { number: documents.len() + 1, root, flaws });
        reader.skip_space();
    }
    (reader.rest.is_empty() && !documents.is_empty()).then_some(documents)
}

#[derive(Default)]
struct Reader<'a> {
    rest: &'a str,
    /// Whether the text is ASCII, so that each character is one byte.
    is_ascii: bool,
    line: usize,
    column: usize,
    nodes: usize,
    flaws: Vec<Flaw>,
    /// The entries of all objects that are being read; `items` has the items of all lists that are being read. The part
    /// of the innermost object or list comes last. When the object or list ends, its part is moved to a new vector
    /// without spare capacity.
    entries: Vec<Entry<'a>>,
    items: Vec<Node<'a>>,
}

impl<'a> Reader<'a> {
    fn at(&self) -> Position {
        Position { line: self.line, column: self.column }
    }

    /// Takes the next bytes, which must not contain a line break.
    fn take(&mut self, bytes: usize) -> &'a str {
        let (taken, rest) = self.rest.split_at(bytes);
        self.rest = rest;
        self.column += if self.is_ascii { bytes } else { taken.chars().count() };
        taken
    }

    /// Takes this text if it comes next, and returns whether it did.
    fn takes(&mut self, text: &str) -> bool {
        let is_next = self.rest.starts_with(text);
        if is_next {
            self.take(text.len());
        }
        is_next
    }

    /// Skips white space. A carriage return, alone or before a line feed, also ends a line, as in YAML.
    fn skip_space(&mut self) {
        loop {
            let bytes = self.rest.as_bytes();
            let skipped = match bytes.first() {
                Some(b' ' | b'\t') => {
                    self.column += 1;
                    self.rest = &self.rest[1..];
                    continue;
                }
                Some(b'\r') if bytes.get(1) == Some(&b'\n') => 2,
                Some(b'\r' | b'\n') => 1,
                _ => return,
            };
            self.rest = &self.rest[skipped..];
            self.line += 1;
            self.column = 1;
        }
    }

    fn count(&mut self) -> Option<()> {
        self.nodes += 1;
        (self.nodes <= MAX_NODES).then_some(())
    }

    /// Reads a value that is nested in `depth` lists and objects.
    fn value(&mut self, depth: usize) -> Option<Node<'a>> {
        self.count()?;
        let at = self.at();
        let value = match self.rest.as_bytes().first()? {
            b'{' if depth < MAX_DEPTH => Value::Mapping(self.object(depth)?),
            b'[' if depth < MAX_DEPTH => Value::Sequence(self.list(depth)?),
            b'"' => Value::String(self.string()?),
            b'-' | b'0'..=b'9' => scalar::plain(self.number()?),
            _ if self.takes("true") => Value::Boolean(true),
            _ if self.takes("false") => Value::Boolean(false),
            _ if self.takes("null") => Value::Null,
            _ => return None,
        };
        Some(Node { at, value })
    }

    fn object(&mut self, depth: usize) -> Option<Vec<Entry<'a>>> {
        let begin = self.entries.len();
        // The position of each key. It is filled only for a large object, because a small object is searched faster
        // without it.
        let mut keys: HashMap<Cow<'a, str>, Position> = HashMap::new();
        self.take(1);
        self.skip_space();
        if self.takes("}") {
            return Some(Vec::new());
        }
        loop {
            self.count()?;
            let at = self.at();
            let key = self.string()?;
            self.skip_space();
            if !self.takes(":") {
                return None;
            }
            self.skip_space();
            let node = self.value(depth + 1)?;
            let entries = &self.entries[begin..];
            if entries.len() == SMALL {
                keys.extend(entries.iter().map(|entry| (entry.key.clone(), entry.at)));
            }
            let first = if entries.len() < SMALL {
                entries.iter().find(|entry| entry.key == key).map(|entry| entry.at)
            } else {
                keys.get(&key).copied()
            };
            if let Some(first) = first {
                let key = shown(&key).into_owned();
                self.flaws.push(Flaw { at, kind: FlawKind::DuplicateKey { key, first } });
            } else {
                if entries.len() >= SMALL {
                    keys.insert(key.clone(), at);
                }
                self.entries.push(Entry { key, at, node });
            }
            self.skip_space();
            if self.takes("}") {
                return Some(self.entries.split_off(begin));
            }
            if !self.takes(",") {
                return None;
            }
            self.skip_space();
        }
    }

    fn list(&mut self, depth: usize) -> Option<Vec<Node<'a>>> {
        let begin = self.items.len();
        self.take(1);
        self.skip_space();
        if self.takes("]") {
            return Some(Vec::new());
        }
        loop {
            let item = self.value(depth + 1)?;
            self.items.push(item);
            self.skip_space();
            if self.takes("]") {
                return Some(self.items.split_off(begin));
            }
            if !self.takes(",") {
                return None;
            }
            self.skip_space();
        }
    }

    /// Reads a number: `-`, digits without a leading zero, a fraction, an exponent (section 6).
    fn number(&mut self) -> Option<&'a str> {
        let bytes = self.rest.as_bytes();
        let digits = |from: usize| bytes[from..].iter().take_while(|b| b.is_ascii_digit()).count();
        let mut end = usize::from(bytes.first() == Some(&b'-'));
        let whole = digits(end);
        if whole == 0 || (whole > 1 && bytes[end] == b'0') {
            return None;
        }
        end += whole;
        if bytes.get(end) == Some(&b'.') {
            let fraction = digits(end + 1);
            end += 1 + (fraction > 0).then_some(fraction)?;
        }
        if matches!(bytes.get(end), Some(b'e' | b'E')) {
            end += 1 + usize::from(matches!(bytes.get(end + 1), Some(b'+' | b'-')));
            let exponent = digits(end);
            end += (exponent > 0).then_some(exponent)?;
        }
        Some(self.take(end))
    }

    /// Reads a string in quotation marks (section 7).
    fn string(&mut self) -> Option<Cow<'a, str>> {
        if !self.takes("\"") {
            return None;
        }
        let mut text = String::new();
        loop {
            let plain = self.rest.bytes().position(|b| matches!(b, b'"' | b'\\' | ..=0x1f))?;
            let plain = self.take(plain);
            if self.takes("\"") {
                let is_as_written = text.is_empty();
                return Some(if is_as_written { plain.into() } else { (text + plain).into() });
            }
            text.push_str(plain);
            if !self.takes("\\") {
                return None;
            }
            text.push(match self.rest.as_bytes().first()? {
                b'u' => {
                    self.take(1);
                    self.escaped_character()?
                }
                escape => {
                    let character = match escape {
                        b'"' => '"',
                        b'\\' => '\\',
                        b'/' => '/',
                        b'b' => '\u{8}',
                        b'f' => '\u{c}',
                        b'n' => '\n',
                        b'r' => '\r',
                        b't' => '\t',
                        _ => return None,
                    };
                    self.take(1);
                    character
                }
            });
        }
    }

    /// Reads the part after `\u`: four hexadecimal digits, or a surrogate pair for a character above U+FFFF.
    fn escaped_character(&mut self) -> Option<char> {
        let first = self.four_digits()?;
        if !(0xd800..0xdc00).contains(&first) {
            return char::from_u32(first);
        }
        let second = if self.takes("\\u") { self.four_digits()? } else { return None };
        let low = second.checked_sub(0xdc00).filter(|low| *low < 0x400)?;
        char::from_u32(0x1_0000 + ((first - 0xd800) << 10) + low)
    }

    fn four_digits(&mut self) -> Option<u32> {
        let digits = self.rest.get(..4)?;
        let is_number = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = is_number.then(|| u32::from_str_radix(digits, 16).ok())?;
        self.take(4);
        number
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Map, Value as Json};

    use super::*;
    use crate::yaml;

    fn read(text: &str) -> Option<Value<'_>> {
        let [document] = <[Document; 1]>::try_from(parse(text)?).unwrap();
        Some(document.root.value)
    }

    fn string(text: &str) -> Option<String> {
        match read(&format!("[{text}]"))? {
            Value::Sequence(nodes) => match &nodes[..] {
                [Node { value: Value::String(text), .. }] => Some(text.to_string()),
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        }
    }

    fn json() -> impl Strategy<Value = Json> {
        let leaf = prop_oneof![
            Just(Json::Null),
            any::<bool>().prop_map(Json::from),
            any::<i64>().prop_map(Json::from),
            any::<u64>().prop_map(Json::from),
            (-1e6..1e6).prop_map(|number: f64| Json::from(number)),
            "[ -~äß€]{0,12}".prop_map(Json::from),
            prop::sample::select(vec![
                "<<",
                "~",
                "yes",
                "0x10",
                "a\tb",
                "\u{8}\n",
                "\u{1f600}",
                "- a",
                "# b"
            ])
            .prop_map(Json::from),
        ];
        leaf.prop_recursive(5, 60, 5, |inner| {
            let key = prop_oneof!["[a-c]", "[ -~é]{0,8}"];
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..5).prop_map(Json::from),
                prop::collection::btree_map(key, inner, 0..5)
                    .prop_map(|fields| Json::Object(fields.into_iter().collect::<Map<_, _>>())),
            ]
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]

        /// Law: both readers return equal values and positions, whatever the layout of the text.
        #[test]
        fn json_and_yaml_read_the_same(value in json(), pretty in any::<bool>(), crlf in any::<bool>()) {
            let object = serde_json::json!({ "a": value });
            let mut text = if pretty { serde_json::to_string_pretty(&object) } else { serde_json::to_string(&object) }.unwrap();
            if crlf {
                text = text.replace('\n', "\r\n");
            }
            let by_yaml = yaml::parse_yaml(&text, 0).unwrap();
            prop_assert_eq!(parse(&text), Some(by_yaml), "{}", text);
        }

        /// Law: `serde_json` and this reader refuse the same texts.
        #[test]
        fn what_is_no_json_is_left_to_yaml(text in r#"[\[{][\[\]{}:,"\\ 0-9eE.+\-a-dntrufls\n]{0,16}"#) {
            let by_serde: Result<Vec<Json>, _> = serde_json::Deserializer::from_str(&text).into_iter().collect();
            let is_json = by_serde.is_ok_and(|values| values.iter().all(|it| it.is_object() || it.is_array()));
            prop_assert_eq!(parse(&text).is_some(), is_json, "{}", text);
        }
    }

    #[test]
    fn escapes_are_read() {
        assert_eq!(string(r#""\"\\\/\b\f\n\r\t""#).as_deref(), Some("\"\\/\u{8}\u{c}\n\r\t"));
        assert_eq!(string(r#""\u00e4\ud83d\ude00""#).as_deref(), Some("ä😀"));
        for broken in [
            r#""\x""#,
            r#""\u12""#,
            r#""\ud83d""#,
            r#""\ud83d\u0041""#,
            r#""\ude00""#,
            r#""\u+123""#,
        ] {
            assert_eq!(string(broken), None, "{broken}");
        }
    }

    #[test]
    fn a_key_that_stands_twice_is_a_flaw_as_in_yaml() {
        let text = "{\"a\": 1,\n \"b\": {\"c\": 1, \"c\": 2}, \"a\": 3}";
        let documents = parse(text).unwrap();
        assert_eq!(documents[0].flaws.len(), 2);
        assert_eq!(documents, yaml::parse_yaml(text, 0).unwrap());
        // A key of a large object occurs twice. The key is an early one, the last one of a small object, the next one,
        // or a late one.
        for twice in [0, SMALL - 1, SMALL, SMALL + 3] {
            let keys = (0..SMALL + 5).chain([twice]).map(|key| format!("\"k{key}\": 1"));
            let text = format!("{{{}}}", keys.collect::<Vec<_>>().join(", "));
            let documents = parse(&text).unwrap();
            assert_eq!(documents[0].flaws.len(), 1, "{twice}");
            assert_eq!(documents, yaml::parse_yaml(&text, 0).unwrap());
        }
    }

    #[test]
    fn json_lines_are_documents_each_with_its_place_and_flaws() {
        let documents = parse("{\"a\": 1}\n{\"b\": 1, \"b\": 2}\n\n[3] {}\n").unwrap();
        let at: Vec<String> = documents.iter().map(|it| it.root.at.to_string()).collect();
        assert_eq!(at, ["1:1", "2:1", "4:1", "4:5"]);
        let numbers: Vec<_> = documents.iter().map(|it| (it.number, it.flaws.len())).collect();
        assert_eq!(numbers, [(1, 0), (2, 1), (3, 0), (4, 0)]);
        // The YAML reader reports an error in a line, with the line's number.
        assert_eq!(parse("{\"a\": 1}\n{\"b\""), None);
    }

    #[test]
    fn nesting_ends_where_that_of_yaml_does() {
        let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
        assert!(parse(&nested(MAX_DEPTH)).is_some());
        assert!(yaml::parse(&nested(MAX_DEPTH)).is_ok());
        assert_eq!(parse(&nested(MAX_DEPTH + 1)), None);
        assert!(yaml::parse(&nested(MAX_DEPTH + 1)).is_err());
    }

    #[test]
    fn other_documents_comments_and_plain_text_are_not_json() {
        for text in [
            "",
            "null",
            "{a: 1}",
            "{\"a\": 1} # b",
            "{\"a\": 1}\n---\n{}",
            "[1,]",
            "{\"a\": 01}",
            "{'a': 1}",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
