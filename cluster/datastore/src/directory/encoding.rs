//! Decodes the text of a file: UTF-8, or UTF-16 as Windows programs write it.

use std::io;

/// Decodes a file. UTF-16 is recognized by a byte order mark, or by a first character in ASCII (YAML 1.2, section 5.2).
pub(super) fn decode(bytes: Vec<u8>) -> io::Result<String> {
    let unit: fn([u8; 2]) -> u16 = match bytes.as_slice() {
        [0xff, 0xfe, ..] | [1..=0x7f, 0, ..] => u16::from_le_bytes,
        [0xfe, 0xff, ..] | [0, 1..=0x7f, ..] => u16::from_be_bytes,
        _ => return String::from_utf8(bytes).map_err(|error| not_utf8(&error)),
    };
    let (pairs, rest) = bytes.as_chunks::<2>();
    let units = pairs.iter().map(|pair| unit(*pair));
    let text: Result<String, _> = char::decode_utf16(units).collect();
    match text {
        Ok(text) if rest.is_empty() => Ok(text),
        _ => Err(invalid("begins as UTF-16 and is not UTF-16: save it as UTF-8")),
    }
}

fn not_utf8(error: &std::string::FromUtf8Error) -> io::Error {
    let at = error.utf8_error().valid_up_to();
    invalid(&format!("byte {at} is not UTF-8: save it as UTF-8, e.g. `iconv -f LATIN1 -t UTF-8`"))
}

fn invalid(message: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn utf16(text: &str, bytes: fn(u16) -> [u8; 2]) -> Vec<u8> {
        text.encode_utf16().flat_map(bytes).collect()
    }

    #[test]
    fn utf16_of_both_orders_is_read_with_a_mark_or_without() {
        for text in ["\u{feff}kind: Pod # ä😀\n", "kind: Pod # ä😀\n"] {
            assert_eq!(decode(text.as_bytes().to_vec()).unwrap(), text);
            assert_eq!(decode(utf16(text, u16::to_le_bytes)).unwrap(), text);
            assert_eq!(decode(utf16(text, u16::to_be_bytes)).unwrap(), text);
        }
        assert_eq!(decode(Vec::new()).unwrap(), "");
    }

    #[test]
    fn what_is_neither_says_what_to_do() {
        for (bytes, told) in [
            (&b"a: \xe4\n"[..], "byte 3 is not UTF-8: save it as UTF-8"),
            (b"\xff\xfea\0b", "save it as UTF-8"),
            (b"\xff\xfe\0\xd8a\0", "save it as UTF-8"),
        ] {
            let error = decode(bytes.to_vec()).unwrap_err();
            assert!(error.to_string().contains(told), "{error}");
        }
    }
}
