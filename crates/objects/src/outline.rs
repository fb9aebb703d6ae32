//! Where the references lie in objects of a type: what its description says, with everything computed once.
//!
//! A description is as deep as a file says, and an object may have millions of elements. So offsets and sizes are not
//! computed while an object is read, and parts in which nothing can be wrong, and elements without length, are left out.

use crate::{
    Shape,
    codec::Reader,
    reference::AnyRef,
    shape::{Fields, each},
};
use std::collections::HashMap;
use vellum_base::Bytes;

/// The names of types, each of which has a number.
#[derive(Default)]
pub(crate) struct Names {
    numbers: HashMap<String, u32>,
    names: Vec<String>,
}

impl Names {
    pub fn number(&mut self, name: &str) -> u32 {
        if let Some(number) = self.numbers.get(name) {
            return *number;
        }
        let number = self.names.len() as u32;
        self.numbers.insert(name.to_owned(), number);
        self.names.push(name.to_owned());
        number
    }

    pub fn name(&self, number: u32) -> &str {
        self.names.get(number as usize).map_or("", String::as_str)
    }
}

/// A type of objects.
pub(crate) struct Outline {
    /// The number of its name.
    pub name: Option<u32>,
    /// The length of the fixed part.
    bytes: usize,
    part: Part,
}

/// A part of an object.
enum Part {
    /// Nothing leads from here, and nothing can be wrong.
    Plain,
    /// A reference to an object of the type whose name has this number.
    Ref(u32),
    Text,
    /// Elements of `size` bytes.
    Array {
        size: usize,
        element: Box<Part>,
    },
    Fixed {
        count: usize,
        size: usize,
        element: Box<Part>,
    },
    /// A value, `begin` bytes behind where the option begins.
    Option {
        begin: usize,
        value: Box<Part>,
    },
    /// The parts of a struct, and where each begins.
    Struct(Parts),
    /// The parts of each variant of an enum.
    Enum(Vec<Parts>),
}

type Parts = Vec<(usize, Part)>;

impl Outline {
    pub fn of(shape: &Shape, names: &mut Names) -> Self {
        let (part, bytes) = (Part::of(shape, names), shape.layout().1);
        Self { name: shape.name().map(|name| names.number(name)), bytes, part }
    }

    /// Calls `show` with every reference in the bytes of an object, and the number of the name of the type to which it
    /// leads. Returns whether the bytes can have been stored.
    pub fn references(&self, bytes: &[u8], show: &mut impl FnMut(u32, AnyRef)) -> bool {
        let reader = Reader::new(bytes, 0, bytes.len(), self.bytes);
        self.part.references(&reader, 0, show);
        reader.is_sound()
    }
}

impl Part {
    fn of(shape: &Shape, names: &mut Names) -> Self {
        match shape {
            Shape::Scalar(_) => Self::Plain,
            Shape::Ref(name) => Self::Ref(names.number(name)),
            Shape::Text => Self::Text,
            Shape::Array(element) => {
                Self::Array { size: element.layout().1, element: Box::new(Self::of(element, names)) }
            }
            Shape::Fixed(count, element) => {
                let (size, part) = (element.layout().1, Self::of(element, names));
                if size == 0 || part.is_plain() {
                    return Self::Plain;
                }
                Self::Fixed { count: *count as usize, size, element: Box::new(part) }
            }
            Shape::Option(value) => {
                let (begin, part) = (value.value_at(value.layout().0), Self::of(value, names));
                if part.is_plain() { Self::Plain } else { Self::Option { begin, value: Box::new(part) } }
            }
            Shape::Struct { fields, .. } => {
                let parts = Self::parts(0, fields, names);
                if parts.is_empty() { Self::Plain } else { Self::Struct(parts) }
            }
            Shape::Enum { variants, .. } => {
                Self::Enum(variants.iter().map(|(_, fields)| Self::parts(1, fields, names)).collect())
            }
        }
    }

    fn parts(from: usize, fields: &Fields, names: &mut Names) -> Parts {
        each(from, fields)
            .map(|(at, _, field)| (at, Self::of(field, names)))
            .filter(|(_, part)| !part.is_plain())
            .collect()
    }

    fn is_plain(&self) -> bool {
        matches!(self, Self::Plain)
    }

    /// See [`Outline::references`]. The reader notes unsound bytes; what is behind those is not shown.
    fn references<B: Bytes>(&self, from: &Reader<B>, at: usize, show: &mut impl FnMut(u32, AnyRef)) {
        if !from.is_sound() {
            return;
        }
        match self {
            Self::Plain => {}
            Self::Ref(name) => match AnyRef::from_bits(from.u64(at)) {
                Some(reference) => show(*name, reference),
                None => from.refuse(),
            },
            Self::Text => drop(from.run(at, 1)),
            Self::Array { size, element } => {
                let (begin, count) = from.run(at, (*size).max(1));
                if *size > 0 && !element.is_plain() {
                    (0..count).for_each(|index| element.references(from, begin + index * size, show));
                }
            }
            Self::Fixed { count, size, element } => {
                (0..*count).for_each(|index| element.references(from, at + index * size, show));
            }
            Self::Option { begin, value } => {
                let is_some = if *begin == 0 { from.u64(at) != 0 } else { from.u8(at) != 0 };
                if is_some {
                    value.references(from, at + begin, show);
                }
            }
            Self::Struct(parts) => Self::all(parts, from, at, show),
            Self::Enum(variants) => match variants.get(usize::from(from.u8(at))) {
                Some(parts) => Self::all(parts, from, at, show),
                None => from.refuse(),
            },
        }
    }

    fn all<B: Bytes>(parts: &Parts, from: &Reader<B>, at: usize, show: &mut impl FnMut(u32, AnyRef)) {
        parts.iter().for_each(|(begin, part)| part.references(from, at + begin, show));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape::{DEPTH_MAX, Scalar};

    fn fields(all: impl IntoIterator<Item = Shape>) -> Fields {
        all.into_iter().map(|shape| ("field".to_owned(), shape)).collect()
    }

    fn nested(depth: usize, inner: Shape, wrap: impl Fn(Shape) -> Shape) -> Shape {
        (1..depth).fold(inner, |inner, _| wrap(inner))
    }

    fn found(shape: &Shape, bytes: &[u8]) -> (bool, Vec<u64>) {
        let mut found = Vec::new();
        let outline = Outline::of(shape, &mut Names::default());
        let is_sound = outline.references(bytes, &mut |_, reference| found.push(reference.to_bits()));
        (is_sound, found)
    }

    #[test]
    fn deep_descriptions_take_no_more_time_than_they_are_long() {
        let reference = || Shape::Ref("Node".into());
        let in_struct = |inner| Shape::Struct { name: "Deep".into(), fields: fields([inner]) };
        let shape = nested(DEPTH_MAX, reference(), in_struct);
        assert_eq!((shape.depth(), shape.layout()), (DEPTH_MAX, (8, 8)));
        assert_eq!(found(&shape, &7u64.to_le_bytes()), (true, vec![7]));
        let mut bytes = Vec::new();
        shape.encode(&mut bytes);
        assert_eq!(Shape::decode(&bytes), Some(shape));
        let in_enum =
            |inner| Shape::Enum { name: "Deep".into(), variants: vec![("A".into(), fields([inner]))] };
        let shape = nested(DEPTH_MAX, reference(), in_enum);
        let (align, bytes) = shape.layout();
        assert_eq!((align, bytes), (8, 8 * DEPTH_MAX));
        assert_eq!(found(&shape, &vec![0; bytes]), (false, vec![]), "a reference is not zero");
        let in_option = |inner| Shape::Option(Box::new(inner));
        let shape = nested(DEPTH_MAX, Shape::Scalar(Scalar::U8), in_option);
        assert_eq!((shape.depth(), shape.layout()), (DEPTH_MAX, (1, DEPTH_MAX)));
    }

    #[test]
    fn elements_without_length_take_no_time() {
        let empty = || Shape::Struct { name: "Empty".into(), fields: vec![] };
        let many = |inner| Shape::Fixed(u32::MAX, Box::new(inner));
        assert_eq!(found(&nested(DEPTH_MAX, empty(), many), &[]), (true, vec![]));
        let array = Shape::Array(Box::new(nested(8, empty(), many)));
        assert_eq!(found(&array, &[8, 0, 0, 0, 8, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1]), (true, vec![]));
        let too_long = nested(4, Shape::Ref("Node".into()), many);
        assert!(!found(&too_long, &[1; 64]).0);
    }
}
