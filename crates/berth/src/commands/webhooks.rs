//! Webhooks: URLs that are told what somebody is told.

use clap::Subcommand;
use comfy_table::Cell;
use uuid::Uuid;
use wire::http::webhooks::{Delivery, DeliveryStatus, FreshWebhook, NewWebhook, Webhook};

use crate::cli::{Json, teach};
use crate::client::Client;
use crate::exit::{Done, Exit, Failure};
use crate::moment::now;
use crate::resolve::{Named, pick};
use crate::say;
use crate::table::Sheet;
use crate::words::{News, age, count, short};

/// `berth webhooks …`
#[derive(Subcommand)]
pub(crate) enum WebhooksCommand {
    /// Adds a webhook; its secret is printed once, alone on stdout
    #[command(after_help = "Example:\n  berth webhooks add https://hooks.example.org/berth")]
    Add {
        /// Where: an https URL
        url: String,
        #[command(flatten)]
        output: Json,
    },
    /// Your webhooks, without their secrets
    #[command(after_help = "Example:\n  berth webhooks list")]
    List(Json),
    /// Gives a webhook another secret, printed once; the old one signs, too, for a day
    #[command(after_help = "Example:\n  berth webhooks rotate https://hooks.example.org/berth")]
    Rotate {
        /// Which: a URL, an id, or how an id begins
        webhook: String,
        #[command(flatten)]
        output: Json,
    },
    /// Removes a webhook; what was still to be delivered to it is given up
    #[command(after_help = "Example:\n  berth webhooks remove 0198c0de")]
    Remove {
        /// Which: a URL, an id, or how an id begins
        webhook: String,
    },
    /// Sends something to a webhook, to see whether it arrives
    #[command(after_help = "Example:\n  berth webhooks test 0198c0de")]
    Test {
        /// Which: a URL, an id, or how an id begins
        webhook: String,
    },
    /// What is or was delivered to a webhook, newest first
    #[command(after_help = "Example:\n  berth webhooks deliveries 0198c0de")]
    Deliveries {
        /// Which: a URL, an id, or how an id begins
        webhook: String,
        #[command(flatten)]
        output: Json,
    },
    /// Has something delivered once more
    #[command(after_help = "Example:\n  berth webhooks redeliver 0198c0de 0198c0df")]
    Redeliver {
        /// Which webhook: a URL, an id, or how an id begins
        webhook: String,
        /// Which notification: an id, or how an id begins
        notification: String,
    },
}

impl Named for Webhook {
    fn id(&self) -> Uuid {
        self.id
    }

    fn name(&self) -> &str {
        &self.url
    }
}

impl WebhooksCommand {
    pub(crate) async fn run(self, client: &Client) -> Done {
        match self {
            WebhooksCommand::Add { url, output } => {
                shown(client.add_webhook(&NewWebhook { url }).await?, output)
            }
            WebhooksCommand::List(output) => list(client, output).await,
            WebhooksCommand::Rotate { webhook, output } => {
                shown(client.rotate_webhook(meant(client, &webhook).await?.id).await?, output)
            }
            WebhooksCommand::Remove { webhook } => {
                let webhook = meant(client, &webhook).await?;
                client.remove_webhook(webhook.id).await?;
                say::note(format!("{} is told nothing any more.", say::clean(&webhook.url)));
                Ok(())
            }
            WebhooksCommand::Test { webhook } => {
                let webhook = meant(client, &webhook).await?;
                client.test_webhook(webhook.id).await?;
                teach("It is on its way. To see what became of it:", &looks(webhook.id));
                Ok(())
            }
            WebhooksCommand::Deliveries { webhook, output } => {
                deliveries(client, meant(client, &webhook).await?.id, output).await
            }
            WebhooksCommand::Redeliver { webhook, notification } => {
                let webhook = meant(client, &webhook).await?;
                let notification = delivered(client, webhook.id, &notification).await?;
                client.redeliver(webhook.id, notification).await?;
                teach("It is on its way once more. To see what became of it:", &looks(webhook.id));
                Ok(())
            }
        }
    }
}

fn looks(webhook: Uuid) -> String {
    format!("webhooks deliveries {}", short(webhook))
}

fn shown(fresh: FreshWebhook, output: Json) -> Done {
    if output.json {
        return say::json(&fresh);
    }
    let FreshWebhook { webhook, secret } = fresh;
    say::note(format!(
        "{} is told what you are told. Its id is {}.",
        say::clean(&webhook.url),
        webhook.id
    ));
    if let Some(until) = webhook.previous_secret_until {
        let until = until.strftime("%Y-%m-%d %H:%M UTC");
        say::note(format!("The secret before this one signs, too, until {until}."));
    }
    say::note("What its deliveries are signed with is shown this once:");
    say::data(secret)
}

async fn list(client: &Client, output: Json) -> Done {
    let webhooks = client.webhooks().await?;
    if output.json {
        return say::json(&webhooks);
    }
    if webhooks.is_empty() {
        teach("You have no webhooks. To add one:", "webhooks add https://hooks.example.org/berth");
        return Ok(());
    }
    let mut sheet = Sheet::new(&["url", "id", "added"]);
    for webhook in webhooks {
        let added = age(now(), webhook.created_at);
        sheet.row([Sheet::text(webhook.url), Cell::new(short(webhook.id)), Cell::new(added)]);
    }
    sheet.show()
}

async fn meant(client: &Client, word: &str) -> Done<Webhook> {
    let webhooks = client.webhooks().await?;
    pick(word, "webhook", &webhooks, "webhooks list").cloned()
}

async fn deliveries(client: &Client, webhook: Uuid, output: Json) -> Done {
    let deliveries = client.webhook_deliveries(webhook).await?;
    if output.json {
        return say::json(&deliveries);
    }
    if deliveries.is_empty() {
        teach(
            "Nothing was delivered to it yet. To try:",
            &format!("webhooks test {}", short(webhook)),
        );
        return Ok(());
    }
    let mut sheet = Sheet::new(&["notification", "kind", "status", "attempts", "last", "next"]);
    for delivery in deliveries {
        let moment = |at: Option<jiff::Timestamp>| at.map_or_else(String::new, |at| age(now(), at));
        let status = sheet.status(&delivery.status.to_string(), news(delivery.status.0));
        sheet.row([
            Cell::new(short(delivery.notification_id)),
            Cell::new(delivery.kind),
            status,
            Sheet::number(delivery.attempts),
            Cell::new(answer(&delivery)),
            Cell::new(moment(delivery.next_attempt_at)),
        ]);
    }
    sheet.show()
}

/// How the last attempt ended.
fn answer(delivery: &Delivery) -> String {
    let status = delivery.http_status.map(|status| status.to_string());
    let fault = delivery.fault.map(|fault| fault.to_string());
    [status, fault].into_iter().flatten().collect::<Vec<String>>().join(" ")
}

const fn news(status: DeliveryStatus) -> News {
    match status {
        DeliveryStatus::Delivered => News::Good,
        DeliveryStatus::Pending => News::Pending,
        DeliveryStatus::GivenUp => News::Bad,
    }
}

async fn delivered(client: &Client, webhook: Uuid, word: &str) -> Done<Uuid> {
    if let Ok(id) = Uuid::try_parse(word) {
        return Ok(id);
    }
    let deliveries = client.webhook_deliveries(webhook).await?;
    let begins = |delivery: &&Delivery| {
        delivery.notification_id.to_string().starts_with(&word.to_lowercase())
    };
    let found: Vec<&Delivery> = deliveries.iter().filter(begins).collect();
    match found.as_slice() {
        [one] => Ok(one.notification_id),
        [] => {
            let sentence = format!("nothing whose id begins with `{word}` was delivered to it");
            Err(Failure::new(Exit::NotFound, sentence).next(&looks(webhook)))
        }
        several => {
            let sentence =
                format!("`{word}` may be any of {}", count(several.len(), "notification"));
            Err(Failure::new(Exit::Usage, sentence).with("advice", "write more of the id"))
        }
    }
}
