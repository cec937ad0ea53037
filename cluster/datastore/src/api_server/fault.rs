//! The reasons why a request to the API server failed.

use std::error::Error;
use std::io;

use kube::client::AuthError;
use rustls::{AlertDescription, CertificateError};

use crate::followed::Reason;

/// The maximum length of a server's message that is repeated, in bytes.
pub(super) const WORDS: usize = 500;

/// An error that the client detects itself.
#[derive(Debug, thiserror::Error)]
pub(super) enum ClientError {
    /// The server sent more than the client reads.
    #[error(
        "the server sent {what} of more than {most} bytes, expected no more for one object: it was read no further"
    )]
    TooLong {
        /// What was too long: an answer or a line.
        what: &'static str,
        /// The maximum number of bytes that the client reads.
        most: usize,
    },
    /// Any other error.
    #[error("{0}")]
    Other(String),
}

impl From<ClientError> for kube::Error {
    fn from(own: ClientError) -> Self {
        Self::Service(Box::new(own))
    }
}

/// Makes an error with this text.
pub(super) fn own(text: String) -> kube::Error {
    ClientError::Other(text).into()
}

/// Returns whether a complete answer was too long. An answer with fewer objects may be short enough.
pub(super) fn is_too_long(error: &kube::Error) -> bool {
    let kube::Error::Service(error) = error else { return false };
    matches!(error.downcast_ref(), Some(ClientError::TooLong { .. }))
}

/// Returns the HTTP status of an error that the server has sent.
pub(super) fn code(error: &kube::Error) -> Option<u16> {
    match error {
        kube::Error::Api(status) => Some(status.code),
        _ => None,
    }
}

/// Returns whether the request may succeed later. Expired credentials (401) count as temporary, because the next
/// connection reads them again.
pub(super) fn is_passing(error: &kube::Error) -> bool {
    code(error).is_none_or(|code| matches!(code, 401 | 408 | 409 | 429) || code >= 500)
}

/// Returns the server's message, if the server has answered. Otherwise returns the reason why there is no answer, as
/// far as it is known.
pub(super) fn words(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if status.message.is_empty() => {
            format!("the server answered {} {}", status.code, status.reason)
        }
        kube::Error::Api(status) => status.message.clone(),
        error => certificate_or_token(error).unwrap_or_else(|| match error {
            kube::Error::Service(inner) => reasons(&**inner),
            error => reasons(error),
        }),
    }
}

/// Returns the reason why objects cannot be followed, from the text of [`words`]. The cause does not contain the kind
/// of the objects.
pub(super) fn reason(words: String) -> Reason {
    let forbidden = words.split_once(" is forbidden: ").map(|(_, rest)| rest);
    let cause = forbidden.and_then(|rest| rest.split(" resource ").next()).map(str::to_owned);
    Reason { cause: cause.unwrap_or_else(|| words.clone()), text: words }
}

/// Returns the reasons of an error, the outermost first. A part that repeats the part before it is left out.
pub(super) fn reasons(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        let reason = source.to_string();
        if !text.contains(&reason) {
            text = format!("{text}: {reason}");
        }
        next = source.source();
    }
    text.replacen("client error (Connect)", "cannot connect", 1)
}

/// Returns the problem of a certificate or a token, and where to correct it.
fn certificate_or_token(error: &(dyn Error + 'static)) -> Option<String> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(AuthError::InvalidBearerToken(_)) = error.downcast_ref() {
            return Some(
                "the bearer token holds a character that no header of HTTP may hold: look at the kubeconfig's token, or at \
                 what its exec plugin prints"
                    .to_owned(),
            );
        }
        // An error that is wrapped in an I/O error is not among its sources.
        let wrapped = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        if let Some(wrapped) = wrapped {
            return certificate_or_token(wrapped);
        }
        if let Some(error) = error.downcast_ref::<rustls::Error>() {
            return tls(error);
        }
        next = error.source();
    }
    None
}

fn tls(error: &rustls::Error) -> Option<String> {
    let text = match error {
        rustls::Error::InvalidCertificate(wrong) => {
            format!("the API server's certificate {}", certificate(wrong))
        }
        rustls::Error::AlertReceived(alert) => match alert {
            AlertDescription::CertificateRequired
            | AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateUnknown
            | AlertDescription::UnknownCA
            | AlertDescription::AccessDenied => format!(
                "the API server refuses this client's certificate ({alert:?}): look at --api-cert, or at the kubeconfig's \
                 client-certificate"
            ),
            alert => format!("the API server ends the TLS handshake ({alert:?})"),
        },
        rustls::Error::InvalidMessage(_) => {
            "the API server's port speaks no TLS: found something else, expected https".to_owned()
        }
        _ => return None,
    };
    Some(text)
}

fn certificate(wrong: &CertificateError) -> String {
    const AUTHORITY: &str = "look at --api-ca, at the kubeconfig's certificate-authority, or at the service account's ca.crt";
    match wrong {
        CertificateError::UnknownIssuer => {
            format!("is not signed by an authority that the agent trusts: {AUTHORITY}")
        }
        CertificateError::BadSignature => {
            format!(
                "has a wrong signature: its authority has the name of a trusted one, and another key; {AUTHORITY}"
            )
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            format!("has expired, or the clock of this node is wrong ({})", detail(wrong))
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            format!("is not valid yet, or the clock of this node is wrong ({})", detail(wrong))
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            format!("is for another name than the server's address ({})", detail(wrong))
        }
        CertificateError::Revoked => "was revoked".to_owned(),
        wrong => format!("is not valid ({})", detail(wrong)),
    }
}

/// Returns the library's text, which contains times and names. Its first words are removed if the agent's own text
/// already says the same.
fn detail(wrong: &CertificateError) -> String {
    let text = wrong.to_string();
    let text = text.strip_prefix("certificate ").unwrap_or(&text);
    let repeated = ["expired: ", "not valid yet: "];
    repeated.iter().find_map(|it| text.strip_prefix(it)).unwrap_or(text).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_forbidden_what_is_one_cause_for_all_kinds() {
        let words = |kind: &str| {
            format!(
                "{kind}.v1 is forbidden: User \"manx-node\" cannot list resource \"{kind}\" in API group \"\" at the \
                 cluster scope"
            )
        };
        let [pods, nodes] = ["pods", "nodes"].map(|kind| reason(words(kind)));
        assert_eq!((&*pods.cause, &pods.text), ("User \"manx-node\" cannot list", &words("pods")));
        assert_eq!(pods.cause, nodes.cause);
        assert_eq!(reason("no answer".to_owned()).cause, "no answer");
    }
}
