//! The chain of the audit log: every link holds a hash of its entry and of the link before it, so that nothing can be changed,
//! left out or put in between unnoticed. Entries are linked a moment after they are written: see
//! `docs/decisions/0015-audit-chain.md`.

use aws_lc_rs::digest::{Context, SHA256};
use jiff::{SignedDuration, Timestamp};
use lifecycle::Code as _;
use serde_json::json;
use store::Store;
use store::audit_log::chain::{self, Link, Sealed};
use wire::http::audit::{AuditBreak, AuditHead, AuditVerdict};

use super::Action;
use crate::{Ctx, Error};

/// What an entry's bytes begin with. Another encoding gets another number.
const VERSION: &[u8] = b"berth audit entry 1";
/// What the first link follows.
const GENESIS: [u8; 32] = [0; 32];
/// How many entries are linked in one transaction.
const LINK_BATCH: i64 = 500;
/// How many links are read at a time when the chain is walked.
const WALK_BATCH: i64 = 2_000;
/// How many entries are cut off in one transaction.
const CUT_BATCH: i64 = 1_000;
/// How long an entry may wait for its link.
const LINKED_WITHIN: SignedDuration = SignedDuration::from_secs(60);
/// How many breaks are named.
const NAMED_MAX: usize = 20;

/// Links what waits for a link, oldest first. One process does at a time; for the others there is nothing to do.
///
/// # Errors
/// When the store fails.
pub async fn link(ctx: &Ctx) -> Result<u64, Error> {
    let mut linked = 0;
    loop {
        let batch = link_batch(&ctx.store).await?;
        linked += batch;
        if batch < u64::try_from(LINK_BATCH).unwrap_or_default() {
            return Ok(linked);
        }
    }
}

async fn link_batch(store: &Store) -> Result<u64, Error> {
    let mut tx = store.begin().await?;
    if !chain::lock(&mut tx).await? {
        tx.rollback().await?;
        return Ok(0);
    }
    let waiting = chain::unlinked(&mut tx, LINK_BATCH).await?;
    if waiting.is_empty() {
        tx.rollback().await?;
        return Ok(0);
    }
    let last = chain::last(&mut tx).await?;
    let mut before = last.as_ref().map_or(GENESIS.to_vec(), |link| link.hash.clone());
    let first = last.map_or(1, |link| link.position + 1);
    let mut links = Vec::with_capacity(waiting.len());
    for (position, entry) in (first..).zip(&waiting) {
        let hash = hash(&before, position, entry).to_vec();
        before.clone_from(&hash);
        links.push(Link { position, entry_id: entry.id, hash });
    }
    chain::append(&mut tx, &links).await?;
    tx.commit().await?;
    Ok(links.len() as u64)
}

/// Cuts off entries from before `older_than`, from the beginning of the chain on; says how many. The last link always stays, so that
/// the next one follows it. What is not as it was when it was linked stays with everything behind it, until somebody has looked; and an
/// entry tells of every cut.
///
/// # Errors
/// When the store fails; what was cut off by then stays so.
pub async fn cut(store: &Store, older_than: Timestamp) -> Result<u64, Error> {
    let mut gone = 0;
    loop {
        let batch = cut_batch(store, older_than).await?;
        gone += batch;
        if batch + 1 < u64::try_from(CUT_BATCH).unwrap_or_default() {
            return Ok(gone);
        }
    }
}

async fn cut_batch(store: &Store, older_than: Timestamp) -> Result<u64, Error> {
    let (beginning, mut before) =
        chain::beginning(store).await?.unwrap_or_else(|| (0, GENESIS.to_vec()));
    let mut walked = chain::walk(store, beginning, CUT_BATCH).await?;
    walked.pop();
    let mut last = None;
    for (position, (link, entry)) in (beginning + 1..).zip(walked) {
        let old = |entry: &Sealed| {
            entry.at_micros < older_than.as_microsecond()
                && link.position == position
                && hash(&before, position, entry) == *link.hash
        };
        if !entry.as_ref().is_some_and(old) {
            break;
        }
        before.clone_from(&link.hash);
        last = Some(link);
    }
    let Some(last) = last else {
        return Ok(0);
    };
    let mut tx = store.begin().await?;
    let mut gone = 0;
    if chain::lock(&mut tx).await? {
        gone = chain::cut(&mut tx, beginning, &last, older_than).await?;
    }
    if gone == 0 {
        tx.rollback().await?;
        return Ok(0);
    }
    let detail = json!({ "entries": gone, "hash": hex(&last.hash), "older_than": older_than });
    super::of_cut(&mut tx, last.position, detail).await?;
    tx.commit().await?;
    Ok(gone)
}

/// The hash of a link: the version, the hash before, the position, and every field of the entry, each with whether it is
/// there and how long it is, so that no two entries have the same bytes.
fn hash(before: &[u8], position: i64, entry: &Sealed) -> [u8; 32] {
    let mut context = Context::new(&SHA256);
    let mut field = |bytes: Option<&[u8]>| {
        context.update(&[u8::from(bytes.is_some())]);
        let bytes = bytes.unwrap_or_default();
        context.update(&(bytes.len() as u64).to_be_bytes());
        context.update(bytes);
    };
    field(Some(VERSION));
    field(Some(before));
    field(Some(&position.to_be_bytes()));
    field(Some(entry.id.as_bytes()));
    field(Some(&entry.at_micros.to_be_bytes()));
    field(entry.user_id.as_ref().map(|id| id.as_bytes().as_slice()));
    field(entry.token_id.as_ref().map(|id| id.as_bytes().as_slice()));
    field(Some(entry.role.as_bytes()));
    field(Some(entry.action.as_bytes()));
    field(Some(entry.target_kind.as_bytes()));
    field(Some(entry.target.as_bytes()));
    field(entry.project_id.as_ref().map(|id| id.as_bytes().as_slice()));
    field(Some(entry.outcome.as_bytes()));
    field(entry.reason.as_ref().map(|text| text.as_bytes()));
    field(Some(entry.detail.as_bytes()));
    field(entry.request_id.as_ref().map(|id| id.as_bytes().as_slice()));
    field(entry.source.as_ref().map(|text| text.as_bytes()));
    let mut hash = [0; 32];
    hash.copy_from_slice(context.finish().as_ref());
    hash
}

/// Walks the whole chain. With a head that was kept elsewhere it also shows that nothing was cut off behind it.
///
/// # Errors
/// When the store fails.
pub async fn verify(store: &Store, kept: Option<&AuditHead>) -> Result<AuditVerdict, Error> {
    let beginning = chain::beginning(store).await?;
    let mut walk = Walk::new(kept, beginning);
    if let Some(cut) = walk.cut_at
        && !chain::is_cut_told(store, Action::AuditCut.code(), (cut, &hex(&walk.cut_hash))).await?
    {
        walk.tell(Some(cut), format!("the chain was cut behind {cut}, and no entry tells of it"));
    }
    loop {
        let batch = chain::walk(store, walk.position, WALK_BATCH).await?;
        let last = i64::try_from(batch.len()).unwrap_or_default() < WALK_BATCH;
        for (link, entry) in batch {
            walk.step(link, entry.as_ref());
        }
        if last {
            break;
        }
    }
    walk.end();
    let seconds = LINKED_WITHIN.as_secs_f64();
    for loose in chain::loose(store, seconds, NAMED_MAX as i64 + 1).await? {
        let what = if loose.waits {
            format!("the entry {} waits for its link for more than a minute", loose.id)
        } else {
            format!("the entry {} has no link: it was put in, or its link was cut off", loose.id)
        };
        walk.tell(None, what);
    }
    let unlinked = chain::waiting(store).await?;
    Ok(walk.verdict(unlinked))
}

/// How far a walk along the chain has come.
struct Walk<'a> {
    position: i64,
    hash: Vec<u8>,
    links: i64,
    /// The last link that was cut off, and its hash.
    cut_at: Option<i64>,
    cut_hash: Vec<u8>,
    kept: Option<&'a AuditHead>,
    kept_seen: bool,
    breaks: Vec<AuditBreak>,
    count: i64,
}

impl<'a> Walk<'a> {
    fn new(kept: Option<&'a AuditHead>, beginning: Option<(i64, Vec<u8>)>) -> Walk<'a> {
        let cut_at = beginning.as_ref().map(|(position, _)| *position);
        let (position, hash) = beginning.unwrap_or_else(|| (0, GENESIS.to_vec()));
        // A head that was kept of what was cut off last is as good as one of what is there.
        let kept_seen =
            kept.is_some_and(|kept| Some(kept.position) == cut_at && kept.hash == hex(&hash));
        let (cut_hash, breaks) = (hash.clone(), Vec::new());
        Walk { position, hash, links: 0, cut_at, cut_hash, kept, kept_seen, breaks, count: 0 }
    }

    fn step(&mut self, link: Link, entry: Option<&Sealed>) {
        let Link { position, entry_id, hash: stored } = link;
        let follows = self.position + 1 == position;
        if !follows {
            let missing = match position - self.position - 1 {
                1 => format!("the link {} is missing", self.position + 1),
                _ => format!("the links {} to {} are missing", self.position + 1, position - 1),
            };
            self.tell(Some(self.position + 1), missing);
        }
        match entry {
            None => self.tell(Some(position), format!("the entry {entry_id} is gone")),
            // Behind a gap the hash before is not known, so the link can't be judged.
            Some(entry) if follows && hash(&self.hash, position, entry) != *stored => self.tell(
                Some(position),
                format!("the entry {entry_id} or its link is not as it was when it was linked"),
            ),
            Some(_) => {}
        }
        if let Some(kept) = self.kept.filter(|kept| kept.position == position) {
            self.kept_seen = true;
            if kept.hash != hex(&stored) {
                self.tell(Some(position), "the hash is not the one that was kept".to_owned());
            }
        }
        (self.position, self.hash) = (position, stored);
        self.links += 1;
    }

    fn end(&mut self) {
        if let Some(kept) = self.kept.filter(|_| !self.kept_seen) {
            let at = kept.position;
            let what = match self.cut_at {
                Some(cut) if at == cut => "the hash is not the one that was kept".to_owned(),
                Some(cut) if at < cut => format!(
                    "a head was kept at {at}, and entries up to {cut} were cut off when they had got old: keep a newer one"
                ),
                _ => format!(
                    "the chain ends at {}, and a head was kept at {at}: its end was cut off",
                    self.position
                ),
            };
            self.tell(Some(at), what);
        }
    }

    fn tell(&mut self, position: Option<i64>, what: String) {
        self.count += 1;
        if self.breaks.len() < NAMED_MAX {
            self.breaks.push(AuditBreak { position, what });
        }
    }

    fn verdict(self, unlinked: i64) -> AuditVerdict {
        let head = (self.position > 0)
            .then(|| AuditHead { position: self.position, hash: hex(&self.hash) });
        let beginning =
            self.cut_at.map(|position| AuditHead { position, hash: hex(&self.cut_hash) });
        AuditVerdict {
            sound: self.count == 0,
            links: self.links,
            unlinked,
            beginning,
            head,
            breaks: self.breaks,
            break_count: self.count,
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use store::audit_log::chain::Sealed;
    use uuid::Uuid;

    use super::{GENESIS, hash, hex};

    fn entry() -> Sealed {
        Sealed {
            id: Uuid::from_u128(1),
            at_micros: 1_763_236_800_000_000,
            user_id: Some(Uuid::from_u128(2)),
            token_id: None,
            role: "user".to_owned(),
            action: "allocation.create".to_owned(),
            target_kind: "allocation".to_owned(),
            target: "x".to_owned(),
            project_id: None,
            outcome: "done".to_owned(),
            reason: None,
            detail: "{}".to_owned(),
            request_id: None,
            source: Some("192.0.2.1".to_owned()),
        }
    }

    /// Whoever changes the encoding changes the version, and knows that older chains have to be read as well.
    #[test]
    fn the_encoding_is_what_it_was() {
        let known = "800061a7df680829b8bb3e3b25eba3f24b8cbd66ccd516db35546101b8e564e0";
        assert_eq!(hex(&hash(&GENESIS, 1, &entry())), known);
    }

    #[test]
    fn every_field_its_absence_and_the_place_make_another_hash() {
        let mut others: Vec<Sealed> = vec![entry(); 13];
        others[0].id = Uuid::from_u128(9);
        others[1].at_micros += 1;
        others[2].user_id = None;
        others[3].token_id = Some(Uuid::nil());
        others[4].role = "operator".to_owned();
        others[5].action.push('d');
        others[6].target_kind = "node".to_owned();
        // The same letters, divided otherwise.
        (others[7].target_kind, others[7].target) = ("allocatio".to_owned(), "nx".to_owned());
        others[8].project_id = Some(Uuid::nil());
        others[9].outcome = "denied".to_owned();
        others[10].reason = Some(String::new());
        others[11].detail = "{\"a\": 1}".to_owned();
        (others[12].request_id, others[12].source) = (Some(Uuid::nil()), None);
        let mut hashes: Vec<[u8; 32]> =
            others.iter().map(|other| hash(&GENESIS, 1, other)).collect();
        hashes.push(hash(&GENESIS, 1, &entry()));
        hashes.push(hash(&GENESIS, 2, &entry()));
        hashes.push(hash(&[1; 32], 1, &entry()));
        let count = hashes.len();
        hashes.sort_unstable();
        hashes.dedup();
        assert_eq!(hashes.len(), count);
    }
}
