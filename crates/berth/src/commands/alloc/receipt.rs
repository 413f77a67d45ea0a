//! The proof that nothing was left behind, and the way in while it is there.

use std::os::unix::process::CommandExt as _;
use std::process::Command;

use clap::Args;
use wire::receipt::SignedReceipt;
use wire::seal::{Purpose, VerifyingKey};

use super::ssh_command;
use crate::cli::Json;
use crate::client::Client;
use crate::exit::{Done, Exit, Failure};
use crate::resolve;
use crate::say;
use crate::table::Sheet;

/// `berth alloc receipt`
#[derive(Args)]
pub(crate) struct Receipt {
    /// Which: a name, an id, or how an id begins
    allocation: String,
    /// Checks the signature here, on this machine
    #[arg(long)]
    verify: bool,
    /// The public key that must have signed it, if you have it from elsewhere
    #[arg(long, value_name = "KEY", requires = "verify")]
    key: Option<String>,
    #[command(flatten)]
    output: Json,
}

impl Receipt {
    pub(crate) async fn run(self, client: &Client) -> Done {
        let allocation = resolve::allocation(client, &self.allocation).await?;
        let signed = client.receipt(allocation.id).await?;
        if self.output.json {
            say::json(&signed)?;
        } else {
            show(&signed)?;
        }
        if self.verify {
            verify(&signed, self.key.as_deref())?;
            say::note(format!(
                "{} The signature is that of {}.",
                say::good("✓"),
                signed.public_key
            ));
        }
        Ok(())
    }
}

fn show(signed: &SignedReceipt) -> Done {
    let receipt = &signed.receipt;
    let at = |at: jiff::Timestamp| at.strftime("%Y-%m-%d %H:%M:%S UTC").to_string();
    let yes = |is: bool| (if is { "yes" } else { "no" }).to_owned();
    let mut sheet = Sheet::of_one();
    sheet.line("allocation", receipt.allocation_id.to_string());
    sheet.line("what", format!("{} × {} in {}", receipt.gpus, receipt.sku, receipt.region));
    sheet.line("ready", receipt.active_at.map(at));
    sheet.line(
        "billed until",
        receipt.billed_until.map(at).or_else(|| Some("never billed".to_owned())),
    );
    sheet.line("released", at(receipt.released_at));
    match receipt.proof {
        Some(proof) => {
            let how = if proof.hard_stopped { "yes, by force" } else { "yes" };
            sheet.line("stopped", if proof.released { how.to_owned() } else { yes(false) });
            sheet.line("wiped", yes(proof.wiped));
            sheet.line("leases returned", yes(proof.leases_released));
        }
        None => sheet.line("proof", "nothing was ever handed to a machine".to_owned()),
    }
    sheet.line("signed by", signed.public_key.clone());
    sheet.show()
}

/// Whether what is shown is what was signed, and by that key.
fn verify(signed: &SignedReceipt, key: Option<&str>) -> Done {
    let refused =
        |why: &str| Err(Failure::new(Exit::Failed, format!("do not trust this receipt: {why}")));
    if key.is_some_and(|key| key.trim() != signed.public_key) {
        return refused("it is signed with another key than the one you gave");
    }
    let Ok(public) = VerifyingKey::parse(&signed.public_key) else {
        return refused("its key is none");
    };
    if !public.verifies(Purpose::Receipt, signed.document.as_bytes(), &signed.signature) {
        return refused("the signature does not hold for the document");
    }
    match serde_json::from_str::<wire::receipt::Receipt>(&signed.document) {
        Ok(said) if said == signed.receipt => Ok(()),
        Ok(_) | Err(_) => refused("the document says something else than what is shown"),
    }
}

/// `berth alloc ssh`
#[derive(Args)]
pub(crate) struct Ssh {
    /// Which: a name, an id, or how an id begins
    allocation: String,
    /// Prints the command instead of running it
    #[arg(long)]
    print: bool,
    /// What to run there
    #[arg(last = true)]
    command: Vec<String>,
}

impl Ssh {
    pub(crate) async fn run(self, client: &Client) -> Done {
        let allocation = resolve::allocation(client, &self.allocation).await?;
        let (Some(access), Some(printed)) = (&allocation.access, ssh_command(&allocation)) else {
            let name = say::clean(&allocation.name);
            let sentence = format!("{name} can't be reached: it is {}", allocation.status);
            return Err(Failure::new(Exit::Conflict, sentence)
                .with("what", allocation.status_text)
                .next(&format!("alloc timeline {name} --watch")));
        };
        // What begins with a dash would be an option to ssh, and an option can run anything.
        let word = |text: &str| {
            let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':');
            !text.is_empty() && !text.starts_with('-') && text.chars().all(allowed)
        };
        if !word(&access.host) || !word(&access.user) {
            return Err(Failure::new(Exit::Failed, "the address to log in at is not one"));
        }
        if self.print {
            return say::data(printed);
        }
        let error = Command::new("ssh")
            .arg("-p")
            .arg(access.port.to_string())
            .arg(format!("{}@{}", access.user, access.host))
            .args(self.command)
            .exec();
        Err(Failure::new(Exit::Failed, format!("ssh can't be run: {error}"))
            .with("by hand", printed))
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use uuid::Uuid;
    use wire::receipt::{Receipt, SignedReceipt};
    use wire::seal::{Purpose, SigningKey};

    use super::verify;

    fn signed(purpose: Purpose) -> SignedReceipt {
        let receipt = Receipt {
            version: 1,
            allocation_id: Uuid::nil(),
            project_id: Uuid::nil(),
            sku: "h100.slice".to_owned(),
            gpus: 2,
            region: "eu-1".to_owned(),
            slots: vec![0, 1],
            operation_id: Uuid::nil(),
            active_at: None,
            billed_until: None,
            released_at: Timestamp::UNIX_EPOCH,
            proof: None,
        };
        let document = serde_json::to_string(&receipt).expect("it is JSON");
        let (key, _) = SigningKey::generate().expect("a key");
        let signature = key.sign(purpose, document.as_bytes());
        SignedReceipt { receipt, document, signature, public_key: key.verifying().text() }
    }

    #[test]
    fn a_receipt_holds_only_as_it_was_signed() {
        let good = signed(Purpose::Receipt);
        assert!(verify(&good, None).is_ok());
        assert!(verify(&good, Some(&good.public_key)).is_ok());
        assert!(verify(&good, Some("another")).is_err(), "pinned to another key");
        assert!(verify(&signed(Purpose::Task), None).is_err(), "signed for something else");
        let mut shown = good.clone();
        shown.receipt.gpus = 1;
        assert!(verify(&shown, None).is_err(), "what is shown is not what was signed");
        let mut changed = good.clone();
        changed.document = changed.document.replace("eu-1", "us-1");
        assert!(verify(&changed, None).is_err(), "the document was changed");
        let mut swapped = good;
        swapped.public_key = signed(Purpose::Receipt).public_key;
        assert!(verify(&swapped, None).is_err(), "another key");
    }
}
