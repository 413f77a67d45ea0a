//! Files that are either the old one or the new one, whatever happens in between.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// What a replaced file has to outlive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outlives {
    /// The end of the process.
    Process,
    /// The loss of power.
    Power,
}

/// Replaces the file at `path` by `bytes`, readable by its owner alone.
pub(crate) fn replace(path: &Path, bytes: &[u8], outlives: Outlives) -> io::Result<()> {
    let temporary = temporary(path);
    let mut file = create(&temporary)?;
    file.write_all(bytes)?;
    if outlives == Outlives::Power {
        file.sync_all()?;
    }
    drop(file);
    fs::rename(&temporary, path)?;
    match outlives {
        Outlives::Power => sync_parent(path),
        Outlives::Process => Ok(()),
    }
}

/// A new, empty file at `path` that only its owner may read.
pub(crate) fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)
}

/// The name under which a file is written before it takes its place.
pub(crate) fn temporary(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    PathBuf::from(name)
}

/// Makes sure that the names in the folder of `path` are kept.
pub(crate) fn sync_parent(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(parent) => File::open(parent)?.sync_all(),
        None => Ok(()),
    }
}

/// The file at `path`, or `None` when there is none.
pub(crate) fn find(path: &Path) -> io::Result<Option<Vec<u8>>> {
    absent(fs::read(path))
}

/// Removes the file at `path`, if there is one.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    absent(fs::remove_file(path)).map(|_| ())
}

fn absent<T>(outcome: io::Result<T>) -> io::Result<Option<T>> {
    match outcome {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}
