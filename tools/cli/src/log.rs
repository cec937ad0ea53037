//! The log, on standard error.

use std::io;

use clap::ValueEnum;
use tracing_subscriber::EnvFilter;

const DEFAULT: &str = "info,kube_client=off";

/// The form of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Lines for people
    Text,
    /// One JSON object a line
    Json,
}

/// Starts the log. `MANX_LOG_FILTER` selects its lines, e.g. `debug` or `info,manx_datastore=debug` (the directives of
/// `tracing_subscriber::EnvFilter`). The default is `info`, without the library for API servers: Manx itself logs that
/// library's errors, with their causes. A second call does nothing.
pub fn start(format: LogFormat) {
    let filter =
        EnvFilter::try_from_env("MANX_LOG_FILTER").unwrap_or_else(|_| EnvFilter::new(DEFAULT));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
    // This fails if there is a log already.
    let _ = match format {
        LogFormat::Text => log.with_ansi(io::IsTerminal::is_terminal(&io::stderr())).try_init(),
        LogFormat::Json => log.json().try_init(),
    };
}
