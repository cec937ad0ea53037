//! Reads scalars as kubectl does: a plain scalar follows YAML 1.1, and a quoted one is text.
//!
//! kubectl first converts YAML into JSON (`sigs.k8s.io/yaml` over `yaml.v2`). So `yes` is a boolean, `0x50` and `010`
//! are numbers, and a plain `80` is an error where text is required. Timestamps stay text, as in kubectl.

use std::borrow::Cow;

use super::tree::Value;

/// Returns the value of a plain (unquoted, untagged) scalar.
pub fn plain<'a>(text: impl Into<Cow<'a, str>>) -> Value<'a> {
    let text = text.into();
    match &*text {
        "" | "~" | "null" | "Null" | "NULL" => return Value::Null,
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => {
            return Value::Boolean(true);
        }
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => {
            return Value::Boolean(false);
        }
        _ => {}
    }
    // A number begins with a digit, a sign or a dot. This check keeps the common case cheap.
    if !text.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '.')) {
        return Value::String(text);
    }
    let digits = text.replace('_', "");
    if let Some(number) = integer(&digits) {
        return Value::Integer(number);
    }
    if is_float(&digits) {
        return Value::Float(text);
    }
    Value::String(text)
}

/// Parses a decimal, `0x` hexadecimal, `0o` or leading-zero octal, or `0b` binary number, each with an optional sign,
/// within 64 bits.
fn integer(text: &str) -> Option<i128> {
    let (negative, digits) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let lower = digits.get(..2).map(str::to_ascii_lowercase);
    let (radix, digits) = match lower.as_deref() {
        Some("0x") => (16, &digits[2..]),
        Some("0o") => (8, &digits[2..]),
        Some("0b") => (2, &digits[2..]),
        Some(two) if two.starts_with('0') => (8, &digits[1..]),
        _ => (10, digits),
    };
    // `from_str_radix` would accept a second sign.
    if !digits.starts_with(|c: char| c.is_ascii_hexdigit()) {
        return None;
    }
    let magnitude = u64::from_str_radix(digits, radix).ok()?;
    let number = if negative { -i128::from(magnitude) } else { i128::from(magnitude) };
    (number >= i128::from(i64::MIN)).then_some(number)
}

/// Returns whether the text has digits with a dot or an exponent, or is one of YAML's names for infinity and
/// not-a-number.
fn is_float(text: &str) -> bool {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    if matches!(unsigned, ".inf" | ".Inf" | ".INF" | ".nan" | ".NaN" | ".NAN") {
        return true;
    }
    let (mantissa, exponent) = match unsigned.find(['e', 'E']) {
        Some(at) => (&unsigned[..at], Some(&unsigned[at + 1..])),
        None => (unsigned, None),
    };
    let all_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let mantissa_ok = match mantissa.split_once('.') {
        Some((whole, part)) => {
            all_digits(whole) && all_digits(part) && !(whole.is_empty() && part.is_empty())
        }
        None => !mantissa.is_empty() && all_digits(mantissa),
    };
    let exponent_ok = exponent.is_none_or(|text| {
        let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
        !digits.is_empty() && all_digits(digits)
    });
    mantissa_ok && exponent_ok
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Value<'_> {
        Value::String(text.into())
    }

    #[test]
    fn yaml_1_1_booleans_and_nulls_are_not_text() {
        for word in ["y", "Y", "yes", "Yes", "YES", "on", "On", "ON", "true", "True", "TRUE"] {
            assert_eq!(plain(word), Value::Boolean(true), "{word}");
        }
        for word in ["n", "N", "no", "No", "NO", "off", "Off", "OFF", "false", "False", "FALSE"] {
            assert_eq!(plain(word), Value::Boolean(false), "{word}");
        }
        for word in ["", "~", "null", "Null", "NULL"] {
            assert_eq!(plain(word), Value::Null, "{word}");
        }
        for word in ["yEs", "nO", "nULL", "tRUE", "yess", "o"] {
            assert_eq!(plain(word), text(word));
        }
    }

    #[test]
    fn whole_numbers_are_read_in_four_bases() {
        for (written, number) in [
            ("80", 80),
            ("+80", 80),
            ("-1", -1),
            ("0", 0),
            ("0x50", 80),
            ("0X50", 80),
            ("-0x50", -80),
            ("0120", 80),
            ("0o120", 80),
            ("0b101", 5),
            ("8_080", 8080),
            ("18446744073709551615", i128::from(u64::MAX)),
        ] {
            assert_eq!(plain(written), Value::Integer(number), "{written}");
        }
    }

    #[test]
    fn what_only_looks_like_a_number_is_a_float_or_text() {
        for written in
            ["1.5", ".5", "1.", "1e3", "-1.5E-3", "09", ".inf", "-.INF", "99999999999999999999"]
        {
            assert_eq!(plain(written), Value::Float(written.into()), "{written}");
        }
        for written in [
            "10.0.0.1",
            "10.0.0.0/8",
            "1.2.3",
            ".",
            "-",
            "+",
            "--1",
            "0x",
            "0xfg",
            "1e",
            "e1",
            "::1",
            "2001-01-01",
            "80/tcp",
            "1-2",
            "0b",
            "...",
            "+-1",
            "0x-1",
        ] {
            assert_eq!(plain(written), text(written), "{written}");
        }
    }
}
