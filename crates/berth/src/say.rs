//! What is said, and where: data on stdout, everything else on stderr, and colours only where somebody sees them.

use std::io::{self, BufRead as _, ErrorKind, IsTerminal as _, Write as _};

use anyhow::Context as _;
use serde::Serialize;

use crate::exit::{Done, Exit, Failure};

/// Data, for whoever reads stdout. A reader that went away has read enough.
pub(crate) fn data(text: impl AsRef<str>) -> Done {
    match writeln!(io::stdout().lock(), "{}", text.as_ref()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Failure::from(anyhow::Error::new(error).context("stdout can't be written to")))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

/// One value as JSON on stdout, and nothing else.
pub(crate) fn json(value: &impl Serialize) -> Done {
    data(serde_json::to_string_pretty(value).context("this can't be written as JSON")?)
}

/// A line for people. When stderr is gone there is nobody to tell.
pub(crate) fn note(text: impl AsRef<str>) {
    let _ = writeln!(io::stderr().lock(), "{}", text.as_ref());
}

/// What somebody else wrote, without anything that a terminal would obey.
pub(crate) fn clean(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\n' { '\u{fffd}' } else { c }).collect()
}

/// Whether a person reads stdout.
pub(crate) fn out_is_terminal() -> bool {
    io::stdout().is_terminal()
}

/// Whether a person reads stderr.
pub(crate) fn err_is_terminal() -> bool {
    io::stderr().is_terminal()
}

/// Whether there is somebody to ask.
pub(crate) fn can_ask() -> bool {
    io::stdin().is_terminal() && err_is_terminal()
}

/// Whether anybody wants colours at all.
pub(crate) fn colours() -> bool {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    set("NO_COLOR").is_none() && set("TERM").is_none_or(|term| term != "dumb")
}

/// How this program is called again, by somebody in the same place and the same context.
pub(crate) fn program() -> String {
    again(std::env::args())
}

fn again(mut words: impl Iterator<Item = String>) -> String {
    let first = words.next().filter(|first| !first.is_empty());
    let first = first.unwrap_or_else(|| "berth".to_owned());
    let mut context = None;
    while let Some(word) = words.next() {
        match word.strip_prefix("--context") {
            Some("") => context = words.next(),
            Some(rest) => context = rest.strip_prefix('=').map(str::to_owned).or(context),
            None => {}
        }
    }
    match context {
        Some(name) => format!("{first} --context {}", clean(&name)),
        None => first,
    }
}

/// A command that the API advises, as it is typed here.
pub(crate) fn typed(command: &str) -> String {
    let command = clean(command);
    match command.strip_prefix("berth ") {
        Some(rest) => format!("{} {rest}", program()),
        None => command,
    }
}

fn painted(code: &str, text: &str) -> String {
    if err_is_terminal() && colours() {
        format!("\u{1b}[{code}m{text}\u{1b}[0m")
    } else {
        text.to_owned()
    }
}

/// Bad news, for stderr.
pub(crate) fn alarm(text: &str) -> String {
    painted("1;31", text)
}

/// Good news, for stderr.
pub(crate) fn good(text: &str) -> String {
    painted("32", text)
}

/// What matters most, for stderr.
pub(crate) fn strong(text: &str) -> String {
    painted("1", text)
}

/// What matters least, for stderr.
pub(crate) fn dim(text: &str) -> String {
    painted("2", text)
}

/// Asks on stderr, and waits for a line of stdin.
pub(crate) fn ask(question: &str) -> Done<String> {
    let mut err = io::stderr().lock();
    let _ = write!(err, "{question} ");
    let _ = err.flush();
    drop(err);
    let mut line = String::new();
    let read = io::stdin().lock().read_line(&mut line).context("the answer can't be read")?;
    if read == 0 {
        note("");
        return Err(Failure::new(Exit::Declined, "there was no answer; nothing was changed"));
    }
    Ok(line.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::again;

    #[test]
    fn what_is_advised_is_typed_in_the_same_context() {
        let called = |words: &str| again(words.split_whitespace().map(str::to_owned));
        assert_eq!(called("./berth admin stuck"), "./berth");
        assert_eq!(called("berth --context operator admin stuck"), "berth --context operator");
        assert_eq!(called("berth admin stuck --context=operator"), "berth --context operator");
        assert_eq!(called(""), "berth");
    }
}
