//! What is counted and what is written down of every request: method, the route's pattern, status, id and time. Never a
//! query string, a body or a header, because that is where secrets are.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use axum::extract::MatchedPath;
use axum::http::{Method, StatusCode};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use uuid::Uuid;

/// Upper bounds of the histogram of request times, in seconds.
const BUCKETS_SECONDS: [f64; 12] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0];
/// How long requests take.
const REQUEST_SECONDS: &str = "berth_http_request_seconds";

static HANDLE: OnceLock<PrometheusHandle> = OnceLock::new();

/// The metrics of this process. Clones share them.
#[derive(Clone)]
pub struct Telemetry(PrometheusHandle);

impl Telemetry {
    /// Makes Prometheus the recorder of this process, once. Where another recorder is there already, as in some tests,
    /// what is rendered is empty.
    pub fn install() -> Telemetry {
        let handle = HANDLE.get_or_init(|| {
            let builder = PrometheusBuilder::new().set_buckets(&BUCKETS_SECONDS);
            let recorder = builder.unwrap_or_default().build_recorder();
            let handle = recorder.handle();
            if metrics::set_global_recorder(recorder).is_err() {
                tracing::warn!("another metrics recorder is installed; /metrics stays empty");
            }
            handle
        });
        Telemetry(handle.clone())
    }

    /// Everything, as Prometheus reads it.
    pub fn render(&self) -> String {
        self.0.run_upkeep();
        self.0.render()
    }

    /// Puts what was measured where it takes no more room. To be called now and then, for nobody may ever ask.
    pub fn settle(&self) {
        self.0.run_upkeep();
    }
}

/// Measures how long something takes. That is no time of day: nothing is judged by it.
pub(crate) struct Stopwatch(Instant);

impl Stopwatch {
    #[expect(
        clippy::disallowed_methods,
        reason = "a duration is measured, and nothing decided by it"
    )]
    pub(crate) fn start() -> Stopwatch {
        Stopwatch(Instant::now())
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }
}

/// What may be written down of a request.
pub(crate) struct Seen {
    pub(crate) method: Method,
    /// The pattern, with `{id}` for ids; none when there is nothing at the path.
    pub(crate) path: Option<MatchedPath>,
    pub(crate) request_id: Uuid,
}

impl Seen {
    /// Its line in the log, and its place in the histogram.
    pub(crate) fn answered(self, status: StatusCode, took: Duration) {
        let path = self.path.as_ref().map_or("unmatched", MatchedPath::as_str);
        let milliseconds = took.as_secs_f64() * 1_000.0;
        let status = status.as_u16();
        let (method, request_id) = (known(&self.method), self.request_id);
        // Agents report all the time: what went well with them is no news.
        if path.starts_with("/agent/") && status < 400 {
            tracing::debug!(method, path, status, %request_id, milliseconds, "answered");
        } else {
            tracing::info!(method, path, status, %request_id, milliseconds, "answered");
        }
        let labels = [
            ("method", known(&self.method).to_owned()),
            ("path", path.to_owned()),
            ("status", status.to_string()),
        ];
        metrics::histogram!(REQUEST_SECONDS, &labels).record(took.as_secs_f64());
    }
}

/// A method's name, if it is one of the few: strangers do not make up labels.
fn known(method: &Method) -> &'static str {
    const METHODS: [&str; 7] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];
    METHODS.into_iter().find(|name| *name == method.as_str()).unwrap_or("OTHER")
}
