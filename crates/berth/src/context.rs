//! Where the API is and who one is there: named contexts in one file that only its owner can read, replaced as a whole.
//! The environment wins over the file. A token is sent to the API it was got from, and to no other.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use crate::exit::{Done, Exit, Failure};

/// Where `berth up` listens when nobody says otherwise.
pub(crate) const API_DEFAULT: &str = "http://127.0.0.1:7717";

/// One context. It has a secret in it, and so no `Debug`.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Context {
    /// Where the API is.
    pub(crate) api: String,
    /// The secret of a token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) token: Option<String>,
    /// The project that is meant when nobody says, by id or name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) project: Option<String>,
}

/// What is in the file.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Contexts {
    /// The one in use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) current: Option<String>,
    /// All of them.
    #[serde(default)]
    pub(crate) contexts: BTreeMap<String, Context>,
}

/// Where the file is: `$BERTH_CONFIG`, else `berth/config.toml` where such files belong.
pub(crate) fn path() -> Done<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    if let Some(path) = set("BERTH_CONFIG") {
        return Ok(PathBuf::from(path));
    }
    let folder = set("XDG_CONFIG_HOME").map(PathBuf::from);
    let folder = folder.or_else(|| Some(std::env::home_dir()?.join(".config")));
    let folder = folder.context("there is no home directory: set BERTH_CONFIG to a file")?;
    Ok(folder.join("berth/config.toml"))
}

impl Contexts {
    /// What the file says; nothing, if there is none.
    pub(crate) fn read(path: &Path) -> Done<Contexts> {
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Contexts::default()),
            Err(error) => return Err(unusable(path, &error.to_string())),
        };
        // What the parser says may quote the line, and the line may hold a token.
        toml::from_str(&text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start);
            let line = text.bytes().take(at).filter(|byte| *byte == b'\n').count() + 1;
            unusable(path, &format!("line {line} is not as it should be"))
        })
    }

    /// Changes the file as a whole: whoever reads it meanwhile sees the old or the new, never a part, and two who change it
    /// at once take turns.
    pub(crate) fn change<T>(path: &Path, change: impl FnOnce(&mut Contexts) -> Done<T>) -> Done<T> {
        // A link stays one: the file it leads to is replaced.
        let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new("."));
        let failed = || format!("{} can't be written", path.display());
        DirBuilder::new().recursive(true).mode(0o700).create(folder).with_context(failed)?;
        let lock = lock_beside(&path).with_context(failed)?;
        let mut contexts = Contexts::read(&path)?;
        let result = change(&mut contexts)?;
        let text = toml::to_string(&contexts).with_context(failed)?;
        let mut draft = tempfile::Builder::new()
            .prefix(".config-")
            .permissions(fs::Permissions::from_mode(0o600))
            .tempfile_in(folder)
            .with_context(failed)?;
        draft.write_all(text.as_bytes()).with_context(failed)?;
        draft.as_file().sync_all().with_context(failed)?;
        draft.persist(&path).with_context(failed)?;
        drop(lock);
        Ok(result)
    }

    /// The context of that name.
    pub(crate) fn named(&self, name: &str) -> Done<&Context> {
        self.contexts.get(name).ok_or_else(|| {
            let known: Vec<&str> = self.contexts.keys().map(String::as_str).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            Failure::new(Exit::Usage, format!("there is no context called `{name}`"))
                .with("there are", known)
                .next(&format!("login --context {name}"))
        })
    }
}

fn lock_beside(path: &Path) -> std::io::Result<File> {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let lock =
        OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(name)?;
    flock(&lock, FlockOperation::LockExclusive)?;
    Ok(lock)
}

fn unusable(path: &Path, why: &str) -> Failure {
    Failure::new(Exit::Failed, format!("the file {} can't be used: {why}", path.display()))
        .with("advice", "mend it, or move it away and log in again")
        .next("login")
}

/// Where the API of one command is, and who asks. It has a secret in it, and so no `Debug`.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Reach {
    /// The context it comes from.
    pub(crate) context: Option<String>,
    /// Where the API is, without a slash at the end.
    pub(crate) api: String,
    /// The secret of a token.
    pub(crate) token: Option<String>,
    /// The project that is meant when nobody says.
    pub(crate) project: Option<String>,
}

/// What the environment says.
#[derive(Clone, Default)]
pub(crate) struct Overrides {
    api: Option<String>,
    token: Option<String>,
    project: Option<String>,
}

impl Overrides {
    /// `BERTH_API`, `BERTH_TOKEN`, `BERTH_PROJECT`.
    pub(crate) fn of_environment() -> Overrides {
        let set = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        Overrides {
            api: set("BERTH_API"),
            token: set("BERTH_TOKEN"),
            project: set("BERTH_PROJECT"),
        }
    }
}

impl Reach {
    /// What is meant by the file, the context that was asked for, and the environment.
    pub(crate) fn resolve(
        contexts: &Contexts,
        asked: Option<&str>,
        overrides: Overrides,
    ) -> Done<Reach> {
        let name = asked.or(contexts.current.as_deref());
        let context = match name {
            // The current one may have been removed by hand; that is as good as none.
            Some(name) if asked.is_none() => contexts.contexts.get(name).cloned(),
            Some(name) => Some(contexts.named(name)?.clone()),
            None => None,
        };
        let kept = context.unwrap_or_default();
        let own = if kept.api.is_empty() { API_DEFAULT.to_owned() } else { trimmed(&kept.api) };
        let api = overrides.api.as_deref().map_or_else(|| own.clone(), trimmed);
        let at_home = api == own;
        Ok(Reach {
            context: name.map(str::to_owned),
            token: overrides.token.or(kept.token.filter(|_| at_home)),
            project: overrides.project.or(kept.project.filter(|_| at_home)),
            api,
        })
    }
}

/// The address without a slash at the end.
pub(crate) fn trimmed(api: &str) -> String {
    api.trim().trim_end_matches('/').to_owned()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::{Context, Contexts, Overrides, Reach};

    fn with_demo(contexts: &mut Contexts) {
        let demo = Context {
            api: "http://one".to_owned(),
            token: Some("t1".to_owned()),
            project: Some("p1".to_owned()),
        };
        contexts.contexts.insert("demo".to_owned(), demo);
        contexts.current = Some("demo".to_owned());
    }

    #[test]
    fn the_file_is_its_owners_alone_and_nothing_else_is_left() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("deep/config.toml");
        for _ in 0..2 {
            let changed = Contexts::change(&path, |contexts| {
                with_demo(contexts);
                Ok(())
            });
            assert!(changed.is_ok());
            let mode = std::fs::metadata(&path).expect("it is there").permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
        }
        let left = std::fs::read_dir(folder.path().join("deep")).expect("a folder").count();
        assert_eq!(left, 2, "the file and its lock");
    }

    #[test]
    fn a_change_that_fails_leaves_the_file_as_it_was() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("config.toml");
        let kept = Contexts::change(&path, |contexts| {
            with_demo(contexts);
            Ok(())
        });
        assert!(kept.is_ok());
        let before = std::fs::read(&path).expect("it is there");
        let failed = Contexts::change(&path, |contexts| {
            contexts.contexts.clear();
            contexts.named("nobody").map(|_| ())
        });
        assert!(failed.is_err());
        assert_eq!(std::fs::read(&path).expect("it is there"), before);
    }

    #[test]
    fn many_who_change_it_at_once_all_find_their_change() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("config.toml");
        std::thread::scope(|scope| {
            for number in 0..16 {
                let path = &path;
                scope.spawn(move || {
                    let changed = Contexts::change(path, |contexts| {
                        contexts.contexts.insert(format!("c{number}"), Context::default());
                        Ok(())
                    });
                    assert!(changed.is_ok());
                });
            }
        });
        let read = Contexts::read(&path).ok().map(|contexts| contexts.contexts.len());
        assert_eq!(read, Some(16));
    }

    #[test]
    fn what_can_not_be_read_is_said_without_quoting_a_token() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("config.toml");
        std::fs::write(&path, "current = 'a'\n[contexts.a]\ntoken = berth_secret\n")
            .expect("written");
        let Err(failure) = Contexts::read(&path) else { panic!("it is broken") };
        assert!(failure.sentence.contains("line 3"), "{}", failure.sentence);
        assert!(!failure.sentence.contains("berth_secret"));
    }

    #[test]
    fn a_token_is_not_sent_to_another_api_than_its_own() {
        let mut contexts = Contexts::default();
        with_demo(&mut contexts);
        let resolve = |overrides| Reach::resolve(&contexts, None, overrides).expect("it does");
        let home = resolve(Overrides::default());
        assert_eq!((home.token.as_deref(), home.project.as_deref()), (Some("t1"), Some("p1")));
        let api = Some("http://elsewhere/".to_owned());
        let away = resolve(Overrides { api: api.clone(), ..Overrides::default() });
        assert_eq!((away.api.as_str(), away.token, away.project), ("http://elsewhere", None, None));
        let token = Some("t2".to_owned());
        let named = resolve(Overrides { api, token, project: None });
        assert_eq!(named.token.as_deref(), Some("t2"));
        assert!(Reach::resolve(&contexts, Some("nobody"), Overrides::default()).is_err());
    }
}
