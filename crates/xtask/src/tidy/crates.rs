//! The line of crates: who may use whom, which crates may know which libraries, and that ARCHITECTURE.md draws
//! the same line as this file.

use serde_json::Value;

use super::{File, Finding};

/// The line as ARCHITECTURE.md must draw it, in a fenced block of its own.
pub const PICTURE: &str = "\
lifecycle → domain → wire → trace → store → spine → control → server → berth
    │                         │                └────→ engines ──────────┤
    │                         └─────────────────────→ agent ────────────┤
    └───────────────────────────────────────────────→ sandbox ──────────┘
";

/// The line: a crate may use what stands before it.
pub const LINE: [&str; 9] =
    ["lifecycle", "domain", "wire", "trace", "store", "spine", "control", "server", "berth"];
/// The sidings: each leaves the line after a crate, the last that it may use, and joins it again at its end.
pub const SIDINGS: [(&str, &str); 3] =
    [("agent", "trace"), ("engines", "spine"), ("sandbox", "lifecycle")];
/// The crates that only developers run.
pub const DEV_CRATES: [&str; 7] =
    ["testkit", "conformance", "examples", "proofs", "simulation", "bench", "xtask"];
/// Those that tests use, wherever they stand.
const FOR_TESTS: [&str; 3] = ["testkit", "conformance", "sandbox"];

/// What a dependency is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The crate itself.
    Use,
    /// Its tests.
    Test,
    /// Its build script.
    Build,
}

/// One dependency of a crate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dependency {
    /// The name of the package, whatever it is called in `use`.
    pub name: String,
    /// What it is for.
    pub purpose: Purpose,
    /// Its line in the manifest.
    pub line: usize,
}

/// The part of a manifest that tidy reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// Its path from the root.
    pub path: String,
    /// The name of the crate.
    pub name: String,
    /// What it depends on.
    pub dependencies: Vec<Dependency>,
}

/// The manifests in the answer of `cargo metadata --no-deps`; the lines come from `files`.
pub fn manifests(json: &str, files: &[File]) -> Result<Vec<Manifest>, String> {
    let metadata: Value =
        serde_json::from_str(json).map_err(|error| format!("read cargo's metadata: {error}."))?;
    let missing = || "read cargo's metadata: a field is missing.".to_owned();
    let root = metadata["workspace_root"].as_str().ok_or_else(missing)?;
    let packages = metadata["packages"].as_array().ok_or_else(missing)?;
    packages.iter().map(|package| manifest(package, root, files).ok_or_else(missing)).collect()
}

fn manifest(package: &Value, root: &str, files: &[File]) -> Option<Manifest> {
    let path =
        package["manifest_path"].as_str()?.strip_prefix(root)?.trim_start_matches('/').to_owned();
    let text = files.iter().find(|file| file.path == path).map_or("", |file| file.text.as_str());
    let dependency = |value: &Value| {
        let name = value["name"].as_str()?.to_owned();
        let purpose = match value["kind"].as_str() {
            Some("dev") => Purpose::Test,
            Some("build") => Purpose::Build,
            _ => Purpose::Use,
        };
        Some(Dependency { line: line_of(text, &name), name, purpose })
    };
    let dependencies =
        package["dependencies"].as_array()?.iter().map(dependency).collect::<Option<_>>()?;
    Some(Manifest { path, name: package["name"].as_str()?.to_owned(), dependencies })
}

fn line_of(manifest: &str, dependency: &str) -> usize {
    let names = |line: &str| {
        line.strip_prefix(dependency).is_some_and(|after| after.starts_with(['.', ' ', '=']))
    };
    manifest.lines().position(names).map_or(1, |at| at + 1)
}

/// All checks on the manifests.
pub fn check(manifests: &[Manifest]) -> Vec<Finding> {
    [known, direction, libraries]
        .iter()
        .flat_map(|check| manifests.iter().flat_map(check))
        .collect()
}

fn is_ours(name: &str) -> bool {
    LINE.contains(&name) || DEV_CRATES.contains(&name) || fork_of(name).is_some()
}

/// The crate after which a siding leaves the line.
fn fork_of(name: &str) -> Option<&'static str> {
    SIDINGS.iter().find(|(siding, _)| *siding == name).map(|(_, fork)| *fork)
}

/// A crate has its place on the line, in the folder of its name.
pub fn known(manifest: &Manifest) -> Vec<Finding> {
    let name = &manifest.name;
    let finding = |advice| vec![Finding::new("crates", &manifest.path, 1, advice)];
    if !is_ours(name) {
        let picture = "ARCHITECTURE.md and in crates/xtask/src/tidy/crates.rs";
        return finding(format!(
            "give `{name}` a place on the line in {picture}, or make it a module."
        ));
    }
    if manifest.path != format!("crates/{name}/Cargo.toml") {
        return finding(format!(
            "move it to crates/{name}/: the folder has the name of the crate."
        ));
    }
    Vec::new()
}

/// A crate uses what is left of it on the line, and nothing else of ours.
pub fn direction(manifest: &Manifest) -> Vec<Finding> {
    let from = manifest.name.as_str();
    let wrong = |dependency: &&Dependency| is_ours(&dependency.name) && !may_use(from, dependency);
    let finding = |dependency: &Dependency| {
        let to = &dependency.name;
        let advice = match to.as_str() {
            to if FOR_TESTS.contains(&to) => {
                format!("make `{to}` a dev-dependency of `{from}`: only tests use it.")
            }
            _ => {
                format!("remove `{to}` from `{from}`: it is not left of it on the line of crates.")
            }
        };
        Finding::new("crates", &manifest.path, dependency.line, advice)
    };
    manifest.dependencies.iter().filter(wrong).map(finding).collect()
}

fn may_use(from: &str, dependency: &Dependency) -> bool {
    let place = |name: &str| LINE.iter().position(|each| *each == name);
    let to = dependency.name.as_str();
    if from == "examples" {
        return to == "lifecycle";
    }
    if DEV_CRATES.contains(&from) {
        return true;
    }
    if FOR_TESTS.contains(&to) && dependency.purpose == Purpose::Test && from != to {
        return true;
    }
    match (place(from), place(to)) {
        (Some(from), Some(to)) => to < from,
        (None, Some(to)) => fork_of(from).is_some_and(|fork| Some(to) <= place(fork)),
        (Some(from), None) if fork_of(to).is_some() => from == LINE.len() - 1,
        _ => false,
    }
}

/// What a crate must not know, it does not depend on.
pub fn libraries(manifest: &Manifest) -> Vec<Finding> {
    let from = manifest.name.as_str();
    let finding = |dependency: &Dependency| {
        let why = refused(from, dependency)?;
        let advice = format!("remove `{}` from `{from}`: {why}.", dependency.name);
        Some(Finding::new("dependencies", &manifest.path, dependency.line, advice))
    };
    manifest.dependencies.iter().filter_map(finding).collect()
}

fn refused(from: &str, dependency: &Dependency) -> Option<&'static str> {
    let name = dependency.name.as_str();
    let for_tests = dependency.purpose == Purpose::Test;
    let knows_sqlx = ["store", "testkit", "bench", "proofs", "simulation", "xtask"].contains(&from);
    let is_library = LINE.contains(&from) && from != "berth" || fork_of(from).is_some();
    match name {
        _ if from == "lifecycle" => Some("it stands alone, its tests too"),
        _ if from == "domain" && !is_ours(name) && name != "uuid" && !for_tests => {
            Some("it is pure, and knows no library but `uuid`")
        }
        "sqlx" if !knows_sqlx => Some("only `store` speaks to the database; call it"),
        "anyhow" if is_library && !for_tests => {
            Some("a library's errors are an enum that a caller can act on")
        }
        _ => None,
    }
}

/// ARCHITECTURE.md draws [`PICTURE`].
pub fn line_is_drawn(files: &[File]) -> Vec<Finding> {
    const PATH: &str = "ARCHITECTURE.md";
    let finding = |line, advice: &str| vec![Finding::new("crates", PATH, line, advice)];
    let Some(file) = files.iter().find(|file| file.path == PATH) else {
        return finding(1, "write it, with the line of crates in a fenced block.");
    };
    let blocks = fenced_blocks(&file.text);
    let Some((line, block)) =
        blocks.iter().find(|(_, block)| drawing(block).starts_with("lifecycle →"))
    else {
        return finding(1, "draw the line of crates in a fenced block.");
    };
    if drawing(block) == drawing(PICTURE) {
        return Vec::new();
    }
    finding(
        *line,
        "draw the line of crates as PICTURE in crates/xtask/src/tidy/crates.rs does, or change both.",
    )
}

/// The blocks between fences, with the line on which each begins.
fn fenced_blocks(text: &str) -> Vec<(usize, String)> {
    let mut blocks = Vec::new();
    let mut open: Option<(usize, String)> = None;
    for (i, line) in text.lines().enumerate() {
        match &mut open {
            Some(_) if line.trim_start().starts_with("```") => blocks.extend(open.take()),
            Some((_, block)) => {
                block.push_str(line);
                block.push('\n');
            }
            None if line.trim_start().starts_with("```") => open = Some((i + 2, String::new())),
            None => {}
        }
    }
    blocks
}

/// A drawing without its white space and the length of its strokes, which are a matter of taste.
fn drawing(block: &str) -> String {
    let mut drawing = block.split_whitespace().collect::<Vec<_>>().join(" ");
    while drawing.contains("──") {
        drawing = drawing.replace("──", "─");
    }
    drawing
}
