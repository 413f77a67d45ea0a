//! The catalogue: what can be asked for, and how much of it is free.

use domain::policy::Permission;
use store::catalogue::Free;
use wire::http::catalogue::{Availability, Image, Region, Shape, Sku};

use crate::{Caller, Ctx, Error};

/// What is on offer, as an installation begins with it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Offer {
    /// Where machines stand.
    pub regions: Vec<Region>,
    /// What can run on them.
    pub images: Vec<Image>,
    /// What they are sold as.
    pub skus: Vec<store::catalogue::Sku>,
}

/// All SKUs.
///
/// # Errors
/// When the store fails.
pub async fn skus(ctx: &Ctx, caller: &Caller) -> Result<Vec<Sku>, Error> {
    caller.needs(Permission::CatalogueRead)?;
    let skus = store::catalogue::list_skus(&ctx.store).await?;
    Ok(skus.into_iter().map(shown).collect())
}

/// All images.
///
/// # Errors
/// When the store fails.
pub async fn images(ctx: &Ctx, caller: &Caller) -> Result<Vec<Image>, Error> {
    caller.needs(Permission::CatalogueRead)?;
    Ok(store::catalogue::list_images(&ctx.store).await?)
}

/// All regions.
///
/// # Errors
/// When the store fails.
pub async fn regions(ctx: &Ctx, caller: &Caller) -> Result<Vec<Region>, Error> {
    caller.needs(Permission::CatalogueRead)?;
    Ok(store::catalogue::list_regions(&ctx.store).await?)
}

/// What would be granted now, SKU by region.
///
/// # Errors
/// When the store fails.
pub async fn availability(ctx: &Ctx, caller: &Caller) -> Result<Vec<Availability>, Error> {
    caller.needs(Permission::CatalogueRead)?;
    let skus = store::catalogue::list_skus(&ctx.store).await?;
    let free = store::catalogue::availability(&ctx.store).await?;
    let available = free.into_iter().filter_map(|free| {
        let sku = skus.iter().find(|sku| sku.code == free.sku)?;
        let gpus = grantable(sku, &free);
        Some(Availability { sku: free.sku, region: free.region, gpus })
    });
    Ok(available.collect())
}

/// The allowed counts that fit on the freest machine. A whole machine has all of them or none.
fn grantable(sku: &store::catalogue::Sku, free: &Free) -> Vec<i16> {
    let fits = |gpus: &i16| match sku.shape {
        Shape::Baremetal => free.slots_max > 0,
        Shape::GpuSlice => *gpus <= free.slots_max,
    };
    sku.gpus_allowed.iter().copied().filter(fits).collect()
}

fn shown(sku: store::catalogue::Sku) -> Sku {
    Sku {
        code: sku.code,
        name: sku.name,
        shape: sku.shape.into(),
        gpu_model: sku.gpu_model,
        gpus_allowed: sku.gpus_allowed,
        price_micros_per_gpu_second: sku.price_micros_per_gpu_second,
        currency: sku.currency,
        images: sku.images.into_iter().map(|image| image.code).collect(),
    }
}

/// Puts an offer into the catalogue. What is there already is changed to it; what it does not name stays.
///
/// # Errors
/// When the store fails.
pub async fn install(ctx: &Ctx, offer: &Offer) -> Result<(), Error> {
    let mut tx = ctx.store.begin().await?;
    for region in &offer.regions {
        store::catalogue::upsert_region(&mut tx, region).await?;
    }
    for image in &offer.images {
        store::catalogue::upsert_image(&mut tx, image).await?;
    }
    for sku in &offer.skus {
        store::catalogue::upsert_sku(&mut tx, sku).await?;
    }
    Ok(tx.commit().await?)
}

/// An offer to try things with: two regions, two images, three SKUs.
pub fn demonstration() -> Offer {
    let region = |code: &str, name: &str| Region { code: code.to_owned(), name: name.to_owned() };
    // The simulated nodes have no disk images: the sum of the name stands for that of the content.
    let image = |code: &str, name: &str| Image {
        code: code.to_owned(),
        name: name.to_owned(),
        sha256: wire::seal::sha256_hex(code.as_bytes()),
    };
    let images = vec![
        image("ubuntu-24.04-cuda", "Ubuntu 24.04 with CUDA"),
        image("rocky-9-cuda", "Rocky Linux 9 with CUDA"),
    ];
    let sku = |code: &str, name: &str, shape, gpus_allowed: &[i16], price| {
        let h100 = code.starts_with("h100");
        store::catalogue::Sku {
            code: code.to_owned(),
            name: name.to_owned(),
            shape,
            gpu_model: if h100 { "NVIDIA H100 80GB" } else { "NVIDIA L40S 48GB" }.to_owned(),
            gpus_allowed: gpus_allowed.to_vec(),
            price_micros_per_gpu_second: price,
            currency: "USD".to_owned(),
            provision_timeout_seconds: 600,
            images: images.clone(),
        }
    };
    Offer {
        regions: vec![region("eu-1", "Europe 1"), region("us-1", "United States 1")],
        skus: vec![
            // 2.99 $, 0.99 $ and 2.49 $ an hour.
            sku("h100.slice", "H100 slice", Shape::GpuSlice, &[1, 2, 4, 8], 831),
            sku("l40s.slice", "L40S slice", Shape::GpuSlice, &[1, 2, 4], 275),
            sku("h100.metal", "H100 machine, whole", Shape::Baremetal, &[8], 692),
        ],
        images: images.clone(),
    }
}
