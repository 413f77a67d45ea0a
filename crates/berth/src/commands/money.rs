//! What you have, what it goes for, and every line behind it.

use clap::Args;
use comfy_table::Cell;
use domain::derived::balance::Status;
use domain::ledger::PostingKind;
use domain::money::Currency;
use jiff::{SignedDuration, Timestamp};
use lifecycle::Code as _;
use uuid::Uuid;
use wire::Coded;
use wire::http::money::{
    Balance, Charge, LedgerLine, NewThreshold, PostingKindWord, Usage, UsageBy,
};

use crate::cli::{Json, teach};
use crate::client::Client;
use crate::exit::{Done, Exit, Failure};
use crate::moment::now;
use crate::resolve::pick;
use crate::say;
use crate::table::{Sheet, line_width};
use crate::words::{News, age, count, hourly, short, wrapped};

/// How wide the plot of a day is at most.
const PLOT_CHARS: usize = 40;
/// Eighths of a character.
const EIGHTHS: [char; 8] = ['▏', '▎', '▍', '▌', '▋', '▊', '▉', '█'];

/// `berth balance`
#[derive(Args)]
pub(crate) struct BalanceCommand {
    /// The account that pays for this project, which you administer
    #[arg(long)]
    project: Option<String>,
    /// Warn me at or under this amount, such as 25 or 25.50
    #[arg(long, value_name = "AMOUNT", conflicts_with = "project")]
    warn_at: Option<String>,
    #[command(flatten)]
    output: Json,
}

impl BalanceCommand {
    pub(crate) async fn run(self, client: &Client) -> Done {
        let project = of_project(client, self.project.as_deref()).await?;
        if let Some(amount) = self.warn_at {
            let currency = client.balance(None).await?.currency;
            let low_balance_threshold_minor = minor(&amount, &currency)?;
            client.set_threshold(&NewThreshold { low_balance_threshold_minor }).await?;
        }
        let balance = client.balance(project).await?;
        if self.output.json {
            return say::json(&balance);
        }
        show_balance(&balance)
    }
}

fn show_balance(balance: &Balance) -> Done {
    let mut sheet = Sheet::of_one();
    let news = match balance.status.0 {
        Status::Healthy => News::Good,
        Status::LowBalance => News::Pending,
        Status::Depleted => News::Bad,
    };
    let money = |minor| amount(&balance.currency, minor);
    sheet.line("balance", balance.balance.clone());
    let status = balance.status.to_string().replace('_', " ");
    sheet.row([Cell::new("status"), sheet.status(&status, news)]);
    let running = usize::try_from(balance.running).unwrap_or_default();
    let burn =
        format!("{}/h for {}", money(balance.burn_minor_per_hour), count(running, "allocation"));
    sheet.line("spent now", (balance.running > 0).then_some(burn));
    sheet.line("warned at", money(balance.low_balance_threshold_minor));
    sheet.show()?;
    for line in wrapped(&balance.sentence, line_width()) {
        say::note(line);
    }
    if balance.status.0 != Status::Healthy {
        teach("To top it up:", "topup 50");
    }
    Ok(())
}

/// `berth usage`
#[derive(Args)]
pub(crate) struct UsageCommand {
    /// How many days back
    #[arg(long, default_value_t = 14, value_parser = clap::value_parser!(u16).range(1..=400))]
    days: u16,
    /// Only of this project, which you administer
    #[arg(long)]
    project: Option<String>,
    #[command(flatten)]
    output: Json,
}

impl UsageCommand {
    pub(crate) async fn run(self, client: &Client) -> Done {
        let project = of_project(client, self.project.as_deref()).await?;
        let back = SignedDuration::from_hours(24 * i64::from(self.days));
        let from = now().saturating_sub(back).unwrap_or(Timestamp::UNIX_EPOCH);
        let mut told = Vec::new();
        for by in [UsageBy::Day, UsageBy::Sku, UsageBy::Project] {
            let mut query = vec![("from", from.to_string()), ("by", by.to_string())];
            query.extend(project.map(|id| ("project", id.to_string())));
            told.push(client.usage(&query).await?);
        }
        if self.output.json {
            return say::json(&told);
        }
        if told[0].items.is_empty() {
            teach("Nothing was used in that time. To use something:", "alloc create --help");
            return Ok(());
        }
        plot(&told[0])?;
        for usage in &told[1..] {
            say::data("")?;
            sums(usage)?;
        }
        let total = amount(&told[0].currency, told[0].total_minor);
        say::note(format!("{total} in {}.", count(usize::from(self.days), "day")));
        Ok(())
    }
}

/// A bar for each day.
fn plot(usage: &Usage) -> Done {
    let net = |sum: &wire::http::money::UsageSum| sum.charged_minor - sum.given_back_minor;
    let most = usage.items.iter().map(net).max().unwrap_or_default().max(1);
    let mut sheet = Sheet::new(&["day", "cost", "gpu hours", ""]);
    for day in &usage.items {
        sheet.row([
            Sheet::text(&day.key),
            Sheet::number(amount(&usage.currency, net(day))),
            Sheet::number(gpu_hours(day.gpu_seconds)),
            Cell::new(bar(net(day), most, PLOT_CHARS)),
        ]);
    }
    sheet.show()
}

/// As many eighths of a character as a value has of the most.
fn bar(value: i64, most: i64, chars: usize) -> String {
    let eighths = i128::from(value.max(0)) * 8 * chars as i128 / i128::from(most.max(1));
    let eighths = usize::try_from(eighths).unwrap_or_default().min(8 * chars);
    // Something is never shown as nothing.
    let eighths = if value > 0 { eighths.max(1) } else { 0 };
    let mut bar: String = std::iter::repeat_n(EIGHTHS[7], eighths / 8).collect();
    if eighths % 8 > 0 {
        bar.push(EIGHTHS[eighths % 8 - 1]);
    }
    bar
}

fn sums(usage: &Usage) -> Done {
    let by = usage.by.to_string();
    let mut sheet = Sheet::new(&[&by, "cost", "gpu hours", "given back"]);
    for sum in &usage.items {
        let back = match sum.given_back_minor {
            0 => String::new(),
            back => amount(&usage.currency, back),
        };
        sheet.row([
            Sheet::text(if sum.name.is_empty() { &sum.key } else { &sum.name }),
            Sheet::number(amount(&usage.currency, sum.charged_minor - sum.given_back_minor)),
            Sheet::number(gpu_hours(sum.gpu_seconds)),
            Sheet::number(back),
        ]);
    }
    sheet.show()
}

fn gpu_hours(seconds: i64) -> String {
    format!("{}.{}", seconds / 3_600, seconds % 3_600 / 360)
}

/// `berth ledger`
#[derive(Args)]
pub(crate) struct LedgerCommand {
    /// Only lines of this kind: usage, unreachable, overrun, payment, refund or adjustment
    #[arg(long, value_parser = kind)]
    kind: Option<PostingKindWord>,
    /// How many of the newest
    #[arg(long, default_value_t = 25, value_parser = clap::value_parser!(u16).range(1..=200))]
    last: u16,
    #[command(flatten)]
    output: Json,
}

fn kind(word: &str) -> Result<PostingKindWord, String> {
    let known = || PostingKind::ALL.iter().map(|kind| kind.code()).collect::<Vec<_>>().join(", ");
    PostingKind::parse(word).map(Coded).ok_or_else(|| format!("one of {}", known()))
}

impl LedgerCommand {
    pub(crate) async fn run(self, client: &Client) -> Done {
        let lines = client.ledger(self.kind, self.last).await?;
        if self.output.json {
            return say::json(&lines);
        }
        if lines.is_empty() {
            teach("There is nothing in it yet. To put something in:", "topup 50");
            return Ok(());
        }
        let mut sheet = Sheet::new(&["when", "what", "amount", "balance", "posting", "why"]);
        for line in &lines {
            sheet.row([
                Cell::new(age(now(), line.posted_at)),
                Cell::new(line.kind.to_string()),
                Sheet::number(amount(&line.currency, line.amount_minor)),
                Sheet::number(amount(&line.currency, line.balance_after_minor)),
                Cell::new(short(line.posting_id)),
                Sheet::text(line.reason.as_deref().unwrap_or_default()),
            ]);
        }
        sheet.show()?;
        teach("What is behind a line:", &format!("explain charge {}", short(lines[0].posting_id)));
        Ok(())
    }
}

/// `berth project spending`
#[derive(Args)]
pub(crate) struct Spending {
    /// Which: a name, an id, or how an id begins
    project: String,
    /// What it may cost in a calendar month (UTC), such as 500; `none` lifts the cap
    #[arg(long)]
    cap: Option<String>,
    #[command(flatten)]
    output: Json,
}

impl Spending {
    pub(crate) async fn run(self, client: &Client) -> Done {
        let projects = client.projects().await?;
        let project = pick(&self.project, "project", &projects, "project list")?;
        let mut spending = client.spending(project.id).await?;
        let currency = spending.currency.clone().unwrap_or_default();
        if let Some(cap) = self.cap {
            let cap = if cap == "none" { None } else { Some(minor(&cap, &currency)?) };
            spending = client.set_spending_cap(project.id, cap).await?;
        }
        if self.output.json {
            return say::json(&spending);
        }
        let mut sheet = Sheet::of_one();
        sheet.line("project", project.name.clone());
        sheet.line("month", spending.month);
        sheet.line("has cost", amount(&currency, spending.spent_minor));
        let cap = spending.spend_cap_minor;
        let may = cap.map_or("as much as the account has".to_owned(), |cap| amount(&currency, cap));
        sheet.line("may cost", may);
        sheet.show()?;
        if let Some(cap) = cap {
            let bar = bar(spending.spent_minor.min(cap), cap, PLOT_CHARS);
            say::note(format!("[{bar:<PLOT_CHARS$}]"));
            say::note("At the cap nothing new is started in it, and what runs is taken back.");
        }
        Ok(())
    }
}

/// Everything behind one line: `berth explain charge …`. Without one, the newest charge.
pub(crate) async fn explain(client: &Client, which: Option<&str>, output: Json) -> Done {
    let lines = client.ledger(None, 200).await?;
    let charge = client.explain_charge(meant(which, &lines)?).await?;
    if output.json {
        return say::json(&charge);
    }
    show_charge(&charge)
}

fn meant(which: Option<&str>, lines: &[LedgerLine]) -> Done<Uuid> {
    let Some(word) = which else {
        let newest = lines.iter().find(|line| line.kind.0 == PostingKind::Usage);
        let none =
            || Failure::new(Exit::NotFound, "nothing was charged yet").next("alloc create --help");
        return newest.map(|line| line.posting_id).ok_or_else(none);
    };
    if let Ok(id) = word.parse() {
        return Ok(id);
    }
    let mut found = lines.iter().filter(|line| line.posting_id.to_string().starts_with(word));
    match (found.next(), found.next()) {
        (Some(line), None) => Ok(line.posting_id),
        (Some(_), Some(_)) => Err(Failure::new(
            Exit::NotFound,
            format!("more than one of your newest lines begins with {}", say::clean(word)),
        )),
        (None, _) => Err(Failure::new(
            Exit::NotFound,
            format!("none of your 200 newest lines begins with {}", say::clean(word)),
        )
        .next("ledger --last 200")),
    }
}

fn show_charge(charge: &Charge) -> Done {
    let currency = &charge.line.currency;
    for line in wrapped(&charge.sentence, line_width()) {
        say::data(line)?;
    }
    if charge.windows.is_empty() {
        return Ok(());
    }
    say::data("")?;
    let columns =
        ["minute", "seconds", "cost", "allocation", "price", "active since", "machine heard of"];
    let mut sheet = Sheet::new(&columns);
    for window in &charge.windows {
        let name = window.allocation.as_deref().unwrap_or_default();
        let heard = match (&window.node, window.heartbeat_at) {
            (Some(node), Some(at)) => format!("{node}, {}", at.strftime("%H:%M:%S")),
            (Some(node), None) => format!("{node}, never"),
            (None, _) => String::new(),
        };
        let back = if window.given_back { " (given back)" } else { "" };
        sheet.row([
            Cell::new(window.window_at.strftime("%Y-%m-%d %H:%M").to_string()),
            Sheet::number(format!(
                "{}.{:03}",
                window.micros / 1_000_000,
                window.micros / 1_000 % 1_000
            )),
            Sheet::number(format!("{}{back}", amount(currency, window.amount_minor))),
            Sheet::text(name),
            Sheet::number(hourly(window.price_micros_per_gpu_second, window.gpus, currency)),
            Cell::new(format!(
                "{}, step {}",
                window.opened_at.strftime("%H:%M:%S"),
                window.opened_seq
            )),
            Sheet::text(heard),
        ]);
    }
    sheet.show()?;
    let told = i64::try_from(charge.windows.len()).unwrap_or(i64::MAX);
    if charge.windows_total > told {
        say::note(format!("{} more minutes are behind it.", charge.windows_total - told));
    }
    say::note("Times are UTC.");
    Ok(())
}

/// The project that is meant by a word.
pub(crate) async fn of_project(client: &Client, word: Option<&str>) -> Done<Option<Uuid>> {
    let Some(word) = word else {
        return Ok(None);
    };
    let projects = client.projects().await?;
    Ok(Some(pick(word, "project", &projects, "project list")?.id))
}

/// An amount as people write it.
pub(crate) fn amount(currency: &str, minor: i64) -> String {
    Currency::parse(currency)
        .map_or_else(|| format!("{minor} {}", say::clean(currency)), |known| known.shown(minor))
}

/// What somebody has typed, in minor units: `25`, `25.5`, `-3.07`.
pub(crate) fn minor(text: &str, currency: &str) -> Done<i64> {
    let digits = Currency::parse(currency).map_or(2, |known| known.digits());
    let wrong = || {
        let example = amount(currency, 2_550);
        let example = example.split(' ').next().unwrap_or_default();
        let sentence = format!("{:?} is no amount: write it like {example}", say::clean(text));
        Failure::new(Exit::Usage, sentence)
    };
    let (negative, unsigned) = match text.trim().strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.trim()),
    };
    let (whole, part) = unsigned.split_once('.').unwrap_or((unsigned, ""));
    let all_digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    if unsigned.ends_with('.')
        || whole.is_empty()
        || !all_digits(whole)
        || !all_digits(part)
        || part.len() > digits as usize
    {
        return Err(wrong());
    }
    let padded = format!("{whole}{part:0<width$}", width = digits as usize);
    let minor: i64 = padded.parse().map_err(|_| wrong())?;
    Ok(if negative { -minor } else { minor })
}

#[cfg(test)]
mod tests {
    use super::{bar, minor};

    #[test]
    fn amounts_are_read_to_the_minor_unit_and_nothing_else_is_an_amount() {
        for (text, currency, expected) in [
            ("25", "USD", 2_500),
            ("25.5", "USD", 2_550),
            (" 0.07 ", "USD", 7),
            ("-3.07", "USD", -307),
            ("1200", "JPY", 1_200),
            ("1.234", "KWD", 1_234),
        ] {
            assert_eq!(minor(text, currency).ok(), Some(expected), "{text}");
        }
        let wrong = [
            "", "-", ".5", "5.", "+5", "--5", "1.234", "1,50", "1,000", "1e3", "$5", "25 USD",
            "1.2.3",
        ];
        for text in wrong.into_iter().chain(["99999999999999999999", "92233720368547758.08"]) {
            assert!(minor(text, "USD").is_err(), "{text}");
        }
        assert!(minor("1.5", "JPY").is_err());
        assert!(minor("25.0", "JPY").is_err());
    }

    #[test]
    fn a_bar_is_as_long_as_its_part_of_the_most_and_never_nothing_for_something() {
        assert_eq!(bar(0, 100, 8), "");
        assert_eq!(bar(100, 100, 4), "████");
        assert_eq!(bar(50, 100, 4), "██");
        assert_eq!(bar(1, 1_000_000, 4), "▏");
        assert_eq!(bar(-5, 100, 4), "");
    }
}
