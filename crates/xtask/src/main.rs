//! `cargo xtask`: the repository's own chores. Run without a word, it says which there are.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "this program speaks to people")]

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use xtask::server::Server;
use xtask::{documents, mutants, simulate, stories, suite, tidy};

const HELP: &str = "cargo xtask <chore>
  tidy             check what no compiler checks: crates, the single writer, sizes, names
  gen              write docs/generated anew from the machines and the schema
  mutants [NAMES]  take each guard away in a copy of the tree, and see the simulation go red; RUNS says how long it may live
  simulate         run the seeded simulation of the control plane; SEED, RUNS, EVENTS and WORKERS say how much
  simulate ledger  charge millions of windows with crashes, and all of it again; SEED and WINDOWS say how many
  stories [WORDS]  run the stories of the allocation contract on every combination of engines; WORDS filter them, as nextest does
  test [ARGS]      run all tests on a Postgres of their own; ARGS go to the test runner
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let done = match arguments.first().map(String::as_str) {
        Some("tidy") => check_tidy(),
        Some("gen") => generate(),
        Some("mutants") => mutants::run(&root(), &arguments[1..]),
        Some("simulate") => simulate::run(&root(), &arguments[1..]),
        Some("stories") => stories::run(&root(), &arguments[1..]),
        Some("test") => suite::run(&root(), &arguments[1..]),
        Some("help" | "--help" | "-h") => {
            print!("{HELP}");
            Ok(true)
        }
        other => {
            if let Some(chore) = other {
                eprintln!("there is no chore called {chore:?}");
            }
            eprint!("{HELP}");
            Ok(false)
        }
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.ancestors().nth(2).unwrap_or(manifest).to_owned()
}

fn check_tidy() -> anyhow::Result<bool> {
    let findings = tidy::run(&root());
    for finding in &findings {
        println!("{finding}");
    }
    println!("tidy: {} findings", findings.len());
    Ok(findings.is_empty())
}

fn generate() -> anyhow::Result<bool> {
    let server = Server::start()?;
    for (path, text) in documents::all(&server)? {
        let place = root().join(path);
        let fresh = std::fs::read_to_string(&place).is_ok_and(|there| there == text);
        if !fresh {
            std::fs::write(&place, text).with_context(|| format!("could not write {path}"))?;
        }
        println!("{path}: {}", if fresh { "was fresh" } else { "written" });
    }
    let mut tests = std::process::Command::new("cargo");
    tests.current_dir(root()).args(["test", "--quiet", "--test", "it"]);
    for package in documents::WRITERS {
        tests.args(["--package", package]);
    }
    tests.arg(documents::WRITTEN_BY).env(documents::WRITE_VARIABLE, "1");
    Ok(tests.status()?.success())
}
