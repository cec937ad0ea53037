//! Why the API server does not do what it is asked for.

/// The HTTP status of an error that the server has answered.
pub(super) fn code(error: &kube::Error) -> Option<u16> {
    match error {
        kube::Error::Api(status) => Some(status.code),
        _ => None,
    }
}

/// Whether the server may do later what it does not do now.
pub(super) fn is_passing(error: &kube::Error) -> bool {
    code(error).is_none_or(|code| code == 409 || code == 429 || code >= 500)
}

/// An error in the server's own words, if it has answered.
pub(super) fn words(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if status.message.is_empty() => {
            format!("the server answered {} {}", status.code, status.reason)
        }
        kube::Error::Api(status) => status.message.clone(),
        error => reasons(error),
    }
}

/// The reasons of an error, the outermost first. Parts that repeat the one before are left out.
pub(super) fn reasons(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        let reason = source.to_string();
        if !text.contains(&reason) {
            text = format!("{text}: {reason}");
        }
        next = source.source();
    }
    text
}
