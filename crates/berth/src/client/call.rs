//! One request and its answer: what is repeated, how often, and what each way of failing means to a person.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::Context as _;
use reqwest::header::{CONTENT_TYPE, RETRY_AFTER};
use reqwest::{Method, StatusCode, Url};
use serde::Serialize;
use serde::de::DeserializeOwned;
use uuid::Uuid;
use wire::problem::{Problem, ProblemCode};

use super::Client;
use crate::exit::{Done, Exit, Failure};
use crate::moment::{fresh_id, pause};

const CONNECT: Duration = Duration::from_secs(5);
const WHOLE: Duration = Duration::from_secs(60);
/// How often one thing is asked for, the first time included.
const ATTEMPTS_MAX: u32 = 6;
const PAUSE: Duration = Duration::from_millis(200);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// What HTTP is spoken with.
pub(super) fn http(api: &str) -> Done<reqwest::Client> {
    let url = Url::parse(api).ok().filter(|url| matches!(url.scheme(), "http" | "https"));
    let url = url.ok_or_else(|| {
        Failure::new(Exit::Usage, format!("`{api}` is not the address of an API"))
            .with("advice", "write it like http://127.0.0.1:7717 or https://berth.example.org")
    })?;
    let mut http = reqwest::Client::builder().connect_timeout(CONNECT).timeout(WHOLE);
    // A proxy is for other machines.
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    if host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback()) {
        http = http.no_proxy();
    }
    Ok(http.build().context("HTTP can't be spoken here")?)
}

/// A request to be.
pub(super) struct Call {
    method: Method,
    path: String,
    query: Vec<(String, String)>,
    body: Option<Vec<u8>>,
    /// Says that repeated requests are one.
    key: Option<Uuid>,
    repeatable: bool,
}

impl Call {
    /// A request that may be sent again if it gets lost.
    pub(super) fn new(method: Method, path: &str) -> Call {
        let path = format!("/api/v1{path}");
        Call { method, path, query: Vec::new(), body: None, key: None, repeatable: true }
    }

    /// The same for something that is not part of the API proper.
    pub(super) fn at_root(mut self) -> Call {
        self.path = self.path.replacen("/api/v1", "", 1);
        self
    }

    /// The same, with a key, so that it happens once however often it is sent.
    pub(super) fn once(self) -> Call {
        Call { key: Some(fresh_id()), ..self }
    }

    /// The same, to be sent a single time.
    pub(super) fn unrepeatable(self) -> Call {
        Call { repeatable: false, ..self }
    }

    /// The same, with something behind the question mark.
    pub(super) fn asking(mut self, name: &str, value: String) -> Call {
        self.query.push((name.to_owned(), value));
        self
    }

    /// The same, with a body.
    pub(super) fn saying(self, body: &impl Serialize) -> Done<Call> {
        let body = serde_json::to_vec(body).context("this can't be written as JSON")?;
        Ok(Call { body: Some(body), ..self })
    }
}

/// What came of one try.
enum Try {
    Answered(Vec<u8>),
    Failed(Failure),
    /// It may be otherwise in a moment.
    Again(Failure, Option<Duration>),
}

fn again_if(passing: bool, failure: Failure, after: Option<Duration>) -> Try {
    if passing { Try::Again(failure.passing(), after) } else { Try::Failed(failure) }
}

impl Client {
    /// Sends it until there is an answer that stays the same, or patience is at its end.
    pub(super) async fn send<T: DeserializeOwned>(&self, call: Call) -> Done<T> {
        let mut attempt = 1;
        loop {
            match self.attempt(&call, attempt).await? {
                Try::Answered(bytes) => return self.read(&bytes),
                Try::Failed(failure) => return Err(failure),
                Try::Again(failure, _) if attempt == ATTEMPTS_MAX || !call.repeatable => {
                    return Err(failure);
                }
                Try::Again(_, after) => {
                    let backing_off = PAUSE * 2_u32.pow(attempt - 1);
                    pause(after.unwrap_or(backing_off).clamp(PAUSE, PAUSE_MAX)).await;
                }
            }
            attempt += 1;
        }
    }

    async fn attempt(&self, call: &Call, attempt: u32) -> Done<Try> {
        let mut url = Url::parse(&format!("{}{}", self.reach.api, call.path))
            .context("the address can't be put together")?;
        if !call.query.is_empty() {
            url.query_pairs_mut().extend_pairs(&call.query);
        }
        let mut request = self.http.request(call.method.clone(), url);
        if let Some(token) = &self.reach.token {
            request = request.bearer_auth(token);
        }
        if let Some(key) = call.key {
            request = request.header("Idempotency-Key", key.to_string());
        }
        // Whoever runs the command in a trace of their own sees it go on there.
        if let Ok(traceparent) = std::env::var("TRACEPARENT") {
            request = request.header(trace::HEADER, traceparent);
        }
        if let Some(body) = &call.body {
            request = request.header(CONTENT_TYPE, "application/json").body(body.clone());
        }
        let answer = match request.send().await {
            Ok(answer) => answer,
            Err(error) => return Ok(self.unsent(call, attempt, &error)),
        };
        let status = answer.status();
        let after = answer.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok());
        let after = after.and_then(|text| text.parse().ok()).map(Duration::from_secs);
        match answer.bytes().await {
            Ok(bytes) if status.is_success() => Ok(Try::Answered(bytes.to_vec())),
            Ok(bytes) => Ok(self.refused(status, &bytes, after)),
            Err(error) => Ok(Try::Again(self.broken(call, &error).passing(), None)),
        }
    }

    /// What a request that has no answer means. A connection that is refused at once changed nothing, and waiting would
    /// only hide that; after a break in the middle somebody may be starting again.
    fn unsent(&self, call: &Call, attempt: u32, error: &reqwest::Error) -> Try {
        if !error.is_connect() {
            return Try::Again(self.broken(call, error).passing(), None);
        }
        let silent = self.silent(error).passing();
        if attempt == 1 { Try::Failed(silent) } else { Try::Again(silent, None) }
    }

    fn silent(&self, error: &reqwest::Error) -> Failure {
        let api = &self.reach.api;
        let refused = causes(error).contains("refused");
        let sentence = if refused {
            format!("nothing listens at {api}")
        } else {
            format!("{api} can't be reached: {}", causes(error))
        };
        let failure = Failure::new(Exit::Failed, sentence);
        if refused {
            failure
                .with("advice", "start it, or name another place with BERTH_API or --context")
                .next("up --detach")
        } else {
            failure.with("advice", "check the address, the network and the certificate")
        }
    }

    fn broken(&self, call: &Call, error: &reqwest::Error) -> Failure {
        let why = if error.is_timeout() { "it took too long".to_owned() } else { causes(error) };
        let failure =
            Failure::new(Exit::Failed, format!("{} did not answer: {why}", self.reach.api));
        if call.method == Method::GET {
            return failure.next("status");
        }
        failure
            .with("advice", "it is not known whether it happened: look before you ask again")
            .next("alloc list")
    }

    fn refused(&self, status: StatusCode, bytes: &[u8], after: Option<Duration>) -> Try {
        let Ok(problem) = serde_json::from_slice::<Problem>(bytes) else {
            let sentence = format!("{} answered {status}, and not as Berth does", self.reach.api);
            let failure = Failure::new(Exit::Failed, sentence)
                .with("advice", "check that this is the address of a Berth API")
                .next("context show");
            let passing = matches!(
                status,
                StatusCode::BAD_GATEWAY
                    | StatusCode::SERVICE_UNAVAILABLE
                    | StatusCode::GATEWAY_TIMEOUT
            );
            return again_if(passing, failure, after);
        };
        let passing = matches!(
            problem.code.0,
            ProblemCode::Unavailable
                | ProblemCode::IdempotencyInFlight
                | ProblemCode::TooManyRequests
        );
        let failure = Failure::of_problem(problem);
        again_if(passing, failure, after)
    }

    fn read<T: DeserializeOwned>(&self, bytes: &[u8]) -> Done<T> {
        // An answer without a body is read as nothing.
        let bytes = if bytes.is_empty() { b"null" } else { bytes };
        serde_json::from_slice(bytes).map_err(|error| {
            let sentence = format!("the answer of {} can't be understood: {error}", self.reach.api);
            Failure::new(Exit::Failed, sentence)
                .with("advice", "this program and the API may be of different versions")
                .next("--version")
        })
    }
}

/// The last cause says most.
fn causes(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    cause.to_string().to_lowercase()
}
