//! Words that say nothing about what a thing is, forbidden in the names of files, modules and types.

use super::{File, Finding};

/// The forbidden words.
const EMPTY_WORDS: [&str; 15] = [
    "util", "utils", "helper", "helpers", "common", "misc", "manager", "managers", "service",
    "services", "handler", "handlers", "base", "data", "info",
];

/// Where a forbidden word is allowed, which word, and why.
const EXCEPTIONS: [(&str, &str, &str); 2] = [
    (
        "crates/examples/",
        "service",
        "plays the service layer of the list of scenarios, which is called that",
    ),
    ("deploy/systemd/", "service", "how systemd has the names of units end"),
];

/// The words of a name in snake, kebab or camel case, in small letters.
pub fn words(name: &str) -> Vec<String> {
    let chars: Vec<char> = name.chars().collect();
    let mut words = vec![String::new()];
    for (i, c) in chars.iter().enumerate() {
        let before_is_upper = i > 0 && chars[i - 1].is_uppercase();
        let after_is_lower = chars.get(i + 1).is_some_and(|next| next.is_lowercase());
        if !c.is_alphanumeric() || (c.is_uppercase() && (!before_is_upper || after_is_lower)) {
            words.push(String::new());
        }
        if let Some(word) = words.last_mut().filter(|_| c.is_alphanumeric()) {
            word.extend(c.to_lowercase());
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

fn empty_word(path: &str, name: &str) -> Option<String> {
    let excused = |word: &str| {
        EXCEPTIONS.iter().any(|(place, allowed, _)| path.starts_with(place) && *allowed == word)
    };
    words(name).into_iter().find(|word| EMPTY_WORDS.contains(&word.as_str()) && !excused(word))
}

/// No forbidden word in the path of a file, nor in a type or module that it declares.
pub fn check(file: &File) -> Vec<Finding> {
    let finding = |line, name: &str| {
        let word = empty_word(&file.path, name)?;
        let advice = format!("rename `{name}`: \"{word}\" says nothing about what it is.");
        Some(Finding::new("names", &file.path, line, advice))
    };
    let mut findings: Vec<Finding> =
        file.path.split('/').filter_map(|part| finding(1, part)).collect();
    let Some(rust) = &file.rust else {
        return findings;
    };
    for pair in rust.words().windows(2) {
        let ((_, keyword), (line, name)) = (pair[0], pair[1]);
        if matches!(keyword, "struct" | "enum" | "trait" | "type" | "mod") {
            findings.extend(finding(line, name));
        }
    }
    findings
}
