//! Asking for a group, and waiting for all of it.

use clap::Args;
use wire::http::allocation_groups::{AllocationGroup, NewGroup, NewMember};

use super::wait::{Ended, Goal, wait};
use super::{show, wait};
use crate::cli::Json;
use crate::client::Client;
use crate::commands::alloc::create::{Waiting, project, ssh_keys};
use crate::exit::{Done, Exit, Failure};
use crate::say;

/// `berth group create`
#[derive(Args)]
pub(crate) struct Create {
    /// A member, or several that are alike; may be repeated
    #[arg(long = "member", value_name = "SKU:GPUS[:COUNT][@REGION]", value_parser = Wanted::parse)]
    members: Vec<Wanted>,
    /// The same, for what the group can do without
    #[arg(long = "optional", value_name = "SKU:GPUS[:COUNT][@REGION]", value_parser = Wanted::parse)]
    optional: Vec<Wanted>,
    /// Where the members are that do not say it
    #[arg(long)]
    region: Option<String>,
    /// The image of all members; each SKU's first when nobody says
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

/// A member as it stands on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Wanted {
    sku: String,
    gpus: i16,
    count: u16,
    region: Option<String>,
}

impl Wanted {
    fn parse(text: &str) -> Result<Wanted, String> {
        let wrong =
            || "write it like h100.slice:8, h100.slice:8:2 or h100.slice:8:2@eu-1".to_owned();
        let (what, region) = match text.split_once('@') {
            Some((what, region)) => (what, Some(region)),
            None => (text, None),
        };
        let words: Vec<&str> = what.split(':').collect();
        let (sku, gpus, count) = match words.as_slice() {
            [sku, gpus] => (*sku, *gpus, "1"),
            [sku, gpus, count] => (*sku, *gpus, *count),
            _ => return Err(wrong()),
        };
        if sku.is_empty() || region.is_some_and(str::is_empty) {
            return Err(wrong());
        }
        let gpus = gpus.parse::<i16>().ok().filter(|gpus| *gpus > 0).ok_or_else(wrong)?;
        let count = count.parse::<u16>().ok().filter(|count| *count > 0).ok_or_else(wrong)?;
        Ok(Wanted { sku: sku.to_owned(), gpus, count, region: region.map(str::to_owned) })
    }
}

impl Create {
    pub(crate) async fn run(self, client: &Client) -> Done {
        let members = self.members()?;
        let project = project(client, self.project.as_deref()).await?;
        let new = NewGroup {
            project_id: project.id,
            name: self.name.clone(),
            members,
            ssh_key_ids: ssh_keys(client, &self.ssh_keys).await?,
        };
        let made = client.create_group(&new).await?;
        if new.ssh_key_ids.is_empty() {
            let add = format!("{} ssh-key add ~/.ssh/id_ed25519.pub", say::program());
            say::note(format!(
                "You have no SSH keys here, so nobody can log in. Before the next one:\n  {add}"
            ));
        }
        if !self.waiting.wanted() {
            return finish(&made, self.output);
        }
        let name = say::clean(&made.name);
        let count = made.members.len();
        say::note(format!(
            "All {count} members of {} are yours; preparing them.",
            say::strong(&name)
        ));
        let patience = self.waiting.patience();
        let (ended, group) = wait(client, &made, Goal::Active, (patience, self.output)).await?;
        match ended {
            Ended::Reached => finish(&group, self.output),
            Ended::Missed | Ended::TimedOut => {
                if self.output.json {
                    say::json(&group)?;
                }
                Err(wait::failure(ended, &group, patience))
            }
            Ended::Interrupted => Err(Failure::new(
                Exit::Interrupted,
                format!("{name} was left as it is; its members are billed once they are ready"),
            )
            .next(&format!("group release {name}"))),
        }
    }

    fn members(&self) -> Done<Vec<NewMember>> {
        let needed = self.members.iter().map(|wanted| (wanted, true));
        let optional = self.optional.iter().map(|wanted| (wanted, false));
        let member = |(wanted, required): (&Wanted, bool)| {
            let region = wanted.region.clone().or_else(|| self.region.clone());
            let nowhere = || {
                let sentence = format!("where is the member {}:{}?", wanted.sku, wanted.gpus);
                let advice = "give --region, or write @REGION behind the member";
                Failure::new(Exit::Usage, sentence).with("advice", advice).next("sku list")
            };
            Ok(NewMember {
                sku: wanted.sku.clone(),
                gpus: wanted.gpus,
                region: region.ok_or_else(nowhere)?,
                image: self.image.clone(),
                name: None,
                required: Some(required),
                ssh_key_ids: None,
                count: Some(wanted.count),
            })
        };
        let members: Vec<NewMember> = needed.chain(optional).map(member).collect::<Done<_>>()?;
        if members.is_empty() {
            return Err(Failure::new(Exit::Usage, "a group has members: give --member")
                .next("group create --help"));
        }
        Ok(members)
    }
}

fn finish(group: &AllocationGroup, output: Json) -> Done {
    if output.json {
        return say::json(group);
    }
    show(group)?;
    let name = say::clean(&group.name);
    say::note(format!("Next: {} group show {name}", say::program()));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::Wanted;

    #[test]
    fn a_member_is_written_in_one_word() {
        let wanted = |text: &str| Wanted::parse(text).ok();
        let member = |gpus, count, region: Option<&str>| {
            let (sku, region) = ("h100.slice".to_owned(), region.map(str::to_owned));
            Some(Wanted { sku, gpus, count, region })
        };
        assert_eq!(wanted("h100.slice:8"), member(8, 1, None));
        assert_eq!(wanted("h100.slice:8:2"), member(8, 2, None));
        assert_eq!(wanted("h100.slice:1@eu-1"), member(1, 1, Some("eu-1")));
        assert_eq!(wanted("h100.slice:8:2@eu-1"), member(8, 2, Some("eu-1")));
        for wrong in
            ["", "h100.slice", ":8", "h100.slice:0", "h100.slice:8:0", "a:1:2:3", "a:1@", "a:b"]
        {
            assert_eq!(wanted(wrong), None, "{wrong}");
        }
    }
}
