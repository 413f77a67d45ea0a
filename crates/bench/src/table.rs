//! The table of a run, as a document: every goal with what was measured for it, or why nothing was.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use anyhow::Context as _;
use jiff::Timestamp;

use crate::figure::Figure;
use crate::{PARTS, Report, When, is_asked, machine};

/// Above this share of the cores in others' hands a figure says little.
const FOREIGN_MAX: f64 = 0.1;

/// Every goal, and what it asks for.
const GOALS: [(&str, &str); 22] = [
    ("P1", "create through the API, against one statement"),
    ("P2", "create, one at a time"),
    ("P3", "create at 70 % of the maximum, open loop"),
    ("P4", "create against OpenStack Placement"),
    ("P5", "create against Slurm"),
    ("P6", "create with 100k nodes against 1k"),
    ("P7", "release to `released`, against raw create and release"),
    ("P8", "a transition, against one statement"),
    ("P9", "task to agent, 1k agents"),
    ("P10", "task to agent, 10k agents and 200 tasks/s"),
    ("P11", "task result to state"),
    ("P12", "request to `active`"),
    ("P13", "outbox to consumer, and its drain"),
    ("P14", "a minute of billing, against one statement"),
    ("P15", "the same minute again"),
    ("P16", "create beside a minute of billing"),
    ("P17", "memory and CPU of waiting agents"),
    ("P18", "commits of waiting agents, against all that there could be"),
    ("P19", "agents back after a restart"),
    ("P20", "memory of everything at rest"),
    ("P21", "killed under load, until the next create"),
    ("R34", "ten times as many as can be served"),
];
/// Writes the document.
pub(crate) fn write(path: &Path, report: &Report) -> anyhow::Result<()> {
    let text = page(report, &circumstances())?;
    std::fs::write(path, text).with_context(|| path.display().to_string())
}

/// The machine, the software and the day.
fn circumstances() -> String {
    let said = |program: &str, words: &[&str]| {
        let output = Command::new(program).args(words).output().ok()?;
        Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
    };
    let commit = said("git", &["rev-parse", "--short", "HEAD"]).unwrap_or_default();
    let changed = said("git", &["status", "--porcelain"]).is_some_and(|text| !text.is_empty());
    let changed = if changed { " with changes" } else { "" };
    let date = Timestamp::now().strftime("%Y-%m-%d").to_string();
    let postgres = postgres().unwrap_or_else(|| "Postgres".to_owned());
    let short = if is_asked("QUICK") { " A short run (`QUICK=1`)." } else { "" };
    format!("{}; {postgres}; commit {commit}{changed}; {date}.{short}", machine::described())
}

/// Which Postgres the clusters were made of.
fn postgres() -> Option<String> {
    let folder = std::env::var_os("BERTH_PG_BIN").map(std::path::PathBuf::from);
    let newest = || {
        let versions = std::fs::read_dir("/usr/lib/postgresql").ok()?.flatten();
        let numbered = versions.filter_map(|entry| {
            Some((entry.file_name().to_str()?.parse::<u32>().ok()?, entry.path()))
        });
        numbered.max().map(|(_, path)| path.join("bin"))
    };
    let program = folder.or_else(newest)?.join("postgres");
    let output = Command::new(program).arg("--version").output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    Some(format!("Postgres {}", text.split_whitespace().nth(2)?))
}

fn page(report: &Report, circumstances: &str) -> anyhow::Result<String> {
    let mut page = String::from(
        "<!-- Written by `make bench`. Do not edit. -->\n\n# What it costs\n\n\
         A figure that has a floor is judged by its ratio to what Postgres does by itself (or to whoever the name says) in the same round;\n\
         the others are judged by themselves. Median of all rounds, and the least and the most of them. `foreign` is the share of\n\
         all cores that others used right before a round (neither the bench with its agents, nor the product with its database); `client` what asking has cost on the same cores. Everything of ours is durable:\n\
         `fsync`, `synchronous_commit` and `full_page_writes` are on, and asked for. Of what others have made the last column says it.\n\n",
    );
    writeln!(page, "{circumstances}\n")?;
    // What could not be looked at is more than anything in this order.
    let busy = |figure: &&Figure| figure.taken().foreign_cpu.total_cmp(&FOREIGN_MAX).is_gt();
    let busy = report.figures.iter().filter(busy).count();
    if busy > 0 {
        writeln!(
            page,
            "**Others used more than {FOREIGN_MAX} of the cores before {busy} of {} figures: those prove nothing.**\n",
            report.figures.len()
        )?;
    }
    page.push_str(
        "| goal | figure | ours | floor | ratio | spread | must | aim | | load | foreign | client | |\n\
         | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n",
    );
    for (goal, what) in GOALS {
        let of_goal = report.figures.iter().filter(|figure| figure.goal == goal);
        let rows: Vec<String> = of_goal.map(row).collect();
        // A goal may have several parts, of which some failed.
        let mut not_measured: Vec<String> =
            report.failed.iter().filter(|(failed, _)| *failed == goal).map(failure).collect();
        if rows.is_empty() && not_measured.is_empty() {
            not_measured.push(absence(goal));
        }
        for row in rows {
            writeln!(page, "{row}")?;
        }
        for why in not_measured {
            writeln!(page, "| {goal} | {what} | not measured | | | | | | | | | | {why} |")?;
        }
    }
    Ok(page)
}

fn failure((_, why): &(&str, String)) -> String {
    let line = why.replace(['\n', '|'], " ");
    format!("it failed: {}", line.chars().take(200).collect::<String>())
}

fn absence(goal: &str) -> String {
    let part = PARTS.iter().find(|part| part.goals.contains(&goal));
    part.map_or_else(String::new, |part| match part.when {
        When::Peers => "`PEERS=1` was not asked for".to_owned(),
        When::Always | When::Full => format!("`ONLY={}` was not part of this run", part.name),
    })
}

fn row(figure: &Figure) -> String {
    let taken = figure.taken();
    let number = |value: Option<f64>| value.map(|value| value.to_string()).unwrap_or_default();
    let limit = |value: Option<f64>| {
        value.map(|value| format!("{} {value}", figure.sign())).unwrap_or_default()
    };
    let verdict = match (figure.must.is_some(), figure.is_met(), figure.is_reached()) {
        (_, false, _) => "missed",
        (true, true, true) if figure.aim.is_some() => "aim",
        (true, true, true) => "met",
        (true, true, false) => "met",
        (false, true, reached) if figure.aim.is_some() => {
            if reached {
                "aim"
            } else {
                "not yet"
            }
        }
        (false, true, _) => "",
    };
    let [least, most] = taken.spread;
    format!(
        "| {} | `{}` | {} {} | {} | {} | {least}–{most} | {} | {} | {verdict} | {} | {} | {} | {} |",
        figure.goal,
        figure.name,
        taken.ours,
        figure.unit,
        number(taken.floor),
        number(taken.ratio),
        limit(figure.must),
        limit(figure.aim),
        number(taken.load),
        taken.foreign_cpu,
        number(taken.client_cpu),
        figure.circumstances(),
    )
}

#[cfg(test)]
mod tests {
    use super::{GOALS, page};
    use crate::figure::Figure;
    use crate::machine::Mood;
    use crate::{PARTS, Report};

    #[test]
    fn every_goal_stands_in_the_table_measured_or_not() {
        let mood = Mood::of(0.5).asking(0.1);
        let figure = Figure::more("P1", "a", "/s").goal(0.6, 1.0).once(70.0, Some(100.0), mood);
        let failed = vec![("P2", "broken | in\ntwo".to_owned())];
        let report = Report { figures: vec![figure], failed, missed: true };
        let page = page(&report, "here").expect("it can be written");
        for (goal, _) in GOALS {
            assert!(page.contains(&format!("| {goal} |")), "{goal}: {page}");
        }
        assert!(
            page.contains("| P1 | `a` | 70 /s | 100 | 0.7 | 0.7–0.7 | ≥ 0.6 | ≥ 1 | met |"),
            "{page}"
        );
        assert!(page.contains("it failed: broken   in two"), "{page}");
        assert!(page.contains("those prove nothing"), "{page}");
        assert!(page.lines().all(|line| line == line.trim_end()), "{page}");
    }

    #[test]
    fn every_goal_has_a_part() {
        for (goal, _) in GOALS {
            assert!(PARTS.iter().any(|part| part.goals.contains(&goal)), "{goal}");
        }
    }

    #[test]
    fn what_failed_is_told_beside_what_was_measured_for_the_same_goal() {
        let mood = Mood::of(0.0);
        let figure = Figure::less("P9", "a", "ms").once(2.0, None, mood);
        let failed = vec![("P9", "npm is missing".to_owned())];
        let report = Report { figures: vec![figure], failed, missed: true };
        let page = page(&report, "here").expect("it can be written");
        assert!(page.contains("| P9 | `a` | 2 ms |"), "{page}");
        assert!(
            page.contains("not measured | | | | | | | | | | it failed: npm is missing |"),
            "{page}"
        );
        assert!(page.contains("`PEERS=1` was not asked for"), "{page}");
    }
}
