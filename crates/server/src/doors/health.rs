//! The doors of those who run the installation: is it alive, can it work, what does it count, what can it do.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use control::Ctx;
use spine::{Together, together};
use store::Store;
use tokio::time::timeout;
use wire::http::Health;
use wire::problem::ProblemCode;

use crate::http::Front;
use crate::http::problem::Refusal;
use crate::{Limits, documents};

/// What is missing, if something is, for everybody who asks.
pub(crate) type Ready = Together<(), Result<(), &'static str>>;

/// When to ask again whether it can.
const RETRY_SECONDS: u64 = 1;

/// Whether the process lives.
#[utoipa::path(get, path = "/healthz", tag = "health", responses((status = 200, description = "It does", body = Health)))]
pub(super) async fn healthz() -> Json<Health> {
    Json(Health { status: "ok".to_owned() })
}

/// Whether the process can work: not while it ends, and not without its database. If not, what is missing.
#[utoipa::path(get, path = "/readyz", tag = "health", responses((status = 200, description = "It can", body = Health)))]
pub(super) async fn readyz(State(front): State<Front>) -> Result<Json<Health>, Refusal> {
    if front.ending.is_draining() {
        let detail = "This process is ending. Another one goes on.";
        return Err(Refusal::new(ProblemCode::Unavailable, detail).retry_after(RETRY_SECONDS));
    }
    let asked = front.ready.ask(()).await;
    let missing = match asked.map_err(control::Error::from)? {
        Ok(()) => return Ok(Json(Health { status: "ok".to_owned() })),
        Err(missing) => missing,
    };
    Err(Refusal::new(ProblemCode::Unavailable, missing).retry_after(RETRY_SECONDS))
}

/// Where it is asked whether the database is there, once for all who want to know at the same time: nobody is turned away who
/// watches, however many they are.
pub(crate) fn desk(ctx: &Ctx, limits: &Limits) -> Ready {
    let (store, patience) = (ctx.store.clone(), limits.ready);
    let one = together::Limits { at_once: 1, batch_max: usize::MAX };
    Together::new("ready", one, move |asked: Vec<()>| {
        let store = store.clone();
        async move { vec![look(&store, patience).await; asked.len()] }
    })
}

async fn look(store: &Store, patience: Duration) -> Result<(), &'static str> {
    let asked = async { store.begin().await?.rollback().await };
    match timeout(patience, asked).await {
        Ok(Ok(())) => {
            store::fall::over();
            Ok(())
        }
        Ok(Err(error)) => {
            // It may be asked every second.
            if !store::fall::noticed(&error) {
                let cause = control::Error::from(error).chain();
                tracing::warn!(cause, "the database is missing");
            }
            Err("The database can't be asked.")
        }
        Err(_) => Err("The database does not answer in time."),
    }
}

/// What is counted, for Prometheus.
#[utoipa::path(
    get, path = "/metrics", tag = "health",
    responses((status = 200, description = "All metrics", content_type = "text/plain", body = String))
)]
pub(super) async fn metrics(State(front): State<Front>) -> Response {
    let (open, idle) = front.ctx.store.connections();
    metrics::gauge!("berth_pool_connections", "state" => "in_use")
        .set(open.saturating_sub(idle) as f64);
    metrics::gauge!("berth_pool_connections", "state" => "idle").set(idle as f64);
    ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], front.telemetry.render())
        .into_response()
}

/// This document.
#[utoipa::path(
    get, path = "/api/v1/openapi.json", tag = "health",
    responses((status = 200, description = "OpenAPI 3.1", content_type = "application/json", body = Object))
)]
pub(super) async fn openapi() -> Response {
    ([(CONTENT_TYPE, "application/json")], documents::openapi_text()).into_response()
}
