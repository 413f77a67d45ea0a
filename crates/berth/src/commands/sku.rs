//! What can be asked for, what it costs, and what is free now.

use clap::{Args, Subcommand};
use comfy_table::Cell;
use serde_json::json;
use wire::http::catalogue::{Availability, CapacityQuestion};

use crate::cli::{Json, teach};
use crate::client::Client;
use crate::exit::Done;
use crate::say;
use crate::table::Sheet;
use crate::words::hourly;

/// `berth sku …`
#[derive(Subcommand)]
pub(crate) enum SkuCommand {
    /// What can be asked for, with its price and what is free now
    #[command(after_help = "Example:\n  berth sku list")]
    List(Json),
    /// Whether so many would be granted now, and if not, what is in the way
    #[command(after_help = "Example:\n  berth sku explain h100.slice --gpus 8 --region eu-1")]
    Explain(Explain),
}

/// `berth sku explain`
#[derive(Args)]
pub(crate) struct Explain {
    /// What
    sku: String,
    /// How many GPUs
    #[arg(long)]
    gpus: i16,
    /// Where
    #[arg(long)]
    region: String,
    /// Which image; the SKU's first if you do not say
    #[arg(long)]
    image: Option<String>,
    #[command(flatten)]
    output: Json,
}

impl Explain {
    async fn run(self, client: &Client) -> Done {
        let Explain { sku, gpus, region, image, output } = self;
        let told =
            client.explain_availability(&CapacityQuestion { sku, region, gpus, image }).await?;
        if output.json {
            return say::json(&told);
        }
        let mut lines = vec![say::clean(&told.detail)];
        lines.extend(told.narrowed.iter().map(|each| format!("  {}", say::clean(&each.sentence))));
        for fit in &told.would_fit {
            let fit = format!("  would fit: {} of {} in {}", fit.gpus, fit.sku, fit.region);
            lines.push(say::clean(&fit));
        }
        say::data(lines.join("\n"))
    }
}

impl SkuCommand {
    pub(crate) async fn run(self, client: &Client) -> Done {
        let output = match self {
            SkuCommand::List(output) => output,
            SkuCommand::Explain(explain) => return explain.run(client).await,
        };
        let (skus, free) = (client.skus().await?, client.availability().await?);
        if output.json {
            return say::json(&json!({ "skus": skus, "availability": free }));
        }
        if skus.is_empty() {
            teach(
                "Nothing is on offer yet; an operator has to fill the catalogue. To see who you are:",
                "whoami",
            );
            return Ok(());
        }
        let mut sheet = Sheet::new(&["sku", "gpu", "gpus", "per gpu", "free now"]);
        for sku in skus {
            let counts: Vec<String> = sku.gpus_allowed.iter().map(ToString::to_string).collect();
            sheet.row([
                Sheet::text(&sku.code),
                Sheet::text(&sku.gpu_model),
                Cell::new(counts.join(" ")),
                Sheet::number(hourly(sku.price_micros_per_gpu_second, 1, &sku.currency)),
                Sheet::text(free_of(&sku.code, &free)),
            ]);
        }
        sheet.show()
    }
}

/// The most that would be granted, region by region.
fn free_of(sku: &str, free: &[Availability]) -> String {
    let most = |each: &Availability| {
        let gpus = each.gpus.iter().max()?;
        Some(format!("{} up to {gpus}", each.region))
    };
    let regions: Vec<String> =
        free.iter().filter(|each| each.sku == sku).filter_map(most).collect();
    if regions.is_empty() { "none".to_owned() } else { regions.join(", ") }
}
