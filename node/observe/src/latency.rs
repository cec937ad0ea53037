//! The latencies of changes.

use std::time::Duration;

use prometheus::core::Collector;
use prometheus::proto::MetricFamily;
use prometheus::{Histogram, HistogramOpts};

/// The upper bounds of the buckets, in seconds. They range from a change in place to a full read of a large cluster's
/// objects.
const BUCKETS: [f64; 14] =
    [0.0001, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0];

/// Histograms of latencies; clones share them. A histogram that cannot be made is left out.
#[derive(Debug, Clone)]
pub struct Latencies {
    publish: Option<Histogram>,
    change: Option<Histogram>,
}

impl Default for Latencies {
    fn default() -> Self {
        let histogram = |name: &str, help: &str| {
            Histogram::with_opts(HistogramOpts::new(name, help).buckets(BUCKETS.to_vec())).ok()
        };
        Self {
            publish: histogram(
                "manx_publish_duration_seconds",
                "Time to make tables and hand them to the workers.",
            ),
            change: histogram(
                "manx_change_to_workers_seconds",
                "Time from the receipt of a change of objects until the last worker uses it.",
            ),
        }
    }
}

impl Latencies {
    /// Records the time to make tables and hand them to the workers.
    pub fn published(&self, took: Duration) {
        self.publish.iter().for_each(|it| it.observe(took.as_secs_f64()));
    }

    /// Records the time until the last worker uses a change of objects.
    pub fn changed(&self, took: Duration) {
        self.change.iter().for_each(|it| it.observe(took.as_secs_f64()));
    }

    /// The histograms as metrics.
    pub(crate) fn families(&self) -> Vec<MetricFamily> {
        [&self.publish, &self.change].into_iter().flatten().flat_map(Collector::collect).collect()
    }
}
