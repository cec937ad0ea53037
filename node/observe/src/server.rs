//! Connections: one request each, bounded in number, time and size.
//!
//! A client that is slow, or that opens many connections, does not delay others. If there are too many connections, the
//! source with the most loses one, so a new connection is always served.

use std::convert::Infallible;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::watch;

use crate::connections::{Connections, Source};
use crate::health::Health;
use crate::pages::{Pages, Site, Subject};
use crate::served::Served;

/// The most connections of an address or socket at one time.
pub(crate) const CONNECTIONS: usize = 64;
/// The time in which a client must send its request's header.
pub(crate) const HEADER: Duration = Duration::from_secs(2);
/// The longest time of a connection.
const WHOLE: Duration = Duration::from_secs(10);
/// The most bytes of a request's header (hyper's minimum).
pub(crate) const ROOM: usize = 8192;
/// The most fields of a request's header.
const FIELDS: usize = 32;
/// The time that a listener pauses when the process has no descriptor left for a connection.
const REST: Duration = Duration::from_millis(100);

/// The time between attempts to listen at an address that another process uses.
pub(crate) const RETRY: Duration = Duration::from_secs(1);

/// The header for the relative share of connections that a load balancer should send here.
const WEIGHT: HeaderName = HeaderName::from_static("x-load-balancing-endpoint-weight");

/// The place where pages are served.
#[derive(Debug)]
pub(crate) enum Place {
    /// A listening socket of the unix domain.
    Socket(std::os::unix::net::UnixListener),
    /// An address of the node, which any process may use.
    Address(SocketAddr),
}

pub(crate) enum Listener {
    Unix(UnixListener),
    Tcp(TcpListener),
}

pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

impl Listener {
    async fn accept(&self) -> io::Result<(Source, Box<dyn Stream>)> {
        Ok(match self {
            Self::Unix(listener) => (Source::LOCAL, Box::new(listener.accept().await?.0)),
            Self::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                (Source::of(peer.ip()), Box::new(stream))
            }
        })
    }
}

/// Serves until the agent has ended. `checks` serves the health checks of services.
pub(crate) fn serve(
    places: Vec<(Place, Site)>,
    pages: &Arc<Pages>,
    served: &Served,
    checks: impl Future<Output = ()> + Send + 'static,
    mut agent: watch::Receiver<Health>,
) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        tokio::spawn(checks);
        for (place, site) in places {
            let (pages, served) = (Arc::clone(pages), served.clone());
            match place {
                Place::Socket(listener) => {
                    let listener = Listener::Unix(UnixListener::from_std(listener)?);
                    tokio::spawn(accept(listener, CONNECTIONS, Subject::Site(site), pages));
                }
                Place::Address(address) => {
                    tokio::spawn(async move {
                        let listener = Listener::Tcp(listen(address, site, &served).await);
                        accept(listener, CONNECTIONS, Subject::Site(site), pages).await;
                    });
                }
            }
        }
        while agent.changed().await.is_ok() {}
        Ok(())
    })
}

/// Listens at an address as soon as no other process does.
async fn listen(address: SocketAddr, site: Site, served: &Served) -> TcpListener {
    loop {
        match bind(address).await {
            Ok(listener) => {
                served.succeed(site.name());
                tracing::info!(%address, pages = site.paths().join(" "), "serves");
                return listener;
            }
            Err(error) => {
                let reason = format!(
                    "not served at {address}: {}, or name another address by {}; this agent tries again each second",
                    reason(&error),
                    site.flag()
                );
                served.fail(site.name(), &reason);
                tokio::time::sleep(RETRY).await;
            }
        }
    }
}

/// Listens at an address. With `[::]`, the socket listens at all addresses of both families, or at all IPv4 addresses
/// on a kernel without IPv6.
async fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let bound = TcpListener::bind(address).await;
    match &bound {
        Err(error)
            if address.ip() == Ipv6Addr::UNSPECIFIED
                && error.kind() != io::ErrorKind::AddrInUse =>
        {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port())).await
        }
        _ => bound,
    }
}

/// The reason why the agent cannot listen somewhere, and the first remedy to try.
pub(crate) fn reason(error: &io::Error) -> String {
    let who = match error.kind() {
        io::ErrorKind::AddrInUse => "what answers there is another process: end it",
        _ => "make it an address of this node",
    };
    format!("{error}; {who}")
}

/// Answers at most `most` connections at a time, until the task is aborted.
pub(crate) async fn accept(listener: Listener, most: usize, subject: Subject, pages: Arc<Pages>) {
    let mut connections = Connections::default();
    loop {
        let (source, stream) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "a connection for health or metrics could not be taken");
                tokio::time::sleep(REST).await;
                continue;
            }
        };
        connections.make_room(most, source);
        let served = tokio::time::timeout(WHOLE, answer(stream, subject, Arc::clone(&pages)));
        connections.add(source, tokio::spawn(served).abort_handle());
    }
}

/// Answers one request. Only the client is affected if its connection breaks.
async fn answer(stream: Box<dyn Stream>, subject: Subject, pages: Arc<Pages>) -> hyper::Result<()> {
    let respond = service_fn(move |request: Request<Incoming>| {
        let pages = Arc::clone(&pages);
        async move {
            let page = pages.page(subject, request.method(), request.uri().path()).await;
            let mut response = Response::new(Full::new(Bytes::from(page.text)));
            *response.status_mut() = page.status;
            let headers = response.headers_mut();
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(page.form));
            headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
            headers.extend(page.weight.map(|it| (WEIGHT, HeaderValue::from(it))));
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
