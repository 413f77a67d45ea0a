//! The simulation on a Postgres of its own, built for speed.

use std::path::Path;
use std::process::Command;

use anyhow::Context as _;

use crate::server::{SERVER_VARIABLE, Server};

/// Builds and runs it; answers whether everything held. What it is told stands in the environment.
///
/// # Errors
/// When the server or the simulation can't be started.
pub fn run(root: &Path, arguments: &[String]) -> anyhow::Result<bool> {
    let server = Server::start()?;
    let mut simulation = Command::new("cargo");
    simulation.current_dir(root).args(["run", "--quiet", "--package", "simulation"]);
    if std::env::var_os("SLOW").is_none() {
        simulation.arg("--release");
    }
    simulation.arg("--").args(arguments);
    let address = server.url("{database}");
    let ran = simulation.env(SERVER_VARIABLE, address).status();
    Ok(ran.context("could not start cargo")?.success())
}
