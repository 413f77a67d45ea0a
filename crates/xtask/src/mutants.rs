//! Guards taken away, one at a time, in a copy of the tree: the simulation must go red for each. This is the evidence that
//! it can.

#![expect(clippy::print_stdout, reason = "the table is the product of this chore")]

mod list;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, ensure};

use list::LIST;

/// How many runs a mutant may live for.
const RUNS: &str = "300";

/// A guard, and the tree without it.
struct Mutant {
    name: &'static str,
    /// What it guards; with whom, if one alone is covered by another.
    guards: &'static str,
    edits: &'static [Edit],
}

/// File, what stands there once, and what stands there instead.
type Edit = (&'static str, &'static str, &'static str);

/// What became of a mutant.
enum Fate {
    /// After so many runs, by this.
    Caught(u64, String),
    Survived(u64),
    /// It never ran.
    Unfit(String),
}

/// Runs the mutants that are named, or all; answers whether every one was caught.
///
/// # Errors
/// When the copy can't be made.
pub fn run(root: &Path, names: &[String]) -> anyhow::Result<bool> {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or(root.join("target"), PathBuf::from);
    // Built apart: cargo takes a crate of the copy for the crate of the same name here, and a mutant must not get out.
    let (tree, target) = (target.join("mutants/tree"), target.join("mutants"));
    let bench = Bench { root, tree, target };
    bench.copy()?;
    println!("mutant | runs until red | what caught it | guard");
    let (mut caught, mut survivors) = (0, Vec::new());
    let chosen = |mutant: &&Mutant| names.is_empty() || names.iter().any(|n| n == mutant.name);
    for mutant in LIST.iter().filter(chosen) {
        let (name, guards) = (mutant.name, mutant.guards);
        match bench.try_out(mutant)? {
            Fate::Caught(runs, what) => {
                caught += 1;
                println!("{name} | {runs} | {what} | {guards}");
            }
            Fate::Survived(runs) => {
                survivors.push(name);
                println!("{name} | SURVIVED {runs} | | {guards}");
            }
            Fate::Unfit(why) => {
                survivors.push(name);
                println!("{name} | DID NOT RUN | {why} | {guards}");
            }
        }
    }
    println!("{caught} caught, {} not: {}", survivors.len(), survivors.join(", "));
    Ok(survivors.is_empty())
}

/// Where mutants are tried out.
struct Bench<'a> {
    root: &'a Path,
    tree: PathBuf,
    target: PathBuf,
}

impl Bench<'_> {
    fn copy(&self) -> anyhow::Result<()> {
        let listed = Command::new("git")
            .current_dir(self.root)
            .args(["ls-files", "--cached", "--others", "--exclude-standard"])
            .output()?;
        for file in String::from_utf8(listed.stdout)?.lines() {
            let (from, to) = (self.root.join(file), self.tree.join(file));
            let Ok(text) = std::fs::read(from) else { continue };
            // What is the same keeps its time, so that cargo need not look at it again.
            if std::fs::read(&to).is_ok_and(|there| there == text) {
                continue;
            }
            if let Some(folder) = to.parent() {
                std::fs::create_dir_all(folder)?;
            }
            std::fs::write(&to, text).with_context(|| format!("could not write {file}"))?;
        }
        Ok(())
    }

    fn try_out(&self, mutant: &Mutant) -> anyhow::Result<Fate> {
        for edit in mutant.edits {
            if let Err(error) = self.apply(edit) {
                self.copy()?;
                return Ok(Fate::Unfit(error.to_string()));
            }
        }
        let ran = self.simulate(mutant.name);
        self.copy()?;
        ran
    }

    fn apply(&self, (file, from, to): &Edit) -> anyhow::Result<()> {
        let place = self.tree.join(file);
        let text = std::fs::read_to_string(&place).with_context(|| format!("no {file}"))?;
        ensure!(text.matches(from).count() == 1, "{file} does not have this once: {from}");
        std::fs::write(&place, text.replace(from, to))?;
        if !file.ends_with(".sql") {
            return Ok(());
        }
        // What the store carries of its migrations is looked at anew when the store is.
        let carrier = self.tree.join("crates/store/src/lib.rs");
        let text = std::fs::read(&carrier)?;
        Ok(std::fs::write(&carrier, text)?)
    }

    fn simulate(&self, name: &str) -> anyhow::Result<Fate> {
        // Its own chores, because they make the schema. Most die young: a quick build is worth more than quick runs.
        let ran = Command::new("cargo")
            .current_dir(&self.tree)
            .args(["run", "--quiet", "--package", "xtask", "--", "simulate"])
            .env("SLOW", "1")
            .env("CARGO_TARGET_DIR", &self.target)
            .env("UNTIL_RED", "1")
            .env("RUNS", std::env::var("RUNS").unwrap_or_else(|_| RUNS.to_owned()))
            .output()?;
        if let Some(folder) = std::env::var_os("TRACES") {
            std::fs::write(Path::new(&folder).join(name), &ran.stdout)?;
        }
        let said = String::from_utf8_lossy(&ran.stdout);
        let figures = said.lines().last().and_then(|line| serde_json::from_str(line).ok());
        let Some(figures): Option<serde_json::Value> = figures else {
            let errors = String::from_utf8_lossy(&ran.stderr);
            let why = errors.lines().find(|line| line.contains("error")).unwrap_or("no figures");
            return Ok(Fate::Unfit(why.to_owned()));
        };
        let runs = figures["runs"].as_u64().unwrap_or_default();
        let broken = figures["failed"][0]["broken"][0].as_str();
        let first = |text: &str| text.chars().take(90).collect();
        Ok(broken.map_or(Fate::Survived(runs), |broken| Fate::Caught(runs, first(broken))))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::LIST;

    #[test]
    fn every_mutant_finds_what_it_changes() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("a root");
        for mutant in LIST {
            for (file, from, to) in mutant.edits {
                let text = std::fs::read_to_string(root.join(file)).expect("the file is there");
                let found = text.matches(from).count();
                assert_eq!(found, 1, "{}: {file} has {from:?} {found} times", mutant.name);
                assert_ne!(from, to, "{}", mutant.name);
            }
        }
    }
}
