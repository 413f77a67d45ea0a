//! People: login, tokens, SSH keys, projects and their members. A secret is shown once and kept as a hash; whoever is
//! not let in learns only that.

mod faults;
pub mod install;
mod login;
pub mod members;
pub mod password;
pub mod projects;
mod public_key;
pub(crate) mod secret;
pub mod ssh_keys;
pub mod tokens;

pub use login::{Request, authenticate, login, me};
