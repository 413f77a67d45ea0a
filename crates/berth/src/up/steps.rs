//! What happens while it starts and stops, with how long each step took: on a terminal, as lines, or to the process
//! that waits for us.

use std::io::Write as _;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use serde::{Deserialize, Serialize};

use super::report::Report;
use crate::moment::Stopwatch;
use crate::say;
use crate::words::span;

/// What a detached process tells the one that waits for it, a line each.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Told {
    /// A step begins.
    Began(String),
    /// How far it is.
    Now(String),
    /// It is done.
    Done(String),
    /// It could not be done.
    Failed,
    /// Everything is there.
    Ready(Box<Report>),
}

/// The steps of a start, one after the other.
pub(crate) struct Steps {
    to: To,
    began: Stopwatch,
    name: String,
}

enum To {
    Terminal(Option<ProgressBar>),
    Lines,
    Parent,
}

impl Steps {
    /// Steps for a process that was told to detach, or for whoever reads stderr.
    pub(crate) fn new(detached: bool) -> Steps {
        let to = match detached {
            true => To::Parent,
            false if say::err_is_terminal() => To::Terminal(None),
            false => To::Lines,
        };
        Steps { to, began: Stopwatch::start(), name: String::new() }
    }

    /// A step begins.
    pub(crate) fn begin(&mut self, name: &str) {
        (self.began, self.name) = (Stopwatch::start(), name.to_owned());
        match &mut self.to {
            To::Terminal(bar) => {
                let fresh = ProgressBar::new_spinner();
                let style = ProgressStyle::with_template("{spinner} {msg}  {elapsed}");
                if let Ok(style) = style {
                    fresh.set_style(style.tick_chars("⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏·"));
                }
                fresh.set_message(format!("{name} …"));
                fresh.enable_steady_tick(Duration::from_millis(100));
                *bar = Some(fresh);
            }
            To::Lines => {}
            To::Parent => tell(&Told::Began(name.to_owned())),
        }
    }

    /// How far it is.
    pub(crate) fn now(&mut self, text: &str) {
        match &mut self.to {
            To::Terminal(Some(bar)) => bar.set_message(format!("{} … {text}", self.name)),
            To::Terminal(None) | To::Lines => {}
            To::Parent => tell(&Told::Now(text.to_owned())),
        }
    }

    /// It is done; `text` is what there is to say of it.
    pub(crate) fn done(&mut self, text: &str) {
        let took = span(self.began.elapsed());
        let text = if text.is_empty() { String::new() } else { format!(" ({text})") };
        let line = format!("{}{text} … {took}", self.name);
        match &mut self.to {
            To::Terminal(bar) => {
                if let Some(bar) = bar.take() {
                    bar.finish_and_clear();
                }
                say::note(format!("{} {line}", say::good("✓")));
            }
            To::Lines => say::note(line),
            To::Parent => tell(&Told::Done(text)),
        }
    }

    /// It could not be done; why is said elsewhere.
    pub(crate) fn failed(&mut self) {
        match &mut self.to {
            To::Terminal(bar) => {
                if let Some(bar) = bar.take() {
                    bar.finish_and_clear();
                    say::note(format!("{} {}", say::alarm("✗"), self.name));
                }
            }
            To::Lines if !self.name.is_empty() => say::note(format!("{} … failed", self.name)),
            To::Lines => {}
            To::Parent => tell(&Told::Failed),
        }
    }

    /// Leaves the line on which a terminal may have written a `^C`.
    pub(crate) fn pause(&self) {
        match self.to {
            To::Terminal(_) => say::note(""),
            To::Lines | To::Parent => {}
        }
    }

    /// Everything is there.
    pub(crate) fn ready(&mut self, report: &Report) {
        match self.to {
            To::Terminal(_) | To::Lines => report.print(false),
            To::Parent => {
                tell(&Told::Ready(Box::new(report.clone())));
                // Whoever waited is gone now. What is said from here on is in the log.
                self.to = To::Lines;
            }
        }
    }
}

/// If nobody waits any more, nobody is told.
fn tell(told: &Told) {
    if let Ok(line) = serde_json::to_string(told) {
        let _ = writeln!(std::io::stdout().lock(), "{line}");
    }
}
