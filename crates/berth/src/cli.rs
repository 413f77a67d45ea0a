//! The tree of commands. Every command has an example, and every flag a variable of the environment.

use clap::builder::FalseyValueParser;
use clap::{Arg, ArgAction, Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

use wire::problem::ProblemCode;

use crate::client::Client;
use crate::commands::{
    account, admin, alloc, app, audit, config, explain, group, login, machine, money,
    notifications, payments, sim, sku, webhooks,
};
use crate::context::{self, Contexts, Overrides, Reach};
use crate::exit::{Done, Failure};
use crate::{say, serve, up};

const ABOUT: &str = "\
Examples:
  berth up                                                          everything, on this machine
  berth alloc create --sku h100.slice --gpus 2 --region eu-1 --wait
  berth alloc list --json

Environment:
  BERTH_CONTEXT, BERTH_API, BERTH_TOKEN and BERTH_PROJECT win over the config file, which is
  $BERTH_CONFIG, else berth/config.toml in $XDG_CONFIG_HOME or ~/.config. Every flag can be given as
  BERTH_<COMMAND>_<FLAG>, such as BERTH_ALLOC_CREATE_SKU. NO_COLOR is honoured.

Exit codes:
  0 ok, 1 failed, 2 usage, 3 declined, 4 not authenticated, 5 not found, 6 conflict, 7 no capacity,
  8 insufficient balance, 9 wait timed out, 10 wait ended in a failure, 130 interrupted";

/// The context that `berth up` makes for operators.
const OPERATOR: &str = "operator";

/// The control plane of a GPU cloud: run it, ask it for GPUs, look after it.
#[derive(Parser)]
#[command(name = "berth", version, after_help = ABOUT, arg_required_else_help = true, propagate_version = true)]
pub(crate) struct Cli {
    /// The context of the config file to use instead of the current one
    #[arg(long, global = true, env = "BERTH_CONTEXT", value_name = "NAME")]
    context: Option<String>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Runs everything on this machine: Postgres, the control plane, simulated nodes
    #[command(after_help = "Examples:\n  berth up\n  berth up --detach --nodes 3")]
    Up(up::Up),
    /// Stops what `berth up` started
    #[command(after_help = "Example:\n  berth down")]
    Down(up::place::Placed),
    /// Says whether `berth up` runs here, and how it is
    #[command(after_help = "Example:\n  berth status")]
    Status(up::place::Placed),
    /// Trades a password for a token, and keeps it in a context
    #[command(
        after_help = "Examples:\n  berth login --email ada@example.org --api https://berth.example.org\n  berth login --email ada@example.org --password-stdin < password"
    )]
    Login(login::Login),
    /// Says who you are, and where
    #[command(after_help = "Example:\n  berth whoami")]
    Whoami(Json),
    /// Contexts: where the API is, and who you are there
    #[command(subcommand, after_help = "Example:\n  berth context use operator")]
    Context(login::ContextCommand),
    /// Projects and their members
    #[command(subcommand, after_help = "Example:\n  berth project list")]
    Project(account::ProjectCommand),
    /// The SSH keys that let you into allocations
    #[command(subcommand, after_help = "Example:\n  berth ssh-key add ~/.ssh/id_ed25519.pub")]
    SshKey(account::SshKeyCommand),
    /// API tokens
    #[command(subcommand, after_help = "Example:\n  berth token create ci --scope read")]
    Token(account::TokenCommand),
    /// What can be asked for
    #[command(subcommand, after_help = "Example:\n  berth sku list")]
    Sku(sku::SkuCommand),
    /// Allocations: GPUs that are yours for a while
    #[command(
        subcommand,
        after_help = "Example:\n  berth alloc create --sku h100.slice --gpus 2 --region eu-1"
    )]
    Alloc(alloc::AllocCommand),
    /// Groups of allocations: all of them or none
    #[command(
        subcommand,
        after_help = "Example:\n  berth group create --name training --member h100.slice:8:2@eu-1"
    )]
    Group(group::GroupCommand),
    /// What you have, and for how long that lasts
    #[command(after_help = "Examples:\n  berth balance\n  berth balance --warn-at 25")]
    Balance(money::BalanceCommand),
    /// What you used and what it cost, by day, SKU and project
    #[command(after_help = "Example:\n  berth usage --days 30")]
    Usage(money::UsageCommand),
    /// Every line of your account, the newest first
    #[command(after_help = "Example:\n  berth ledger --last 50")]
    Ledger(money::LedgerCommand),
    /// Why an allocation, a group or a charge is as it is
    #[command(after_help = "Examples:\n  berth explain training\n  berth explain charge")]
    Explain(explain::Explain),
    /// App instances: applications bound to an allocation or a group
    #[command(
        subcommand,
        after_help = "Example:\n  berth app create my-cluster --app ray --group training"
    )]
    App(app::AppCommand),
    /// What you were told: machines, balance, payments
    #[command(subcommand, after_help = "Example:\n  berth notifications list --unread")]
    Notifications(notifications::NotificationsCommand),
    /// Webhooks: URLs that are told what you are told, signed
    #[command(
        subcommand,
        after_help = "Example:\n  berth webhooks add https://hooks.example.org/berth"
    )]
    Webhooks(webhooks::WebhooksCommand),
    /// Pays in: makes a checkout, and says where to pay
    #[command(
        after_help = "Examples:\n  berth topup 25.00\n  berth topup 25.00 --wait --timeout 15m"
    )]
    Topup(payments::Topup),
    /// What you have paid in, and what became of it
    #[command(subcommand, after_help = "Example:\n  berth payments list")]
    Payments(payments::PaymentsCommand),
    /// What operators do: the fleet, stuck allocations, dead letters
    #[command(subcommand, after_help = "Example:\n  berth --context operator admin nodes list")]
    Admin(admin::AdminCommand),
    /// Checks what must hold in the database, and shows who did what
    #[command(
        after_help = "Examples:\n  berth --context operator audit\n  berth audit --database postgres://…\n  berth --context operator audit log --verify"
    )]
    Audit(audit::Audit),
    /// Makes the simulated nodes of `berth up` misbehave
    #[command(
        subcommand,
        after_help = "Example:\n  berth sim fault --fault fail --phase ssh_reachable --times 1"
    )]
    Sim(sim::SimCommand),
    /// Runs one process of a scaled-out installation, with some or all of its roles
    #[command(
        after_help = "Examples:\n  berth serve --config berth.toml --roles api,gateway\n  berth serve --roles relay,worker"
    )]
    Serve(serve::Serve),
    /// The configuration of such a process
    #[command(subcommand, after_help = "Example:\n  berth config check --config berth.toml")]
    Config(config::ConfigCommand),
    /// Runs the agent of one node
    #[command(after_help = "Example:\n  berth agent --directory /var/lib/berth-agent --join TOKEN")]
    Agent(machine::Agent),
    /// Brings a database to the schema of this binary
    #[command(after_help = "Example:\n  berth migrate --database postgres://berth@db/berth")]
    Migrate(machine::Migrate),
    /// Prints the completions for a shell
    #[command(
        after_help = "Examples:\n  berth completions bash > /etc/bash_completion.d/berth\n  source <(berth completions zsh)"
    )]
    Completions(machine::Completions),
}

/// Whether a program reads it.
#[derive(Args, Clone, Copy)]
pub(crate) struct Json {
    /// Prints JSON for programs instead of a table for people
    #[arg(long)]
    pub(crate) json: bool,
}

/// What every command of the client stands on.
pub(crate) struct Session {
    /// The context that was asked for.
    pub(crate) context: Option<String>,
}

impl Session {
    /// Where the API is, and who asks.
    pub(crate) fn reach(&self) -> Done<Reach> {
        let contexts = Contexts::read(&context::path()?)?;
        Reach::resolve(&contexts, self.context.as_deref(), Overrides::of_environment())
    }

    /// What somebody is told who may not, but has a context with which they might.
    fn as_operator(&self, failure: Failure) -> Failure {
        let contexts = context::path().and_then(|path| Contexts::read(&path));
        let other = contexts.is_ok_and(|contexts| contexts.contexts.contains_key(OPERATOR));
        let this = self.context.as_deref() == Some(OPERATOR);
        if failure.code != Some(ProblemCode::Forbidden) || !other || this {
            return failure;
        }
        let asked: Vec<String> = std::env::args().skip(1).collect();
        failure.next_instead(&format!("--context {OPERATOR} {}", asked.join(" ")))
    }

    /// A client for somebody who is known.
    pub(crate) fn client(&self) -> Done<Client> {
        Client::known(self.reach()?)
    }
}

/// The tree, with a variable for every flag.
pub(crate) fn command() -> clap::Command {
    with_variables(Cli::command(), "BERTH")
}

fn with_variables(command: clap::Command, name: &str) -> clap::Command {
    let command = command.mut_args(|arg| with_variable(arg, name));
    command.mut_subcommands(|below| {
        let name = format!("{name}_{}", screaming(below.get_name()));
        with_variables(below, &name)
    })
}

fn with_variable(arg: Arg, name: &str) -> Arg {
    let Some(flag) = arg.get_long().map(screaming) else { return arg };
    let arg = arg.hide_env_values(true);
    // Any word but 0, false, no and off is a yes.
    let arg = if matches!(arg.get_action(), ArgAction::SetTrue) {
        arg.value_parser(FalseyValueParser::new())
    } else {
        arg
    };
    if arg.get_env().is_some() {
        return arg;
    }
    // The tree is built once, so what is leaked here is used to the end.
    let variable: &'static str = format!("{name}_{flag}").leak();
    arg.env(variable)
}

fn screaming(name: &str) -> String {
    name.replace('-', "_").to_uppercase()
}

/// Does what the command line asks for.
pub(crate) fn run() -> Done {
    let matches = command().get_matches();
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    let session = Session { context: cli.context };
    match cli.command {
        Command::Up(up) => up.run(),
        Command::Down(placed) => up::down::run(&placed),
        Command::Serve(serve) => serve.run(),
        Command::Config(command) => wait_for(command.run()),
        Command::Agent(agent) => agent.run(),
        Command::Completions(completions) => completions.run(),
        Command::Context(command) => command.run(&session),
        Command::Sim(command) => command.run(),
        Command::Status(placed) => wait_for(up::status::run(&placed)),
        Command::Migrate(migrate) => wait_for(migrate.run()),
        Command::Login(login) => wait_for(login.run(&session)),
        Command::Whoami(json) => wait_for(login::whoami(&session, json)),
        Command::Project(command) => wait_for(command.run(&session.client()?)),
        Command::SshKey(command) => wait_for(command.run(&session.client()?)),
        Command::Token(command) => wait_for(command.run(&session.client()?)),
        Command::Sku(command) => wait_for(command.run(&session.client()?)),
        Command::Alloc(command) => wait_for(command.run(&session.client()?)),
        Command::Group(command) => wait_for(command.run(&session.client()?)),
        Command::Balance(command) => wait_for(command.run(&session.client()?)),
        Command::Usage(command) => wait_for(command.run(&session.client()?)),
        Command::Ledger(command) => wait_for(command.run(&session.client()?)),
        Command::Explain(explain) => wait_for(explain.run(&session.client()?)),
        Command::App(command) => wait_for(command.run(&session.client()?)),
        Command::Notifications(command) => wait_for(command.run(&session.client()?)),
        Command::Webhooks(command) => wait_for(command.run(&session.client()?)),
        Command::Topup(topup) => wait_for(topup.run(&session.client()?)),
        Command::Payments(command) => wait_for(command.run(&session.client()?)),
        Command::Admin(command) => wait_for(command.run(&session.client()?))
            .map_err(|failure| session.as_operator(failure)),
        Command::Audit(audit) => {
            wait_for(audit.run(&session)).map_err(|failure| session.as_operator(failure))
        }
    }
}

/// What only asks and waits needs one thread.
fn wait_for(work: impl Future<Output = Done>) -> Done {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let done = runtime.block_on(work);
    // A question that nobody answered is left behind.
    runtime.shutdown_background();
    done
}

/// Says what to do next, under a list that is empty.
pub(crate) fn teach(sentence: &str, command: &str) {
    say::note(format!("{sentence}\n  {} {command}", say::program()));
}

#[cfg(test)]
mod tests {
    use super::command;

    fn walk(command: &clap::Command, path: &str, look: &mut impl FnMut(&str, &clap::Command)) {
        look(path, command);
        for below in command.get_subcommands().filter(|below| below.get_name() != "help") {
            walk(below, &format!("{path} {}", below.get_name()), look);
        }
    }

    #[test]
    fn the_tree_is_well_formed() {
        command().debug_assert();
    }

    #[test]
    fn every_command_says_what_it_does_and_shows_an_example_that_parses() {
        walk(&command(), "berth", &mut |path, each| {
            assert!(each.get_about().is_some(), "{path} does not say what it does");
            let help = each.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.contains("Example"), "{path} has no example");
            let examples = help.lines().map(str::trim).filter(|line| line.starts_with("berth "));
            let mut some = false;
            for example in examples {
                some = true;
                let words = example.split("  ").next().unwrap_or_default();
                let words = words.split(['<', '>', '|']).next().unwrap_or_default();
                let parsed = command().try_get_matches_from(words.split_whitespace());
                assert!(parsed.is_ok(), "{example}: {}", parsed.expect_err("it failed"));
                assert!(
                    path == "berth" || follows(words, path),
                    "{example} is no example of {path}"
                );
            }
            assert!(some || help.contains("berth"), "{path} has no example");
        });
    }

    #[test]
    fn every_command_that_the_stuck_list_advises_is_one() {
        let mut named = std::collections::BTreeSet::new();
        for advised in control::stuck::advice::commands() {
            let id = "0198c0de-0000-7000-8000-0000000000aa";
            let text = advised.replace("{id}", id).replace("{allocation}", id);
            let text = text.replace("{name}", "rack1").replace("{node}", "rack1");
            assert!(!text.contains('{'), "{advised} has a name that nobody fills in");
            named.extend(text.split_whitespace().nth(2).map(str::to_owned));
            // What is quoted is one word.
            let words = text.split('"').enumerate().flat_map(|(number, part)| {
                let words: Vec<&str> = match number % 2 {
                    0 => part.split_whitespace().collect(),
                    _ => vec![part],
                };
                words
            });
            let parsed = command().try_get_matches_from(words);
            assert!(parsed.is_ok(), "{advised}: {}", parsed.expect_err("it failed"));
        }
        for way_out in ["force-release", "abandon", "clean", "quarantine", "clear"] {
            assert!(named.contains(way_out), "nobody is ever told of `berth admin {way_out}`");
        }
    }

    /// Whether the words of the path come in this order, with flags in between at most.
    fn follows(words: &str, path: &str) -> bool {
        let mut given = words.split_whitespace();
        path.split_whitespace().all(|word| given.any(|each| each == word))
    }

    #[test]
    fn every_flag_has_a_variable_and_no_two_flags_share_one_by_accident() {
        let mut seen = std::collections::BTreeMap::<String, String>::new();
        walk(&command(), "berth", &mut |path, each| {
            for arg in each.get_arguments() {
                let Some(flag) = arg.get_long() else { continue };
                let variable = arg.get_env().map(|name| name.to_string_lossy().into_owned());
                let Some(variable) = variable else { panic!("{path} --{flag} has no variable") };
                // What is the same everywhere may have the same name everywhere.
                if let Some(other) = seen.insert(variable.clone(), flag.to_owned()) {
                    assert_eq!(other, flag, "{variable} is two things");
                }
            }
        });
        assert!(seen.contains_key("BERTH_CONTEXT") && seen.contains_key("BERTH_ALLOC_CREATE_SKU"));
    }
}
