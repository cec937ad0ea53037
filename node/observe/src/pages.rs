//! The text of each page.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use hyper::{Method, StatusCode};
use prometheus::TEXT_FORMAT;
use tokio::sync::{Mutex, mpsc, oneshot, watch};
use tokio::time::timeout;

use crate::agent_metrics::MetricsRequest;
use crate::checks::{Check, Checks};
use crate::health::{Health, HealthAnswer};
use crate::latency::Latencies;
use crate::metrics::Renderer;
use crate::served::Served;

/// The time for which one page of metrics is served again, before the agent is asked for new metrics.
const FRESH: Duration = Duration::from_secs(1);
/// The time that the agent may take to answer. Prometheus waits for 10 s (`scrape_timeout`).
const ANSWER: Duration = Duration::from_secs(5);

/// The pages that are served at one address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Site {
    /// The pages of health.
    Health,
    /// The page of metrics.
    Metrics,
    /// The pages for load balancers, at kube-proxy's addresses.
    Proxy,
}

impl Site {
    /// The pages' name in sentences, and in the label of a metric.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Health => "health",
            Self::Metrics => "metrics",
            Self::Proxy => "proxy-health",
        }
    }

    /// The name of the setting of the pages' address.
    pub(crate) const fn flag(self) -> &'static str {
        match self {
            Self::Health => "--health-address (FELIX_HEALTHPORT)",
            Self::Metrics => "--metrics-address (FELIX_PROMETHEUSMETRICSPORT)",
            Self::Proxy => "--proxy-health-address (MANX_PROXY_HEALTH_ADDRESS)",
        }
    }

    /// The paths of the pages.
    pub(crate) const fn paths(self) -> &'static [&'static str] {
        match self {
            Self::Health => &["/liveness", "/readiness"],
            Self::Metrics => &["/metrics"],
            Self::Proxy => &["/healthz", "/livez"],
        }
    }
}

/// The content of a listening socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Subject {
    Site(Site),
    /// Whether a Service has endpoints on this node, at every path.
    ServiceCheck(SocketAddr),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Page {
    pub(crate) status: StatusCode,
    pub(crate) form: &'static str,
    pub(crate) text: String,
    /// The value of `X-Load-Balancing-Endpoint-Weight`: the Service's endpoints on this node.
    pub(crate) weight: Option<usize>,
}

impl Page {
    fn new(status: StatusCode, form: &'static str, text: String) -> Self {
        Self { status, form, text, weight: None }
    }

    fn plain(status: StatusCode, text: impl Into<String>) -> Self {
        Self::new(status, "text/plain; charset=utf-8", text.into() + "\n")
    }

    /// A page for load balancers.
    fn json(is_well: bool, text: String) -> Self {
        Self::new(status(is_well), "application/json", text)
    }
}

fn status(is_well: bool) -> StatusCode {
    if is_well { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
}

impl From<HealthAnswer> for Page {
    fn from(HealthAnswer { well, text }: HealthAnswer) -> Self {
        Self::plain(status(well), text)
    }
}

/// The sources of the pages.
pub(crate) struct Pages {
    health: watch::Receiver<Health>,
    metrics: Mutex<Metrics>,
    checks: watch::Receiver<Checks>,
}

/// The channel for metrics, and the last page of them.
struct Metrics {
    requests: mpsc::Sender<MetricsRequest>,
    renderer: Renderer,
    last: Option<(Instant, Page)>,
}

impl Pages {
    pub(crate) fn new(
        health: watch::Receiver<Health>,
        requests: mpsc::Sender<MetricsRequest>,
        latencies: Latencies,
        served: Served,
        checks: watch::Receiver<Checks>,
    ) -> Self {
        let renderer = Renderer::new(latencies, served);
        let metrics = Mutex::new(Metrics { requests, renderer, last: None });
        Self { health, metrics, checks }
    }

    /// The page for a request.
    pub(crate) async fn page(&self, subject: Subject, method: &Method, path: &str) -> Page {
        match subject {
            // Load balancers may use any HTTP method, as with kube-proxy.
            Subject::Site(Site::Proxy) | Subject::ServiceCheck(_) => {}
            Subject::Site(Site::Health | Site::Metrics) => {
                if ![Method::GET, Method::HEAD].contains(method) {
                    return Page::plain(StatusCode::METHOD_NOT_ALLOWED, "expected GET");
                }
            }
        }
        match subject {
            Subject::Site(site) => self.site_page(site, path).await,
            Subject::ServiceCheck(at) => self.check_page(&at),
        }
    }

    async fn site_page(&self, site: Site, path: &str) -> Page {
        let now = Instant::now();
        match (site, path) {
            (Site::Proxy, "/healthz") => {
                let health = self.health.borrow().proxy(now);
                Page::json(health.is_healthy && health.is_eligible, health.json(true))
            }
            (Site::Proxy, "/livez") => {
                let health = self.health.borrow().proxy(now);
                Page::json(health.is_healthy, health.json(false))
            }
            (Site::Health, "/liveness") => self.health.borrow().liveness(now).into(),
            (Site::Health, "/readiness") => self.health.borrow().readiness(now).into(),
            (Site::Metrics, "/metrics") => self.metrics.lock().await.page().await,
            _ => {
                let expected = site.paths().join(" or ");
                Page::plain(StatusCode::NOT_FOUND, format!("no such page: expected {expected}"))
            }
        }
    }

    /// Whether a balancer may send connections for a Service to this node (kube-proxy, `service_health.go`).
    fn check_page(&self, at: &SocketAddr) -> Page {
        let is_healthy = self.health.borrow().proxy(Instant::now()).is_healthy;
        let checks = self.checks.borrow();
        let Some(Check { namespace, name, endpoints }) = checks.get(at) else {
            return Page::plain(
                StatusCode::SERVICE_UNAVAILABLE,
                "no Service has this port any more",
            );
        };
        // The names of a Service contain no character that JSON escapes.
        let text = format!(
            "{{\"service\":{{\"namespace\":\"{namespace}\",\"name\":\"{name}\"}},\"localEndpoints\":{endpoints},\
             \"serviceProxyHealthy\":{is_healthy}}}"
        );
        let page = Page::json(*endpoints > 0 && is_healthy, text);
        Page { weight: Some(*endpoints), ..page }
    }
}

impl Metrics {
    /// All requests within a second get the same page, even if it says that there are no metrics.
    async fn page(&mut self) -> Page {
        if let Some((at, page)) = &self.last
            && at.elapsed() < FRESH
        {
            return page.clone();
        }
        let (request, answer) = oneshot::channel();
        let asked = async {
            self.requests.send(request).await.ok()?;
            answer.await.ok()
        };
        let page = match timeout(ANSWER, asked).await {
            Ok(Some(metrics)) => match self.renderer.render(&metrics) {
                Ok(text) => Page::new(StatusCode::OK, TEXT_FORMAT, text),
                Err(error) => Page::plain(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
            },
            Ok(None) => Page::plain(StatusCode::SERVICE_UNAVAILABLE, "the agent is stopping"),
            Err(_elapsed) => Page::plain(
                StatusCode::SERVICE_UNAVAILABLE,
                format!(
                    "the agent has not answered for {} s: it starts, or its control loop is busy; see /readiness",
                    ANSWER.as_secs()
                ),
            ),
        };
        self.last = Some((Instant::now(), page.clone()));
        page
    }
}
