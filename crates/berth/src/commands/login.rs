//! Who one is: login, whoami, and the contexts that remember it. A token is kept, and never shown.

use std::io::{BufRead as _, IsTerminal as _};

use anyhow::Context as _;
use clap::{Args, Subcommand};
use comfy_table::Cell;
use serde_json::json;
use wire::http::account::Login as Credentials;

use crate::cli::{Json, Session, teach};
use crate::client::Client;
use crate::context::{self, Context, Contexts, Overrides, Reach};
use crate::exit::{Done, Exit, Failure};
use crate::say;
use crate::table::Sheet;
use crate::words;

/// The context that is written when nobody names one.
const CONTEXT_DEFAULT: &str = "default";

/// `berth login`
#[derive(Args)]
pub(crate) struct Login {
    /// Where the API is
    #[arg(long, env = "BERTH_API", value_name = "URL")]
    api: Option<String>,
    /// Whose account
    #[arg(long)]
    email: Option<String>,
    /// Takes the password from the first line of stdin
    #[arg(long)]
    password_stdin: bool,
}

impl Login {
    pub(crate) async fn run(self, session: &Session) -> Done {
        let file = context::path()?;
        let contexts = Contexts::read(&file)?;
        let named = session.context.clone().or_else(|| contexts.current.clone());
        let name = named.unwrap_or_else(|| CONTEXT_DEFAULT.to_owned());
        let kept = contexts.contexts.get(&name).cloned().unwrap_or_default();
        let api = self.api.as_deref().map(context::trimmed).filter(|api| !api.is_empty());
        let api = api.unwrap_or(if kept.api.is_empty() {
            context::API_DEFAULT.to_owned()
        } else {
            kept.api
        });
        let reach =
            Reach { context: Some(name.clone()), api: api.clone(), token: None, project: None };
        let client = Client::new(reach.clone())?;
        let email = match self.email {
            Some(email) => email,
            None if say::can_ask() => say::ask("E-mail:")?,
            None => return Err(Failure::new(Exit::Usage, "whose account? give --email")),
        };
        let password = password(self.password_stdin, &email, &api)?;
        let token_name = Some(format!("berth login {name}"));
        let fresh = client.login(&Credentials { email, password, token_name }).await?;
        let known = Client::new(Reach { token: Some(fresh.secret.clone()), ..reach })?;
        let me = known.me().await?;
        let project = me.projects.first().filter(|_| me.projects.len() == 1);
        let kept = Context {
            api: api.clone(),
            token: Some(fresh.secret),
            project: project.map(|project| project.id.to_string()),
        };
        Contexts::change(&file, |contexts| {
            contexts.contexts.insert(name.clone(), kept);
            contexts.current = Some(name.clone());
            Ok(())
        })?;
        say::note(format!(
            "Logged in at {api} as {}. The token is kept as context `{name}`, until {}.",
            say::clean(&me.email),
            fresh.token.expires_at.strftime("%Y-%m-%d")
        ));
        teach("To see what there is:", "sku list");
        Ok(())
    }
}

fn password(from_stdin: bool, email: &str, api: &str) -> Done<String> {
    if from_stdin {
        let mut line = String::new();
        std::io::stdin().lock().read_line(&mut line).context("the password can't be read")?;
        return Ok(line.trim_end_matches(['\r', '\n']).to_owned());
    }
    if !std::io::stdin().is_terminal() {
        let sentence = "there is nobody to ask for the password: give --password-stdin";
        return Err(Failure::new(Exit::Usage, sentence));
    }
    let question = format!("Password of {email} at {api}: ");
    Ok(rpassword::prompt_password(question).context("the password can't be read")?)
}

/// `berth whoami`
pub(crate) async fn whoami(session: &Session, output: Json) -> Done {
    let client = session.client()?;
    let me = client.me().await?;
    if output.json {
        return say::json(&me);
    }
    let mut sheet = Sheet::of_one();
    sheet.line("e-mail", me.email);
    sheet.line("name", me.name);
    sheet.line("role", (if me.operator { "operator" } else { "user" }).to_owned());
    let scopes: Vec<String> = me.scopes.iter().map(ToString::to_string).collect();
    sheet.line("scopes", scopes.join(", "));
    for project in me.projects {
        sheet.line(
            "project",
            format!("{} ({}, {})", project.name, project.role, words::short(project.id)),
        );
    }
    sheet.line("api", client.reach.api.clone());
    sheet.line("context", client.reach.context.clone());
    sheet.show()
}

/// `berth context …`
#[derive(Subcommand)]
pub(crate) enum ContextCommand {
    /// All contexts; the current one has a star
    #[command(after_help = "Example:\n  berth context list")]
    List(Json),
    /// Makes a context the current one
    #[command(after_help = "Example:\n  berth context use operator")]
    Use {
        /// Which
        name: String,
    },
    /// Says what is in use, with what the environment changes
    #[command(after_help = "Example:\n  berth context show")]
    Show(Json),
}

impl ContextCommand {
    pub(crate) fn run(self, session: &Session) -> Done {
        let file = context::path()?;
        match self {
            ContextCommand::List(output) => list(&Contexts::read(&file)?, output),
            ContextCommand::Use { name } => {
                Contexts::change(&file, |contexts| {
                    contexts.named(&name)?;
                    contexts.current = Some(name.clone());
                    Ok(())
                })?;
                say::note(format!("`{name}` is the current context."));
                Ok(())
            }
            ContextCommand::Show(output) => {
                let contexts = Contexts::read(&file)?;
                let asked = session.context.as_deref();
                show(&Reach::resolve(&contexts, asked, Overrides::of_environment())?, output)
            }
        }
    }
}

fn list(contexts: &Contexts, output: Json) -> Done {
    if output.json {
        let shown = contexts.contexts.iter().map(|(name, context)| {
            json!({
                "name": name,
                "current": contexts.current.as_ref() == Some(name),
                "api": context.api,
                "project": context.project,
                "logged_in": context.token.is_some(),
            })
        });
        return say::json(&shown.collect::<Vec<_>>());
    }
    if contexts.contexts.is_empty() {
        teach("There are no contexts yet. To make one:", "login --context work --api https://…");
        return Ok(());
    }
    let mut sheet = Sheet::new(&["", "name", "api", "logged in"]);
    for (name, context) in &contexts.contexts {
        let star = if contexts.current.as_ref() == Some(name) { "*" } else { "" };
        let token = if context.token.is_some() { "yes" } else { "no" };
        sheet.row([
            Cell::new(star),
            Sheet::text(name),
            Sheet::text(&context.api),
            Cell::new(token),
        ]);
    }
    sheet.show()
}

fn show(reach: &Reach, output: Json) -> Done {
    if output.json {
        return say::json(&json!({
            "context": reach.context,
            "api": reach.api,
            "project": reach.project,
            "logged_in": reach.token.is_some(),
        }));
    }
    let mut sheet = Sheet::of_one();
    sheet.line("context", reach.context.clone().or_else(|| Some("none".to_owned())));
    sheet.line("api", reach.api.clone());
    sheet.line("project", reach.project.clone());
    sheet.line("logged in", (if reach.token.is_some() { "yes" } else { "no" }).to_owned());
    sheet.line("file", context::path()?.display().to_string());
    sheet.show()
}
