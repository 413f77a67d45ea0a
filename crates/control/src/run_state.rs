//! What a run keeps between its steps: typed here, JSON where it rests.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use spine::workflow::Run;

use crate::Error;

/// A state as it is kept.
///
/// # Errors
/// [`Error::Broken`] for a type that is not JSON; none of ours is.
pub(crate) fn write<S: Serialize>(state: &S) -> Result<Value, Error> {
    serde_json::to_value(state).map_err(|error| Error::Broken(error.to_string()))
}

/// What the last step left.
///
/// # Errors
/// [`Error::Broken`] when it is the state of another workflow, or of a binary that this one is too old for.
pub(crate) fn read<S: DeserializeOwned>(run: &Run) -> Result<S, Error> {
    serde_json::from_value(run.state.clone())
        .map_err(|error| Error::Broken(format!("the state of {} can't be read: {error}", run.id)))
}
