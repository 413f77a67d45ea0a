//! What is on offer: SKUs, images, regions, and what is free.

use lifecycle::codes;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::Coded;
use crate::problem::{Alternative, Narrowed};

codes! {
    /// What a SKU hands out.
    pub enum Shape {
        Baremetal = "baremetal",
        GpuSlice = "gpu_slice",
    }
}

/// [`Shape`], as it travels.
pub type ShapeWord = Coded<Shape>;

/// Something one can ask for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Sku {
    /// Its code.
    pub code: String,
    /// What it is called.
    pub name: String,
    /// A whole machine, or GPUs of one.
    pub shape: ShapeWord,
    /// The GPUs' model.
    pub gpu_model: String,
    /// How many GPUs can be asked for.
    pub gpus_allowed: Vec<i16>,
    /// The price of one GPU for one second, in millionths of the currency's unit.
    pub price_micros_per_gpu_second: i64,
    /// The currency.
    pub currency: String,
    /// The images that run on it; the first is taken when nobody says.
    pub images: Vec<String>,
}

/// An image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Image {
    /// Its code.
    pub code: String,
    /// What it is called.
    pub name: String,
    /// The SHA-256 that nodes check.
    pub sha256: String,
}

/// A place where machines stand.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Region {
    /// Its code.
    pub code: String,
    /// What it is called.
    pub name: String,
}

/// What could be had of one SKU in one region at the moment of asking.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Availability {
    /// What.
    pub sku: String,
    /// Where.
    pub region: String,
    /// The counts of GPUs that would be granted now, out of those that are allowed.
    pub gpus: Vec<i16>,
}

/// `GET /availability/explain`: what would become of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct CapacityQuestion {
    /// What.
    #[param(max_length = 64)]
    pub sku: String,
    /// Where.
    #[param(max_length = 64)]
    pub region: String,
    /// How many GPUs.
    #[param(minimum = 1, maximum = 1024)]
    pub gpus: i16,
    /// Which image; the SKU's first when nobody says.
    #[param(max_length = 64)]
    pub image: Option<String>,
}

/// What would become of a request, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CapacityExplained {
    /// Whether it would be granted now.
    pub fits: bool,
    /// The same as a sentence.
    pub detail: String,
    /// How many machines each filter of the placement took away, in its order.
    pub narrowed: Vec<Narrowed>,
    /// What would fit instead.
    pub would_fit: Vec<Alternative>,
}
