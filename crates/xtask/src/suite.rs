//! Runs the tests of the whole workspace on one Postgres, with cargo-nextest where it is installed, and counts them.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "it passes on what the test runner says"
)]

use std::io::{BufRead as _, BufReader};
use std::num::NonZero;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::Context as _;

use crate::server::{SERVER_VARIABLE, Server};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Count {
    passed: u64,
    failed: u64,
}

/// Runs everything; answers whether all of it passed. The last line is the count.
///
/// # Errors
/// When the server or the test runner can't be started.
pub fn run(root: &Path, arguments: &[String]) -> anyhow::Result<bool> {
    let server = Server::start()?;
    let address = server.url("{database}");
    let nextest = Command::new("cargo")
        .args(["nextest", "--version"])
        .output()
        .is_ok_and(|out| out.status.success());
    let mut tests =
        if nextest { vec!["nextest", "run"] } else { vec!["test", "--lib", "--bins", "--tests"] };
    let at_once = at_once().to_string();
    if arguments.is_empty() {
        tests.extend(["--workspace", "--no-fail-fast"]);
        tests.extend(if nextest { vec!["--test-threads", &at_once] } else { vec![] });
    }

    let mut total = Count::default();
    let mut passed = step(root, &tests, arguments, &address, &mut total)?;
    // nextest leaves the examples in the documentation out.
    if arguments.is_empty() {
        passed &= step(root, &["test", "--workspace", "--doc"], &[], &address, &mut total)?;
    }
    println!("{} passed, {} failed", total.passed, total.failed);
    Ok(passed)
}

/// How many tests run at once: twice as many as there are processors, because half of a test is waiting for others.
fn at_once() -> usize {
    2 * std::thread::available_parallelism().map_or(1, NonZero::get)
}

fn step(
    root: &Path,
    words: &[&str],
    more: &[String],
    address: &str,
    total: &mut Count,
) -> anyhow::Result<bool> {
    let mut child = Command::new("cargo")
        .current_dir(root)
        .args(words)
        .args(more)
        .env(SERVER_VARIABLE, address)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("could not start cargo")?;
    let errors = child.stderr.take().context("no stderr")?;
    // Both streams are read at once, or a full pipe would stop the runner.
    let listener = std::thread::spawn(move || {
        let mut count = Count::default();
        for line in BufReader::new(errors).lines().map_while(Result::ok) {
            count = add(count, counted(&line));
            eprintln!("{line}");
        }
        count
    });
    for line in
        BufReader::new(child.stdout.take().context("no stdout")?).lines().map_while(Result::ok)
    {
        *total = add(*total, counted(&line));
        println!("{line}");
    }
    *total = add(*total, listener.join().unwrap_or_default());
    Ok(child.wait()?.success())
}

fn add(a: Count, b: Count) -> Count {
    Count { passed: a.passed + b.passed, failed: a.failed + b.failed }
}

/// The figures of a closing line: nextest's summary, or cargo's own `test result`.
fn counted(line: &str) -> Count {
    // The lines of a test that failed are shown indented; its own closing line is not one more test.
    let nextest = line.trim().starts_with("Summary [") && line.contains("run:");
    let cargo = line.starts_with("test result:");
    if !nextest && !cargo {
        return Count::default();
    }
    let figure = |word: &str| -> u64 {
        let words: Vec<&str> =
            line.split([' ', ',', ';']).filter(|word| !word.is_empty()).collect();
        let place = words.iter().position(|found| *found == word);
        place.and_then(|place| words.get(place.wrapping_sub(1))?.parse().ok()).unwrap_or(0)
    };
    Count { passed: figure("passed"), failed: figure("failed") }
}

#[cfg(test)]
mod tests {
    use super::{Count, counted};

    #[test]
    fn the_closing_lines_of_both_runners_are_counted() {
        let nextest =
            "     Summary [   1.2s] 40 tests run: 38 passed (1 slow), 2 failed, 3 skipped";
        assert_eq!(counted(nextest), Count { passed: 38, failed: 2 });
        let cargo = "test result: ok. 7 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s";
        assert_eq!(counted(cargo), Count { passed: 7, failed: 0 });
        assert_eq!(counted("running 3 tests that passed"), Count::default());
    }
}
