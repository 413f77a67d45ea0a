//! What is meant by a word: a whole id, a name, or the beginning of an id, as long as it can be only one thing.

use uuid::Uuid;
use wire::http::allocations::Allocation;

use crate::client::Client;
use crate::exit::{Done, Exit, Failure};

/// Something that can be meant.
pub(crate) trait Named {
    /// Its identity.
    fn id(&self) -> Uuid;
    /// What it is called.
    fn name(&self) -> &str;
    /// Whether it is more likely to be meant than another of its name.
    fn is_current(&self) -> bool {
        true
    }
}

/// Names a type whose fields are called `id` and `name`.
macro_rules! named {
    ($($type:ty),+) => {
        $(impl Named for $type {
            fn id(&self) -> Uuid {
                self.id
            }
            fn name(&self) -> &str {
                &self.name
            }
        })+
    };
}

named!(
    wire::http::account::Project,
    wire::http::account::SshKey,
    wire::http::account::Token,
    wire::http::admin::Node
);

impl Named for Allocation {
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

/// The one of `all` that is meant by `word`.
pub(crate) fn pick<'a, T: Named>(word: &str, noun: &str, all: &'a [T], list: &str) -> Done<&'a T> {
    if let Some(found) = all.iter().find(|each| each.id().to_string() == word.to_lowercase()) {
        return Ok(found);
    }
    let mut found: Vec<&T> = all.iter().filter(|each| each.name() == word).collect();
    if found.len() > 1 {
        match found.iter().any(|each| each.is_current()) {
            true => found.retain(|each| each.is_current()),
            // Of what is over, the newest is meant, and it comes first.
            false => found.truncate(1),
        }
    }
    if found.is_empty() && is_beginning(word) {
        let begins = |each: &&T| each.id().to_string().starts_with(&word.to_lowercase());
        found = all.iter().filter(begins).collect();
    }
    match found.as_slice() {
        [one] => Ok(one),
        [] => {
            let sentence = format!("there is no {noun} called `{word}`, and no id begins with it");
            Err(Failure::new(Exit::NotFound, sentence).next(list))
        }
        several => {
            let sentence = format!("`{word}` may be any of {} {noun}s", several.len());
            let failure =
                Failure::new(Exit::Usage, sentence).with("advice", "write more of the id");
            Err(several
                .iter()
                .take(8)
                .fold(failure, |failure, each| failure.with(each.name(), each.id().to_string())))
        }
    }
}

fn is_beginning(word: &str) -> bool {
    word.len() >= 4 && word.chars().all(|c| c.is_ascii_hexdigit() || c == '-')
}

/// The allocation that is meant: by its id without a look at the others.
pub(crate) async fn allocation(client: &Client, word: &str) -> Done<Allocation> {
    match Uuid::try_parse(word) {
        Ok(id) => client.allocation(id).await,
        Err(_) => {
            let all = client.allocations(&[]).await?;
            pick(word, "allocation", &all, "alloc list").cloned()
        }
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::{Named, pick};
    use crate::exit::Exit;

    struct Thing(u128, &'static str, bool);

    impl Named for Thing {
        fn id(&self) -> Uuid {
            Uuid::from_u128(self.0 << 96)
        }
        fn name(&self) -> &str {
            self.1
        }
        fn is_current(&self) -> bool {
            self.2
        }
    }

    #[test]
    fn a_word_is_a_name_or_a_beginning_that_only_one_has() {
        let all = [
            Thing(0x0198_aaaa, "one", true),
            Thing(0x0198_aabb, "two", true),
            Thing(0x0198_cccc, "old", false),
            Thing(0x0198_dddd, "old", true),
            Thing(0x0198_d001, "over", false),
            Thing(0x0198_d002, "over", false),
            Thing(0x0198_eeee, "0198aaaa", true),
        ];
        let found = |word: &str| pick(word, "thing", &all, "list").map(|thing| thing.0);
        let exit = |word: &str| found(word).err().map(|failure| failure.exit);
        assert_eq!(found("two").ok(), Some(0x0198_aabb));
        assert_eq!(found("0198AABB").ok(), Some(0x0198_aabb));
        assert_eq!(found("0198aabb-0000-0000-0000-000000000000").ok(), Some(0x0198_aabb));
        assert_eq!(found("old").ok(), Some(0x0198_dddd), "the one that is still there");
        assert_eq!(found("over").ok(), Some(0x0198_d001), "the first of those that are over");
        assert_eq!(found("0198aaaa").ok(), Some(0x0198_eeee), "a name wins over a beginning");
        assert_eq!(exit("0198aa"), Some(Exit::Usage), "two begin so");
        assert_eq!(exit("nobody"), Some(Exit::NotFound));
        assert_eq!(exit("019"), Some(Exit::NotFound), "too short to mean anything");
        assert_eq!(exit(""), Some(Exit::NotFound));
    }
}
