//! `xtask tidy`: the rules of the house that neither the compiler nor clippy knows, as plain text checks.
//! Every check is a pure function over a file or over the manifests; only [`run`] touches the disk.

pub mod crates;
pub mod names;
pub mod numbered;
pub mod rust;
pub mod sql;
pub mod text;
pub mod writer;

use std::fmt;
use std::path::Path;
use std::process::Command;

use rust::Rust;

/// One breach of one rule, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    /// The file, from the root of the repository.
    pub path: String,
    /// The line, from 1. A finding about a whole file is on line 1.
    pub line: usize,
    /// The name of the rule.
    pub rule: &'static str,
    /// What to do, as a sentence.
    pub advice: String,
}

impl Finding {
    /// A finding on one line of a file.
    pub fn new(rule: &'static str, path: &str, line: usize, advice: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line, rule, advice: advice.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}: {}", self.path, self.line, self.rule, self.advice)
    }
}

/// A text file of the repository, with its Rust taken apart when it is Rust.
#[derive(Clone, Debug)]
pub struct File {
    /// The path from the root, with forward slashes.
    pub path: String,
    /// All of it.
    pub text: String,
    /// Code and string literals apart; none for other files.
    pub rust: Option<Rust>,
}

impl File {
    /// A file, taken apart when its name says it is Rust.
    pub fn new(path: impl Into<String>, text: impl Into<String>) -> Self {
        let (path, text) = (path.into(), text.into());
        let rust = path.ends_with(".rs").then(|| Rust::split(&text));
        Self { path, text, rust }
    }

    /// The crate whose folder the file is in.
    pub fn crate_name(&self) -> Option<&str> {
        self.path.strip_prefix("crates/")?.split_once('/').map(|(name, _)| name)
    }

    /// Whether the file is one of a crate's integration tests.
    pub fn is_test(&self) -> bool {
        self.path.contains("/tests/")
    }

    /// Whether this is tidy itself or its tests, which have to quote what they forbid.
    pub fn quotes_the_forbidden(&self) -> bool {
        ["crates/xtask/src/tidy", "crates/xtask/tests/"]
            .iter()
            .any(|own| self.path.starts_with(own))
    }
}

/// Every finding on the repository at `root`, in order of path and line.
pub fn run(root: &Path) -> Vec<Finding> {
    let files = match files(root) {
        Ok(files) => files,
        Err(error) => return vec![Finding::new("tidy", ".", 1, error)],
    };
    let mut findings = check_files(&files);
    match metadata(root).and_then(|json| crates::manifests(&json, &files)) {
        Ok(manifests) => findings.extend(crates::check(&manifests)),
        Err(error) => findings.push(Finding::new("tidy", "Cargo.toml", 1, error)),
    }
    findings.sort();
    findings.dedup();
    findings
}

/// Every finding on `files` that needs no manifest.
pub fn check_files(files: &[File]) -> Vec<Finding> {
    let mut findings = crates::line_is_drawn(files);
    findings.extend(numbered::migrations(files));
    findings.extend(numbered::decisions(files));
    for file in files {
        findings.extend(names::check(file));
        findings.extend(text::check(file));
        findings.extend(writer::check(file));
    }
    findings
}

fn files(root: &Path) -> Result<Vec<File>, String> {
    let listed = output(root, "git", &["ls-files", "-z", "-c", "-o", "--exclude-standard"])?;
    let mut paths: Vec<&str> = listed.split('\0').filter(|path| !path.is_empty()).collect();
    paths.sort_unstable();
    paths.dedup();
    // What can't be read as text is a picture, or is deleted and not yet committed so: no concern of ours.
    let read = |path: &&str| Some(File::new(*path, std::fs::read_to_string(root.join(path)).ok()?));
    Ok(paths.iter().filter_map(read).collect())
}

fn metadata(root: &Path) -> Result<String, String> {
    output(root, "cargo", &["metadata", "--no-deps", "--format-version", "1", "--offline"])
}

fn output(root: &Path, program: &str, arguments: &[&str]) -> Result<String, String> {
    let asked = format!("`{program} {}`", arguments.join(" "));
    let output = Command::new(program)
        .args(arguments)
        .current_dir(root)
        .output()
        .map_err(|error| format!("make {asked} start: {error}."))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("make {asked} succeed: {}.", said.trim()));
    }
    String::from_utf8(output.stdout).map_err(|error| format!("make {asked} speak UTF-8: {error}."))
}
