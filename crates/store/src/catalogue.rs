//! The catalogue: regions, images, SKUs, and how much of each SKU is free where.

use lifecycle::Code as _;
use sqlx::Row as _;
use sqlx::postgres::PgRow;
use wire::http::catalogue::{Image, Region, Shape};

use crate::{Error, Store, Tx};

/// Something one can ask for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sku {
    /// Its code.
    pub code: String,
    /// What it is called.
    pub name: String,
    /// A whole machine, or GPUs of one.
    pub shape: Shape,
    /// The GPUs' model.
    pub gpu_model: String,
    /// How many GPUs can be asked for.
    pub gpus_allowed: Vec<i16>,
    /// The price of one GPU for one second, in millionths of the currency's unit.
    pub price_micros_per_gpu_second: i64,
    /// The currency.
    pub currency: String,
    /// How long a provision may take.
    pub provision_timeout_seconds: i32,
    /// The images that run on it, the first being taken when nobody says.
    pub images: Vec<Image>,
}

/// The most that is free of one SKU in one region, on one machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Free {
    /// What.
    pub sku: String,
    /// Where.
    pub region: String,
    /// The slots of the freest machine; for whole machines 1, and 0 when there is none.
    pub slots_max: i16,
}

/// Adds a region, or renames it.
///
/// # Errors
/// When the database fails.
pub async fn upsert_region(tx: &mut Tx, region: &Region) -> Result<(), Error> {
    sqlx::query(
        "INSERT INTO regions (code, name)
         VALUES ($1, $2)
         ON CONFLICT (code) DO UPDATE
            SET name = EXCLUDED.name",
    )
    .bind(&region.code)
    .bind(&region.name)
    .execute(tx.connection())
    .await?;
    Ok(())
}

/// Adds an image, or changes it.
///
/// # Errors
/// When the database fails.
pub async fn upsert_image(tx: &mut Tx, image: &Image) -> Result<(), Error> {
    sqlx::query(
        "INSERT INTO images (code, name, sha256)
         VALUES ($1, $2, $3)
         ON CONFLICT (code) DO UPDATE
            SET name = EXCLUDED.name, sha256 = EXCLUDED.sha256",
    )
    .bind(&image.code)
    .bind(&image.name)
    .bind(&image.sha256)
    .execute(tx.connection())
    .await?;
    Ok(())
}

/// Adds a SKU, or changes it, with the images that run on it, which are in the catalogue already. What was agreed with
/// those who have one stays as it was.
///
/// # Errors
/// When the database fails, also for an image that is not in the catalogue.
pub async fn upsert_sku(tx: &mut Tx, sku: &Sku) -> Result<(), Error> {
    sqlx::query(
        "INSERT INTO skus (code, name, shape, gpu_model, gpus_allowed, price_micros_per_gpu_second, currency,
                provision_timeout_seconds)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
         ON CONFLICT (code) DO UPDATE
            SET name = EXCLUDED.name, shape = EXCLUDED.shape, gpu_model = EXCLUDED.gpu_model,
                gpus_allowed = EXCLUDED.gpus_allowed,
                price_micros_per_gpu_second = EXCLUDED.price_micros_per_gpu_second,
                currency = EXCLUDED.currency, provision_timeout_seconds = EXCLUDED.provision_timeout_seconds",
    )
    .bind(&sku.code)
    .bind(&sku.name)
    .bind(sku.shape.code())
    .bind(&sku.gpu_model)
    .bind(&sku.gpus_allowed)
    .bind(sku.price_micros_per_gpu_second)
    .bind(&sku.currency)
    .bind(sku.provision_timeout_seconds)
    .execute(tx.connection())
    .await?;
    sqlx::query("DELETE FROM sku_images WHERE sku = $1")
        .bind(&sku.code)
        .execute(tx.connection())
        .await?;
    let images: Vec<&str> = sku.images.iter().map(|image| image.code.as_str()).collect();
    sqlx::query(
        "INSERT INTO sku_images (sku, image, position)
         SELECT $1, code, position
           FROM unnest($2::text[]) WITH ORDINALITY AS image (code, position)",
    )
    .bind(&sku.code)
    .bind(images)
    .execute(tx.connection())
    .await?;
    Ok(())
}

/// All regions. There are few.
///
/// # Errors
/// When the database fails.
pub async fn list_regions(store: &Store) -> Result<Vec<Region>, Error> {
    let rows =
        sqlx::query("SELECT code, name FROM regions ORDER BY code").fetch_all(store.pool()).await?;
    let region = |row: &PgRow| Ok(Region { code: row.try_get(0)?, name: row.try_get(1)? });
    rows.iter().map(region).collect()
}

/// All images. There are few.
///
/// # Errors
/// When the database fails.
pub async fn list_images(store: &Store) -> Result<Vec<Image>, Error> {
    let rows = sqlx::query("SELECT code, name, sha256 FROM images ORDER BY code")
        .fetch_all(store.pool())
        .await?;
    let image = |row: &PgRow| {
        Ok(Image { code: row.try_get(0)?, name: row.try_get(1)?, sha256: row.try_get(2)? })
    };
    rows.iter().map(image).collect()
}

/// All SKUs, or the one of that code.
const SKUS: &str =
    "SELECT skus.code, skus.name, skus.shape, skus.gpu_model, skus.gpus_allowed, skus.price_micros_per_gpu_second,
            skus.currency, skus.provision_timeout_seconds,
            array_agg(images.code ORDER BY position) FILTER (WHERE images.code IS NOT NULL),
            array_agg(images.name ORDER BY position) FILTER (WHERE images.code IS NOT NULL),
            array_agg(images.sha256 ORDER BY position) FILTER (WHERE images.code IS NOT NULL)
       FROM skus
       LEFT JOIN sku_images ON sku_images.sku = skus.code
       LEFT JOIN images ON images.code = sku_images.image
      WHERE $1::text IS NULL OR skus.code = $1
      GROUP BY skus.code
      ORDER BY skus.code";

/// All SKUs. There are few.
///
/// # Errors
/// When the database fails.
pub async fn list_skus(store: &Store) -> Result<Vec<Sku>, Error> {
    let rows = sqlx::query(SKUS).bind(None::<&str>).fetch_all(store.pool()).await?;
    rows.iter().map(sku).collect()
}

/// The SKU of that code, with its images.
///
/// # Errors
/// When the database fails.
pub async fn find_sku(store: &Store, code: &str) -> Result<Option<Sku>, Error> {
    let row = sqlx::query(SKUS).bind(Some(code)).fetch_optional(store.pool()).await?;
    row.as_ref().map(sku).transpose()
}

/// The currency that things are sold in: that of most SKUs. None when there are none.
///
/// # Errors
/// When the database fails.
pub async fn sold_in(tx: &mut Tx) -> Result<Option<String>, Error> {
    let row = sqlx::query(
        "SELECT currency FROM skus GROUP BY currency ORDER BY count(*) DESC, currency LIMIT 1",
    )
    .fetch_optional(tx.connection())
    .await?;
    row.map(|row| Ok(row.try_get(0)?)).transpose()
}

/// For every SKU in every region how much is free on its freest machine: one look into an index each, whatever the size
/// of the fleet.
///
/// # Errors
/// When the database fails.
pub async fn availability(store: &Store) -> Result<Vec<Free>, Error> {
    let rows = sqlx::query(
        "SELECT skus.code, regions.code, coalesce(freest.free_slots, 0::smallint)
           FROM skus
          CROSS JOIN regions
           LEFT JOIN LATERAL (
                SELECT nodes.free_slots
                  FROM nodes
                 WHERE nodes.sku = skus.code AND nodes.region = regions.code
                   AND nodes.status = 'ready' AND nodes.free_slots > 0
                 ORDER BY nodes.free_slots DESC
                 LIMIT 1
                ) AS freest ON true
          ORDER BY skus.code, regions.code",
    )
    .fetch_all(store.pool())
    .await?;
    let free = |row: &PgRow| {
        Ok(Free { sku: row.try_get(0)?, region: row.try_get(1)?, slots_max: row.try_get(2)? })
    };
    rows.iter().map(free).collect()
}

fn sku(row: &PgRow) -> Result<Sku, Error> {
    let text: &str = row.try_get(2)?;
    let unknown = || sqlx::Error::Decode(format!("there is no shape {text:?}").into());
    let list = |column: usize| row.try_get::<Option<Vec<String>>, _>(column);
    let (codes, names, sums) = (list(8)?, list(9)?, list(10)?);
    let images = codes.into_iter().flatten().zip(names.into_iter().flatten());
    let image = |((code, name), sha256)| Image { code, name, sha256 };
    Ok(Sku {
        code: row.try_get(0)?,
        name: row.try_get(1)?,
        shape: Shape::parse(text).ok_or_else(unknown)?,
        gpu_model: row.try_get(3)?,
        gpus_allowed: row.try_get(4)?,
        price_micros_per_gpu_second: row.try_get(5)?,
        currency: row.try_get(6)?,
        provision_timeout_seconds: row.try_get(7)?,
        images: images.zip(sums.into_iter().flatten()).map(image).collect(),
    })
}
