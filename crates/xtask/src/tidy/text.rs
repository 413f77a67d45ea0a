//! Checks on lines and their number: sizes, openings, open ends, tests, traces of one machine, white space.

use super::{File, Finding};

const RUST_LINES_MAX: usize = 500;
const TEST_LINES_MAX: usize = 800;
/// The documents that must stay short enough to be read.
const DOCUMENT_LINES_MAX: [(&str, usize); 2] = [("ARCHITECTURE.md", 200), ("STYLE.md", 60)];
/// Rust files that may be longer, and why.
const LONG_FILES: [(&str, &str); 0] = [];

/// All checks of this file.
pub fn check(file: &File) -> Vec<Finding> {
    let checks = [
        size,
        opening,
        open_ends,
        ignored_tests,
        test_names,
        machine_paths,
        registries,
        white_space,
    ];
    checks.iter().flat_map(|check| check(file)).collect()
}

fn ends_with_one_of(path: &str, endings: &[&str]) -> bool {
    endings.iter().any(|ending| path.ends_with(ending))
}

/// The numbered lines of a file, from 1.
fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().map(|(i, line)| (i + 1, line))
}

/// A file is short enough to be read in one sitting.
pub fn size(file: &File) -> Vec<Finding> {
    let document = DOCUMENT_LINES_MAX.iter().find(|(path, _)| file.path == *path);
    let max = match document {
        Some((_, max)) => *max,
        None if file.rust.is_none() || LONG_FILES.iter().any(|(path, _)| file.path == *path) => {
            usize::MAX
        }
        None if file.is_test() => TEST_LINES_MAX,
        None => RUST_LINES_MAX,
    };
    let count = file.text.lines().count();
    let advice = format!("split it by meaning: {count} lines, where {max} is the most.");
    (count > max).then(|| Finding::new("size", &file.path, max + 1, advice)).into_iter().collect()
}

/// A source file says first what it owns.
pub fn opening(file: &File) -> Vec<Finding> {
    let is_source =
        file.crate_name().is_some_and(|name| file.path.starts_with(&format!("crates/{name}/src/")));
    let silent = file.rust.is_some() && is_source && !file.text.starts_with("//!");
    let advice = "open with one to four `//!` lines: what the file owns, and its invariant.";
    silent.then(|| Finding::new("opening", &file.path, 1, advice)).into_iter().collect()
}

/// What is left to do has an issue, or is done.
pub fn open_ends(file: &File) -> Vec<Finding> {
    if file.quotes_the_forbidden() {
        return Vec::new();
    }
    let is_open = |line: &str, word: &str| {
        whole_words(line, word).any(|after| !line[after..].starts_with("(#"))
    };
    let mut findings = Vec::new();
    for (number, line) in lines(&file.text) {
        for word in ["TODO", "FIXME", "XXX"].iter().filter(|word| is_open(line, word)) {
            let advice = format!("do it, or write `{word}(#n)` with the number of its issue.");
            findings.push(Finding::new("open-ends", &file.path, number, advice));
        }
    }
    findings
}

/// The positions after each place where `word` stands alone in `line`.
fn whole_words<'t>(line: &'t str, word: &'t str) -> impl Iterator<Item = usize> + 't {
    let part_of_word = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).map(|(at, word)| (at, at + word.len())).filter_map(
        move |(at, after)| {
            let alone =
                !line[..at].ends_with(part_of_word) && !line[after..].starts_with(part_of_word);
            alone.then_some(after)
        },
    )
}

/// A test runs or does not exist.
pub fn ignored_tests(file: &File) -> Vec<Finding> {
    let Some(rust) = &file.rust else {
        return Vec::new();
    };
    let ignores = |line: &str| {
        line.contains("#[ignore") || (line.contains("#[cfg_attr(") && line.ends_with(", ignore)]"))
    };
    let advice = "run the test, or delete it.";
    let finding = |(number, _)| Finding::new("ignored-test", &file.path, number, advice);
    lines(&rust.code).filter(|(_, line)| ignores(line.trim_end())).map(finding).collect()
}

/// A test's name is a sentence about behaviour.
pub fn test_names(file: &File) -> Vec<Finding> {
    let Some(rust) = &file.rust else {
        return Vec::new();
    };
    let mut findings = Vec::new();
    let mut below_attribute = false;
    for (number, line) in lines(&rust.code) {
        let line = line.trim();
        if line.starts_with("#[") {
            below_attribute |= line.contains("test]") || line.contains("test(");
        }
        let Some(at) = line.find("fn ") else { continue };
        if below_attribute && line[at..].starts_with("fn test_") {
            let advice = "name the test with a sentence about what happens, without `test_`.";
            findings.push(Finding::new("test-name", &file.path, number, advice));
        }
        below_attribute = false;
    }
    findings
}

/// The repository works on any machine, so it names no folder of one.
pub fn machine_paths(file: &File) -> Vec<Finding> {
    if file.quotes_the_forbidden() {
        return Vec::new();
    }
    let finding = |(number, line)| {
        let path = machine_path(line)?;
        let advice = format!("say it without `{path}`: nobody else has that folder.");
        Some(Finding::new("machine-path", &file.path, number, advice))
    };
    lines(&file.text).filter_map(finding).collect()
}

fn machine_path(line: &str) -> Option<&str> {
    const FOLDERS: [&str; 4] = ["/work/", "/root/", "/home/", "/Users/"];
    let places = FOLDERS.iter().flat_map(|folder| line.match_indices(folder));
    places.map(|(at, folder)| (at, at + folder.len())).find_map(|(at, after)| {
        let in_name = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.');
        let rest = &line[after..];
        let name = rest.find(|c| !in_name(c)).unwrap_or(rest.len());
        // Homes are a matter of one machine only once they say whose.
        let of_one_machine = matches!(&line[at..after], "/work/" | "/root/")
            || (name > 0 && rest[name..].starts_with('/'));
        // Below another folder, or in an address, it is a path like any other.
        let absolute = !line[..at].ends_with(|c| in_name(c) || matches!(c, '}' | '*' | '~'));
        (of_one_machine && absolute).then(|| &line[at..after + name])
    })
}

/// Packages come from the public registries; a mirror belongs to the machine that uses it.
pub fn registries(file: &File) -> Vec<Finding> {
    const INTRODUCTIONS: [&str; 7] = [
        "registry+",
        "sparse+",
        "registry = \"",
        "registry=",
        "index = \"",
        "\"resolved\": \"",
        "index-url = \"",
    ];
    const PUBLIC: [&str; 4] = [
        "https://github.com/rust-lang/crates.io-index",
        "https://index.crates.io/",
        "https://registry.npmjs.org/",
        "https://pypi.org/",
    ];
    if file.quotes_the_forbidden() {
        return Vec::new();
    }
    let is_private = |line: &str| {
        INTRODUCTIONS.iter().flat_map(|words| line.match_indices(words)).any(|(at, words)| {
            let address = &line[at + words.len()..];
            let is_address = ["http", "sparse+http", "registry+http"]
                .iter()
                .any(|start| address.starts_with(start));
            let address = address.trim_start_matches("sparse+").trim_start_matches("registry+");
            is_address && !PUBLIC.iter().any(|public| address.starts_with(public))
        })
    };
    let advice =
        "name the public registry, and keep the mirror in the configuration of the machine.";
    let finding = |(number, _)| Finding::new("registry", &file.path, number, advice);
    lines(&file.text).filter(|(_, line)| is_private(line)).map(finding).collect()
}

/// No white space at the end of a line, no tab in Rust.
pub fn white_space(file: &File) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut find = |number, advice: &str| {
        findings.push(Finding::new("white-space", &file.path, number, advice))
    };
    for (number, line) in lines(&file.text) {
        let is_ours = ends_with_one_of(&file.path, &[".rs", ".md", ".toml", ".sql"]);
        if is_ours && line.ends_with(char::is_whitespace) {
            find(number, "remove the white space at the end of the line.");
        }
        if file.rust.is_some() && line.contains('\t') {
            find(number, "use spaces, and `\\t` in a literal.");
        }
    }
    findings
}
