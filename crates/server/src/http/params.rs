//! What stands in a path or behind its question mark, read strictly.

use axum::extract::{FromRequestParts, Path, Query};
use axum::http::request::Parts;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use utoipa::IntoParams;
use uuid::Uuid;
use wire::problem::ProblemCode;

use super::problem::Refusal;

/// The parts of a path.
pub struct Parted<T>(pub T);

impl<T, S> FromRequestParts<S> for Parted<T>
where
    T: DeserializeOwned + Send,
    S: Send + Sync,
{
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refusal> {
        let read = Path::<T>::from_request_parts(parts, state).await;
        read.map(|Path(value)| Parted(value)).map_err(|_| {
            Refusal::new(ProblemCode::BadRequest, "A part of the path is not of the right form.")
        })
    }
}

/// The one id in a path.
pub struct Id(pub Uuid);

impl<S: Send + Sync> FromRequestParts<S> for Id {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refusal> {
        let read = Path::<Uuid>::from_request_parts(parts, state).await;
        read.map(|Path(id)| Id(id))
            .inspect(|Id(id)| trace::note("entity_id", id))
            .map_err(|_| Refusal::new(ProblemCode::BadRequest, "The id in the path is not an id."))
    }
}

/// What stands behind the question mark.
pub struct Asked<T>(pub T);

impl<T, S> FromRequestParts<S> for Asked<T>
where
    T: DeserializeOwned,
    S: Send + Sync,
{
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Refusal> {
        Query::<T>::try_from_uri(&parts.uri).map(|Query(value)| Asked(value)).map_err(|error| {
            // Its source speaks of the parameter; it itself speaks of deserialising.
            let cause = std::error::Error::source(&error).map(ToString::to_string);
            let detail = cause.unwrap_or_else(|| error.body_text());
            Refusal::new(ProblemCode::BadRequest, format!("The query is not acceptable: {detail}."))
        })
    }
}

/// Refuses what a door does not know by name.
///
/// # Errors
/// A problem that names it.
pub fn only_known(query: Option<&str>, known: &[String]) -> Result<(), Refusal> {
    let names = query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty());
    for name in names.map(|pair| pair.split('=').next().unwrap_or_default()) {
        if !known.iter().any(|known| known == name) {
            let printed: String = name.chars().filter(|c| !c.is_control()).take(64).collect();
            let may = match known {
                [] => "there are none here".to_owned(),
                _ => format!("there are {}", known.join(", ")),
            };
            let detail = format!("There is no query parameter `{printed}`: {may}.");
            return Err(Refusal::new(ProblemCode::BadRequest, detail));
        }
    }
    Ok(())
}

/// Which page of a list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct Paged {
    /// How many items at most.
    #[param(minimum = 1, maximum = 200, default = 50)]
    pub limit: Option<u16>,
    /// Where to go on: `next_cursor` of the page before.
    #[param(max_length = 512)]
    pub cursor: Option<String>,
}

impl Paged {
    /// How many, and from where on.
    pub fn parts(&self) -> (Option<u16>, Option<&str>) {
        (self.limit, self.cursor.as_deref())
    }
}
