//! Connections: one request each, bounded in number, time and size.
//!
//! A client that is slow, or that opens many connections, holds up no other: where there are too many, the oldest one
//! ends, so that a new one is always served.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::AbortHandle;

use crate::health::Health;
use crate::pages::{Pages, Site};

/// Connections of an address at once.
pub(crate) const CONNECTIONS: usize = 64;
/// How long a client may take to send its request's header.
const HEADER: Duration = Duration::from_secs(2);
/// How long a connection may last.
const WHOLE: Duration = Duration::from_secs(10);
/// The most bytes of a request's header (the least that hyper has).
pub(crate) const ROOM: usize = 8192;
/// The most fields of it.
const FIELDS: usize = 32;
/// How long a listener rests when the process has no descriptor left for a connection.
const REST: Duration = Duration::from_millis(100);

/// Serves until the agent has gone.
pub(crate) fn serve(
    listeners: Vec<(std::net::TcpListener, Site)>,
    pages: &Arc<Pages>,
    mut agent: watch::Receiver<Health>,
) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        for (listener, site) in listeners {
            let listener = TcpListener::from_std(listener)?;
            tokio::spawn(accept(listener, site, Arc::clone(pages)));
        }
        while agent.changed().await.is_ok() {}
        Ok(())
    })
}

async fn accept(listener: TcpListener, site: Site, pages: Arc<Pages>) {
    let mut connections = VecDeque::<AbortHandle>::new();
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "a connection for health or metrics could not be taken");
                tokio::time::sleep(REST).await;
                continue;
            }
        };
        connections.retain(|connection| !connection.is_finished());
        if connections.len() >= CONNECTIONS
            && let Some(oldest) = connections.pop_front()
        {
            oldest.abort();
        }
        let served = tokio::time::timeout(WHOLE, answer(stream, site, Arc::clone(&pages)));
        connections.push_back(tokio::spawn(served).abort_handle());
    }
}

/// Answers one request. A connection that breaks is its client's affair.
async fn answer(stream: TcpStream, site: Site, pages: Arc<Pages>) -> hyper::Result<()> {
    let respond = service_fn(move |request: Request<Incoming>| {
        let pages = Arc::clone(&pages);
        async move {
            let page = pages.page(site, request.method(), request.uri().path()).await;
            let mut response = Response::new(Full::new(Bytes::from(page.text)));
            *response.status_mut() = page.status;
            response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(page.form));
            Ok::<_, Infallible>(response)
        }
    });
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER)
        .max_headers(FIELDS)
        .max_buf_size(ROOM)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), respond)
        .await
}
