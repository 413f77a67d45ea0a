//! What tests look at, or bring about, behind the doors: rows that no story shows.

use control::node::admin;
use control::node::enrol::{AgentIdentity, enrol};
use domain::ids::{AllocationId, EventId, NodeId, OperationId, StorageAttachmentId};
use domain::machines::StorageAttachment;
use domain::machines::storage_attachment::{Event, Status};
use lifecycle::Source;
use store::lifecycle::{Birth, Report, apply};
use store::storage_attachments;
use uuid::Uuid;
use wire::node::{Enrolment, JoinToken, PROTOCOL};

use crate::house::signing_request;
use crate::{House, actor, new_id};

impl House {
    /// What the audit log says of an action, oldest first: how it ended, and why it was done.
    pub async fn entries(&self, action: &str) -> Vec<(String, Option<String>)> {
        sqlx::query_as(
            "SELECT outcome, reason FROM audit_entries WHERE action = $1 ORDER BY at, id",
        )
        .bind(action)
        .fetch_all(&self.database.sql)
        .await
        .expect("entries")
    }

    /// Makes the chain of the audit log anew, as if every entry had been linked when it was written.
    pub async fn relink(&self) {
        self.database
            .tamper(&[
                "INSERT INTO audit_unlinked (entry_id) SELECT id FROM audit_entries ON CONFLICT DO NOTHING",
                "DELETE FROM audit_links",
            ])
            .await;
        control::audit_log::chain::link(&self.ctx).await.expect("it links");
        let then = "UPDATE audit_links SET at = entry.at FROM audit_entries AS entry WHERE entry.id = audit_links.entry_id";
        self.database.tamper(&[then]).await;
    }

    /// The tasks of an allocation, oldest first: which, how it stands, how often it was handed out.
    pub async fn dispatches(&self, allocation: Uuid) -> Vec<(Uuid, String, i64)> {
        sqlx::query_as(
            "SELECT id, status, dispatch
               FROM node_tasks
              WHERE allocation_id = $1
              ORDER BY created_at, id",
        )
        .bind(allocation)
        .fetch_all(&self.database.sql)
        .await
        .expect("tasks")
    }

    /// Mounts storage in an allocation, as the story of storage will.
    pub async fn mount(&self, allocation: Uuid) {
        let mut tx = self.database.store.begin().await.expect("a transaction");
        let (id, attach) = (StorageAttachmentId(new_id()), OperationId(new_id()));
        let allocation = AllocationId(allocation);
        let new =
            storage_attachments::NewAttachment { id, allocation, namespace_id: new_id(), attach };
        let birth = Birth::new(EventId(new_id()), actor(Source::Worker));
        storage_attachments::insert(&mut tx, &new, birth).await.expect("an attachment");
        let events = [
            Event::PrecheckStarted,
            Event::PrecheckPassed,
            Event::GrantGiven,
            Event::MountStarted,
            Event::MountSucceeded,
        ];
        for event in events {
            let report = Report::new(event, EventId(new_id()), actor(Source::Worker)).about(attach);
            let outcome = apply::<StorageAttachment>(&mut tx, id, &report).await;
            let mounted = outcome.expect("it is heard").landed_on(Status::Mounted);
            assert_eq!(mounted, event == Event::MountSucceeded, "{event}");
        }
        tx.commit().await.expect("it is mounted");
    }

    /// Enrols a node anew, as after its disk was replaced: another agent speaks for it from now on.
    pub async fn enrol_anew(&self, node: NodeId) -> AgentIdentity {
        let (ctx, operator) = (&self.ctx, &self.operator);
        let fresh = admin::reissue(ctx, operator, node.uuid(), None).await.expect("a token").body;
        let token = JoinToken::parse(&fresh.join_token).expect("a token");
        let enrolment = Enrolment {
            protocol: PROTOCOL,
            node_id: token.node_id,
            secret: token.secret,
            csr: signing_request(),
        };
        let certificate = enrol(ctx, &enrolment).await.expect("enrolled");
        let agent_id: Uuid = sqlx::query_scalar(
            "SELECT id FROM node_agents WHERE node_id = $1 AND revoked_at IS NULL",
        )
        .bind(node.uuid())
        .fetch_one(&self.database.sql)
        .await
        .expect("an agent");
        AgentIdentity {
            agent_id,
            node_id: node,
            not_after: certificate.not_after,
            protocol: PROTOCOL,
        }
    }

    /// Makes the runs of a workflow as if they had never been started.
    pub async fn forget_runs(&self, workflow: &str) {
        sqlx::query("DELETE FROM workflow_runs WHERE workflow = $1")
            .bind(workflow)
            .execute(&self.database.sql)
            .await
            .expect("they are forgotten");
    }

    /// What the runs of a workflow remember, as it stands.
    pub async fn state_of_runs(&self, workflow: &str) -> serde_json::Value {
        sqlx::query_scalar("SELECT state FROM workflow_runs WHERE workflow = $1")
            .bind(workflow)
            .fetch_one(&self.database.sql)
            .await
            .expect("there is one")
    }

    /// The runs of a workflow remember what they did then, and nothing of what came after; and are due.
    pub async fn put_runs_back(&self, workflow: &str, state: &serde_json::Value) {
        sqlx::query("UPDATE workflow_runs SET state = $2, wake_at = 'epoch', pending = '[]' WHERE workflow = $1")
            .bind(workflow)
            .bind(state)
            .execute(&self.database.sql)
            .await
            .expect("they have forgotten");
    }

    /// The runs of a workflow end where they stand, with nothing done.
    pub async fn end_runs(&self, workflow: &str) {
        sqlx::query("UPDATE workflow_runs SET done_at = clock_timestamp() WHERE workflow = $1 AND done_at IS NULL")
            .bind(workflow)
            .execute(&self.database.sql)
            .await
            .expect("they are over");
    }

    /// Somebody is shut out.
    pub async fn shut_out(&self, user: Uuid) {
        sqlx::query("UPDATE users SET disabled_at = clock_timestamp() WHERE id = $1")
            .bind(user)
            .execute(&self.database.sql)
            .await
            .expect("they are shut out");
    }

    /// Nobody has a webhook any more, and everything that anybody was told is read.
    pub async fn forget_webhooks(&self) {
        for all in [
            "UPDATE webhooks SET deleted_at = clock_timestamp()",
            "UPDATE notifications SET read_at = clock_timestamp()",
        ] {
            sqlx::query(all).execute(&self.database.sql).await.expect("it is done");
        }
    }

    /// This was not read.
    pub async fn unread(&self, notification: Uuid) {
        sqlx::query("UPDATE notifications SET read_at = NULL WHERE id = $1")
            .bind(notification)
            .execute(&self.database.sql)
            .await
            .expect("it is unread");
    }

    /// Nothing stands in what nodes have said of themselves; when they said it stays.
    pub async fn blank_inventories(&self) {
        sqlx::query("UPDATE nodes SET inventory = '{}'")
            .execute(&self.database.sql)
            .await
            .expect("it is written");
    }

    /// How many nodes say that this is their only image, and of how many it is written down that it is.
    pub async fn say_and_have(&self, image: &str) -> (i64, i64) {
        sqlx::query_as(
            "SELECT count(*) FILTER (WHERE inventory -> 'images' = jsonb_build_array($1::text)),
                    count(*) FILTER (WHERE ARRAY[$1] = ARRAY(SELECT image FROM node_images WHERE node_id = nodes.id))
               FROM nodes",
        )
        .bind(image)
        .fetch_one(&self.database.sql)
        .await
        .expect("it answers")
    }
}
