//! What must hold of the audit log. Whether the hashes are right is for `berth audit log --verify` to say.

use super::Invariant;

/// Steps from before the first entry were taken under a binary that wrote none, or their entries are older than they are kept.
pub(super) const I23: Invariant = Invariant {
    name: "I23",
    holds: "every step that a person has taken has its entry, every entry a link or a place among those that wait for one, and the chain no gap",
    sql: "SELECT said.machine || ' ' || said.entity_id || ' step ' || said.seq || ' by ' || said.actor || ' has no entry'
            FROM lifecycle_log AS said
           WHERE said.source IN ('user', 'operator')
             AND said.cause LIKE 'request %'
             AND said.occurred_at >= (SELECT min(at) FROM audit_entries)
             AND said.occurred_at >= (SELECT coalesce(max(kept_since), '-infinity') FROM audit_beginning)
             AND NOT EXISTS (
                 SELECT 1
                   FROM audit_entries AS entry
                  WHERE entry.request_id::text = substr(said.cause, 9))
          UNION ALL
          SELECT 'entry ' || entry.id || ' has no link, and waits for none'
            FROM audit_entries AS entry
           WHERE NOT EXISTS (SELECT 1 FROM audit_links AS link WHERE link.entry_id = entry.id)
             AND NOT EXISTS (SELECT 1 FROM audit_unlinked AS waiting WHERE waiting.entry_id = entry.id)
          UNION ALL
          SELECT 'link ' || link.position || ' has no entry'
            FROM audit_links AS link
           WHERE NOT EXISTS (SELECT 1 FROM audit_entries AS entry WHERE entry.id = link.entry_id)
          UNION ALL
          SELECT 'link ' || link.position || ' follows none'
            FROM audit_links AS link
           WHERE link.position > 1 + (SELECT coalesce(max(position), 0) FROM audit_beginning)
             AND NOT EXISTS (SELECT 1 FROM audit_links AS before WHERE before.position = link.position - 1)",
};
