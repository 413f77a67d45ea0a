//! The page where people pay: plain HTML and forms, without a line of script. Nothing is charged here, and it says so.

use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::http::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE, LOCATION};
use axum::response::{IntoResponse as _, Response};

use crate::book::{Session, Status};
use crate::{Sandbox, form};

const STYLE: &str = "body{font:16px/1.5 system-ui,sans-serif;max-width:28rem;margin:3rem auto;padding:0 1rem;color-scheme:light dark}\
    h1{font-size:2rem;margin:0}button{font:inherit;display:block;width:100%;padding:.7rem;margin:.6rem 0;border-radius:.4rem;\
    border:1px solid;cursor:pointer}.note{opacity:.75}.word{border-left:.25rem solid;padding-left:.7rem}";
const POLICY: &str =
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; frame-ancestors 'none'";

/// `GET /`
pub(crate) async fn front() -> Response {
    page(
        StatusCode::OK,
        "Payment sandbox",
        "<h1>Payment sandbox</h1><p class=note>It plays the part of Stripe for this machine. Nothing is charged here, and everything is forgotten when it ends.</p>",
    )
}

/// `GET /done`
pub(crate) async fn done() -> Response {
    let text = "<h1>That is all here</h1><p>Whether it was paid, and when it is in the balance, <code>berth payments list</code> says.</p>";
    page(StatusCode::OK, "Done", text)
}

/// `GET /pay/{id}`
pub(crate) async fn show(State(sandbox): State<Sandbox>, Path(id): Path<String>) -> Response {
    sandbox.sweep();
    of_session(&sandbox, &id, None)
}

/// `POST /pay/{id}`
pub(crate) async fn decide(
    State(sandbox): State<Sandbox>,
    Path(id): Path<String>,
    body: Bytes,
) -> Response {
    sandbox.sweep();
    let fields = form::fields(&body).unwrap_or_default();
    let done = match fields.get("how").map(String::as_str) {
        Some("pay") => sandbox.complete(&id, true),
        Some("later") => sandbox.complete(&id, false),
        Some("arrives") => sandbox.arrives(&id, true),
        Some("bounces") => sandbox.arrives(&id, false),
        Some("decline") => {
            let word = "The card was declined. Nothing was charged; try another way.";
            return of_session(&sandbox, &id, Some(word));
        }
        Some("cancel") => {
            let back = sandbox.book().sessions.get(&id).map(|session| session.cancel_url.clone());
            return match back {
                Some(back) => to(&back),
                None => of_session(&sandbox, &id, None),
            };
        }
        Some(_) | None => false,
    };
    let back = sandbox.book().sessions.get(&id).map(|session| session.success_url.clone());
    match back {
        Some(back) if done => to(&back),
        Some(_) | None => of_session(&sandbox, &id, Some("That is not possible any more.")),
    }
}

fn to(address: &str) -> Response {
    (StatusCode::SEE_OTHER, [(LOCATION, address.to_owned())]).into_response()
}

fn of_session(sandbox: &Sandbox, id: &str, word: Option<&str>) -> Response {
    let session = sandbox.book().sessions.get(id).cloned();
    let Some(session) = session else {
        let text = "<h1>No such checkout</h1><p>The sandbox forgets everything when it ends: ask for a new one.</p>";
        return page(StatusCode::NOT_FOUND, "No such checkout", text);
    };
    let amount = amount(&session);
    let word =
        word.map_or_else(String::new, |word| format!("<p class=word role=status>{word}</p>"));
    let rest = match (session.status, session.paid) {
        (Status::Open, _) => buttons(&[
            ("pay", "Pay"),
            ("later", "Pay later: the money takes its time"),
            ("decline", "Have the card declined"),
            ("cancel", "Go back without paying"),
        ]),
        (Status::Complete, false) => format!(
            "<p>The money is on its way.</p>{}",
            buttons(&[("arrives", "It arrives"), ("bounces", "It does not")])
        ),
        (Status::Complete, true) => "<p>It is paid.</p>".to_owned(),
        (Status::Expired, _) => "<p>It is too late: this checkout has expired.</p>".to_owned(),
    };
    let product = escaped(&session.product);
    let text = format!(
        "<h1>{amount}</h1><p>{product}</p>{word}{rest}<p class=note>This is the payment sandbox of this machine. Nothing is charged.</p>"
    );
    page(StatusCode::OK, &format!("Pay {amount}"), &text)
}

fn buttons(ways: &[(&str, &str)]) -> String {
    let button =
        |(how, text): &(&str, &str)| format!("<button name=how value={how}>{text}</button>");
    format!("<form method=post>{}</form>", ways.iter().map(button).collect::<String>())
}

/// An amount with the digits that most currencies have.
fn amount(session: &Session) -> String {
    let (units, rest) = (session.amount / 100, session.amount % 100);
    format!("{units}.{rest:02} {}", escaped(&session.currency.to_uppercase()))
}

fn page(status: StatusCode, title: &str, text: &str) -> Response {
    let html = format!(
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content=\"width=device-width\">\
         <title>{title}</title><style>{STYLE}</style><main>{text}</main></html>"
    );
    let headers = [(CONTENT_TYPE, "text/html; charset=utf-8"), (CONTENT_SECURITY_POLICY, POLICY)];
    (status, headers, html).into_response()
}

fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for sign in text.chars() {
        match sign {
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '&' => safe.push_str("&amp;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            _ => safe.push(sign),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::escaped;

    #[test]
    fn what_a_client_has_written_is_text_on_the_page() {
        assert_eq!(escaped("<b>\"&'"), "&lt;b&gt;&quot;&amp;&#39;");
    }
}
