//! Values of any type that `serde` can serialise, in the format of the crate `postcard`.

use super::{AsValue, ValueType};
use crate::{Error, Result};
use serde::{
    Serialize,
    de::{DeserializeOwned, Deserializer, Visitor},
};
use std::{borrow::Cow, fmt, marker::PhantomData};

/// The type of values that are `T`s, serialised by `serde`. Given and read as `T` itself: `Serde` only stands in the type of a table, and
/// has no values. Requires the feature `serde`.
///
/// The format is that of `postcard`: compact, stable, and without field names. So fields may not be added, removed or
/// reordered while values of the old form are in the table; variants may be appended to an enum. The catalog stores the
/// name of the type as `serde` knows it (`#[serde(rename = "...")]`), without its module.
///
/// A value that could not be read back is refused when it is stored, so each is also read once then: values of types that
/// ask what comes next (`#[serde(untagged)]`, `#[serde(tag = "...")]`, `serde_json::Value`) or of maps whose length is
/// not known before (`#[serde(flatten)]`). A field that is left out at times (`skip_serializing_if`) is not noticed in all
/// cases: such types must not be used.
///
/// ```
/// use serde::{Deserialize, Serialize};
/// use vellum::{Serde, TableName};
///
/// #[derive(Serialize, Deserialize, Debug, PartialEq)]
/// struct Person { name: String, born: u16 }
///
/// const PEOPLE: TableName<u64, Serde<Person>> = TableName::new("people");
///
/// # let directory = tempfile::tempdir()?;
/// # let database = vellum::Database::create(directory.path().join("d"), &vellum::Options::default())?;
/// let people = database.create_table(PEOPLE)?;
/// people.put(1, Person { name: "Ada".to_owned(), born: 1815 })?;
/// assert_eq!(people.get(1)?.map(|person| person.born), Some(1815));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Serde<T>(PhantomData<fn(&T)>);

impl<T> std::fmt::Debug for Serde<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Serde")
    }
}

impl<T: DeserializeOwned> ValueType for Serde<T> {
    type Owned = T;

    fn type_name() -> String {
        let Err(Name(name)) = T::deserialize(AsksName) else { return "postcard".to_owned() };
        name.map_or("postcard".to_owned(), |name| format!("postcard({name})"))
    }

    fn from_bytes(bytes: Cow<'_, [u8]>) -> Option<T> {
        let (value, rest) = postcard::take_from_bytes(&bytes).ok()?;
        rest.is_empty().then_some(value)
    }
}

impl<T: Serialize + DeserializeOwned> AsValue<Serde<T>> for T {
    type Encoded<'v>
        = Vec<u8>
    where
        T: 'v;

    fn encoded_value(&self) -> Result<Vec<u8>> {
        let failed = |source| Error::NotEncoded { type_name: <Serde<T> as ValueType>::type_name(), source };
        let bytes = postcard::to_allocvec(self).map_err(|error| failed(error.into()))?;
        match postcard::take_from_bytes::<T>(&bytes) {
            Ok((_, [])) => Ok(bytes),
            Ok(_) => Err(failed("it could not be read back as what it is".into())),
            Err(error) => Err(failed(format!("it could not be read back: {error}").into())),
        }
    }
}

impl<T: Serialize + DeserializeOwned> AsValue<Serde<T>> for &T {
    type Encoded<'v>
        = Vec<u8>
    where
        Self: 'v;

    fn encoded_value(&self) -> Result<Vec<u8>> {
        AsValue::<Serde<T>>::encoded_value(*self)
    }
}

/// Deserialises nothing; its error holds the name of the type that was to be deserialised, if it has one.
struct AsksName;

#[derive(Debug)]
struct Name(Option<&'static str>);

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.unwrap_or("a type without a name"))
    }
}

impl std::error::Error for Name {}

impl serde::de::Error for Name {
    fn custom<T: fmt::Display>(_: T) -> Self {
        Self(None)
    }
}

impl<'de> Deserializer<'de> for AsksName {
    type Error = Name;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Name> {
        Err(Name(None))
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(self, name: &'static str, _: V) -> Result<V::Value, Name> {
        Err(Name(Some(name)))
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, name: &'static str, _: V) -> Result<V::Value, Name> {
        Err(Name(Some(name)))
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        _: usize,
        _: V,
    ) -> Result<V::Value, Name> {
        Err(Name(Some(name)))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        _: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, Name> {
        Err(Name(Some(name)))
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        _: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, Name> {
        Err(Name(Some(name)))
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit seq tuple map identifier
        ignored_any
    }
}
