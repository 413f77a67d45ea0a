//! Files that are read in order, migrations and decisions: numbered from 0001 without gap or repeat.

use super::{File, Finding};

/// `crates/store/migrations/NNNN_words.sql`, each opening with a comment that says why.
pub fn migrations(files: &[File]) -> Vec<Finding> {
    const RULE: &str = "migrations";
    let series =
        Series { rule: RULE, folder: "crates/store/migrations/", ending: ".sql", between: '_' };
    let mut findings = series.check(files);
    let silent = |file: &&&File| file.path.ends_with(".sql") && !file.text.starts_with("--");
    findings.extend(series.members(files).iter().filter(silent).map(|file| {
        let advice = "open with a `--` comment: why, and what the binary before it does meanwhile.";
        Finding::new(RULE, &file.path, 1, advice)
    }));
    findings
}

/// `docs/decisions/NNNN-words.md`.
pub fn decisions(files: &[File]) -> Vec<Finding> {
    Series { rule: "decisions", folder: "docs/decisions/", ending: ".md", between: '-' }
        .check(files)
}

struct Series {
    rule: &'static str,
    folder: &'static str,
    ending: &'static str,
    between: char,
}

impl Series {
    fn members<'f>(&self, files: &'f [File]) -> Vec<&'f File> {
        files.iter().filter(|file| file.path.starts_with(self.folder)).collect()
    }

    /// The number of a well-named file.
    fn number(&self, path: &str) -> Option<usize> {
        let name = path.strip_prefix(self.folder)?.strip_suffix(self.ending)?;
        let (digits, words) = name.split_once(self.between)?;
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == self.between;
        let well_named = digits.len() == 4 && !words.is_empty() && words.chars().all(plain);
        digits.parse().ok().filter(|_| well_named)
    }

    fn check(&self, files: &[File]) -> Vec<Finding> {
        let finding = |file: &File, advice: String| Finding::new(self.rule, &file.path, 1, advice);
        let mut findings = Vec::new();
        let mut numbered = Vec::new();
        for file in self.members(files) {
            match self.number(&file.path) {
                Some(number) => numbered.push((number, file)),
                None => {
                    let advice = format!(
                        "name it `NNNN{}words{}`, in small letters.",
                        self.between, self.ending
                    );
                    findings.push(finding(file, advice));
                }
            }
        }
        numbered.sort_by_key(|(number, file)| (*number, file.path.as_str()));
        let mut last = 0;
        for (number, file) in numbered {
            if number == last {
                findings.push(finding(file, format!("renumber it: {number:04} is taken.")));
            } else if number != last + 1 {
                findings
                    .push(finding(file, format!("renumber it: the one before it is {last:04}.")));
            }
            last = number;
        }
        findings
    }
}
