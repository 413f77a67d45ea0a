//! The repository's own chores: [`tidy`] checks what no compiler checks, [`documents`] prints what people read,
//! [`server`] starts the Postgres that tests run on, [`suite`] runs them, [`simulate`] and [`mutants`] run the simulation,
//! [`stories`] the stories on engines outside Postgres, which are [`carriers`].

pub mod carriers;
pub mod documents;
pub mod mutants;
pub mod server;
pub mod simulate;
pub mod stories;
pub mod suite;
pub mod tidy;
