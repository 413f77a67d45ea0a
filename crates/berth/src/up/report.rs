//! What to say when everything is there: where it is, who one is, and three things to try.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::say;

/// See the module. It goes to the process that waits for us, and has no secret in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Report {
    /// Where people come in.
    pub(crate) api: String,
    /// Where agents come in.
    pub(crate) gateway: String,
    /// What is said of the nodes.
    pub(crate) nodes: String,
    /// What is said of payments.
    pub(crate) payments: String,
    /// Where everything is kept.
    pub(crate) folder: PathBuf,
    /// The log.
    pub(crate) log: PathBuf,
    /// The file with the passwords.
    pub(crate) credentials: PathBuf,
    /// Where the contexts are.
    pub(crate) config: PathBuf,
    /// Whether the context `demo` is the current one.
    pub(crate) current: bool,
    /// A name that no allocation has.
    pub(crate) name: String,
    /// Whether everything is kept where it usually is.
    pub(crate) usual: bool,
    /// What else there is to say, a line each.
    pub(crate) more: Vec<String>,
}

impl Report {
    /// The three commands, to be typed as they are in any other terminal.
    pub(crate) fn commands(&self) -> [String; 3] {
        let berth = invocation();
        let context = if self.current { "" } else { " --context demo" };
        let name = &self.name;
        [
            format!(
                "{berth}{context} alloc create --sku h100.slice --gpus 2 --region eu-1 --name {name} --wait"
            ),
            format!("{berth}{context} alloc timeline {name}"),
            format!("{berth}{context} alloc release {name} --yes --wait"),
        ]
    }

    /// Puts it on stdout.
    pub(crate) fn print(&self, detached: bool) {
        let [create, timeline, release] = self.commands();
        let Report { api, gateway, nodes, payments, .. } = self;
        let (folder, log) = (self.folder.display(), self.log.display());
        let (credentials, config) = (self.credentials.display(), self.config.display());
        let current = if self.current { " (current)" } else { "" };
        let stop = if detached {
            let folder = if self.usual {
                String::new()
            } else {
                format!(" --data {}", quoted(&self.folder))
            };
            format!("It runs on its own. To stop it:\n  {} down{folder}", invocation())
        } else {
            "Ctrl-C stops it. Nothing is lost, however it ends: the next `up` goes on.".to_owned()
        };
        let more: String = self.more.iter().map(|line| format!("{line}\n")).collect();
        // Nobody to tell, nothing to do about it.
        let _ = say::data(format!(
            "
Berth is up.

  API       {api}
  Nodes     {nodes}, at {gateway}
  Payments  {payments}
  CLI       set up: contexts demo{current} and operator, in {config}
  Accounts  demo@berth.local and operator@berth.local; `berth login` takes the
            passwords in {credentials}
  Data      {folder}
  Log       {log}
{more}
Try, in another terminal:
  {create}
  {timeline}
  {release}

{stop}"
        ));
    }
}

/// How this program is called from anywhere: by its name where that finds it, else by its path.
fn invocation() -> String {
    let me = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("berth"));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let same = |found: PathBuf| found.canonicalize().ok() == me.canonicalize().ok();
    let first =
        std::env::split_paths(&path).map(|folder| folder.join("berth")).find(|each| each.is_file());
    let berth = if first.is_some_and(same) { "berth".to_owned() } else { quoted(&me) };
    // Who was told where the contexts are has to tell it again.
    match std::env::var_os("BERTH_CONFIG").filter(|file| !file.is_empty()) {
        Some(file) => format!("BERTH_CONFIG={} {berth}", quoted(Path::new(&file))),
        None => berth,
    }
}

fn quoted(path: &Path) -> String {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let text = path.display().to_string();
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+".contains(c);
    if text.chars().all(plain) { text } else { format!("'{}'", text.replace('\'', r"'\''")) }
}
