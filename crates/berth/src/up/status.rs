//! `berth status`: whether it runs here, and whether it answers.

use std::collections::BTreeMap;

use super::place::{Placed, read_json};
use crate::client::Client;
use crate::context::Reach;
use crate::exit::{Done, Exit, Failure};
use crate::moment::now;
use crate::table::Sheet;
use crate::words::age;

/// `berth status`
pub(crate) async fn run(placed: &Placed) -> Done {
    let place = placed.place()?;
    let folder = place.root().display();
    let Some(process) = place.holder() else {
        let sentence = format!("nothing runs in {folder}");
        return Err(Failure::new(Exit::Failed, sentence).next("up --detach"));
    };
    let log = place.log().display().to_string();
    let Some(running) = place.running_now() else {
        let sentence = format!("process {process} is starting or stopping in {folder}");
        return Err(Failure::new(Exit::Failed, sentence).with("log", log).next("status"));
    };
    let reach = Reach { context: None, api: running.api.clone(), token: None, project: None };
    let ready = Client::new(reach)?.ready().await;
    let mut sheet = Sheet::of_one();
    sheet.line("process", process.to_string());
    sheet.line("up", age(now(), running.since));
    sheet.line("api", running.api);
    sheet.line("gateway", running.gateway);
    sheet.line("data", folder.to_string());
    sheet.line("log", log);
    let said = ready
        .as_ref()
        .map_or_else(|failure| failure.sentence.clone(), |health| health.status.clone());
    for (name, process) in
        read_json::<BTreeMap<String, u32>>(&place.processes())?.unwrap_or_default()
    {
        sheet.line(&name, format!("process {process}"));
    }
    sheet.line("ready", said);
    sheet.show()?;
    ready.map(|_| ())
}
