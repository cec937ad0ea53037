//! A client for an agent's health, by HTTP at a second socket of the agent. A separate thread of the agent answers, even
//! while the agent's control loop is busy or does not run.

use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::client::{self, Error};

/// The time that an answer may take: less than kubelet waits for a probe.
const PATIENCE: Duration = Duration::from_secs(4);
/// The most bytes of an answer that are read. An answer is a sentence.
const MAX_ANSWER: u64 = 64 << 10;

/// A page of an agent's health.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Page {
    /// Whether the process should be left running.
    Liveness,
    /// Whether pods can be attached and their packets pass.
    Readiness,
}

/// The answer to a probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// Whether all is well.
    pub well: bool,
    /// The answer as a sentence.
    pub text: String,
}

/// The path of the health socket of the agent that listens at `agent`.
pub fn path(agent: &Path) -> PathBuf {
    agent.with_extension("health")
}

/// Reads a page at the socket `path`.
///
/// # Errors
/// No process of the caller's user or of root listens, or the answer is not a page of health.
pub fn ask(path: &Path, page: Page) -> Result<Answer, Error> {
    let name = match page {
        Page::Liveness => "liveness",
        Page::Readiness => "readiness",
    };
    let mut stream = client::connect(path, PATIENCE)?;
    let mut text = String::new();
    let asked = stream
        .write_all(format!("GET /{name} HTTP/1.1\r\nHost: manx\r\n\r\n").as_bytes())
        .and_then(|()| stream.take(MAX_ANSWER).read_to_string(&mut text));
    match asked {
        Ok(_) => parse(&text).ok_or_else(|| Error::Protocol {
            path: path.to_owned(),
            reason: format!("expected a page of HTTP/1.1 with status 200 or 503, found {text:?}"),
        }),
        Err(error)
            if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) =>
        {
            Err(Error::Slow { path: path.to_owned(), patience: PATIENCE })
        }
        Err(source) => Err(Error::Broken { path: path.to_owned(), source }),
    }
}

fn parse(text: &str) -> Option<Answer> {
    let (head, body) = text.split_once("\r\n\r\n")?;
    let well = match head.strip_prefix("HTTP/1.1 ")?.get(..3)? {
        "200" => true,
        "503" => false,
        _ => return None,
    };
    Some(Answer { well, text: body.trim_end().to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_page_of_health_is_an_answer() {
        let page = |status| format!("HTTP/1.1 {status}\r\nx: y\r\n\r\na sentence\n");
        let answer = |well| Some(Answer { well, text: "a sentence".to_owned() });
        assert_eq!(parse(&page("200 OK")), answer(true));
        assert_eq!(parse(&page("503 Service Unavailable")), answer(false));
        for wrong in
            [&page("404 Not Found"), "", "HTTP/1.1 200 OK\r\n", "200\r\n\r\n", "HTTP/1.1 2"]
        {
            assert_eq!(parse(wrong), None, "{wrong:?}");
        }
    }
}
