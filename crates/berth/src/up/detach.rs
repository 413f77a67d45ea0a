//! `berth up --detach`: the same program once more, in a session of its own, watched until it is ready.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt as _;
use std::process::Stdio;

use anyhow::Context as _;
use rustix::process::{Pid, Signal, kill_process, setsid};
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use super::place::Place;
use super::report::Report;
use super::signals::Signals;
use super::steps::{Steps, Told};
use crate::exit::{Done, Exit, Failure};

/// Says to the second process that it is one.
const VARIABLE: &str = "BERTH_DETACHED";
/// How much of the log is shown when it did not work.
const LOG_LINES: usize = 12;

/// Whether this is the second process.
pub(crate) fn is_child() -> bool {
    std::env::var_os(VARIABLE).is_some()
}

/// Leaves the terminal and the folder of whoever started us.
pub(crate) fn settle() -> Done {
    setsid().context("a session can't be made")?;
    std::env::set_current_dir("/").context("the root can't be entered")?;
    Ok(())
}

/// Starts the second process and waits until it is ready.
pub(crate) async fn run(place: &Place) -> Done {
    if let Some(holder) = place.holder() {
        let sentence = format!("process {holder} runs in {} already", place.root().display());
        return Err(Failure::new(Exit::Conflict, sentence).next("status"));
    }
    let log = place.log();
    let open = OpenOptions::new().append(true).create(true).mode(0o600).open(&log);
    let log = open.with_context(|| format!("{} can't be written to", log.display()))?;
    let me = std::env::current_exe().context("this program does not know where it is")?;
    let mut child = Command::new(me)
        .args(std::env::args_os().skip(1))
        .env(VARIABLE, "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
        .context("the second process can't be started")?;
    let told = child.stdout.take().context("the second process can't be heard")?;
    let mut told = BufReader::new(told).lines();
    let mut signals = Signals::listen()?;
    let report = tokio::select! {
        report = follow(&mut told) => report?,
        () = signals.next() => {
            end(&mut child).await;
            return Err(Failure::new(Exit::Interrupted, "it was stopped before it was ready"));
        }
    };
    match report {
        Some(report) => {
            report.print(true);
            Ok(())
        }
        None => {
            let _ = child.wait().await;
            let failure = Failure::new(Exit::Failed, "it ended before it was ready");
            let failure = failure.with("log", place.log().display().to_string());
            let lines = place.log_end(LOG_LINES);
            Err(lines.into_iter().fold(failure, |failure, line| failure.with("", line)))
        }
    }
}

/// Shows what the second process tells, until it is ready or gone.
async fn follow(told: &mut Lines<BufReader<ChildStdout>>) -> Done<Option<Report>> {
    let mut steps = Steps::new(false);
    while let Some(line) = told.next_line().await.context("the second process can't be heard")? {
        match serde_json::from_str(&line) {
            Ok(Told::Began(name)) => steps.begin(&name),
            Ok(Told::Now(text)) => steps.now(&text),
            Ok(Told::Done(text)) => steps.done(text.trim_matches([' ', '(', ')'])),
            Ok(Told::Failed) => steps.failed(),
            Ok(Told::Ready(report)) => return Ok(Some(*report)),
            // Something else was printed there, which is none of ours.
            Err(_) => {}
        }
    }
    Ok(None)
}

async fn end(child: &mut Child) {
    if let Some(pid) = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw) {
        let _ = kill_process(pid, Signal::TERM);
    }
    let _ = child.wait().await;
}
