//! What is counted and what is written down of every request: method, the route's pattern, status, id and time. Never a
//! query string, a body or a header, because that is where secrets are.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use axum::extract::{MatchedPath, Request};
use axum::http::{Method, StatusCode};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use trace::Parent;
use tracing::{Span, field};
use uuid::Uuid;

use crate::http::frame::WATCHED;
use crate::measures;

/// Upper bounds of the histogram of request times, in seconds.
const BUCKETS_SECONDS: [f64; 12] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0];
/// The same of tasks, which take longer.
const TASK_BUCKETS_SECONDS: [f64; 12] =
    [0.05, 0.25, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1_800.0];

static HANDLE: OnceLock<PrometheusHandle> = OnceLock::new();

/// The metrics of this process. Clones share them.
#[derive(Clone)]
pub struct Telemetry(PrometheusHandle);

impl Telemetry {
    /// Makes Prometheus the recorder of this process, once. Where another recorder is there already, as in some tests,
    /// what is rendered is empty.
    pub fn install() -> Telemetry {
        let handle = HANDLE.get_or_init(|| {
            let tasks = Matcher::Full("berth_node_task_seconds".to_owned());
            let builder = PrometheusBuilder::new().set_buckets(&BUCKETS_SECONDS);
            let builder = builder
                .and_then(|builder| builder.set_buckets_for_metric(tasks, &TASK_BUCKETS_SECONDS));
            let recorder = builder.unwrap_or_default().build_recorder();
            let handle = recorder.handle();
            if metrics::set_global_recorder(recorder).is_err() {
                tracing::warn!("another metrics recorder is installed; /metrics stays empty");
            }
            measures::describe();
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
    /// Its place in a trace: the caller's, or one that begins here. Agents report all the time, and what watches the
    /// process asks all the time: they have none but one that they bring.
    pub(crate) fn span(&self, request: &Request) -> Span {
        if !trace::is_on() {
            return Span::none();
        }
        let brought = request.headers().get(trace::HEADER).and_then(|value| value.to_str().ok());
        let brought = brought.filter(|text| Parent::parse(text).is_some());
        let path = self.path.as_ref().map_or("unmatched", MatchedPath::as_str);
        if brought.is_none() && (path.starts_with("/agent/") || WATCHED.contains(&path)) {
            return Span::none();
        }
        let method = known(&self.method);
        let span = tracing::trace_span!(
            target: trace::TARGET, "request", otel.name = format!("{method} {path}"), otel.kind = "server",
            http.request.method = method, http.route = path, http.response.status_code = field::Empty,
            request_id = %self.request_id, otel.status_code = field::Empty,
        );
        trace::follow(&span, brought);
        span
    }

    /// Its line in the log, its place in the histogram, and the end of its span.
    pub(crate) fn answered(self, status: StatusCode, took: Duration, span: &Span) {
        let _entered = span.enter();
        span.record("http.response.status_code", status.as_u16());
        if status.is_server_error() {
            span.record("otel.status_code", "ERROR");
        }
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
        metrics::histogram!("berth_http_request_seconds", &labels).record(took.as_secs_f64());
    }
}

/// A method's name, if it is one of the few: strangers do not make up labels.
fn known(method: &Method) -> &'static str {
    const METHODS: [&str; 7] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];
    METHODS.into_iter().find(|name| *name == method.as_str()).unwrap_or("OTHER")
}
