//! What operators do with money: look at accounts, correct them with a reason, set prices.

use clap::{Args, Subcommand};
use comfy_table::Cell;
use domain::derived::balance::Status;
use jiff::Timestamp;
use lifecycle::Code as _;
use wire::Coded;
use wire::http::money::{Account, BalanceStatus, NewAdjustment, NewPrice};

use crate::cli::{Json, teach};
use crate::client::Client;
use crate::commands::money::{amount, minor};
use crate::exit::{Done, Exit, Failure};
use crate::moment::now;
use crate::say;
use crate::table::Sheet;
use crate::words::{News, age, count};

/// `berth admin …`, as far as it is about money
#[derive(Subcommand)]
pub(crate) enum MoneyCommand {
    /// Every account with what it has
    #[command(after_help = "Example:\n  berth --context operator admin accounts --status depleted")]
    Accounts {
        /// Only those that stand like this: healthy, low_balance or depleted
        #[arg(long, value_parser = status)]
        status: Option<BalanceStatus>,
        #[command(flatten)]
        output: Json,
    },
    /// Gives an account something, or takes it; the reason stands in its ledger
    #[command(
        after_help = "Example:\n  berth --context operator admin adjust ada@example.org 25.00 --reason goodwill"
    )]
    Adjust(Adjust),
    /// Sets a price from a moment on; what was charged stays charged
    #[command(
        after_help = "Example:\n  berth --context operator admin price h100.slice 900 --reason dearer"
    )]
    Price(SetPrice),
}

/// `berth admin adjust`
#[derive(Args)]
pub(crate) struct Adjust {
    /// Whose: an address, or the id of an account
    account: String,
    /// How much, such as 25 or -3.07
    #[arg(allow_hyphen_values = true)]
    amount: String,
    /// Why; the tenant sees it
    #[arg(long)]
    reason: String,
    #[command(flatten)]
    output: Json,
}

/// `berth admin price`
#[derive(Args)]
pub(crate) struct SetPrice {
    /// Of which SKU
    sku: String,
    /// Millionths of the currency's unit for one GPU and second
    micros: i64,
    /// From when, such as 2026-12-01T00:00:00Z; in a few minutes if you do not say
    #[arg(long)]
    from: Option<Timestamp>,
    /// Those who have one already pay it too
    #[arg(long)]
    running: bool,
    /// Why; it is kept
    #[arg(long)]
    reason: String,
    #[command(flatten)]
    output: Json,
}

fn status(word: &str) -> Result<BalanceStatus, String> {
    let known = || Status::ALL.iter().map(|each| each.code()).collect::<Vec<_>>().join(", ");
    Status::parse(word).map(Coded).ok_or_else(|| format!("one of {}", known()))
}

impl MoneyCommand {
    pub(crate) async fn run(self, client: &Client) -> Done {
        match self {
            MoneyCommand::Accounts { status, output } => accounts(client, status, output).await,
            MoneyCommand::Adjust(adjust) => adjust.run(client).await,
            MoneyCommand::Price(price) => price.run(client).await,
        }
    }
}

async fn accounts(client: &Client, status: Option<BalanceStatus>, output: Json) -> Done {
    let all = client.accounts(status).await?;
    if output.json {
        return say::json(&all);
    }
    if all.is_empty() {
        teach("There are none. What everybody has:", "admin accounts");
        return Ok(());
    }
    let mut sheet = Sheet::new(&["owner", "balance", "status", "since", "account"]);
    for account in &all {
        let news = match account.status.0 {
            Status::Healthy => News::Good,
            Status::LowBalance => News::Pending,
            Status::Depleted => News::Bad,
        };
        sheet.row([
            Sheet::text(account.owner.as_deref().unwrap_or("nobody")),
            Sheet::number(amount(&account.currency, account.balance_minor)),
            sheet.status(account.status.0.code(), news),
            Cell::new(age(now(), account.status_at)),
            Cell::new(account.id.to_string()),
        ]);
    }
    sheet.show()
}

impl Adjust {
    async fn run(self, client: &Client) -> Done {
        let all = client.accounts(None).await?;
        let meant = |account: &&Account| {
            account.owner.as_deref() == Some(self.account.as_str())
                || account.id.to_string() == self.account.to_lowercase()
        };
        let account = all.iter().find(meant).ok_or_else(|| {
            let sentence = format!("there is no account of {}", say::clean(&self.account));
            Failure::new(Exit::NotFound, sentence).next("admin accounts")
        })?;
        let amount_minor = minor(&self.amount, &account.currency)?;
        let new = NewAdjustment { account_id: account.id, amount_minor, reason: self.reason };
        let line = client.adjust_ledger(&new).await?;
        if self.output.json {
            return say::json(&line);
        }
        say::note(format!(
            "{} {}: the account has {} now.",
            if amount_minor < 0 { "Taken" } else { "Given" },
            amount(&line.currency, amount_minor.saturating_abs()),
            amount(&line.currency, line.balance_after_minor)
        ));
        say::data(line.posting_id.to_string())
    }
}

impl SetPrice {
    async fn run(self, client: &Client) -> Done {
        let SetPrice { sku, micros, from, running, reason, output } = self;
        let new = NewPrice { price_micros_per_gpu_second: micros, from, running, reason };
        let set = client.set_price(&sku, &new).await?;
        if output.json {
            return say::json(&set);
        }
        let too = usize::try_from(set.running).unwrap_or_default();
        let whom = if running {
            format!("also for {}", count(too, "running allocation"))
        } else {
            "for what is asked for from then on".to_owned()
        };
        say::data(format!(
            "{} costs {} millionths a GPU and second from {} on, {whom}.",
            say::clean(&set.sku),
            set.price_micros_per_gpu_second,
            set.from
        ))
    }
}
