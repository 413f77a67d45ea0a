//! A closed set of names in JSON and in the OpenAPI document: exactly the spelling that [`Code`] gives it.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use lifecycle::Code;
use serde::de::{Error as _, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use utoipa::openapi::schema::{ObjectBuilder, SchemaType, Type};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

/// A [`Code`] as it travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Coded<C>(pub C);

impl<C: Code> fmt::Display for Coded<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl<C: Code> From<C> for Coded<C> {
    fn from(code: C) -> Self {
        Self(code)
    }
}

impl<C: Code> Serialize for Coded<C> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.0.code())
    }
}

impl<'de, C: Code> Deserialize<'de> for Coded<C> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Spelling<C>(PhantomData<C>);

        impl<C: Code> Visitor<'_> for Spelling<C> {
            type Value = Coded<C>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let known: Vec<&str> = C::ALL.iter().map(|member| member.code()).collect();
                write!(f, "one of {}", known.join(", "))
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Self::Value, E> {
                C::parse(text)
                    .map(Coded)
                    .ok_or_else(|| E::invalid_value(serde::de::Unexpected::Str(text), &self))
            }
        }

        deserializer
            .deserialize_str(Spelling(PhantomData))
            .map_err(|error| D::Error::custom(error.to_string()))
    }
}

impl<C: Code> PartialSchema for Coded<C> {
    fn schema() -> RefOr<Schema> {
        ObjectBuilder::new()
            .schema_type(SchemaType::Type(Type::String))
            .enum_values(Some(C::ALL.iter().map(|member| member.code())))
            .into()
    }
}

impl<C: Code> ToSchema for Coded<C> {
    fn name() -> Cow<'static, str> {
        // The last two words of the path, so that the statuses of two machines are two schemas.
        let path = std::any::type_name::<C>();
        let mut words: Vec<&str> = path.rsplit("::").take(2).collect();
        words.reverse();
        Cow::Owned(words.join("_"))
    }
}
