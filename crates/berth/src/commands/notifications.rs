//! What somebody was told: as a list, read, and as it comes.

use std::time::Duration;

use clap::Subcommand;
use comfy_table::Cell;
use tokio::time::timeout;
use uuid::Uuid;
use wire::http::notifications::Notification;

use crate::cli::Json;
use crate::client::Client;
use crate::client::events::{Events, Offer};
use crate::exit::{Done, Exit, Failure};
use crate::moment::{now, pause};
use crate::say;
use crate::table::Sheet;
use crate::words::{age, count, short};

/// When it is tried again after the connection broke.
const AGAIN: Duration = Duration::from_secs(1);
/// The other end gives a sign of life every 15 seconds; who has heard none for three times as long is alone.
const QUIET_MAX: Duration = Duration::from_secs(45);

/// `berth notifications …`
#[derive(Subcommand)]
pub(crate) enum NotificationsCommand {
    /// What you were told, newest first
    #[command(after_help = "Example:\n  berth notifications list --unread")]
    List {
        /// Only what you have not read
        #[arg(long)]
        unread: bool,
        #[command(flatten)]
        output: Json,
    },
    /// Marks one as read, or all of them
    #[command(
        after_help = "Examples:\n  berth notifications read 0198c0de\n  berth notifications read --all"
    )]
    Read {
        /// Which: an id, or how an id begins
        #[arg(required_unless_present = "all", conflicts_with = "all")]
        notification: Option<String>,
        /// All that there are
        #[arg(long)]
        all: bool,
    },
    /// Tells you what comes, as it comes, until you end it
    #[command(after_help = "Example:\n  berth notifications watch")]
    Watch(Json),
}

impl NotificationsCommand {
    pub(crate) async fn run(self, client: &Client) -> Done {
        match self {
            NotificationsCommand::List { unread, output } => list(client, unread, output).await,
            NotificationsCommand::Read { notification: Some(word), .. } => {
                let read = client.read_notification(meant(client, &word).await?).await?;
                say::note(format!("Read: {}", say::clean(&read.title)));
                Ok(())
            }
            NotificationsCommand::Read { notification: None, .. } => {
                let read = client.read_all_notifications().await?.read;
                let read = usize::try_from(read).unwrap_or(usize::MAX);
                say::note(format!("{} read.", count(read, "notification")));
                Ok(())
            }
            NotificationsCommand::Watch(output) => tokio::select! {
                biased;
                _ = tokio::signal::ctrl_c() => Ok(()),
                ended = watch(client, output) => ended,
            },
        }
    }
}

async fn list(client: &Client, unread: bool, output: Json) -> Done {
    let page = client.notifications(unread).await?;
    if output.json {
        return say::json(&page);
    }
    if page.items.is_empty() {
        say::note(if unread {
            "There is nothing you have not read."
        } else {
            "You were told nothing yet."
        });
        return Ok(());
    }
    let mut sheet = Sheet::new(&["", "id", "when", "what"]);
    for told in &page.items {
        let mark = if told.read_at.is_none() { "•" } else { "" };
        let what = format!("{}\n{}", told.title, told.body);
        sheet.row([
            Cell::new(mark),
            Cell::new(short(told.id)),
            Cell::new(age(now(), told.created_at)),
            Sheet::text(what),
        ]);
    }
    sheet.show()?;
    let unread = usize::try_from(page.unread).unwrap_or_default();
    say::note(format!("{} unread.", count(unread, "notification")));
    Ok(())
}

/// The one that is meant: by its id without a look at the others.
async fn meant(client: &Client, word: &str) -> Done<Uuid> {
    if let Ok(id) = Uuid::try_parse(word) {
        return Ok(id);
    }
    let page = client.notifications(false).await?;
    let begins = |told: &&Notification| told.id.to_string().starts_with(&word.to_lowercase());
    let found: Vec<&Notification> = page.items.iter().filter(begins).collect();
    match found.as_slice() {
        [one] => Ok(one.id),
        [] => {
            let sentence = format!("there is no notification whose id begins with `{word}`");
            Err(Failure::new(Exit::NotFound, sentence).next("notifications list"))
        }
        several => {
            let sentence =
                format!("`{word}` may be any of {}", count(several.len(), "notification"));
            Err(Failure::new(Exit::Usage, sentence).with("advice", "write more of the id"))
        }
    }
}

/// Goes on where it was after every broken connection: nothing is missed, and nothing told twice.
async fn watch(client: &Client, output: Json) -> Done {
    let mut last: Option<String> = None;
    let mut lost = false;
    loop {
        match client.own_events(last.as_deref()).await {
            Offer::Open(mut events) => {
                if lost {
                    say::note("The connection is back.");
                    lost = false;
                }
                follow(&mut events, output).await?;
                last = events.last().map(str::to_owned).or(last);
            }
            Offer::Later if !lost => {
                say::note("The connection is lost; still listening.");
                lost = true;
            }
            Offer::Later => {}
            Offer::Never => {
                // Whatever is the matter, an ordinary request is told what.
                client.notifications(true).await?;
                return Err(Failure::new(Exit::Failed, "there is no such stream here"));
            }
        }
        pause(AGAIN).await;
    }
}

async fn follow(events: &mut Events, output: Json) -> Done {
    while let Ok(Some(_)) = timeout(QUIET_MAX, events.next()).await {
        for text in events.texts() {
            let Ok(told) = serde_json::from_str::<Notification>(&text) else { continue };
            if output.json {
                say::data(&text)?;
                continue;
            }
            let at = told.created_at.strftime("%Y-%m-%d %H:%M:%S");
            say::data(format!("{at}  {}\n  {}", say::clean(&told.title), say::clean(&told.body)))?;
        }
    }
    Ok(())
}
