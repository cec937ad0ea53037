//! The versions of the specification.

use serde_json::Value;

/// The versions of the specification that the plugin speaks, oldest first.
pub(crate) const VERSIONS: [&str; 3] = ["0.4.0", "1.0.0", "1.1.0"];
const NEWEST: &str = VERSIONS[VERSIONS.len() - 1];

/// All versions, as text.
pub(crate) fn all() -> String {
    VERSIONS.join(", ")
}

/// The version of a reply: that of the input, if the input has a known one.
pub(crate) fn reply_version(input: &[u8]) -> String {
    let parsed: Option<Value> = serde_json::from_slice(input).ok();
    let found = parsed.as_ref().and_then(|it| it.get("cniVersion")?.as_str());
    found.filter(|found| VERSIONS.contains(found)).unwrap_or(NEWEST).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_speaks_the_version_of_the_input_if_that_is_known() {
        assert_eq!(reply_version(br#"{"cniVersion":"0.4.0"}"#), "0.4.0");
        for other in ["", "{", r#"{"cniVersion":"9.9.9"}"#, r#"{"cniVersion":4}"#] {
            assert_eq!(reply_version(other.as_bytes()), "1.1.0");
        }
    }
}
