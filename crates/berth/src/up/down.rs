//! `berth down`: asks the process that has the place to end, and waits until it has.

use std::sync::mpsc;
use std::time::Duration;

use anyhow::Context as _;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};

use super::place::Placed;
use crate::exit::{Done, Exit, Failure};
use crate::moment::Stopwatch;
use crate::say;
use crate::words::span;

/// Longer than requests, agents and Postgres take to end.
const PATIENCE: Duration = Duration::from_secs(60);

/// `berth down`
pub(crate) fn run(placed: &Placed) -> Done {
    let place = placed.place()?;
    let Some(process) = place.holder() else {
        say::note(format!("Nothing runs in {}.", place.root().display()));
        return Ok(());
    };
    let watch = Stopwatch::start();
    let pid = i32::try_from(process).ok().and_then(Pid::from_raw).context("its number is none")?;
    match kill_process(pid, Signal::TERM) {
        // It is ending already.
        Ok(()) | Err(Errno::SRCH) => {}
        Err(error) => {
            let why = format!("process {process} can't be told to end: {error}");
            return Err(Failure::new(Exit::Failed, why));
        }
    }
    let (gone, waiting) = mpsc::channel();
    let waited = place.clone();
    std::thread::spawn(move || {
        waited.wait_until_free();
        // Whoever waited may have lost patience.
        let _ = gone.send(());
    });
    if waiting.recv_timeout(PATIENCE).is_err() {
        let sentence = format!("process {process} has not ended after {}", span(PATIENCE));
        return Err(Failure::new(Exit::TimedOut, sentence)
            .with("log", place.log().display().to_string())
            .with("by force", format!("kill -9 {process} (nothing that was answered is lost)")));
    }
    say::note(format!("Stopped process {process} in {}.", span(watch.elapsed())));
    Ok(())
}
