//! What is written of the flow of facts for others: who publishes what and who hears it, and the same as an AsyncAPI
//! document. Made from the machines and the table of subscriptions, so nothing has to be kept in step by hand.

use std::fmt::Write as _;

use lifecycle::Code as _;
use serde_json::{Map, Value, json};
use wire::bus::{Subject, VERSION};

use crate::doors::subscriptions::{Entry, TABLE};

/// Who publishes what, and who hears it.
pub fn flow() -> String {
    let mut page = String::from(
        "<!-- Generated from crates/domain/src/machines and crates/control/src/doors by `cargo xtask gen`. Do not edit. -->\n\n\
         # The flow of facts\n\n\
         A rule of a machine publishes a subject in the transaction that makes it true; consumers react to it. A subject\n\
         without a consumer is published for those who will listen.\n\n\
         | subject | published by | heard by |\n|---|---|---|\n",
    );
    for subject in Subject::ALL {
        let heard: Vec<&str> = hearing(*subject).map(|entry| entry.consumer).collect();
        let heard = if heard.is_empty() { "–".to_owned() } else { heard.join(", ") };
        let _ = writeln!(page, "| `{subject}` | {} | {heard} |", published_by(*subject).join(", "));
    }
    page.push_str("\n## Consumers\n\n");
    for entry in TABLE {
        let _ = writeln!(page, "- **{}** {}.", entry.consumer, entry.does);
    }
    page
}

fn hearing(subject: Subject) -> impl Iterator<Item = &'static Entry> {
    TABLE.iter().filter(move |entry| entry.subjects.contains(&subject))
}

/// The events that publish a subject, as `machine: event`; the creation of a row too.
pub fn published_by(subject: Subject) -> Vec<String> {
    let topic = subject.code();
    let mut publishers = Vec::new();
    for table in domain::machines::tables() {
        if table.born.contains(&topic) {
            publishers.push(format!("{}: created", table.name));
        }
        let events = table.events.iter().filter(|event| event.publishes.contains(&topic));
        publishers.extend(events.map(|event| format!("{}: {}", table.name, event.code)));
    }
    publishers
}

/// The AsyncAPI document.
pub fn asyncapi() -> String {
    let mut channels = Map::new();
    let mut operations = Map::new();
    for subject in Subject::ALL {
        let name = subject.code();
        channels.insert(
            name.to_owned(),
            json!({
                "address": name,
                "description": format!("Published by {}.", published_by(*subject).join(", ")),
                "messages": { "fact": { "$ref": "#/components/messages/fact" } },
            }),
        );
        for entry in hearing(*subject) {
            operations.insert(
                format!("{}.{name}", entry.consumer),
                json!({
                    "action": "receive",
                    "channel": { "$ref": format!("#/channels/{name}") },
                    "summary": format!("The {} {}.", entry.consumer, entry.does),
                }),
            );
        }
    }
    let document = json!({
        "asyncapi": "3.0.0",
        "info": {
            "title": "Berth, the flow of facts",
            "version": VERSION.to_string(),
            "description": "A message is a pointer with a little luggage: load the row, and trust the message only for what can't change.",
        },
        "channels": channels,
        "operations": operations,
        "components": { "messages": { "fact": {
            "name": "fact",
            "title": "A row of a machine took a step",
            "contentType": "application/json",
            "payload": fact_schema(),
        } } },
    });
    let mut text = serde_json::to_string_pretty(&document).unwrap_or_default();
    text.push('\n');
    text
}

/// The shape of [`wire::bus::Fact`].
pub fn fact_schema() -> Value {
    let uuid = json!({ "type": "string", "format": "uuid" });
    json!({
        "type": "object",
        "required": ["version", "machine", "id", "seq", "event", "event_id", "from", "to", "operation_id", "occurred_at"],
        "properties": {
            "version": { "type": "integer", "const": VERSION },
            "machine": { "type": "string" },
            "id": uuid,
            "seq": { "type": "integer" },
            "event": { "type": "string" },
            "event_id": uuid,
            "from": { "type": ["string", "null"] },
            "to": { "type": "string" },
            "operation_id": { "type": ["string", "null"], "format": "uuid" },
            "occurred_at": { "type": "string", "format": "date-time" },
        },
    })
}
