//! What happened to an allocation, as it was or while it happens. The steps tile its time: their column adds up to the
//! last line.

use clap::Args;
use lifecycle::Code as _;
use wire::http::timeline::{ItemKind, ItemStatus, Timeline, TimelineItem};
use wire::node::PhaseStatus;

use crate::cli::Json;
use crate::client::Client;
use crate::exit::Done;
use crate::moment::now;
use crate::progress::{View, compared};
use crate::resolve;
use crate::say;
use crate::table::line_width;
use crate::watch::{Ended, Goal, interrupted, wait};
use crate::words::{between, clock, phase, span, wrapped};

/// What stands left of the text: a time, two spaces, a mark and a space.
const LEFT: usize = 12;
/// What stands right of it: two columns of durations.
const RIGHT: usize = 22;
const TEXT_MIN: usize = 24;
const TEXT_MAX: usize = 62;

/// `berth alloc timeline`
#[derive(Args)]
pub(crate) struct Show {
    /// Which: a name, an id, or how an id begins
    allocation: String,
    /// Goes on until nothing moves any more
    #[arg(long, alias = "watch", conflicts_with = "json")]
    follow: bool,
    #[command(flatten)]
    output: Json,
}

impl Show {
    pub(crate) async fn run(self, client: &Client) -> Done {
        let allocation = resolve::allocation(client, &self.allocation).await?;
        if !self.follow {
            let timeline = client.timeline(allocation.id).await?;
            return if self.output.json { say::json(&timeline) } else { table(&timeline) };
        }
        let mut view = View::fitting(false);
        match wait(client, allocation.id, Goal::Rest, None, &mut view).await? {
            Ended::Reached | Ended::Missed(_) | Ended::TimedOut => {
                let allocation = client.allocation(allocation.id).await?;
                let (name, status) = (say::clean(&allocation.name), allocation.status);
                say::note(format!("{name} is {status}. {}", say::clean(&allocation.status_text)));
                Ok(())
            }
            Ended::Interrupted => {
                Err(interrupted(format!("not watching {} any more", say::clean(&allocation.name))))
            }
        }
    }
}

/// A timeline on stdout: one line a step, what went on in it, and why what failed did.
pub(crate) fn table(timeline: &Timeline) -> Done {
    say::data(Sheet::fitting().whole(timeline).join("\n"))
}

/// Lines of a certain width.
struct Sheet {
    width: usize,
    coloured: bool,
    lines: Vec<String>,
}

impl Sheet {
    fn fitting() -> Sheet {
        Sheet::of(line_width(), say::out_is_terminal() && say::colours())
    }

    fn of(line: usize, coloured: bool) -> Sheet {
        let width = line.saturating_sub(LEFT + RIGHT).clamp(TEXT_MIN, TEXT_MAX);
        Sheet { width, coloured, lines: Vec::new() }
    }

    fn whole(mut self, timeline: &Timeline) -> Vec<String> {
        let width = self.width;
        self.push(format!("{:<LEFT$}{:<width$}  {:>9}  {:>9}", "began", "what", "step", "in it"));
        for item in &timeline.items {
            self.item(item);
        }
        let end = if timeline.ended_at.is_some() { "to the end" } else { "until now" };
        let total = (Some(clock(timeline.total_seconds)), None);
        self.row("", " ", &format!("Total, from the request {end}"), total);
        if let Some(usually) = timeline.expected_seconds {
            let took = between(timeline.started_at, now());
            let text = format!("Until it is ready: {}.", compared(took, usually));
            self.row("", " ", &text, (None, None));
        }
        self.push(format!("Status: {}", timeline.status));
        self.lines
    }

    fn item(&mut self, item: &TimelineItem) {
        let summary = say::clean(item.summary.trim_end_matches('.'));
        let at = item.started_at.strftime("%H:%M:%S").to_string();
        let mark = self.mark(item);
        let took = clock(item.duration_seconds);
        match item.kind.0 {
            ItemKind::AllocationState => self.row(&at, &mark, &summary, (Some(took), None)),
            ItemKind::Placement => self.row("", &mark, &format!("  {summary}"), (None, None)),
            ItemKind::NodeTask | ItemKind::Pause => {
                self.row("", &mark, &format!("  {summary}"), (None, Some(took)));
            }
        }
        if let Some(seconds) = item.queued_seconds.filter(|seconds| *seconds > 0) {
            self.remark(&format!("waited {seconds} s for the machine to take it"));
        }
        for each in &item.phases {
            let took = between(each.started_at, each.completed_at.unwrap_or_else(now));
            let stands = stands(item.status.0, each.status.0);
            self.remark(&format!("{} ({stands}, {})", phase(each.name.0), span(took)));
        }
        if let (Some(usually), None) = (item.expected_seconds, item.completed_at) {
            self.remark(&compared(between(item.started_at, now()), usually));
        }
        let told = [
            ("node", &item.node),
            ("by", &item.actor),
            ("reason", &item.reason),
            ("advice", &item.advice),
        ];
        for (word, text) in told {
            if let Some(text) = text {
                self.remark(&format!("{word}: {}", say::clean(text)));
            }
        }
    }

    fn mark(&self, item: &TimelineItem) -> String {
        let (mark, code) = match item.status.0 {
            ItemStatus::Waiting | ItemStatus::Running => ("·", "0"),
            ItemStatus::Succeeded if item.completed_at.is_none() => ("·", "0"),
            ItemStatus::Succeeded => ("✓", "32"),
            ItemStatus::Failed => ("✗", "1;31"),
            ItemStatus::Cancelled => ("-", "2"),
        };
        if self.coloured { format!("\u{1b}[{code}m{mark}\u{1b}[0m") } else { mark.to_owned() }
    }

    /// Something about the line above.
    fn remark(&mut self, text: &str) {
        let indent = " ".repeat(LEFT + 4);
        let width = self.width + RIGHT - 4;
        for line in wrapped(text, width) {
            self.push(format!("{indent}{line}"));
        }
    }

    fn row(&mut self, at: &str, mark: &str, text: &str, took: (Option<String>, Option<String>)) {
        let width = self.width;
        let indent = text.len() - text.trim_start().len();
        let (of_step, in_it) = (took.0.unwrap_or_default(), took.1.unwrap_or_default());
        for (place, line) in wrapped(text, width - indent).iter().enumerate() {
            let text = format!("{}{line}", " ".repeat(indent));
            self.push(match place {
                0 => format!("{at:<8}  {mark} {text:<width$}  {of_step:>9}  {in_it:>9}"),
                _ => format!("{:LEFT$}{text}", ""),
            });
        }
    }

    fn push(&mut self, line: String) {
        self.lines.push(line.trim_end().to_owned());
    }
}

/// How a phase stands. What was broken off because its task was called off has not failed.
fn stands(task: ItemStatus, phase: PhaseStatus) -> &'static str {
    match (task, phase) {
        (ItemStatus::Cancelled, PhaseStatus::Failed | PhaseStatus::Running) => "called off",
        (
            ItemStatus::Waiting
            | ItemStatus::Running
            | ItemStatus::Succeeded
            | ItemStatus::Failed
            | ItemStatus::Cancelled,
            phase,
        ) => phase.code(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use wire::http::timeline::{ItemStatus, Timeline};
    use wire::node::PhaseStatus;

    use super::{Sheet, stands};

    fn told() -> Timeline {
        let at = |second: u32| format!("2026-01-01T00:00:{second:02}Z");
        let state = |seq: i64,
                     name: &str,
                     from: u32,
                     until: Option<u32>,
                     seconds: i64,
                     text: &str| {
            json!({
                "id": format!("state:{seq}"), "kind": "allocation_state", "name": name, "status": "succeeded",
                "started_at": at(from), "completed_at": until.map(at), "duration_seconds": seconds, "summary": text
            })
        };
        let timeline = json!({
            "allocation_id": "0198c0de-0000-7000-8000-0000000000aa", "status": "released",
            "started_at": at(0), "ended_at": at(42), "total_seconds": 42,
            "items": [
                state(1, "requested", 0, Some(2), 2, "The GPUs were asked for."),
                state(2, "releasing", 2, Some(42), 40, "It was called off before it was ready. You were not charged."),
                {
                    "id": "task:1", "kind": "node_task", "name": "slice.vm_release", "status": "failed",
                    "started_at": at(2), "completed_at": at(10), "duration_seconds": 8, "queued_seconds": 3,
                    "within": "state:2", "summary": "Stopping and wiping GPU slice VM",
                    "reason": "cleanup_incomplete", "advice": "The clean-up left something behind.",
                    "phases": [{ "name": "shut_down", "status": "succeeded", "started_at": at(5), "completed_at": at(9) }]
                },
                {
                    "id": "pause:1", "kind": "pause", "name": "pause", "status": "succeeded", "started_at": at(10),
                    "completed_at": at(14), "duration_seconds": 4, "within": "state:2",
                    "summary": "Waits 4 s before attempt 2."
                },
                state(3, "released", 42, Some(42), 0, "The clean-up is proven: nothing was left behind.")
            ]
        });
        serde_json::from_value(timeline).expect("it is a timeline")
    }

    #[test]
    fn the_column_of_steps_adds_up_to_the_last_line_at_every_width() {
        let wide = Sheet::of(100, false).whole(&told()).join("\n");
        let expected = "\
began       what                                                                 step      in it
00:00:00  ✓ The GPUs were asked for                                           0:00:02
00:00:02  ✓ It was called off before it was ready. You were not charged       0:00:40
          ✗   Stopping and wiping GPU slice VM                                           0:00:08
                waited 3 s for the machine to take it
                shut down (succeeded, 4.0 s)
                reason: cleanup_incomplete
                advice: The clean-up left something behind.
          ✓   Waits 4 s before attempt 2                                                 0:00:04
00:00:42  ✓ The clean-up is proven: nothing was left behind                   0:00:00
            Total, from the request to the end                                0:00:42
Status: released";
        assert_eq!(wide, expected, "\n{wide}");
        for width in [60, 80, 120] {
            for line in Sheet::of(width, false).whole(&told()) {
                assert!(line.chars().count() <= width, "{width}: {line}");
            }
        }
    }
    #[test]
    fn what_was_broken_off_with_its_task_has_not_failed() {
        assert_eq!(stands(ItemStatus::Cancelled, PhaseStatus::Failed), "called off");
        assert_eq!(stands(ItemStatus::Cancelled, PhaseStatus::Succeeded), "succeeded");
        assert_eq!(stands(ItemStatus::Failed, PhaseStatus::Failed), "failed");
    }
}
