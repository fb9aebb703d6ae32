//! Descriptions of types, stored beside the objects, so that a program that does not have these types can verify a
//! file, and an error can say what has changed.
//!
//! A description is encoded in preorder. Each node begins with a byte that gives its kind; names are preceded by a
//! length of one byte, and counts have 4 bytes.

use std::fmt;

/// The structure of a type.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Shape {
    /// A number or a similar scalar.
    Scalar(Scalar),
    /// A reference to an object of the type with this name.
    Ref(String),
    /// A [`Text`](crate::Text).
    Text,
    /// An [`Array`](crate::Array).
    Array(Box<Shape>),
    /// An array of a fixed length.
    Fixed(u32, Box<Shape>),
    /// An optional value.
    Option(Box<Shape>),
    /// Fields.
    Struct {
        /// The name of the type.
        name: String,
        /// The fields with their names.
        fields: Fields,
    },
    /// One of several variants.
    Enum {
        /// The name of the type.
        name: String,
        /// The variants with their names.
        variants: Vec<(String, Fields)>,
    },
}

pub(crate) type Fields = Vec<(String, Shape)>;

macro_rules! scalars {
    ($($scalar:ident $tag:literal $name:literal $bytes:literal $align:literal)*) => {
        /// A number of a fixed size or a similar scalar.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Scalar {
            $($scalar,)*
        }

        impl Scalar {
            fn tag(self) -> u8 {
                match self { $(Self::$scalar => $tag,)* }
            }

            fn of_tag(tag: u8) -> Option<Self> {
                match tag { $($tag => Some(Self::$scalar),)* _ => None }
            }

            fn name(self) -> &'static str {
                match self { $(Self::$scalar => $name,)* }
            }

            /// Its alignment and its length.
            fn layout(self) -> (usize, usize) {
                match self { $(Self::$scalar => ($align, $bytes),)* }
            }
        }
    };
}

scalars! {
    U8 1 "u8" 1 1
    U16 2 "u16" 2 2
    U32 3 "u32" 4 4
    U64 4 "u64" 8 8
    U128 5 "u128" 16 8
    I8 6 "i8" 1 1
    I16 7 "i16" 2 2
    I32 8 "i32" 4 4
    I64 9 "i64" 8 8
    I128 10 "i128" 16 8
    F32 11 "f32" 4 4
    F64 12 "f64" 8 8
    Bool 13 "bool" 1 1
    Char 14 "char" 4 4
}

/// The maximum depth of a description.
pub(crate) const DEPTH_MAX: usize = 64;

const REF: u8 = 32;
const TEXT: u8 = 33;
const ARRAY: u8 = 34;
const FIXED: u8 = 35;
const OPTION: u8 = 36;
const STRUCT: u8 = 37;
const ENUM: u8 = 38;

impl Shape {
    /// The name of the type, if it has one.
    pub fn name(&self) -> Option<&str> {
        match self {
            Self::Struct { name, .. } | Self::Enum { name, .. } => Some(name),
            _ => None,
        }
    }

    /// Its alignment and the length of its fixed part, as the derive computes them.
    pub fn layout(&self) -> (usize, usize) {
        match self {
            Self::Scalar(scalar) => scalar.layout(),
            Self::Ref(_) => (8, 8),
            Self::Text | Self::Array(_) => (4, 8),
            Self::Fixed(count, element) => {
                let (align, bytes) = element.layout();
                (align, bytes.saturating_mul(*count as usize))
            }
            Self::Option(value) => {
                let (align, bytes) = value.layout();
                (align, value.value_at(align).saturating_add(bytes))
            }
            Self::Struct { fields, .. } => whole([(0, fields)].into_iter()),
            Self::Enum { variants, .. } => whole(variants.iter().map(|(_, fields)| (1, fields))),
        }
    }

    /// The offset of the value in an option of this type, which has this alignment.
    pub(crate) fn value_at(&self, align: usize) -> usize {
        if matches!(self, Self::Ref(_)) { 0 } else { align }
    }

    /// How many descriptions lie in one another.
    pub(crate) fn depth(&self) -> usize {
        let deepest = |fields: &Fields| fields.iter().map(|(_, field)| field.depth()).max().unwrap_or(0);
        1 + match self {
            Self::Scalar(_) | Self::Ref(_) | Self::Text => 0,
            Self::Array(inner) | Self::Fixed(_, inner) | Self::Option(inner) => inner.depth(),
            Self::Struct { fields, .. } => deepest(fields),
            Self::Enum { variants, .. } => {
                variants.iter().map(|(_, fields)| deepest(fields)).max().unwrap_or(0)
            }
        }
    }

    pub(crate) fn encode(&self, bytes: &mut Vec<u8>) {
        match self {
            Self::Scalar(scalar) => bytes.push(scalar.tag()),
            Self::Ref(target) => {
                bytes.push(REF);
                encode_name(target, bytes);
            }
            Self::Text => bytes.push(TEXT),
            Self::Array(element) => {
                bytes.push(ARRAY);
                element.encode(bytes);
            }
            Self::Fixed(count, element) => {
                bytes.push(FIXED);
                bytes.extend_from_slice(&count.to_le_bytes());
                element.encode(bytes);
            }
            Self::Option(value) => {
                bytes.push(OPTION);
                value.encode(bytes);
            }
            Self::Struct { name, fields } => {
                bytes.push(STRUCT);
                encode_name(name, bytes);
                encode_fields(fields, bytes);
            }
            Self::Enum { name, variants } => {
                bytes.push(ENUM);
                encode_name(name, bytes);
                bytes.extend_from_slice(&(variants.len() as u32).to_le_bytes());
                for (name, fields) in variants {
                    encode_name(name, bytes);
                    encode_fields(fields, bytes);
                }
            }
        }
    }

    /// The description as it comes back when it was stored: with long names cut off.
    pub(crate) fn into_stored(self) -> Self {
        let mut bytes = Vec::new();
        self.encode(&mut bytes);
        // One that is too deep is not stored.
        Self::decode(&bytes).unwrap_or(self)
    }

    /// Decodes a description; none if the bytes are not one.
    pub(crate) fn decode(mut bytes: &[u8]) -> Option<Self> {
        let shape = Self::take(&mut bytes, DEPTH_MAX)?;
        bytes.is_empty().then_some(shape)
    }

    fn take(rest: &mut &[u8], depth: usize) -> Option<Self> {
        let depth = depth.checked_sub(1)?;
        let tag = *rest.split_off_first()?;
        let boxed = |rest: &mut &[u8]| Self::take(rest, depth).map(Box::new);
        Some(match tag {
            REF => Self::Ref(take_name(rest)?),
            TEXT => Self::Text,
            ARRAY => Self::Array(boxed(rest)?),
            FIXED => Self::Fixed(take_count(rest)?, boxed(rest)?),
            OPTION => Self::Option(boxed(rest)?),
            STRUCT => Self::Struct { name: take_name(rest)?, fields: take_fields(rest, depth)? },
            ENUM => {
                let name = take_name(rest)?;
                let variants = (0..take_count(rest)?)
                    .map(|_| Some((take_name(rest)?, take_fields(rest, depth)?)))
                    .collect::<Option<_>>()?;
                Self::Enum { name, variants }
            }
            scalar => Self::Scalar(Scalar::of_tag(scalar)?),
        })
    }
}

/// The offset of each field if the fields begin at `from`, and its layout.
pub(crate) fn each(from: usize, fields: &Fields) -> impl Iterator<Item = (usize, (usize, usize), &Shape)> {
    fields.iter().scan(from, |end, (_, field)| {
        let (align, bytes) = field.layout();
        // A field that would begin beyond all memory lies in no object.
        let at = end.checked_next_multiple_of(align).unwrap_or(usize::MAX);
        *end = at.saturating_add(bytes);
        Some((at, (align, bytes), field))
    })
}

/// The alignment and the length of a union of alternatives, each with the offset at which it begins.
fn whole<'s>(alternatives: impl Iterator<Item = (usize, &'s Fields)>) -> (usize, usize) {
    let (mut align, mut bytes) = (1, 0);
    for (from, fields) in alternatives {
        bytes = bytes.max(from);
        for (at, (of_field, length), _) in each(from, fields) {
            align = align.max(of_field);
            bytes = bytes.max(at.saturating_add(length));
        }
    }
    (align, bytes.checked_next_multiple_of(align).unwrap_or(usize::MAX))
}

fn encode_name(name: &str, bytes: &mut Vec<u8>) {
    let name = name.as_bytes();
    // Names in Rust are short; the rest of a long one is cut off, but the fingerprint still distinguishes it.
    let name = name.get(..u8::MAX.into()).unwrap_or(name);
    bytes.push(name.len() as u8);
    bytes.extend_from_slice(name);
}

fn encode_fields(fields: &Fields, bytes: &mut Vec<u8>) {
    bytes.extend_from_slice(&(fields.len() as u32).to_le_bytes());
    for (name, field) in fields {
        encode_name(name, bytes);
        field.encode(bytes);
    }
}

fn take_name(rest: &mut &[u8]) -> Option<String> {
    let length = *rest.split_off_first()?;
    Some(String::from_utf8_lossy(rest.split_off(..usize::from(length))?).into_owned())
}

fn take_count(rest: &mut &[u8]) -> Option<u32> {
    rest.split_off(..4)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
}

fn take_fields(rest: &mut &[u8], depth: usize) -> Option<Fields> {
    (0..take_count(rest)?).map(|_| Some((take_name(rest)?, Shape::take(rest, depth)?))).collect()
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Scalar(scalar) => f.write_str(scalar.name()),
            Self::Ref(target) => write!(f, "Ref<{target}>"),
            Self::Text => f.write_str("Text"),
            Self::Array(element) => write!(f, "Array<{element}>"),
            Self::Fixed(count, element) => write!(f, "[{element}; {count}]"),
            Self::Option(value) => write!(f, "Option<{value}>"),
            Self::Struct { name, fields } => {
                write!(f, "{name}")?;
                show_fields(f, fields)
            }
            Self::Enum { name, variants } => {
                write!(f, "{name}")?;
                for (index, (variant, fields)) in variants.iter().enumerate() {
                    write!(f, "{}{variant}", if index == 0 { " = " } else { " | " })?;
                    show_fields(f, fields)?;
                }
                Ok(())
            }
        }
    }
}

fn show_fields(f: &mut fmt::Formatter<'_>, fields: &Fields) -> fmt::Result {
    for (index, (name, field)) in fields.iter().enumerate() {
        write!(f, "{}{name}: {field}", if index == 0 { " { " } else { ", " })?;
    }
    if fields.is_empty() { Ok(()) } else { f.write_str(" }") }
}
