//! The report as SARIF, the format that code review tools read.
//!
//! Source: OASIS, "Static Analysis Results Interchange Format (SARIF) Version 2.1.0".

use std::fmt::Write as _;

use serde_json::{Value, json};

use manx_objects::code::Code;
use manx_objects::problem::{Place, Problem, Severity};

const SCHEMA: &str = "https://json.schemastore.org/sarif-2.1.0.json";

/// A log with one run: a rule for each code, a result for each problem.
pub(super) fn log(problems: &[Problem]) -> Value {
    let rules: Vec<Value> = Code::ALL.iter().map(|code| rule(*code)).collect();
    let results: Vec<Value> = problems.iter().map(result).collect();
    json!({
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [{
            "tool": { "driver": {
                "name": "manx policy check",
                "version": env!("CARGO_PKG_VERSION"),
                "rules": rules,
            }},
            "columnKind": "unicodeCodePoints",
            "results": results,
        }],
    })
}

fn rule(code: Code) -> Value {
    let mut rule = json!({
        "id": code.name(),
        "shortDescription": { "text": code.meaning() },
        "defaultConfiguration": { "level": level(code.severity()) },
    });
    if let Some(help) = code.help() {
        rule["help"] = json!({ "text": help });
    }
    rule
}

fn result(problem: &Problem) -> Value {
    let code = problem.code();
    let mut text = match problem.field.as_str() {
        "" => problem.cause.to_string(),
        field => format!("{field}: {}", problem.cause),
    };
    if let Some(help) = problem.help() {
        // Writing to a String cannot fail.
        let _ = write!(text, ". Help: {help}");
    }
    let mut location = json!({ "physicalLocation": physical_location(&problem.place) });
    if let Some(object) = &problem.object {
        let name = object.to_string();
        location["logicalLocations"] = json!([{ "fullyQualifiedName": name, "kind": "object" }]);
    }
    json!({
        "ruleId": code.name(),
        "ruleIndex": Code::ALL.iter().position(|it| *it == code),
        "level": level(problem.severity),
        "message": { "text": text },
        "locations": [location],
    })
}

fn physical_location(place: &Place) -> Value {
    let mut location = json!({ "artifactLocation": { "uri": uri(&place.file) } });
    if let Some(at) = place.at {
        location["region"] = json!({ "startLine": at.line, "startColumn": at.column });
    }
    location
}

const fn level(severity: Severity) -> &'static str {
    match severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
        Severity::Note => "note",
    }
}

/// A path as a reference (RFC 3986): relative to the working directory of the command, or a `file:`
/// URI.
fn uri(path: &str) -> String {
    let mut uri = String::from(if path.starts_with('/') { "file://" } else { "" });
    for byte in path.bytes() {
        if byte.is_ascii_alphanumeric() || b"/-._~".contains(&byte) {
            uri.push(char::from(byte));
        } else {
            // Writing to a String cannot fail.
            let _ = write!(uri, "%{byte:02X}");
        }
    }
    uri
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_a_uri_reference() {
        assert_eq!(uri("a b/ä#1.yaml"), "a%20b/%C3%A4%231.yaml");
        assert_eq!(uri("/dev/stdin"), "file:///dev/stdin");
        assert_eq!(uri("c:d.yaml"), "c%3Ad.yaml");
    }
}
