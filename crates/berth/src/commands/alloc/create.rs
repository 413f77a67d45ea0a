//! Asking for GPUs, and waiting for them.

use std::time::Duration;

use clap::Args;
use uuid::Uuid;
use wire::http::account::Project;
use wire::http::allocations::{Allocation, NewAllocation};

use super::{show, ssh_command};
use crate::cli::Json;
use crate::client::Client;
use crate::exit::{Done, Exit, Failure};
use crate::progress::View;
use crate::resolve::pick;
use crate::say;
use crate::watch::{Ended, Goal, interrupted, missed, timed_out, wait};
use crate::words;

/// How many keys an allocation takes.
const KEYS_MAX: usize = 16;

/// `berth alloc create`
#[derive(Args)]
pub(crate) struct Create {
    /// What: see `berth sku list`
    #[arg(long)]
    sku: String,
    /// How many GPUs
    #[arg(long, value_parser = clap::value_parser!(i16).range(1..=1024))]
    gpus: i16,
    /// Where
    #[arg(long)]
    region: String,
    /// The image; the SKU's first when nobody says
    #[arg(long)]
    image: Option<String>,
    /// What it is called; made up when nobody says
    #[arg(long)]
    name: Option<String>,
    /// Who may log in: name or id of an SSH key of yours, may be repeated; all of them when nobody says
    #[arg(long = "ssh-key", value_name = "KEY")]
    ssh_keys: Vec<String>,
    /// For which project
    #[arg(long, env = "BERTH_PROJECT")]
    project: Option<String>,
    #[command(flatten)]
    waiting: Waiting,
    #[command(flatten)]
    output: Json,
}

/// Whether to wait, and for how long.
#[derive(Args)]
pub(crate) struct Waiting {
    /// Waits until it is done; so does a terminal
    #[arg(long, overrides_with = "no_wait")]
    wait: bool,
    /// Does not wait
    #[arg(long, overrides_with = "wait")]
    no_wait: bool,
    /// For how long to wait at most, such as 90s or 15m
    #[arg(long, default_value = "15m", value_parser = words::parse_span)]
    timeout: Duration,
}

impl Waiting {
    /// Whether to wait.
    pub(crate) fn wanted(&self) -> bool {
        self.wait || (!self.no_wait && say::out_is_terminal())
    }

    /// For how long.
    pub(crate) fn patience(&self) -> Option<Duration> {
        Some(self.timeout)
    }
}

impl Create {
    pub(crate) async fn run(self, client: &Client) -> Done {
        let project = project(client, self.project.as_deref()).await?;
        let new = NewAllocation {
            project_id: project.id,
            sku: self.sku,
            gpus: self.gpus,
            region: self.region,
            ssh_key_ids: ssh_keys(client, &self.ssh_keys).await?,
            image: self.image,
            name: self.name,
        };
        let made = client.create_allocation(&new).await?;
        if new.ssh_key_ids.is_empty() {
            let add = format!("{} ssh-key add ~/.ssh/id_ed25519.pub", say::program());
            say::note(format!(
                "You have no SSH keys here, so nobody can log in. Before the next one:\n  {add}"
            ));
        }
        if !self.waiting.wanted() {
            return finish(&made, self.output);
        }
        say::note(format!("{} is yours; preparing it.", say::strong(&say::clean(&made.name))));
        let mut view = View::fitting(self.output.json);
        let patience = self.waiting.patience();
        let ended = wait(client, made.id, Goal::Active, patience, &mut view).await?;
        match ended {
            Ended::Reached => finish(&client.allocation(made.id).await?, self.output),
            Ended::Missed(timeline) => {
                let allocation = client.allocation(made.id).await?;
                if self.output.json {
                    say::json(&allocation)?;
                }
                Err(missed(&allocation, &timeline))
            }
            Ended::TimedOut => {
                if self.output.json {
                    say::json(&client.allocation(made.id).await?)?;
                }
                Err(timed_out(&made, patience))
            }
            Ended::Interrupted => Err(leave_or_release(client, &made).await?),
        }
    }
}

fn finish(allocation: &Allocation, output: Json) -> Done {
    if output.json {
        return say::json(allocation);
    }
    show(allocation)?;
    let name = say::clean(&allocation.name);
    let next = match ssh_command(allocation) {
        Some(_) => format!("alloc ssh {name}"),
        None => format!("alloc timeline {name} --watch"),
    };
    say::note(format!("Next: {} {next}", say::program()));
    Ok(())
}

/// After Ctrl-C: leave it or release it, and say which happened.
async fn leave_or_release(client: &Client, made: &Allocation) -> Done<Failure> {
    let name = say::clean(&made.name);
    let left = interrupted(format!("{name} was left running; it is billed once it is ready"))
        .next(&format!("alloc release {name}"));
    if !say::can_ask() {
        return Ok(left);
    }
    let question = format!("Leave {name} running or release it? [l]eave, [r]elease:");
    let answer = tokio::select! {
        biased;
        // A second Ctrl-C is an answer too.
        _ = tokio::signal::ctrl_c() => {
            say::note("");
            return Ok(left);
        }
        answer = asked(question) => answer.unwrap_or_default(),
    };
    if !answer.to_lowercase().starts_with('r') {
        return Ok(left);
    }
    client.release(made.id).await?;
    let sentence = format!("{name} is being released; you are not charged for it any more");
    Ok(interrupted(sentence).next(&format!("alloc timeline {name} --watch")))
}

/// Asks in a thread of its own, which is left alone when the question is no longer of interest.
async fn asked(question: String) -> Option<String> {
    let (answer, answered) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || answer.send(say::ask(&question).ok()));
    answered.await.ok().flatten()
}

/// The project that is meant: the one asked for, the context's, or the only one there is.
pub(crate) async fn project(client: &Client, asked: Option<&str>) -> Done<Project> {
    let projects = client.projects().await?;
    if let Some(word) = asked.or(client.reach.project.as_deref()) {
        return pick(word, "project", &projects, "project list").cloned();
    }
    match projects.as_slice() {
        [one] => Ok(one.clone()),
        [] => {
            let sentence = "you are in no project, and an allocation belongs to one";
            Err(Failure::new(Exit::Usage, sentence).next("project create my-project"))
        }
        several => {
            let failure = Failure::new(Exit::Usage, "for which project? give --project");
            Err(several
                .iter()
                .take(8)
                .fold(failure, |failure, each| failure.with(&each.name, each.id.to_string())))
        }
    }
}

/// The keys that are meant: those asked for, or all there are.
pub(crate) async fn ssh_keys(client: &Client, asked: &[String]) -> Done<Vec<Uuid>> {
    let keys = client.ssh_keys().await?;
    if !asked.is_empty() {
        let key = |word: &String| pick(word, "SSH key", &keys, "ssh-key list").map(|key| key.id);
        return asked.iter().map(key).collect();
    }
    if keys.len() > KEYS_MAX {
        let sentence =
            format!("you have {} SSH keys, and an allocation takes {KEYS_MAX}", keys.len());
        return Err(Failure::new(Exit::Usage, sentence)
            .with("advice", "say which with --ssh-key, as often as you need")
            .next("ssh-key list"));
    }
    Ok(keys.iter().map(|key| key.id).collect())
}
