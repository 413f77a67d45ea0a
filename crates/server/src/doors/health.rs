//! The doors of those who run the installation: is it alive, can it work, what does it count, what can it do.

use axum::Json;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use tokio::time::timeout;
use wire::http::Health;
use wire::problem::ProblemCode;

use crate::documents;
use crate::http::Front;
use crate::http::problem::Refusal;

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
    let asked = async { front.ctx.store.begin().await?.rollback().await };
    let missing = match timeout(front.limits.ready, asked).await {
        Ok(Ok(())) => {
            store::fall::over();
            return Ok(Json(Health { status: "ok".to_owned() }));
        }
        Ok(Err(error)) => {
            // It may be asked every second.
            if !store::fall::noticed(&error) {
                let cause = control::Error::from(error).chain();
                tracing::warn!(cause, "the database is missing");
            }
            "The database can't be asked."
        }
        Err(_) => "The database does not answer in time.",
    };
    Err(Refusal::new(ProblemCode::Unavailable, missing).retry_after(RETRY_SECONDS))
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
