//! The effect of a field in Manx, and the values that need no effect, such as `false`.

use super::super::code::Code;
use super::super::tree::Value;

/// The effect of a field in Manx.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// The field has the effect that Calico's reference describes, with the exception that the text
    /// names.
    Heeded(&'static str),
    /// The field has no effect, and nothing is missing. The text says why.
    Quiet(&'static str),
    /// The field requests an effect that Manx does not implement.
    NotDone(NotDone),
}

/// A setting that Manx does not implement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotDone {
    /// The code of the problem.
    pub code: Code,
    /// The values with which nothing is missing.
    pub unless: Unless,
    /// The missing part, as text after the field's name.
    pub message: &'static str,
    pub help: &'static str,
}

/// Values that need no effect, such as `false`. Empty values and null need no effect either, for every variant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unless {
    /// Only the empty values.
    Empty,
    /// This truth value.
    Boolean(bool),
    Integer(i128),
    /// One of these texts, in upper or lower case.
    Texts(&'static [&'static str]),
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
            _ => false,
        }
    }
}

fn is_one_of(text: &str, quiet: &[&str]) -> bool {
    quiet.iter().any(|quiet| quiet.eq_ignore_ascii_case(text))
}

/// A row: fields with one effect.
pub(super) type Row = (&'static [&'static str], Effect);
