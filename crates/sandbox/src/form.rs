//! Forms, as Stripe takes them and as a browser sends them, read without trusting either.

use std::collections::HashMap;

use reqwest::Url;

/// The fields of a form; none when one of them is there twice, or it can't be read.
pub(crate) fn fields(body: &[u8]) -> Option<HashMap<String, String>> {
    let text = std::str::from_utf8(body).ok()?;
    // A fragment would be cut off, and is no part of a form.
    if text.contains('#') {
        return None;
    }
    let url = Url::parse(&format!("http://form.invalid/?{text}")).ok()?;
    let mut fields = HashMap::new();
    for (name, value) in url.query_pairs() {
        if fields.insert(name.into_owned(), value.into_owned()).is_some() {
            return None;
        }
    }
    Some(fields)
}

/// What is inside of `name[…]`.
pub(crate) fn inside(fields: &HashMap<String, String>, name: &str) -> HashMap<String, String> {
    let within = |(field, value): (&String, &String)| {
        let key = field.strip_prefix(name)?.strip_prefix('[')?.strip_suffix(']')?;
        (!key.contains('[')).then(|| (key.to_owned(), value.clone()))
    };
    fields.iter().filter_map(within).collect()
}

#[cfg(test)]
mod tests {
    use super::{fields, inside};

    #[test]
    fn brackets_and_signs_are_read_as_they_were_meant() {
        let read = fields(b"a=1&metadata%5Bsession%5D=x+y%26z&metadata[b][c]=2").expect("a form");
        assert_eq!(read.get("a").map(String::as_str), Some("1"));
        let metadata = inside(&read, "metadata");
        assert_eq!(metadata.get("session").map(String::as_str), Some("x y&z"));
        assert_eq!(metadata.len(), 1);
    }

    #[test]
    fn what_is_said_twice_or_is_no_text_is_refused() {
        assert_eq!(fields(b"a=1&a=2"), None);
        assert_eq!(fields(b"\xff"), None);
        assert_eq!(fields(b"a=1#b"), None);
    }
}
