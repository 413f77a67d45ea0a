//! What a process that runs on its own has to say: JSON lines, in a file or on stderr. Nothing secret is among them.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt as _;
use std::sync::Mutex;

use anyhow::Context as _;
use trace::{Format, Process};

use super::place::Place;
use crate::exit::Done;
use crate::settings::LogFormat;

/// When the log of the last time is put aside.
const KEPT_BYTES_MAX: u64 = 32 * 1024 * 1024;

const PROCESS: Process = Process { service: "berth", log: "info,sqlx=warn" };

/// Into the file of the place, after what is there.
pub(crate) fn to_file(place: &Place) -> Done {
    let path = place.log();
    if std::fs::metadata(&path).is_ok_and(|there| there.len() > KEPT_BYTES_MAX) {
        let _ = std::fs::rename(&path, path.with_extension("log.1"));
    }
    let open = OpenOptions::new().append(true).create(true).mode(0o600).open(&path);
    let file = open.with_context(|| format!("{} can't be written to", path.display()))?;
    trace::start(PROCESS, Format::Json, Mutex::new(file));
    Ok(())
}

/// To stderr.
pub(crate) fn to_stderr() {
    to_stderr_as(LogFormat::Json);
}

/// To stderr, for programs or for people.
pub(crate) fn to_stderr_as(format: LogFormat) {
    let format = match format {
        LogFormat::Json => Format::Json,
        LogFormat::Text => Format::Text,
    };
    trace::start(PROCESS, format, std::io::stderr);
}
