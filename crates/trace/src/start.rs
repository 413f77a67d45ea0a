//! The beginning and the end: a process with the usual variables of OpenTelemetry in its environment exports its spans by
//! OTLP; any other writes its log and no more.

use std::env;
use std::time::Duration;

use opentelemetry::trace::TracerProvider as _;
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tracing::{Level, Subscriber};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::{Layer, SubscriberExt as _};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, filter};

use crate::log::{Format, Lines};
use crate::{EXPORTING, Exporting, TARGET};

/// How long the last spans may take to leave.
const LAST: Duration = Duration::from_secs(3);

/// A process that tells what it does.
#[derive(Clone, Copy, Debug)]
pub struct Process {
    /// What its spans are signed with, unless `OTEL_SERVICE_NAME` says otherwise.
    pub service: &'static str,
    /// What is written to the log, unless `RUST_LOG` says otherwise.
    pub log: &'static str,
}

/// Starts the log of this process and, if the environment names a collector, its spans. Once a process.
pub fn start<W>(process: Process, format: Format, writer: W)
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let wanted = is_wanted(|name| env::var(name).ok());
    let exporting = wanted.then(|| provider(process.service)).transpose();
    let provider = exporting.as_ref().ok().and_then(Option::as_ref);
    let tracer = provider.map(|provider| provider.tracer("berth"));
    let spans = tracer.clone().map(|tracer| {
        tracing_opentelemetry::layer()
            .with_tracer(tracer)
            .with_location(false)
            .with_threads(false)
            .with_level(false)
            .with_target(false)
            .with_tracked_inactivity(false)
            .with_filter(filter::Targets::new().with_target(TARGET, Level::TRACE))
    });
    let registry = tracing_subscriber::registry().with(lines(process.log, format, writer));
    match spans {
        Some(spans) => registry.with(spans).init(),
        // Not as a layer that is not there: without any, what is only for spans is never looked at.
        None => registry.init(),
    }
    match exporting {
        Ok(Some(provider)) => {
            let _ = tracer.map(|tracer| EXPORTING.set(Exporting { provider, tracer }));
        }
        Ok(None) => {}
        // The product is worth more than its spans.
        Err(error) => {
            tracing::error!(%error, "no spans are exported: look at OTEL_EXPORTER_OTLP_ENDPOINT");
        }
    }
}

fn lines<S, W>(log: &str, format: Format, writer: W) -> Box<dyn Layer<S> + Send + Sync>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(log));
    let lines = tracing_subscriber::fmt::layer().with_writer(writer);
    match format {
        Format::Json => lines.json().event_format(Lines::json()).with_filter(filter).boxed(),
        Format::Text => lines.event_format(Lines::text()).with_filter(filter).boxed(),
    }
}

/// Exports what has not left yet. To be called once, when everything else is over.
pub fn finish() {
    if let Some(exporting) = EXPORTING.get() {
        // A collector that is gone is no failure of the product.
        let _ = exporting.provider.shutdown_with_timeout(LAST);
    }
}

/// Whether the environment asks for spans.
fn is_wanted(variable: impl Fn(&str) -> Option<String>) -> bool {
    let is = |name: &str, word: &str| {
        variable(name).is_some_and(|value| value.eq_ignore_ascii_case(word))
    };
    let named = ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"];
    let named = named.iter().any(|name| variable(name).is_some_and(|value| !value.is_empty()));
    named && !is("OTEL_SDK_DISABLED", "true") && !is("OTEL_TRACES_EXPORTER", "none")
}

fn provider(
    service: &'static str,
) -> Result<SdkTracerProvider, opentelemetry_otlp::ExporterBuildError> {
    let exporter =
        SpanExporter::builder().with_http().with_protocol(Protocol::HttpBinary).build()?;
    let mut resource = Resource::builder();
    if env::var("OTEL_SERVICE_NAME").is_err() {
        resource = resource.with_service_name(service);
    }
    let pid = opentelemetry::KeyValue::new("process.pid", i64::from(std::process::id()));
    let resource = resource.with_attribute(pid).build();
    Ok(SdkTracerProvider::builder().with_resource(resource).with_batch_exporter(exporter).build())
}

#[cfg(test)]
mod tests {
    use super::is_wanted;

    fn wanted(variables: &[(&str, &str)]) -> bool {
        is_wanted(|name| {
            let found = variables.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn spans_are_exported_where_a_collector_is_named_and_nobody_is_against_it() {
        const THERE: (&str, &str) = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318");
        assert!(wanted(&[THERE]));
        assert!(wanted(&[(
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
            "http://127.0.0.1:4318/v1/traces"
        )]));
        assert!(!wanted(&[]));
        assert!(!wanted(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "")]));
        assert!(!wanted(&[THERE, ("OTEL_SDK_DISABLED", "TRUE")]));
        assert!(!wanted(&[THERE, ("OTEL_TRACES_EXPORTER", "none")]));
    }
}
