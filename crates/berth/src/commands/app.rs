//! App instances: an application bound to an allocation or a group, with who plays which role.

use clap::{Args, Subcommand};
use comfy_table::Cell;
use uuid::Uuid;
use wire::http::app_instances::{AppInstance, AppMembers, NewAppInstance, NewAppMember};

use super::group;
use crate::cli::{Json, teach};
use crate::client::Client;
use crate::commands::alloc::create::project;
use crate::exit::Done;
use crate::moment::now;
use crate::resolve::{self, Named, pick};
use crate::say;
use crate::table::Sheet;
use crate::words::{age, short};

/// `berth app …`
#[derive(Subcommand)]
pub(crate) enum AppCommand {
    /// Binds an application to an allocation or to a group
    #[command(
        after_help = "Examples:\n  berth app create my-cluster --app ray --group training --role training-1=head --role training-2=worker\n  berth app create notes --app jupyter --allocation notebook"
    )]
    Create(Create),
    /// The app instances you have
    #[command(after_help = "Example:\n  berth app list")]
    List(Json),
    /// One app instance, with who plays which role
    #[command(after_help = "Example:\n  berth app show my-cluster")]
    Show(One),
    /// Says who plays which role from now on; whoever is not named plays none
    #[command(
        after_help = "Examples:\n  berth app roles my-cluster --role training-1=head --role training-2=worker\n  berth app roles my-cluster"
    )]
    Roles(Roles),
    /// Ends an app instance; what it is bound to stays as it is
    #[command(after_help = "Example:\n  berth app end my-cluster")]
    End(One),
}

/// `berth app create`
#[derive(Args)]
pub(crate) struct Create {
    /// What it is called
    name: String,
    /// Which application: a short word
    #[arg(long)]
    app: String,
    /// The allocation it is bound to: a name, an id, or how an id begins
    #[arg(long, required_unless_present = "group", conflicts_with = "group")]
    allocation: Option<String>,
    /// The group it is bound to: a name, an id, or how an id begins
    #[arg(long)]
    group: Option<String>,
    /// Who plays which role; may be repeated
    #[arg(long = "role", value_name = "ALLOCATION=ROLE", value_parser = role)]
    roles: Vec<(String, String)>,
    /// For which project
    #[arg(long, env = "BERTH_PROJECT")]
    project: Option<String>,
    #[command(flatten)]
    output: Json,
}

/// `berth app show`, `berth app end`
#[derive(Args)]
pub(crate) struct One {
    /// Which: a name, an id, or how an id begins
    app: String,
    #[command(flatten)]
    output: Json,
}

/// `berth app roles`
#[derive(Args)]
pub(crate) struct Roles {
    #[command(flatten)]
    one: One,
    /// Who plays which role; may be repeated
    #[arg(long = "role", value_name = "ALLOCATION=ROLE", value_parser = role)]
    roles: Vec<(String, String)>,
}

fn role(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((who, role)) if !who.is_empty() && !role.is_empty() => {
            Ok((who.to_owned(), role.to_owned()))
        }
        Some(_) | None => Err("write it like training-1=head".to_owned()),
    }
}

impl Named for AppInstance {
    fn id(&self) -> Uuid {
        self.id
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn is_current(&self) -> bool {
        self.ended_at.is_none()
    }
}

impl AppCommand {
    pub(crate) async fn run(self, client: &Client) -> Done {
        match self {
            AppCommand::Create(create) => create.run(client).await,
            AppCommand::List(output) => {
                let all = client.app_instances().await?;
                if output.json {
                    return say::json(&all);
                }
                if all.is_empty() {
                    teach(
                        "You have no app instances. One is bound to an allocation or a group of yours:",
                        "app create my-cluster --app ray --group training",
                    );
                    return Ok(());
                }
                table(&all)
            }
            AppCommand::Show(one) => one.tell(&meant(client, &one.app).await?),
            AppCommand::Roles(Roles { one, roles }) => {
                let app = meant(client, &one.app).await?;
                let members = members(client, roles).await?;
                one.tell(&client.put_app_members(app.id, &AppMembers { members }).await?)
            }
            AppCommand::End(one) => {
                let app = meant(client, &one.app).await?;
                one.tell(&client.end_app_instance(app.id).await?)
            }
        }
    }
}

impl One {
    fn tell(&self, app: &AppInstance) -> Done {
        if self.output.json { say::json(app) } else { show(app) }
    }
}

impl Create {
    async fn run(self, client: &Client) -> Done {
        let project = project(client, self.project.as_deref()).await?;
        let (mut allocation_id, mut group_id) = (None, None);
        if let Some(word) = &self.group {
            group_id = Some(group::meant(client, word).await?.id);
        } else if let Some(word) = &self.allocation {
            allocation_id = Some(resolve::allocation(client, word).await?.id);
        }
        let members = members(client, self.roles).await?;
        let new = NewAppInstance {
            project_id: project.id,
            name: self.name,
            app: self.app,
            allocation_id,
            group_id,
            members,
        };
        let made = client.create_app_instance(&new).await?;
        if self.output.json { say::json(&made) } else { show(&made) }
    }
}

async fn members(client: &Client, roles: Vec<(String, String)>) -> Done<Vec<NewAppMember>> {
    let mut members = Vec::with_capacity(roles.len());
    for (who, role) in roles {
        let allocation_id = resolve::allocation(client, &who).await?.id;
        members.push(NewAppMember { allocation_id, role });
    }
    Ok(members)
}

async fn meant(client: &Client, word: &str) -> Done<AppInstance> {
    match Uuid::try_parse(word) {
        Ok(id) => client.app_instance(id).await,
        Err(_) => {
            let all = client.app_instances().await?;
            pick(word, "app instance", &all, "app list").cloned()
        }
    }
}

fn table(all: &[AppInstance]) -> Done {
    let mut sheet = Sheet::new(&["name", "id", "app", "bound to", "which is", "roles", "age", ""]);
    for each in all {
        sheet.row([
            Sheet::text(&each.name),
            Cell::new(short(each.id)),
            Sheet::text(&each.app),
            Sheet::text(&each.bound_name),
            Sheet::text(&each.bound_status),
            Sheet::number(each.members.len()),
            Cell::new(age(now(), each.created_at)),
            Cell::new(if each.ended_at.is_some() { "ended" } else { "" }),
        ]);
    }
    sheet.show()
}

fn show(app: &AppInstance) -> Done {
    let mut sheet = Sheet::of_one();
    sheet.line("name", app.name.clone());
    sheet.line("id", app.id.to_string());
    sheet.line("app", app.app.clone());
    let kind = if app.group_id.is_some() { "group" } else { "allocation" };
    sheet.line("bound to", format!("{kind} {}, which is {}", app.bound_name, app.bound_status));
    for member in &app.members {
        sheet.line(&member.role, format!("{}, which is {}", member.name, member.status));
    }
    sheet.line("made", age(now(), app.created_at));
    sheet.line("ended", app.ended_at.map(|at| age(now(), at)));
    let actions: Vec<String> = app.allowed_actions.iter().map(ToString::to_string).collect();
    sheet.line("you may", Some(actions.join(", ")).filter(|actions| !actions.is_empty()));
    sheet.show()
}
