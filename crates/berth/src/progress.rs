//! A timeline while it grows: on a terminal a line for every step, which changes in place; elsewhere a line for every
//! change.

use std::collections::HashMap;
use std::time::Duration;

use domain::machines::allocation::Status;
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use jiff::Timestamp;
use wire::http::timeline::{
    ExpectedSeconds, ItemKind, ItemStatus, Timeline, TimelineItem, TimelinePhase,
};
use wire::node::PhaseStatus;

use crate::say;
use crate::words::{between, phase, span};

const TICK: Duration = Duration::from_millis(100);
/// Where the times stand.
const COLUMN: usize = 46;

/// How a step stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum State {
    Waiting,
    Running,
    Done,
    Failed,
    Cancelled,
}

/// One line of a timeline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    /// The same for the same step, whenever it is looked at.
    key: String,
    /// Whether it is a part of the step above it.
    part: bool,
    /// What it is.
    pub(crate) text: String,
    /// How it stands.
    pub(crate) state: State,
    /// How long it took, or has taken so far; none for what has no length.
    took: Option<Duration>,
    /// How long it usually takes.
    usually: Option<ExpectedSeconds>,
}

/// The steps of a timeline, in order, from a moment on.
pub(crate) fn steps(timeline: &Timeline, now: Timestamp, since: Option<Timestamp>) -> Vec<Step> {
    let mut steps = Vec::new();
    let begun = |item: &&TimelineItem| since.is_none_or(|since| item.started_at >= since);
    for item in timeline.items.iter().filter(begun) {
        let step = of_item(item, timeline, now);
        let key = step.key.clone();
        steps.push(step);
        steps.extend(item.phases.iter().map(|each| of_phase(&key, each, now)));
    }
    steps
}

fn of_item(item: &TimelineItem, timeline: &Timeline, now: Timestamp) -> Step {
    // A step of the allocation that goes on is shown as going on, unless it may last.
    let lasts = item.kind.0 == ItemKind::AllocationState
        && item.completed_at.is_none()
        && is_moving(timeline.status.0);
    let state = match item.status.0 {
        ItemStatus::Succeeded if lasts => State::Running,
        ItemStatus::Waiting => State::Waiting,
        ItemStatus::Running => State::Running,
        ItemStatus::Succeeded => State::Done,
        ItemStatus::Failed => State::Failed,
        ItemStatus::Cancelled => State::Cancelled,
    };
    let moment = item.completed_at == Some(item.started_at);
    let rests = item.completed_at.is_none() && state == State::Done;
    let took = between(item.started_at, item.completed_at.unwrap_or(now));
    Step {
        key: item.id.clone(),
        part: item.within.is_some(),
        text: say::clean(item.summary.trim_end_matches('.')),
        state,
        took: (!moment && !rests).then_some(took),
        usually: item.expected_seconds,
    }
}

/// Whether something goes on by itself in this status.
const fn is_moving(status: Status) -> bool {
    match status {
        Status::Requested | Status::Provisioning | Status::Restarting | Status::Releasing => true,
        Status::Active
        | Status::RestartFailed
        | Status::ReleaseFailed
        | Status::Released
        | Status::Failed => false,
    }
}

/// How a time compares with what is usual: `4 min 40 s usually, 3 min in`, and what to think of it when it is over that.
pub(crate) fn compared(took: Duration, usually: ExpectedSeconds) -> String {
    let seconds = |count: i64| Duration::from_secs(u64::try_from(count).unwrap_or(0));
    let (half, most) = (seconds(usually.p50), seconds(usually.p90));
    if took > most {
        format!("{} in, longer than usual ({} at most)", span(took), span(most))
    } else {
        format!("{} usually, {} in", span(half), span(took))
    }
}

fn of_phase(task: &str, each: &TimelinePhase, now: Timestamp) -> Step {
    let state = match each.status.0 {
        PhaseStatus::Running => State::Running,
        PhaseStatus::Succeeded => State::Done,
        PhaseStatus::Failed => State::Failed,
    };
    Step {
        key: format!("{task} {}", each.name),
        part: true,
        text: format!("  {}", phase(each.name.0)),
        state,
        took: Some(between(each.started_at, each.completed_at.unwrap_or(now))),
        usually: None,
    }
}

impl Step {
    /// A step that is not of a timeline.
    pub(crate) fn of(key: String, text: &str, state: State, took: Option<Duration>) -> Step {
        Step { key, part: false, text: say::clean(text), state, took, usually: None }
    }

    /// Its time: `4 min 40 s usually, 3 min in` while it runs, how long it took afterwards.
    fn time(&self) -> String {
        match (self.state, self.took, self.usually) {
            (State::Running, Some(took), Some(usually)) => compared(took, usually),
            (State::Waiting, Some(took), _) => format!("waiting, {}", span(took)),
            (_, Some(took), _) => span(took),
            (_, None, _) => String::new(),
        }
    }

    /// The line, without its mark.
    pub(crate) fn line(&self) -> String {
        let indent = if self.part { "  " } else { "" };
        let (text, time) = (format!("{indent}{}", self.text), self.time());
        format!("{text:<COLUMN$}  {time}").trim_end().to_owned()
    }

    /// Its mark on a terminal.
    pub(crate) fn mark(&self) -> String {
        let mark = self.plain_mark();
        match self.state {
            State::Waiting | State::Running => mark.to_owned(),
            State::Done => say::good(mark),
            State::Failed => say::alarm(mark),
            State::Cancelled => say::dim(mark),
        }
    }

    /// The same where there are no colours.
    pub(crate) const fn plain_mark(&self) -> &'static str {
        match self.state {
            State::Waiting | State::Running => "·",
            State::Done => "✓",
            State::Failed => "✗",
            State::Cancelled => "-",
        }
    }

    /// Its mark for programs and logs.
    const fn word(&self) -> &'static str {
        match self.state {
            State::Waiting => "waiting  ",
            State::Running => "running  ",
            State::Done => "done     ",
            State::Failed => "failed   ",
            State::Cancelled => "cancelled",
        }
    }
}

/// Where progress is shown, and from which moment on.
pub(crate) struct View {
    screen: Screen,
    since: Option<Timestamp>,
}

enum Screen {
    /// A terminal.
    Live(Live),
    /// A log, or a program.
    Plain(Plain),
}

impl View {
    /// What suits stderr. Who asked for JSON gets lines, wherever they are.
    pub(crate) fn fitting(json: bool) -> View {
        let screen = if say::err_is_terminal() && !json {
            Screen::Live(Live::default())
        } else {
            Screen::Plain(Plain::default())
        };
        View { screen, since: None }
    }

    /// The same, without what was before.
    pub(crate) fn since(self, moment: Timestamp) -> View {
        View { since: Some(moment), ..self }
    }

    /// Shows how it stands.
    pub(crate) fn show(&mut self, timeline: &Timeline, now: Timestamp) {
        let steps = steps(timeline, now, self.since);
        self.show_steps(&steps);
    }

    /// The same for steps that are not of a timeline.
    pub(crate) fn show_steps(&mut self, steps: &[Step]) {
        match &mut self.screen {
            Screen::Live(live) => live.show(steps),
            Screen::Plain(plain) => plain.show(steps),
        }
    }

    /// Says something in between.
    pub(crate) fn remark(&mut self, text: &str) {
        match &mut self.screen {
            Screen::Live(live) => {
                let _ = live.lines.println(text);
            }
            Screen::Plain(_) => say::note(text),
        }
    }

    /// Touches the terminal no more: it has written a `^C` in the middle, and nobody knows where the lines are now.
    pub(crate) fn freeze(&mut self) {
        match &mut self.screen {
            Screen::Live(live) => {
                live.lines.set_draw_target(ProgressDrawTarget::hidden());
                say::note("");
            }
            Screen::Plain(_) => {}
        }
    }

    /// Leaves the lines as they are.
    pub(crate) fn end(&mut self) {
        match &mut self.screen {
            Screen::Live(live) => live.end(),
            Screen::Plain(_) => {}
        }
    }
}

/// A line for every change.
#[derive(Default)]
pub(crate) struct Plain {
    seen: HashMap<String, State>,
}

impl Plain {
    fn show(&mut self, steps: &[Step]) {
        for step in steps {
            if self.seen.insert(step.key.clone(), step.state) != Some(step.state) {
                say::note(format!("{}  {}", step.word(), step.line()));
            }
        }
    }
}

/// A line for every step.
#[derive(Default)]
pub(crate) struct Live {
    lines: MultiProgress,
    bars: HashMap<String, ProgressBar>,
}

impl Live {
    fn show(&mut self, steps: &[Step]) {
        for (place, step) in steps.iter().enumerate() {
            let bar = self.bars.entry(step.key.clone()).or_insert_with(|| {
                let bar = ProgressBar::new_spinner();
                self.lines.insert(place, bar.clone());
                bar.enable_steady_tick(TICK);
                bar
            });
            if bar.is_finished() {
                continue;
            }
            match step.state {
                State::Waiting | State::Running => {
                    bar.set_style(style("{spinner} {msg}"));
                    bar.set_message(step.line());
                }
                State::Done | State::Failed | State::Cancelled => {
                    bar.set_style(style("{prefix} {msg}"));
                    bar.set_prefix(step.mark());
                    bar.finish_with_message(step.line());
                }
            }
        }
    }

    fn end(&mut self) {
        for bar in self.bars.values().filter(|bar| !bar.is_finished()) {
            bar.set_style(style("· {msg}"));
            bar.abandon();
        }
    }
}

/// The template is ours, so it is one.
fn style(template: &str) -> ProgressStyle {
    let style = ProgressStyle::with_template(template);
    style.unwrap_or_else(|_| ProgressStyle::default_spinner()).tick_chars("⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏·")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use wire::http::timeline::{Basis, ExpectedSeconds};

    use super::{State, Step};

    fn step(state: State, took: Option<u64>, usually: Option<i64>) -> Step {
        let took = took.map(Duration::from_secs);
        let expected = |p50| ExpectedSeconds { p50, p90: p50 + 30, basis: Basis::Sku.into() };
        let usually = usually.map(expected);
        Step { key: "k".to_owned(), part: false, text: "Creating".to_owned(), state, took, usually }
    }

    #[test]
    fn a_running_step_says_what_is_usual_and_how_far_it_is() {
        assert_eq!(
            step(State::Running, Some(180), Some(280)).time(),
            "4 min 40 s usually, 3 min in"
        );
        assert_eq!(
            step(State::Running, Some(311), Some(280)).time(),
            "5 min 11 s in, longer than usual (5 min 10 s at most)"
        );
        assert_eq!(step(State::Running, Some(180), None).time(), "3 min");
        assert_eq!(step(State::Done, Some(12), Some(280)).time(), "12 s");
        assert_eq!(step(State::Done, None, None).line(), "Creating");
    }
}
