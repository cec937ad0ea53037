//! The text of each page.

use std::time::{Duration, Instant};

use hyper::{Method, StatusCode};
use prometheus::TEXT_FORMAT;
use tokio::sync::{Mutex, mpsc, oneshot, watch};
use tokio::time::timeout;

use crate::agent_metrics::MetricsRequest;
use crate::health::{Health, Verdict};
use crate::latency::Latencies;
use crate::metrics::Renderer;
use crate::served::Served;

/// The time for which the same metrics are shown, before the agent is asked again.
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
}

impl Site {
    /// The pages' name in sentences, and in the label of a metric.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Health => "health",
            Self::Metrics => "metrics",
        }
    }

    /// The name of the setting of the pages' address.
    pub(crate) const fn flag(self) -> &'static str {
        match self {
            Self::Health => "--health-address (FELIX_HEALTHPORT)",
            Self::Metrics => "--metrics-address (FELIX_PROMETHEUSMETRICSPORT)",
        }
    }

    /// The paths of the pages.
    pub(crate) const fn paths(self) -> &'static [&'static str] {
        match self {
            Self::Health => &["/liveness", "/readiness"],
            Self::Metrics => &["/metrics"],
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Page {
    pub(crate) status: StatusCode,
    pub(crate) form: &'static str,
    pub(crate) text: String,
}

impl Page {
    fn plain(status: StatusCode, text: impl Into<String>) -> Self {
        Self { status, form: "text/plain; charset=utf-8", text: text.into() + "\n" }
    }
}

impl From<Verdict> for Page {
    fn from(Verdict { well, text }: Verdict) -> Self {
        Self::plain(if well { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }, text)
    }
}

/// The sources of the pages.
pub(crate) struct Pages {
    health: watch::Receiver<Health>,
    metrics: Mutex<Metrics>,
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
    ) -> Self {
        let renderer = Renderer::new(latencies, served);
        Self { health, metrics: Mutex::new(Metrics { requests, renderer, last: None }) }
    }

    /// The page for a request.
    pub(crate) async fn page(&self, site: Site, method: &Method, path: &str) -> Page {
        if ![Method::GET, Method::HEAD].contains(method) {
            return Page::plain(StatusCode::METHOD_NOT_ALLOWED, "expected GET");
        }
        let now = Instant::now();
        match (site, path) {
            (Site::Health, "/liveness") => self.health.borrow().liveness(now).into(),
            (Site::Health, "/readiness") => self.health.borrow().readiness(now).into(),
            (Site::Metrics, "/metrics") => self.metrics.lock().await.page().await,
            _ => {
                let expected = site.paths().join(" or ");
                Page::plain(StatusCode::NOT_FOUND, format!("no such page: expected {expected}"))
            }
        }
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
                Ok(text) => Page { status: StatusCode::OK, form: TEXT_FORMAT, text },
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
