//! Types of keys and values: how they are encoded as bytes, and decoded.
//!
//! A table is an ordered map from bytes to bytes. A [`KeyType`] gives keys a meaning: its encoding preserves the order
//! of the keys, so that ranges work as expected. A [`ValueType`] does the same for values, whose order does not matter;
//! every key type is also a value type, with the same encoding. [`AsKey`] and [`AsValue`] say what may be *given* as a
//! key or a value of a type: a `&str` for a `String`, a tuple of such for a tuple.
//!
//! # The encodings
//! FILE_FORMAT.md describes them byte by byte. In short: numbers are big-endian, with the sign flipped. What has no
//! fixed length is stored as it is if nothing follows it, and escaped and terminated elsewhere. Tuples are their
//! elements, one after the other; options are a byte, and the value if there is one. So an encoding in the middle of a
//! key is never a prefix of another one, and keys can be compared without decoding.

mod bytes;
mod compound;
mod scalars;
#[cfg(feature = "serde")]
mod serde;

#[cfg(feature = "serde")]
pub use self::serde::Serde;

use crate::Result;
use smallvec::SmallVec;
use std::{borrow::Cow, fmt, marker::PhantomData, ops::Deref};

/// Whether more follows in the same key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// Nothing follows: the encoding extends to the end of the key.
    Last,
    /// More may follow: the encoding must show where it ends, and none may be a prefix of another.
    Inside,
}

/// A type of the keys of a table: see [`Table`](crate::Table).
///
/// Implemented for all integers, floating-point numbers (in their total order: -NaN, -infinity, ..., -0, 0, ...,
/// infinity, NaN), `bool`, `char`, `str` and `String`, `[u8]`, `Vec<u8>` and `[u8; N]`, and for options and tuples of
/// them, nested to any depth. `str` and `String` are the same type for the database; so are `[u8]` and `Vec<u8>`,
/// `usize` and `u64`, `isize` and `i64`.
///
/// `None` says nothing of the type that it is an option of. The type of an option inside a tuple must be given with it, as
/// any type that can be given for it: `table.get((7, None::<u32>))` for keys of the type `(u64, Option<u32>)`.
///
/// Your own type can use the encoding of another one:
///
/// ```
/// use vellum::{AsKey, KeyBuffer, KeyType, Place, TableName};
///
/// #[derive(Debug, PartialEq)]
/// struct Date { year: i16, month: u8, day: u8 }
///
/// impl KeyType for Date {
///     type Owned = Self;
///
///     fn type_name() -> String {
///         "example.org/date".to_owned()
///     }
///
///     fn decode(bytes: &mut &[u8], place: Place) -> Option<Self> {
///         let (year, month, day) = <(i16, u8, u8)>::decode(bytes, place)?;
///         Some(Self { year, month, day })
///     }
/// }
///
/// impl AsKey<Date> for Date {
///     type Encoded<'k> = KeyBuffer;
///
///     fn encoded(&self) -> KeyBuffer {
///         KeyBuffer::of::<Date>(self)
///     }
///
///     fn encode(&self, buffer: &mut KeyBuffer, place: Place) {
///         AsKey::<(i16, u8, u8)>::encode(&(self.year, self.month, self.day), buffer, place);
///     }
/// }
///
/// # let directory = tempfile::tempdir()?;
/// # let database = vellum::Database::create(directory.path().join("d"), &vellum::Options::default())?;
/// let holidays = database.create_table(TableName::<Date, str>::new("holidays"))?;
/// holidays.put(Date { year: 2026, month: 12, day: 26 }, "Boxing Day")?;
/// assert_eq!(holidays.get(Date { year: 2026, month: 12, day: 26 })?.as_deref(), Some("Boxing Day"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no type of keys or values",
    label = "this implements neither `KeyType` nor `ValueType`",
    note = "keys and values are integers, floats, `bool`, `char`, `str` or `String`, `[u8]` or `Vec<u8>`, `[u8; N]`, and options and tuples of them",
    note = "values of any other type that `serde` serialises have the type `Serde<T>` (feature `serde`)",
    note = "your own type becomes one of keys by implementing `KeyType` and `AsKey`; the documentation of `KeyType` has an example"
)]
pub trait KeyType {
    /// The type of keys that are read.
    type Owned;

    /// The name of the type in the catalog. A table that was created with different names cannot be opened with this
    /// type. So the name must stay the same as long as the encoding does, and change when the encoding changes.
    fn type_name() -> String;

    /// Takes a key off the beginning of `bytes`, which [`AsKey::encode`] has encoded in the same place; none if these
    /// bytes are no such encoding.
    fn decode(bytes: &mut &[u8], place: Place) -> Option<Self::Owned>;

    /// Decodes a key from exactly these `bytes`.
    fn from_bytes(bytes: Cow<'_, [u8]>) -> Option<Self::Owned> {
        let mut rest = &*bytes;
        let key = Self::decode(&mut rest, Place::Last)?;
        rest.is_empty().then_some(key)
    }
}

/// A value that can be given where a key of type `K` is expected.
///
/// In both places the encodings preserve the order of the keys, and different keys have different encodings.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be given as a key or value of the type `{K}`",
    label = "this is no `{K}`",
    note = "a table that is named by a string alone has keys and values of bytes; `TableName` gives it other types"
)]
pub trait AsKey<K: KeyType + ?Sized> {
    /// The encoded bytes of a whole key.
    type Encoded<'k>: AsRef<[u8]>
    where
        Self: 'k;

    /// The whole key: what [`encode`](Self::encode) appends for [`Place::Last`].
    fn encoded(&self) -> Self::Encoded<'_>;

    /// Appends the encoding.
    fn encode(&self, buffer: &mut KeyBuffer, place: Place);
}

/// A value that can be given as a prefix of keys of type `K`: some bytes or characters, or the first elements of a
/// tuple.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be given as a prefix of keys of the type `{K}`",
    label = "this is no prefix of a `{K}`",
    note = "a prefix is text or bytes if the keys are, or a tuple of the first elements of keys that are tuples: `(7,)`"
)]
pub trait AsPrefix<K: KeyType + ?Sized> {
    /// Appends the prefix that the encodings of all such keys have, and no others.
    fn encode_prefix(&self, buffer: &mut KeyBuffer);
}

/// A type of the values of a table. Every [`KeyType`] is one; the feature `serde` adds `Serde<T>`.
pub trait ValueType {
    /// The type of values that are read.
    type Owned;

    /// The name of the type in the catalog, as for [`KeyType::type_name`].
    fn type_name() -> String;

    /// Decodes a value from `bytes`; none if they are no encoding of one.
    fn from_bytes(bytes: Cow<'_, [u8]>) -> Option<Self::Owned>;
}

impl<K: KeyType + ?Sized> ValueType for K {
    type Owned = K::Owned;

    fn type_name() -> String {
        K::type_name()
    }

    fn from_bytes(bytes: Cow<'_, [u8]>) -> Option<Self::Owned> {
        K::from_bytes(bytes)
    }
}

/// A value that can be given where a value of type `V` is expected.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be given as a value of the type `{V}`",
    label = "this is no `{V}`",
    note = "a table that is named by a string alone has keys and values of bytes; `TableName` gives it other types"
)]
pub trait AsValue<V: ValueType + ?Sized> {
    /// The encoded bytes of a value.
    type Encoded<'v>: AsRef<[u8]>
    where
        Self: 'v;

    /// The encoded value.
    ///
    /// # Errors
    /// If it cannot be encoded, which happens only with encodings that the program itself supplies.
    fn encoded_value(&self) -> Result<Self::Encoded<'_>>;
}

impl<V: KeyType + ?Sized, Q: AsKey<V> + ?Sized> AsValue<V> for Q {
    type Encoded<'v>
        = <Q as AsKey<V>>::Encoded<'v>
    where
        Q: 'v;

    #[inline]
    fn encoded_value(&self) -> Result<Self::Encoded<'_>> {
        Ok(self.encoded())
    }
}

/// The bytes of a key that is being encoded. Short keys lie in the buffer itself, without an allocation.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct KeyBuffer(SmallVec<[u8; 64]>);

impl KeyBuffer {
    /// Encodes a whole key.
    pub fn of<K: KeyType + ?Sized>(key: &(impl AsKey<K> + ?Sized)) -> Self {
        let mut buffer = Self::default();
        key.encode(&mut buffer, Place::Last);
        buffer
    }

    /// Appends a byte.
    pub fn push(&mut self, byte: u8) {
        self.0.push(byte);
    }

    /// Appends bytes.
    pub fn extend_from_slice(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }
}

impl Deref for KeyBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl AsRef<[u8]> for KeyBuffer {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for KeyBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.escape_ascii())
    }
}

/// A table by its name, with the types of its keys and values. A name alone, `"fruit"`, stands for a table from bytes to bytes.
pub trait NamesTable {
    /// The type of the keys.
    type Key: KeyType + ?Sized;
    /// The type of the values.
    type Value: ValueType + ?Sized;

    /// The name.
    fn name(&self) -> &str;
}

impl NamesTable for str {
    type Key = [u8];
    type Value = [u8];

    fn name(&self) -> &str {
        self
    }
}

impl NamesTable for String {
    type Key = [u8];
    type Value = [u8];

    fn name(&self) -> &str {
        self
    }
}

impl<N: NamesTable + ?Sized> NamesTable for &N {
    type Key = N::Key;
    type Value = N::Value;

    fn name(&self) -> &str {
        (**self).name()
    }
}

/// The name of a table with the types of its keys and values: best a constant, so that they agree wherever the table is
/// opened.
///
/// ```
/// use vellum::TableName;
///
/// const STOCK: TableName<(u32, String), u64> = TableName::new("stock");
///
/// # let directory = tempfile::tempdir()?;
/// # let database = vellum::Database::create(directory.path().join("d"), &vellum::Options::default())?;
/// let stock = database.table_or_create(STOCK)?;
/// stock.put((7, "apples"), 120)?;
/// stock.put((7, "pears"), 80)?;
/// stock.put((12, "apples"), 15)?;
/// assert_eq!(stock.get((7, "pears"))?, Some(80));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct TableName<'n, K: ?Sized = [u8], V: ?Sized = [u8]> {
    name: &'n str,
    types: Types<K, V>,
}

impl<'n, K: ?Sized, V: ?Sized> TableName<'n, K, V> {
    /// A table of this name.
    pub const fn new(name: &'n str) -> Self {
        Self { name, types: PhantomData }
    }
}

impl<K: ?Sized, V: ?Sized> Clone for TableName<'_, K, V> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K: ?Sized, V: ?Sized> Copy for TableName<'_, K, V> {}

impl<K: KeyType + ?Sized, V: ValueType + ?Sized> NamesTable for TableName<'_, K, V> {
    type Key = K;
    type Value = V;

    fn name(&self) -> &str {
        self.name
    }
}

impl<K: KeyType + ?Sized, V: ValueType + ?Sized> fmt::Debug for TableName<'_, K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {} to {}", self.name, K::type_name(), V::type_name())
    }
}

/// Two types, of which no value is held.
pub(crate) type Types<K, V> = PhantomData<fn(&K, &V)>;
