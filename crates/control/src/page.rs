//! Pages of lists. A cursor says where the next page begins and which list it belongs to; it is signed, so what a client
//! brings back is what it was given, for the list it was given for.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use uuid::Uuid;
use wire::http::{PAGE_DEFAULT, PAGE_MAX, Page};
use wire::seal::{Purpose, sha256_hex};

use crate::{Ctx, Error};

/// What a cursor says.
#[derive(Serialize, Deserialize)]
struct Cursor<P> {
    /// The place of the last row of the page before.
    after: P,
    /// The list, the caller and the filter.
    of: String,
}

/// Which part of which list is asked for. `P` is the place of a row in it.
#[derive(Clone, Debug)]
pub(crate) struct Paging<P = Uuid> {
    limit: u16,
    after: Option<P>,
    of: String,
}

impl<P: Clone + Serialize + DeserializeOwned> Paging<P> {
    /// The part of the list `of` (its name, the caller, the filter) that a request asks for.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a limit out of bounds, and for a cursor that was not given for this very list.
    pub(crate) fn read(
        ctx: &Ctx,
        of: &impl Serialize,
        limit: Option<u16>,
        cursor: Option<&str>,
    ) -> Result<Self, Error> {
        let limit = limit.unwrap_or(PAGE_DEFAULT);
        if !(1..=PAGE_MAX).contains(&limit) {
            return Err(Error::invalid("/limit", format!("must be between 1 and {PAGE_MAX}")));
        }
        let of = serde_json::to_vec(of)
            .map_err(|_| Error::Broken("a filter can't be written".to_owned()))?;
        let mut paging = Paging { limit, after: None, of: sha256_hex(&of) };
        if let Some(cursor) = cursor {
            let refused = || Error::invalid("/cursor", "is no cursor of this list; begin anew");
            paging.after = Some(paging.opened(ctx, cursor).ok_or_else(refused)?);
        }
        Ok(paging)
    }

    /// How many rows to read: one more than are shown, to know whether there are more.
    pub(crate) fn rows(&self) -> i64 {
        i64::from(self.limit) + 1
    }

    /// The place of the last row of the page before.
    pub(crate) fn after(&self) -> Option<P> {
        self.after.clone()
    }

    /// The page that these rows make; `place` says where a row stands.
    pub(crate) fn page<T>(&self, ctx: &Ctx, mut rows: Vec<T>, place: impl Fn(&T) -> P) -> Page<T> {
        let limit = usize::from(self.limit);
        let more = rows.len() > limit;
        rows.truncate(limit);
        let last = rows.last().filter(|_| more).map(place);
        Page { items: rows, next_cursor: last.and_then(|after| self.sealed(ctx, after)) }
    }

    fn sealed(&self, ctx: &Ctx, after: P) -> Option<String> {
        let cursor = serde_json::to_vec(&Cursor { after, of: self.of.clone() }).ok()?;
        let text = URL_SAFE_NO_PAD.encode(cursor);
        let signature = ctx.keys.sign(Purpose::Cursor, text.as_bytes());
        Some(format!("{text}.{signature}"))
    }

    fn opened(&self, ctx: &Ctx, cursor: &str) -> Option<P> {
        let (text, signature) = cursor.split_once('.')?;
        if !ctx.keys.verify(Purpose::Cursor, text.as_bytes(), signature) {
            return None;
        }
        let cursor: Cursor<P> = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(text).ok()?).ok()?;
        (cursor.of == self.of).then_some(cursor.after)
    }
}
