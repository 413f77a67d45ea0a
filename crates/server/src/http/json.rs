//! JSON from strangers, read strictly: not too deep, no name twice, no NUL, nothing behind it. A number without a
//! fraction is an integer, however it is spelled (`14.0`, `1.4e1`), as JSON Schema has it.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeOwned, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use serde_path_to_error::{Path, Segment};
use wire::problem::ProblemCode;

use super::problem::Refusal;

/// The largest whole number that every double up to it can tell from its neighbours.
const EXACT_MAX: f64 = 9_007_199_254_740_992.0;

/// Reads a `T`.
///
/// # Errors
/// 400 for what is not JSON as we take it, 422 for what is not a `T`; both point at the place.
pub(super) fn read<T: DeserializeOwned>(bytes: &[u8], depth_max: usize) -> Result<T, Refusal> {
    let (text, whole) = looked_at(bytes, depth_max)?;
    let is_object = text.trim_start().starts_with('{');
    // What is as it should be is read where it stands; only of the others a tree is made, to say what is wrong with them.
    if is_object
        && !whole
        && let Ok(read) = serde_json::from_str(text)
    {
        return Ok(read);
    }
    if !is_object {
        let detail = "the body is not an object";
        return Err(Refusal::new(ProblemCode::Invalid, "The body is not an object.").at("", detail));
    }
    let mut value: Value = serde_json::from_str(text).map_err(|error| not_json(&error))?;
    integers(&mut value);
    serde_path_to_error::deserialize(value).map_err(|error| {
        let (pointer, detail) = (pointer_of(error.path()), error.inner().to_string());
        let (pointer, detail) = without_values(pointer, &detail);
        let place = if pointer.is_empty() { String::new() } else { format!("{pointer}: ") };
        Refusal::new(ProblemCode::Invalid, format!("{place}{detail}")).at(pointer, detail)
    })
}

/// The text, if it is JSON as we take it, and whether some integer in it is spelled with a fraction.
fn looked_at(bytes: &[u8], depth_max: usize) -> Result<(&str, bool), Refusal> {
    let refused = |detail: String| Refusal::new(ProblemCode::BadRequest, detail);
    if bytes.is_empty() {
        return Err(refused("The body is empty, where JSON is needed.".to_owned()));
    }
    let text = std::str::from_utf8(bytes).map_err(|error| {
        refused(format!("The body is not UTF-8 after {} bytes.", error.valid_up_to()))
    })?;
    let mut place = Place { depth_left: depth_max, way: Vec::new(), wrong: None, whole: false };
    let mut json = serde_json::Deserializer::from_str(text);
    let read = Strict(&mut place).deserialize(&mut json).and_then(|()| json.end());
    match (read, place.wrong) {
        (Ok(()), _) => Ok((text, place.whole)),
        (Err(_), Some(Wrong { detail, .. })) => {
            place.way.reverse();
            let pointer = place.way.concat();
            Err(refused(format!("{pointer}: {detail}.")).at(pointer, detail))
        }
        (Err(error), None) => Err(not_json(&error)),
    }
}

fn not_json(error: &serde_json::Error) -> Refusal {
    let (line, column) = (error.line(), error.column());
    let what = match error.classify() {
        serde_json::error::Category::Eof => "It ends too early",
        serde_json::error::Category::Syntax
        | serde_json::error::Category::Data
        | serde_json::error::Category::Io => "It can't be read",
    };
    let detail = format!("The body is not JSON. {what}: line {line}, column {column}.");
    Refusal::new(ProblemCode::BadRequest, detail)
}

/// The integer that this number is, if it is one and small enough to be exact.
fn integer(number: f64) -> Option<i64> {
    (number.fract() == 0.0 && number.abs() <= EXACT_MAX).then_some(number as i64)
}

/// Makes integers of those that are spelled with a fraction.
fn integers(value: &mut Value) {
    match value {
        Value::Number(number) => {
            if let Some(integer) = number.as_f64().filter(|_| number.is_f64()).and_then(integer) {
                *value = Value::from(integer);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(integers),
        Value::Object(entries) => entries.values_mut().for_each(integers),
        Value::Null | Value::Bool(_) | Value::String(_) => {}
    }
}

/// Where the reader is, and what it has found.
struct Place {
    /// How much deeper it may go.
    depth_left: usize,
    /// The way to what is wrong, from there to the beginning: nothing is written down for what is right.
    way: Vec<String>,
    wrong: Option<Wrong>,
    /// Whether there was an integer that is spelled with a fraction.
    whole: bool,
}

struct Wrong {
    detail: &'static str,
    /// Whether it is said where.
    is_pointed_at: bool,
}

impl Place {
    fn wrong<E: serde::de::Error>(&mut self, detail: &'static str) -> E {
        self.wrong = Some(Wrong { detail, is_pointed_at: true });
        E::custom(detail)
    }

    fn text<E: serde::de::Error>(&mut self, text: &str) -> Result<(), E> {
        if text.contains('\0') {
            return Err(self.wrong("a text with the character NUL can't be kept"));
        }
        Ok(())
    }

    /// What `inside` finds one level further down.
    fn deeper<T, E: serde::de::Error>(
        &mut self,
        inside: impl FnOnce(&mut Place) -> Result<T, E>,
    ) -> Result<T, E> {
        let Some(left) = self.depth_left.checked_sub(1) else {
            let detail = "the body is nested too deep";
            // The whole way down says nothing.
            self.wrong = Some(Wrong { detail, is_pointed_at: false });
            return Err(E::custom(detail));
        };
        self.depth_left = left;
        let found = inside(self);
        self.depth_left += 1;
        found
    }

    /// Writes down that what is wrong is under this.
    fn under(&mut self, step: impl FnOnce() -> String) {
        if self.wrong.as_ref().is_some_and(|wrong| wrong.is_pointed_at) {
            self.way.push(step());
        }
    }
}

/// Looks at everything, and keeps nothing.
struct Strict<'p>(&'p mut Place);

impl<'de> DeserializeSeed<'de> for Strict<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

/// A name, where it stands.
#[derive(PartialEq, Eq, PartialOrd, Ord, Deserialize)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'de> Visitor<'de> for Strict<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, number: f64) -> Result<(), E> {
        self.0.whole |= integer(number).is_some();
        Ok(())
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<(), E> {
        self.0.text(text)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        self.0.deeper(|place| {
            let mut index = 0_usize;
            loop {
                match items.next_element_seed(Strict(&mut *place)) {
                    Ok(Some(())) => index += 1,
                    Ok(None) => return Ok(()),
                    Err(error) => {
                        place.under(|| format!("/{index}"));
                        return Err(error);
                    }
                }
            }
        })
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        self.0.deeper(|place| {
            let mut seen = BTreeSet::new();
            while let Some(name) = entries.next_key::<Name<'de>>()? {
                let found = place.text(&name.0).and_then(|()| {
                    if seen.contains(&name) {
                        return Err(place.wrong("the same name stands there twice"));
                    }
                    entries.next_value_seed(Strict(&mut *place))
                });
                if let Err(error) = found {
                    place.under(|| format!("/{}", escaped(&name.0)));
                    return Err(error);
                }
                seen.insert(name);
            }
            Ok(())
        })
    }
}

/// A name in a JSON pointer.
fn escaped(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

fn pointer_of(path: &Path) -> String {
    path.iter().fold(String::new(), |pointer, segment| match segment {
        Segment::Seq { index } => format!("{pointer}/{index}"),
        Segment::Map { key } => format!("{pointer}/{}", escaped(key)),
        Segment::Enum { variant } => format!("{pointer}/{}", escaped(variant)),
        Segment::Unknown => pointer,
    })
}

/// What a type of Rust is called elsewhere.
fn plain(expected: &str) -> String {
    match expected.split_at_checked(1) {
        Some(("i", bits)) if bits.parse::<u8>().is_ok() => {
            format!("a whole number of at most {bits} bits")
        }
        Some(("u", bits)) if bits.parse::<u8>().is_ok() => {
            format!("a whole number of at most {bits} bits, not below zero")
        }
        _ => expected.to_owned(),
    }
}

/// What serde says, without the value that it stumbled over: that may be a password. A field that is not known, or
/// missing, is pointed at itself.
fn without_values(pointer: String, said: &str) -> (String, String) {
    let named = |start: &str| {
        let name = said.strip_prefix(start)?.strip_prefix('`')?.split('`').next()?;
        let place = format!("/{}", escaped(name));
        Some(if pointer.ends_with(&place) { pointer.clone() } else { format!("{pointer}{place}") })
    };
    if let Some(place) = named("unknown field ") {
        return (place, said.to_owned());
    }
    if let Some(place) = named("missing field ") {
        return (place, "is missing".to_owned());
    }
    for (start, word) in [("invalid type: ", "type"), ("invalid value: ", "value")] {
        if let Some(rest) = said.strip_prefix(start) {
            let expected =
                rest.rsplit_once(", expected ").map_or("something else", |(_, what)| what);
            return (pointer, format!("the {word} is wrong: expected {}", plain(expected)));
        }
    }
    (pointer, said.to_owned())
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use uuid::Uuid;
    use wire::http::account::{Login, NewToken};
    use wire::http::admin::NewNode;
    use wire::http::allocations::NewAllocation;
    use wire::problem::{Fault, Problem};

    use super::read;

    const DEPTH: usize = 32;

    fn refused<T: serde::de::DeserializeOwned>(text: &str) -> Problem {
        match read::<T>(text.as_bytes(), DEPTH) {
            Ok(_) => panic!("{text} is taken"),
            Err(refusal) => refusal.problem().clone(),
        }
    }

    fn only(problem: &Problem) -> &Fault {
        assert_eq!(problem.errors.len(), 1, "{problem:?}");
        &problem.errors[0]
    }

    #[test]
    fn what_is_not_a_request_is_pointed_at() {
        let node =
            |slots: &str| format!(r#"{{"name":"n","region":"r","sku":"s","slots":{slots}}}"#);
        let wrong = refused::<NewNode>(&node(r#"[0,"a"]"#));
        assert_eq!((wrong.status, only(&wrong).pointer.as_str()), (422, "/slots/1"), "{wrong:?}");
        let large = refused::<NewNode>(&node("[70000]"));
        assert_eq!(only(&large).pointer, "/slots/0");
        assert!(only(&large).detail.contains("whole number"), "{large:?}");
        let vast = refused::<NewNode>(&node("[1e308]"));
        assert_eq!((vast.status, only(&vast).pointer.as_str()), (422, "/slots/0"), "{vast:?}");
        assert_eq!(refused::<NewNode>(&node("[1e400]")).status, 400);
        let unknown = refused::<NewNode>(r#"{"name":"n","status":"ready"}"#);
        assert_eq!(only(&unknown).pointer, "/status");
        assert!(only(&unknown).detail.contains("unknown field `status`"), "{unknown:?}");
        let missing = refused::<NewNode>(r#"{"name":"n"}"#);
        assert_eq!(
            (only(&missing).pointer.as_str(), only(&missing).detail.as_str()),
            ("/region", "is missing")
        );
        let word = refused::<NewToken>(r#"{"name":"n","scopes":["everything"]}"#);
        assert_eq!(only(&word).pointer, "/scopes/0");
        assert!(only(&word).detail.contains("one of read, write, admin"), "{word:?}");
        assert_eq!(refused::<NewToken>(r#"["n",["read"],60]"#).status, 422);
    }

    #[test]
    fn a_value_is_never_repeated_in_a_problem() {
        for text in [
            r#"{"email":"a","password":271828182}"#,
            r#"{"email":"a","password":["271828182"]}"#,
            r#"{"email":"a","password":{"271828182":1}}"#,
        ] {
            let told = serde_json::to_string(&refused::<Login>(text)).expect("a problem is JSON");
            assert!(!told.contains("271828182"), "{told}");
        }
    }

    #[test]
    fn a_whole_number_is_an_integer_however_it_is_spelled() {
        #[derive(Debug, PartialEq, Deserialize)]
        struct Count {
            gpus: i16,
        }
        #[derive(Deserialize)]
        struct Counts {
            counts: Vec<Count>,
        }
        for spelled in ["14", "14.0", "1.4e1", "140e-1"] {
            let text = format!(r#"{{"gpus":{spelled}}}"#);
            let count: Count = read(text.as_bytes(), DEPTH).expect("it is 14");
            assert_eq!(count, Count { gpus: 14 });
        }
        let many: Vec<Count> = read::<Counts>(br#"{"counts":[{"gpus":-0},{"gpus":2.0e0}]}"#, DEPTH)
            .expect("they are 0 and 2")
            .counts;
        assert_eq!(many, [Count { gpus: 0 }, Count { gpus: 2 }]);
        // Also where anything is taken.
        let anything: serde_json::Value =
            read(br#"{"gpus":14.0}"#, DEPTH).expect("it is an object");
        assert_eq!(anything, serde_json::json!({ "gpus": 14 }));
        assert_eq!(refused::<Count>(r#"{"gpus":14.5}"#).status, 422);
    }

    #[test]
    fn what_is_read_in_two_ways_is_not_read_at_all() {
        let id = Uuid::nil();
        let twice = refused::<NewAllocation>(&format!(
            r#"{{"project_id":"{id}","sku":"a","sku":"b","gpus":1,"region":"r","ssh_key_ids":[]}}"#
        ));
        assert_eq!((twice.status, only(&twice).pointer.as_str()), (400, "/sku"), "{twice:?}");
        let nul = refused::<NewToken>(r#"{"name":"a\u0000b","scopes":[]}"#);
        assert_eq!((nul.status, only(&nul).pointer.as_str()), (400, "/name"), "{nul:?}");
        let surrogate = refused::<NewToken>(r#"{"name":"\ud800","scopes":[]}"#);
        assert_eq!(surrogate.status, 400);
        let within = refused::<NewToken>(r#"{"a":[1,{"b/~":[0,"\u0000"]}]}"#);
        assert_eq!(only(&within).pointer, "/a/1/b~1~0/1", "{within:?}");
        let escaped = refused::<NewToken>(r#"{"name":"a","\u006eame":"b"}"#);
        assert_eq!(only(&escaped).pointer, "/name", "{escaped:?}");
        let deep = refused::<NewToken>(&format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000)));
        assert!(deep.detail.contains("too deep"), "{deep:?}");
        assert_eq!(only(&deep).pointer, "");
        assert!(
            read::<serde_json::Map<String, serde_json::Value>>(
                format!("{{\"a\":{}1{}}}", "[".repeat(31), "]".repeat(31)).as_bytes(),
                DEPTH
            )
            .is_ok()
        );
        for text in ["", " ", "{", "{} {}", "nul", "{\"a\":01}", "{'a':1}", "\u{feff}{}"] {
            assert_eq!(refused::<NewToken>(text).status, 400, "{text:?}");
        }
    }
}
