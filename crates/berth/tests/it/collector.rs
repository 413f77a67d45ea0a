//! A collector of spans that reads OTLP, as any would, and keeps what it was told.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Told;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use prost::Message as _;

use crate::berth::{Ran, ran};
use crate::whole::Installation;

/// A span, as far as a test looks at it.
#[derive(Clone, Debug)]
pub(crate) struct Span {
    pub(crate) trace: String,
    pub(crate) id: String,
    pub(crate) parent: String,
    pub(crate) name: String,
    /// When it began, in nanoseconds since 1970.
    pub(crate) began: u64,
    pub(crate) attributes: BTreeMap<String, String>,
    pub(crate) process: String,
}

/// A collector.
pub(crate) struct Collector {
    pub(crate) endpoint: String,
    spans: Arc<Mutex<Vec<Span>>>,
}

impl Collector {
    pub(crate) fn start() -> Collector {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let endpoint = format!("http://{}", listener.local_addr().expect("it has one"));
        let spans: Arc<Mutex<Vec<Span>>> = Arc::default();
        let heard = Arc::clone(&spans);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let Some(request) = read(&stream) else { continue };
                heard.lock().expect("nobody panicked").extend(spans_of(request));
                let mut stream = stream;
                let _ = stream.write_all(
                    b"HTTP/1.1 200 OK\r\ncontent-type: application/x-protobuf\r\ncontent-length: 0\r\nconnection: close\r\n\r\n",
                );
            }
        });
        Collector { endpoint, spans }
    }

    pub(crate) fn all(&self) -> Vec<Span> {
        self.spans.lock().expect("nobody panicked").clone()
    }

    pub(crate) fn of_trace(&self, trace: &str) -> Vec<Span> {
        self.all().into_iter().filter(|span| span.trace == trace).collect()
    }
}

/// The spans below another, each indented, with when it began after the first and in which process.
pub(crate) fn tree(
    spans: &[Span],
    below: &str,
    depth: usize,
    of: &BTreeMap<String, String>,
) -> String {
    let first = spans.iter().map(|span| span.began).min().unwrap_or_default();
    let mut children: Vec<&Span> = spans.iter().filter(|span| span.parent == below).collect();
    children.sort_by_key(|span| span.began);
    let line = |span: &&Span| {
        let process = of.get(&span.process).map_or(span.process.as_str(), String::as_str);
        let millis = (span.began - first) / 1_000_000;
        let name = format!("{}{}", "  ".repeat(depth), span.name);
        format!("{millis:>6} ms  {process:<10} {name}\n{}", tree(spans, &span.id, depth + 1, of))
    };
    children.iter().map(line).collect()
}

fn read(stream: &TcpStream) -> Option<ExportTraceServiceRequest> {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    assert!(line.starts_with("POST /v1/traces "), "{line}");
    let mut length = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(": ") else { break };
        if name.eq_ignore_ascii_case("content-length") {
            length = value.parse().ok()?;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some(ExportTraceServiceRequest::decode(body.as_slice()).expect("it is what OTLP says it is"))
}

fn spans_of(request: ExportTraceServiceRequest) -> Vec<Span> {
    let mut spans = Vec::new();
    for resource in request.resource_spans {
        let of_process = resource.resource.unwrap_or_default().attributes;
        let process = text(&of_process).remove("process.pid").unwrap_or_default();
        for span in resource.scope_spans.into_iter().flat_map(|scope| scope.spans) {
            assert!(span.end_time_unix_nano >= span.start_time_unix_nano, "{}", span.name);
            spans.push(Span {
                trace: hex(&span.trace_id),
                id: hex(&span.span_id),
                parent: hex(&span.parent_span_id),
                began: span.start_time_unix_nano,
                attributes: text(&span.attributes),
                process: process.clone(),
                name: span.name,
            });
        }
    }
    spans
}

fn text(attributes: &[KeyValue]) -> BTreeMap<String, String> {
    let one = |pair: &KeyValue| {
        let value = match pair.value.clone() {
            Some(AnyValue { value: Some(Told::StringValue(text)) }) => text,
            Some(AnyValue { value: Some(Told::IntValue(number)) }) => number.to_string(),
            other => format!("{other:?}"),
        };
        (pair.key.clone(), value)
    };
    attributes.iter().map(one).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A caller's own trace, and the span in it that calls.
pub(crate) struct Calling {
    pub(crate) trace: &'static str,
    pub(crate) span: &'static str,
}

pub(crate) const CREATING: Calling =
    Calling { trace: "0af7651916cd43dd8448eb211c80319c", span: "b7ad6b7169203331" };
pub(crate) const RELEASING: Calling =
    Calling { trace: "4bf92f3577b34da6a3ce929d0e0e4736", span: "00f067aa0ba902b7" };

impl Calling {
    fn parent(&self) -> String {
        format!("00-{}-{}-01", self.trace, self.span)
    }

    pub(crate) fn ok(&self, whole: &Installation, words: &[&str]) -> Ran {
        let mut command = whole.home.command(words);
        let ran = ran(command.env("TRACEPARENT", self.parent()).output().expect("it runs"));
        assert_eq!(ran.code, 0, "{words:?}: {}{}", ran.out, ran.err);
        ran
    }
}
