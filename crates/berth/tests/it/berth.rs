//! The binary as a test calls it: in an environment of its own, so that nothing of whoever runs the tests gets in.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

/// A home with nothing in it but what a test puts there.
pub(crate) struct Home {
    folder: TempDir,
}

/// What a command did.
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Home {
    pub(crate) fn new() -> Home {
        Home { folder: tempfile::tempdir().expect("a folder") }
    }

    /// A home with a context for that API.
    pub(crate) fn at(api: &str) -> Home {
        let home = Home::new();
        let text = format!(
            "current = \"test\"\n[contexts.test]\napi = \"{api}\"\ntoken = \"berth_secret\"\n"
        );
        std::fs::write(home.config(), text).expect("it can be written");
        home
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn config(&self) -> PathBuf {
        self.folder.path().join("config.toml")
    }

    /// The binary with these words, in this home.
    pub(crate) fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_berth"));
        let path = std::env::var_os("PATH").unwrap_or_default();
        command.args(words).env_clear().env("PATH", path).env("HOME", self.path());
        command.env("BERTH_CONFIG", self.config()).current_dir(self.path());
        command
    }

    /// Runs the binary with these words, with nobody at the terminal.
    pub(crate) fn run(&self, words: &[&str]) -> Ran {
        ran(self.command(words).output().expect("the binary runs"))
    }
}

pub(crate) fn ran(output: Output) -> Ran {
    Ran {
        code: output.status.code().unwrap_or(-1),
        out: String::from_utf8(output.stdout).expect("stdout is text"),
        err: String::from_utf8(output.stderr).expect("stderr is text"),
    }
}
