//! The doors of the shop window: what can be asked for, and what is free.

use axum::Json;
use axum::extract::State;
use control::catalogue;
use wire::http::Page;
use wire::http::catalogue::{Availability, Image, Region, Sku};

use crate::http::Front;
use crate::http::caller::Known;
use crate::http::problem::Refusal;
use crate::http::reply::all;

/// What can be asked for, with its price.
#[utoipa::path(
    get, path = "/api/v1/skus", tag = "catalogue",
    responses((status = 200, description = "All of it", body = Page<Sku>))
)]
pub(super) async fn list_skus(
    State(front): State<Front>,
    caller: Known,
) -> Result<Json<Page<Sku>>, Refusal> {
    Ok(all(catalogue::skus(&front.ctx, &caller).await?))
}

/// The images that machines can be given.
#[utoipa::path(
    get, path = "/api/v1/images", tag = "catalogue",
    responses((status = 200, description = "All of them", body = Page<Image>))
)]
pub(super) async fn list_images(
    State(front): State<Front>,
    caller: Known,
) -> Result<Json<Page<Image>>, Refusal> {
    Ok(all(catalogue::images(&front.ctx, &caller).await?))
}

/// Where machines stand.
#[utoipa::path(
    get, path = "/api/v1/regions", tag = "catalogue",
    responses((status = 200, description = "All places", body = Page<Region>))
)]
pub(super) async fn list_regions(
    State(front): State<Front>,
    caller: Known,
) -> Result<Json<Page<Region>>, Refusal> {
    Ok(all(catalogue::regions(&front.ctx, &caller).await?))
}

/// What would be granted now, SKU by region. By the time it is read it may be otherwise.
#[utoipa::path(
    get, path = "/api/v1/availability", tag = "catalogue",
    responses((status = 200, description = "Every SKU in every region", body = Page<Availability>))
)]
pub(super) async fn list_availability(
    State(front): State<Front>,
    caller: Known,
) -> Result<Json<Page<Availability>>, Refusal> {
    Ok(all(catalogue::availability(&front.ctx, &caller).await?))
}
