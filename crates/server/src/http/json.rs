//! JSON from strangers, read strictly: not too deep, no name twice, no NUL, nothing behind it. A number without a
//! fraction is an integer, however it is spelled (`14.0`, `1.4e1`), as JSON Schema has it.

use std::collections::HashSet;
use std::fmt;

use serde::de::{DeserializeOwned, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
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
    let value = value(bytes, depth_max)?;
    if !value.is_object() {
        let detail = "the body is not an object";
        return Err(Refusal::new(ProblemCode::Invalid, "The body is not an object.").at("", detail));
    }
    serde_path_to_error::deserialize(value).map_err(|error| {
        let (pointer, detail) = (pointer_of(error.path()), error.inner().to_string());
        let (pointer, detail) = without_values(pointer, &detail);
        let place = if pointer.is_empty() { String::new() } else { format!("{pointer}: ") };
        Refusal::new(ProblemCode::Invalid, format!("{place}{detail}")).at(pointer, detail)
    })
}

fn value(bytes: &[u8], depth_max: usize) -> Result<Value, Refusal> {
    let refused = |detail: String| Refusal::new(ProblemCode::BadRequest, detail);
    if bytes.is_empty() {
        return Err(refused("The body is empty, where JSON is needed.".to_owned()));
    }
    let text = std::str::from_utf8(bytes).map_err(|error| {
        refused(format!("The body is not UTF-8 after {} bytes.", error.valid_up_to()))
    })?;
    let mut place = Place { path: Vec::new(), depth_max, wrong: None };
    let mut json = serde_json::Deserializer::from_str(text);
    let read = Strict(&mut place).deserialize(&mut json).and_then(|value| {
        json.end()?;
        Ok(value)
    });
    read.map_err(|error| match place.wrong {
        Some(detail) => {
            let pointer = place.path.concat();
            refused(format!("{pointer}: {detail}.")).at(pointer, detail)
        }
        None => {
            let (line, column) = (error.line(), error.column());
            let what = match error.classify() {
                serde_json::error::Category::Eof => "It ends too early",
                serde_json::error::Category::Syntax
                | serde_json::error::Category::Data
                | serde_json::error::Category::Io => "It can't be read",
            };
            refused(format!("The body is not JSON. {what}: line {line}, column {column}."))
        }
    })
}

/// Where the reader is, and what it has found wrong there.
struct Place {
    path: Vec<String>,
    depth_max: usize,
    wrong: Option<&'static str>,
}

impl Place {
    fn wrong<E: serde::de::Error>(&mut self, detail: &'static str) -> E {
        self.wrong = Some(detail);
        E::custom(detail)
    }

    fn text<E: serde::de::Error>(&mut self, text: &str) -> Result<(), E> {
        if text.contains('\0') {
            return Err(self.wrong("a text with the character NUL can't be kept"));
        }
        Ok(())
    }

    fn deeper<E: serde::de::Error>(&mut self) -> Result<(), E> {
        if self.path.len() >= self.depth_max {
            // The whole way down says nothing.
            self.path.clear();
            return Err(self.wrong("the body is nested too deep"));
        }
        Ok(())
    }
}

struct Strict<'p>(&'p mut Place);

impl<'de> DeserializeSeed<'de> for Strict<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Value, E> {
        if value.fract() == 0.0 && value.abs() <= EXACT_MAX {
            // Whole and small enough to be exact.
            return Ok(Value::from(value as i64));
        }
        let number = Number::from_f64(value);
        number.map(Value::Number).ok_or_else(|| E::custom("not a number"))
    }

    fn visit_str<E: serde::de::Error>(self, value: &str) -> Result<Value, E> {
        self.0.text(value)?;
        Ok(Value::from(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let place = self.0;
        place.deeper::<A::Error>()?;
        let mut list = Vec::new();
        loop {
            place.path.push(format!("/{}", list.len()));
            let Some(item) = items.next_element_seed(Strict(&mut *place))? else {
                break;
            };
            place.path.pop();
            list.push(item);
        }
        place.path.pop();
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let place = self.0;
        place.deeper::<A::Error>()?;
        let (mut map, mut seen) = (Map::new(), HashSet::new());
        while let Some(name) = entries.next_key::<String>()? {
            place.path.push(format!("/{}", escaped(&name)));
            place.text::<A::Error>(&name)?;
            if !seen.insert(name.clone()) {
                return Err(place.wrong("the same name stands there twice"));
            }
            map.insert(name, entries.next_value_seed(Strict(&mut *place))?);
            place.path.pop();
        }
        Ok(Value::Object(map))
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
        for spelled in ["14", "14.0", "1.4e1", "140e-1"] {
            let text = format!(r#"{{"gpus":{spelled}}}"#);
            let count: Count = read(text.as_bytes(), DEPTH).expect("it is 14");
            assert_eq!(count, Count { gpus: 14 });
        }
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
        let deep = refused::<NewToken>(&format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000)));
        assert!(deep.detail.contains("too deep"), "{deep:?}");
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
