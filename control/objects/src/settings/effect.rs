//! What Manx does with a field, and which values ask for nothing.

use super::super::code::Code;
use super::super::tree::Value;

/// What Manx does with a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// What Calico's reference says, with the exception that the text names.
    Heeded(&'static str),
    /// Nothing, and nothing is missing: why.
    Quiet(&'static str),
    /// Not what it asks for.
    NotDone(NotDone),
}

/// A setting that is not done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotDone {
    /// What kind of problem it is.
    pub code: Code,
    /// The value that asks for nothing.
    pub unless: Unless,
    /// What is not done, behind the field's name.
    pub message: &'static str,
    /// What to do about it.
    pub help: &'static str,
}

/// Values that ask for nothing. Empty ones and null never do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unless {
    /// None but the empty ones.
    Empty,
    /// This truth value.
    Boolean(bool),
    /// This number.
    Integer(i128),
    /// One of these texts, in upper or lower case.
    Texts(&'static [&'static str]),
    /// A list of nothing but these texts.
    Items(&'static [&'static str]),
}

impl Unless {
    pub(super) fn holds(self, value: &Value) -> bool {
        match (self, value) {
            (_, Value::Null) => true,
            (_, Value::String(text)) if text.is_empty() => true,
            (_, Value::Sequence(items)) if items.is_empty() => true,
            (_, Value::Mapping(entries)) if entries.is_empty() => true,
            (Self::Boolean(quiet), Value::Boolean(truth)) => quiet == *truth,
            (Self::Integer(quiet), Value::Integer(number)) => quiet == *number,
            (Self::Texts(quiet), Value::String(text)) => is_one_of(text, quiet),
            (Self::Items(quiet), Value::Sequence(items)) => items
                .iter()
                .all(|item| matches!(&item.value, Value::String(text) if is_one_of(text, quiet))),
            _ => false,
        }
    }
}

fn is_one_of(text: &str, quiet: &[&str]) -> bool {
    quiet.iter().any(|quiet| quiet.eq_ignore_ascii_case(text))
}

/// A row: fields with one effect.
pub(super) type Row = (&'static [&'static str], Effect);
