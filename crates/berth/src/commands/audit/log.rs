//! Who did what, and whether the record of it is as it was written.

use anyhow::Context as _;
use clap::Args;
use comfy_table::Cell;
use control::audit_log::{chain, read};
use jiff::Timestamp;
use store::{Options, Store};
use uuid::Uuid;
use wire::http::PAGE_MAX;
use wire::http::audit::{AuditEntry, AuditVerdict};

use crate::cli::{Json, Session, teach};
use crate::client::Client;
use crate::exit::{Done, Exit, Failure};
use crate::moment::now;
use crate::resolve::pick;
use crate::say;
use crate::table::Sheet;
use crate::words::{News, age, count};

/// `berth audit log`
#[derive(Args)]
pub(crate) struct Log {
    /// Only what this user did: an id
    #[arg(long)]
    user: Option<Uuid>,
    /// Only this action, such as allocation.release
    #[arg(long)]
    action: Option<String>,
    /// Only what was done to this: an id, or the name of a policy
    #[arg(long)]
    target: Option<String>,
    /// Only what was done in this project: a name or an id. Its admins may ask this too
    #[arg(long)]
    project: Option<String>,
    /// Only from this moment on, such as 2026-01-31T08:00:00Z
    #[arg(long)]
    from: Option<Timestamp>,
    /// Only before this moment
    #[arg(long)]
    to: Option<Timestamp>,
    /// How many at most
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..=i64::from(PAGE_MAX)))]
    limit: u16,
    /// Checks the whole chain instead: that nothing was changed, left out or put in between
    #[arg(long)]
    verify: bool,
    /// With --verify: a head that was kept, to see that nothing was cut off since
    #[arg(long, value_name = "POSITION:HASH", requires = "verify")]
    head: Option<String>,
    /// With --verify: checks this database itself, without the API
    #[arg(long, value_name = "URL", requires = "verify")]
    chain_of: Option<String>,
    #[command(flatten)]
    output: Json,
}

impl Log {
    pub(crate) async fn run(self, session: &Session) -> Done {
        if self.verify {
            return self.verify(session).await;
        }
        let client = session.client()?;
        let (output, filtered) = (self.output, self.is_filtered());
        let entries = self.ask(&client).await?;
        if output.json {
            return say::json(&entries);
        }
        if entries.is_empty() {
            match filtered {
                true => teach("Nothing of that kind was done. To see the rest:", "audit log"),
                false => teach("Nothing was done yet. To do something:", "alloc create --help"),
            }
            return Ok(());
        }
        table(&entries)
    }

    fn is_filtered(&self) -> bool {
        let words = [&self.action, &self.target, &self.project];
        let times = [self.from, self.to];
        self.user.is_some()
            || words.iter().any(|word| word.is_some())
            || times.iter().any(Option::is_some)
    }

    /// Operators ask for everything; for others there is what was done in a project of theirs.
    async fn ask(self, client: &Client) -> Done<Vec<AuditEntry>> {
        let project = match &self.project {
            Some(word) => Some(project_id(client, word).await?),
            None => None,
        };
        let mut query: Vec<(&str, String)> = Vec::new();
        query.extend(self.user.map(|user| ("user", user.to_string())));
        query.extend(self.action.map(|action| ("action", action)));
        query.extend(self.target.map(|target| ("target", target)));
        query.extend(self.from.map(|from| ("from", from.to_string())));
        query.extend(self.to.map(|to| ("to", to.to_string())));
        let of_tenant = project.is_some() && !client.me().await?.operator;
        if of_tenant {
            if !query.is_empty() {
                let sentence = "what was done in a project can't be filtered any further";
                return Err(Failure::new(Exit::Usage, sentence).next("audit log --project NAME"));
            }
            return client.audit_entries(project, &[], self.limit).await;
        }
        query.extend(project.map(|project| ("project", project.to_string())));
        client.audit_entries(None, &query, self.limit).await
    }

    async fn verify(self, session: &Session) -> Done {
        let verdict = match self.chain_of.as_deref() {
            Some(url) => of_database(url, self.head.as_deref()).await?,
            None => session.client()?.verify_audit_log(self.head.clone()).await?,
        };
        if self.output.json {
            say::json(&verdict)?;
        } else {
            show(&verdict)?;
        }
        if verdict.sound {
            return Ok(());
        }
        let broken = count(usize::try_from(verdict.break_count).unwrap_or_default(), "break");
        Err(Failure::new(Exit::Failed, format!("the audit log has {broken}"))
            .with("advice", "somebody who owns the database has changed it, or a disk has; compare it with a backup")
            .next("audit log --verify --json"))
    }
}

async fn project_id(client: &Client, word: &str) -> Done<Uuid> {
    if let Ok(id) = Uuid::try_parse(word) {
        return Ok(id);
    }
    pick(word, "project", &client.projects().await?, "project list").map(|project| project.id)
}

async fn of_database(url: &str, head: Option<&str>) -> Done<AuditVerdict> {
    let head = head.map(read::head).transpose();
    let head = head.map_err(|error| Failure::new(Exit::Usage, error.to_string()))?;
    let store = Store::open(url, Options { connections_max: 1, ..Options::default() }).await;
    let store = store.context("the database can't be asked")?;
    let verdict = chain::verify(&store, head.as_ref()).await;
    store.close().await;
    Ok(verdict.context("the database can't be asked")?)
}

fn show(verdict: &AuditVerdict) -> Done {
    let mut sheet = Sheet::of_one();
    sheet.line("links", verdict.links.to_string());
    sheet.line("waiting", verdict.unlinked.to_string());
    if let Some(cut) = &verdict.beginning {
        sheet.line("cut behind", format!("{}:{}", cut.position, cut.hash));
    }
    if let Some(head) = &verdict.head {
        sheet.line("head", format!("{}:{}", head.position, head.hash));
    }
    for each in &verdict.breaks {
        let place = each.position.map_or_else(|| "entry".to_owned(), |at| format!("at {at}"));
        sheet.line(&place, each.what.clone());
    }
    sheet.show()?;
    if verdict.sound {
        say::note(format!("{} The chain is whole.", say::good("✓")));
        if let Some(head) = &verdict.head {
            teach(
                "Keep the head where nobody who owns the database can change it. Later:",
                &format!("audit log --verify --head {}:{}", head.position, head.hash),
            );
        }
    }
    Ok(())
}

fn table(entries: &[AuditEntry]) -> Done {
    let mut sheet = Sheet::new(&["when", "who", "did", "to", "outcome", "why"]);
    for entry in entries {
        let who = match &entry.user {
            Some(user) if entry.role == "user" => user.clone(),
            Some(user) => format!("{user} ({})", entry.role),
            None => entry.role.clone(),
        };
        let news = match entry.outcome.as_str() {
            "done" => News::Good,
            "denied" => News::Bad,
            _ => News::Past,
        };
        sheet.row([
            Cell::new(age(now(), entry.at)),
            Sheet::text(who),
            Sheet::text(&entry.action),
            Sheet::text(format!("{} {}", entry.target_kind, entry.target)),
            sheet.status(&entry.outcome, news),
            Sheet::text(entry.reason.as_deref().unwrap_or_default()),
        ]);
    }
    sheet.show()
}
