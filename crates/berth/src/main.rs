//! The one binary: the whole product with `berth up`, its parts one by one, and the commands of tenants and operators.
//! Data goes to stdout, everything else to stderr, and the exit code says how it went.

mod cli;
mod client;
mod commands;
mod context;
mod exit;
mod moment;
mod progress;
mod resolve;
mod say;
mod serve;
mod settings;
mod table;
mod up;
mod watch;
mod words;

use std::process::ExitCode;

fn main() -> ExitCode {
    let ended = cli::run();
    trace::finish();
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            failure.tell();
            ExitCode::from(failure.exit as u8)
        }
    }
}
