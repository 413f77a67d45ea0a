//! Projects and their members, SSH keys, API tokens.

use std::io::Read as _;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use clap::{Subcommand, ValueEnum};
use comfy_table::Cell;
use domain::policy::{ProjectRole, Scope};
use wire::http::account::{NewMember, NewProject, NewSshKey, NewToken};

use super::money::Spending;
use crate::cli::{Json, teach};
use crate::client::Client;
use crate::exit::{Done, Exit, Failure};
use crate::moment::now;
use crate::resolve::pick;
use crate::say;
use crate::table::Sheet;
use crate::words::{self, age, short};

/// A role in a project.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum Role {
    /// May look
    Viewer,
    /// May also ask for allocations and release them
    Member,
    /// May also say who is a member
    Admin,
}

impl Role {
    const fn word(self) -> ProjectRole {
        match self {
            Role::Viewer => ProjectRole::Viewer,
            Role::Member => ProjectRole::Member,
            Role::Admin => ProjectRole::Admin,
        }
    }
}

/// `berth project …`
#[derive(Subcommand)]
pub(crate) enum ProjectCommand {
    /// The projects you are a member of
    #[command(after_help = "Example:\n  berth project list")]
    List(Json),
    /// Makes a project, with you as its admin
    #[command(after_help = "Example:\n  berth project create protein-folding")]
    Create {
        /// What it is called
        name: String,
        #[command(flatten)]
        output: Json,
    },
    /// The members of a project
    #[command(after_help = "Example:\n  berth project members demo")]
    Members {
        /// Which: a name, an id, or how an id begins
        project: String,
        #[command(flatten)]
        output: Json,
    },
    /// Adds a member, or changes their role
    #[command(
        after_help = "Example:\n  berth project add-member demo ada@example.org --role admin"
    )]
    AddMember {
        /// Which project
        project: String,
        /// Whose account
        email: String,
        /// What they may do
        #[arg(long, value_enum, default_value = "member")]
        role: Role,
        #[command(flatten)]
        output: Json,
    },
    /// What a project has cost this month, and what it may
    #[command(
        after_help = "Examples:\n  berth project spending demo\n  berth project spending demo --cap 500\n  berth project spending demo --cap none"
    )]
    Spending(Spending),
    /// Takes a member out
    #[command(after_help = "Example:\n  berth project remove-member demo ada@example.org")]
    RemoveMember {
        /// Which project
        project: String,
        /// Whose account
        email: String,
    },
}

impl ProjectCommand {
    pub(crate) async fn run(self, client: &Client) -> Done {
        match self {
            ProjectCommand::List(output) => list_projects(client, output).await,
            ProjectCommand::Create { name, output } => {
                let made = client.create_project(&NewProject { name }).await?;
                if output.json {
                    return say::json(&made);
                }
                say::note(format!(
                    "The project {} is there; you are its admin.",
                    say::clean(&made.name)
                ));
                say::data(made.id.to_string())
            }
            ProjectCommand::Spending(spending) => spending.run(client).await,
            ProjectCommand::Members { project, output } => {
                let projects = client.projects().await?;
                let project = pick(&project, "project", &projects, "project list")?;
                list_members(client, project.id, output).await
            }
            ProjectCommand::AddMember { project, email, role, output } => {
                let projects = client.projects().await?;
                let project = pick(&project, "project", &projects, "project list")?;
                let new = NewMember { email, role: role.word().into() };
                let member = client.put_member(project.id, &new).await?;
                if output.json {
                    return say::json(&member);
                }
                say::note(format!(
                    "{} is {} of {} now.",
                    say::clean(&member.email),
                    member.role,
                    say::clean(&project.name)
                ));
                Ok(())
            }
            ProjectCommand::RemoveMember { project, email } => {
                let projects = client.projects().await?;
                let project = pick(&project, "project", &projects, "project list")?;
                let members = client.members(project.id).await?;
                let member =
                    members.iter().find(|member| member.email.eq_ignore_ascii_case(&email));
                let member = member.ok_or_else(|| {
                    Failure::new(
                        Exit::NotFound,
                        format!("{email} is no member of {}", project.name),
                    )
                    .next(&format!("project members {}", project.name))
                })?;
                client.remove_member(project.id, member.user_id).await?;
                say::note(format!(
                    "{email} is no member of {} any more.",
                    say::clean(&project.name)
                ));
                Ok(())
            }
        }
    }
}

async fn list_projects(client: &Client, output: Json) -> Done {
    let projects = client.projects().await?;
    if output.json {
        return say::json(&projects);
    }
    if projects.is_empty() {
        teach("You are in no project yet. To make one:", "project create my-project");
        return Ok(());
    }
    let mut sheet = Sheet::new(&["name", "id", "role", "created"]);
    for project in projects {
        sheet.row([
            Sheet::text(project.name),
            Cell::new(short(project.id)),
            Cell::new(project.role),
            Cell::new(age(now(), project.created_at)),
        ]);
    }
    sheet.show()
}

async fn list_members(client: &Client, project: uuid::Uuid, output: Json) -> Done {
    let members = client.members(project).await?;
    if output.json {
        return say::json(&members);
    }
    let mut sheet = Sheet::new(&["e-mail", "name", "role"]);
    for member in members {
        sheet.row([Sheet::text(member.email), Sheet::text(member.name), Cell::new(member.role)]);
    }
    sheet.show()
}

/// `berth ssh-key …`
#[derive(Subcommand)]
pub(crate) enum SshKeyCommand {
    /// Keeps a public key, to let you into allocations
    #[command(
        after_help = "Examples:\n  berth ssh-key add ~/.ssh/id_ed25519.pub --name laptop\n  ssh-add -L | head -n 1 | berth ssh-key add - --name agent"
    )]
    Add {
        /// The file with the public key; `-` is stdin
        file: PathBuf,
        /// What it is called; the file's name when nobody says
        #[arg(long)]
        name: Option<String>,
        #[command(flatten)]
        output: Json,
    },
    /// Your keys
    #[command(after_help = "Example:\n  berth ssh-key list")]
    List(Json),
    /// Forgets a key; allocations that know it keep it
    #[command(after_help = "Example:\n  berth ssh-key remove laptop")]
    Remove {
        /// Which: a name, an id, or how an id begins
        key: String,
    },
}

impl SshKeyCommand {
    pub(crate) async fn run(self, client: &Client) -> Done {
        match self {
            SshKeyCommand::Add { file, name, output } => {
                let new = NewSshKey { name: key_name(name, &file)?, public_key: read_key(&file)? };
                let kept = client.add_ssh_key(&new).await?;
                if output.json {
                    return say::json(&kept);
                }
                say::note(format!(
                    "{} is kept. Allocations you ask for from now on let it in.",
                    say::clean(&kept.name)
                ));
                say::data(kept.fingerprint)
            }
            SshKeyCommand::List(output) => {
                let keys = client.ssh_keys().await?;
                if output.json {
                    return say::json(&keys);
                }
                if keys.is_empty() {
                    teach(
                        "You have no SSH keys here. To add one:",
                        "ssh-key add ~/.ssh/id_ed25519.pub",
                    );
                    return Ok(());
                }
                let mut sheet = Sheet::new(&["name", "id", "fingerprint", "added"]);
                for key in keys {
                    let (name, id, added) =
                        (Sheet::text(key.name), short(key.id), age(now(), key.created_at));
                    sheet.row([
                        name,
                        Cell::new(id),
                        Sheet::text(key.fingerprint),
                        Cell::new(added),
                    ]);
                }
                sheet.show()
            }
            SshKeyCommand::Remove { key } => {
                let keys = client.ssh_keys().await?;
                let key = pick(&key, "SSH key", &keys, "ssh-key list")?;
                client.remove_ssh_key(key.id).await?;
                say::note(format!("{} is forgotten.", say::clean(&key.name)));
                Ok(())
            }
        }
    }
}

fn key_name(name: Option<String>, file: &std::path::Path) -> Done<String> {
    let of_file = || Some(file.file_stem()?.to_str()?.to_owned()).filter(|name| name != "-");
    name.or_else(of_file)
        .ok_or_else(|| Failure::new(Exit::Usage, "what shall it be called? give --name"))
}

/// The public key in a file. A private one does not leave the machine.
fn read_key(file: &std::path::Path) -> Done<String> {
    let text = if file.as_os_str() == "-" {
        let mut text = String::new();
        std::io::stdin().lock().read_to_string(&mut text).context("stdin can't be read")?;
        text
    } else {
        std::fs::read_to_string(file)
            .with_context(|| format!("{} can't be read", file.display()))?
    };
    if text.contains("PRIVATE KEY") {
        let sentence = "this is a private key: it was not sent; give the file that ends in .pub";
        return Err(Failure::new(Exit::Usage, sentence));
    }
    Ok(text.trim().to_owned())
}

/// What a token may be used for.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum ScopeWord {
    /// Look
    Read,
    /// Change
    Write,
    /// What operators do
    Admin,
}

impl ScopeWord {
    const fn word(self) -> Scope {
        match self {
            ScopeWord::Read => Scope::Read,
            ScopeWord::Write => Scope::Write,
            ScopeWord::Admin => Scope::Admin,
        }
    }
}

/// `berth token …`
#[derive(Subcommand)]
pub(crate) enum TokenCommand {
    /// Makes a token; its secret is printed once, alone on stdout
    #[command(after_help = "Example:\n  berth token create ci --scope read --ttl 30d")]
    Create {
        /// What it is called
        name: String,
        /// What it may be used for
        #[arg(long = "scope", value_enum, default_values = ["read", "write"])]
        scopes: Vec<ScopeWord>,
        /// For how long, such as 12h or 30d; 90 days when nobody says
        #[arg(long, value_parser = words::parse_span)]
        ttl: Option<Duration>,
        #[command(flatten)]
        output: Json,
    },
    /// Your tokens, without their secrets
    #[command(after_help = "Example:\n  berth token list")]
    List(Json),
    /// Makes a token good for nothing, at once
    #[command(after_help = "Example:\n  berth token revoke ci")]
    Revoke {
        /// Which: a name, an id, or how an id begins
        token: String,
    },
}

impl TokenCommand {
    pub(crate) async fn run(self, client: &Client) -> Done {
        match self {
            TokenCommand::Create { name, scopes, ttl, output } => {
                let ttl_seconds = ttl.map(|ttl| u32::try_from(ttl.as_secs()).unwrap_or(u32::MAX));
                let scopes = scopes.into_iter().map(|scope| scope.word().into()).collect();
                let fresh = client.create_token(&NewToken { name, scopes, ttl_seconds }).await?;
                if output.json {
                    return say::json(&fresh);
                }
                let until = fresh.token.expires_at.strftime("%Y-%m-%d %H:%M UTC");
                say::note(format!("Good until {until}. It is shown this once:"));
                say::data(fresh.secret)
            }
            TokenCommand::List(output) => list_tokens(client, output).await,
            TokenCommand::Revoke { token } => {
                let mut tokens = client.tokens().await?;
                tokens.retain(|each| each.revoked_at.is_none() || each.id.to_string() == token);
                let token = pick(&token, "token", &tokens, "token list")?;
                client.revoke_token(token.id).await?;
                say::note(format!("{} is good for nothing any more.", say::clean(&token.name)));
                Ok(())
            }
        }
    }
}

async fn list_tokens(client: &Client, output: Json) -> Done {
    let tokens = client.tokens().await?;
    if output.json {
        return say::json(&tokens);
    }
    let mut sheet = Sheet::new(&["name", "id", "scopes", "last used", "ends"]);
    for token in tokens {
        let scopes: Vec<String> = token.scopes.iter().map(ToString::to_string).collect();
        let used = token.last_used_at.map_or_else(|| "never".to_owned(), |at| age(now(), at));
        let ends = match token.revoked_at {
            Some(at) => format!("revoked {}", age(now(), at)),
            None => age(now(), token.expires_at),
        };
        sheet.row([
            Sheet::text(token.name),
            Cell::new(short(token.id)),
            Cell::new(scopes.join(" ")),
            Cell::new(used),
            Cell::new(ends),
        ]);
    }
    sheet.show()
}
