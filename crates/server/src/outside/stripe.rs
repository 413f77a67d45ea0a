//! Stripe, as far as it is needed: make a Checkout session, look at one, and read what its webhooks say. Nothing of its spelling
//! gets further than this, and no secret leaves it: not in a log, not in an error.

mod form;
mod signature;
mod words;

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use control::payment::provider::{About, Checkout, NewCheckout, Provider, ProviderError, Told};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use jiff::Timestamp;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use reqwest::redirect::Policy;
use reqwest::{Client, RequestBuilder, StatusCode, Url};
use serde::de::DeserializeOwned;

pub use signature::SIGNATURE;
use words::{Session, Trouble};

/// The version of the API that this was written for; Stripe keeps answering in it.
const VERSION: &str = "2024-06-20";
/// What is on the bill.
const PRODUCT: &str = "Balance";
const CONNECT: Duration = Duration::from_secs(5);
/// Stripe answers in a second or two; whoever waits has more patience than this, and the next attempt gets the same session.
const WHOLE: Duration = Duration::from_secs(20);
/// No answer that matters is larger.
const ANSWER_BYTES_MAX: usize = 256 * 1024;
/// How much of what Stripe says went wrong is repeated.
const MESSAGE_CHARS_MAX: usize = 200;

/// Something that nobody else may know. It is not printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// A secret, without the white space around it.
    pub fn new(text: &str) -> Secret {
        Secret(text.trim().to_owned())
    }

    fn bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(***)")
    }
}

/// Where Stripe is, and who we are there.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where its API is: `https://api.stripe.com`, or a sandbox that speaks like it.
    pub url: String,
    /// What we prove with who we are.
    pub key: Secret,
    /// What its webhooks are signed with: one, or several while they are changed.
    pub webhook_secrets: Vec<Secret>,
    /// Where payers go when they are done.
    pub return_url: String,
    /// How long it may take to answer.
    pub patience: Duration,
}

impl Options {
    /// The usual patience with a Stripe that is there.
    pub fn new(url: &str, key: Secret, webhook_secrets: Vec<Secret>, return_url: &str) -> Options {
        let url = url.trim_end_matches('/').to_owned();
        Options { url, key, webhook_secrets, return_url: return_url.to_owned(), patience: WHOLE }
    }
}

/// See the module.
#[derive(Debug)]
pub struct Stripe {
    options: Options,
    http: Client,
}

impl Stripe {
    /// A client; nothing is asked yet.
    ///
    /// # Errors
    /// [`ProviderError::Refused`] when the address is none, or the key can't be sent.
    pub fn new(options: Options) -> Result<Stripe, ProviderError> {
        let refused = |what: &str| ProviderError::Refused(what.to_owned());
        let url = Url::parse(&options.url).ok();
        let url = url.filter(|url| matches!(url.scheme(), "http" | "https"));
        let url = url.ok_or_else(|| refused("the address is not like https://api.stripe.com"))?;
        let mut bearer = HeaderValue::from_str(&format!("Bearer {}", options.key.0))
            .map_err(|_| refused("the key has characters that no key has"))?;
        bearer.set_sensitive(true);
        let mut headers = HeaderMap::new();
        headers.insert(reqwest::header::AUTHORIZATION, bearer);
        headers.insert("stripe-version", HeaderValue::from_static(VERSION));
        let mut http = Client::builder()
            .connect_timeout(CONNECT)
            .timeout(options.patience)
            .redirect(Policy::none())
            .default_headers(headers);
        // A proxy is for other machines.
        let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
        if host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
        {
            http = http.no_proxy();
        }
        let http = http.build().map_err(|_| refused("HTTP can't be spoken here"))?;
        Ok(Stripe { options, http })
    }

    async fn create(&self, new: &NewCheckout) -> Result<Checkout, ProviderError> {
        let request = self
            .http
            .post(format!("{}/v1/checkout/sessions", self.options.url))
            // The same for the same session, however often it is asked for: one session there, too.
            .header("idempotency-key", new.session.to_string())
            .header(CONTENT_TYPE, "application/x-www-form-urlencoded")
            .body(form::encoded(&form::checkout(new, &self.options.return_url, PRODUCT)));
        let made: Session = answered(request).await?;
        let ours = made.session() == Some(new.session);
        match made.url.filter(|_| ours) {
            Some(url) => Ok(Checkout { id: words::fitting(made.id)?, url: words::address(url)? }),
            None => {
                Err(ProviderError::Nonsense("a session that is not the one asked for".to_owned()))
            }
        }
    }

    async fn retrieve(&self, id: &str) -> Result<About, ProviderError> {
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
        if id.is_empty() || !id.chars().all(plain) {
            return Err(ProviderError::Refused("that is no session".to_owned()));
        }
        let found: Session =
            answered(self.http.get(format!("{}/v1/checkout/sessions/{id}", self.options.url)))
                .await?;
        found.stands()
    }
}

impl Provider for Stripe {
    fn create_session<'a>(
        &'a self,
        new: &'a NewCheckout,
    ) -> BoxFuture<'a, Result<Checkout, ProviderError>> {
        self.create(new).boxed()
    }

    fn retrieve_session<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<About, ProviderError>> {
        self.retrieve(id).boxed()
    }

    fn hear(
        &self,
        proof: Option<&str>,
        body: &[u8],
        now: Timestamp,
    ) -> Result<Told, control::Error> {
        signature::verify(proof, body, &self.options.webhook_secrets, now)?;
        words::told(body).map_err(|error| {
            tracing::error!(why = %error, "what Stripe has signed can't be understood");
            control::Error::Unproven("it is signed, but it can't be understood")
        })
    }
}

/// What Stripe answers, if that is what was asked for.
async fn answered<T: DeserializeOwned>(request: RequestBuilder) -> Result<T, ProviderError> {
    let mut answer = request.send().await.map_err(|error| unanswered(&error))?;
    let status = answer.status();
    let mut bytes = Vec::new();
    while let Some(more) = answer.chunk().await.map_err(|error| unanswered(&error))? {
        if bytes.len() + more.len() > ANSWER_BYTES_MAX {
            return Err(ProviderError::Nonsense("an answer that does not end".to_owned()));
        }
        bytes.extend_from_slice(&more);
    }
    if !status.is_success() {
        return Err(refused(status, &bytes));
    }
    // What it could not read is not repeated: it may have who pays in it.
    serde_json::from_slice(&bytes).map_err(|error| {
        ProviderError::Nonsense(format!("{} at {}", error.classify_word(), error.column()))
    })
}

fn unanswered(error: &reqwest::Error) -> ProviderError {
    let why = match () {
        () if error.is_timeout() => "no answer in time",
        () if error.is_connect() => "no connection",
        () => "the answer broke off",
    };
    ProviderError::Unavailable(why.to_owned())
}

/// What an error of Stripe means: whether asking the same again makes sense, and what it is about.
fn refused(status: StatusCode, bytes: &[u8]) -> ProviderError {
    let trouble = serde_json::from_slice::<Trouble>(bytes).unwrap_or_default().error;
    let what = match status {
        // What it says of a key has a part of the key in it.
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            format!("{status}: it does not accept our key")
        }
        _ => trouble.sentence(status, MESSAGE_CHARS_MAX),
    };
    let passing = status.is_server_error()
        || matches!(
            status,
            StatusCode::CONFLICT | StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT
        );
    if passing { ProviderError::Unavailable(what) } else { ProviderError::Refused(what) }
}

/// What sort of fault a text has that is no JSON, or not the one expected.
trait Classified {
    fn classify_word(&self) -> &'static str;
}

impl Classified for serde_json::Error {
    fn classify_word(&self) -> &'static str {
        match self.classify() {
            serde_json::error::Category::Data => "another shape",
            serde_json::error::Category::Syntax => "no JSON",
            serde_json::error::Category::Eof => "half an answer",
            serde_json::error::Category::Io => "nothing",
        }
    }
}
