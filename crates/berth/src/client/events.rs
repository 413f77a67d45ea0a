//! Streams, as far as somebody who waits needs them: that something happened, what it says, and where to go on after the
//! connection broke.

use std::time::Duration;

use reqwest::header::CONTENT_TYPE;
use uuid::Uuid;

use super::Client;

/// A stream may stay open for long; what is given up is silence, by whoever waits.
const WHOLE: Duration = Duration::from_secs(24 * 3_600);

/// Whether a stream can be had.
pub(crate) enum Offer {
    /// Here it is.
    Open(Box<Events>),
    /// Perhaps later: the connection broke.
    Later,
    /// Not here: the API is older, or says no.
    Never,
}

/// An open stream.
pub(crate) struct Events {
    answer: reqwest::Response,
    heard: Heard,
}

impl Client {
    /// The stream of an allocation, from the event `last` on.
    pub(crate) async fn events(&self, id: Uuid, last: Option<&str>) -> Offer {
        self.stream(&format!("/allocations/{id}/events"), last).await
    }

    /// What the caller is told, from the notification `last` on; from now on, when there is none.
    pub(crate) async fn own_events(&self, last: Option<&str>) -> Offer {
        self.stream("/events", last).await
    }

    async fn stream(&self, path: &str, last: Option<&str>) -> Offer {
        let url = format!("{}/api/v1{path}", self.reach.api);
        let mut request = self.http.get(url).timeout(WHOLE);
        if let Some(token) = &self.reach.token {
            request = request.bearer_auth(token);
        }
        if let Some(last) = last {
            request = request.header("last-event-id", last);
        }
        let Ok(answer) = request.send().await else {
            return Offer::Later;
        };
        let kind = answer.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        let is_stream = kind.is_some_and(|kind| kind.starts_with("text/event-stream"));
        if answer.status().is_success() && is_stream {
            Offer::Open(Box::new(Events { answer, heard: Heard::default() }))
        } else if answer.status().is_server_error() {
            Offer::Later
        } else {
            Offer::Never
        }
    }
}

impl Events {
    /// Waits for what comes: whether it is something that happened or a mere sign of life. None when the connection is
    /// gone.
    pub(crate) async fn next(&mut self) -> Option<bool> {
        let bytes = self.answer.chunk().await.ok()??;
        Some(self.heard.take(&bytes))
    }

    /// What the events say that came last.
    pub(crate) fn texts(&mut self) -> Vec<String> {
        std::mem::take(&mut self.heard.texts)
    }

    /// The id of the last event that was heard.
    pub(crate) fn last(&self) -> Option<&str> {
        self.heard.last.as_deref()
    }
}

/// What has arrived.
#[derive(Default)]
struct Heard {
    buffer: Vec<u8>,
    last: Option<String>,
    texts: Vec<String>,
}

impl Heard {
    /// Takes bytes; says whether a whole event is among them. Comments are none.
    fn take(&mut self, bytes: &[u8]) -> bool {
        self.buffer.extend_from_slice(bytes);
        let mut events = false;
        self.texts.clear();
        while let Some(end) = self.buffer.windows(2).position(|pair| pair == b"\n\n") {
            let block: Vec<u8> = self.buffer.drain(..end + 2).collect();
            for line in String::from_utf8_lossy(&block).lines() {
                if let Some(id) = line.strip_prefix("id:") {
                    self.last = Some(id.trim_start().to_owned());
                }
                if let Some(text) = line.strip_prefix("data:") {
                    self.texts.push(text.trim_start().to_owned());
                    events = true;
                }
            }
        }
        events
    }
}

#[cfg(test)]
mod tests {
    use super::Heard;

    #[test]
    fn events_are_told_from_comments_and_may_arrive_in_pieces() {
        let mut heard = Heard::default();
        assert!(!heard.take(b": open\nretry: 1000\n\n"));
        assert!(!heard.take(b"id: a.b\nevent: state\nda"));
        assert_eq!(heard.last, None, "it is not whole yet");
        assert!(heard.take(b"ta: {}\n\n: still here\n\n"));
        assert_eq!(heard.last.as_deref(), Some("a.b"));
        assert!(!heard.take(b": still here\n\n"));
        assert!(heard.take(b"id: c.d\ndata: {}\n\nevent: end\ndata: {\"a\":1}\n\n"));
        assert_eq!(heard.texts, ["{}", "{\"a\":1}"], "of what came last");
        assert_eq!(heard.last.as_deref(), Some("c.d"), "the end has no id of its own");
    }
}
