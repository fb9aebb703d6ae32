//! Types that can be stored in a heap.

use crate::{codec::Reader, codec::Writer, reference::AnyRef, reference::Ref, shape::Scalar, shape::Shape};
use vellum_base::Bytes;

/// A type of fields of objects, or of whole objects.
///
/// It is derived for structs and enums whose fields are themselves persistent: numbers of a size that is the same on
/// every machine, `bool`, `char`, [`Ref`], [`Text`](crate::Text), [`Array`](crate::Array), `Option`, arrays of a fixed
/// length, and other such structs and enums, which are embedded in the object.
///
/// The compiler refuses types that hold an address in memory:
/// ```compile_fail
/// #[derive(vellum_objects::Persistent)]
/// #[persistent(crate = "vellum_objects")]
/// struct Node {
///     name: String, // `String` cannot be stored in a heap of objects
/// }
/// ```
/// ```compile_fail
/// #[derive(vellum_objects::Persistent)]
/// #[persistent(crate = "vellum_objects")]
/// struct Node {
///     next: Option<Box<Node>>,
/// }
/// ```
/// ```compile_fail
/// #[derive(vellum_objects::Persistent)]
/// #[persistent(crate = "vellum_objects")]
/// struct Node {
///     next: *const u8,
/// }
/// ```
/// ```compile_fail
/// #[derive(vellum_objects::Persistent)]
/// #[persistent(crate = "vellum_objects")]
/// struct Node {
///     next: &'static str,
/// }
/// ```
/// A type does not contain itself, by way of arrays of other types either; references may lead in circles:
/// ```compile_fail
/// #[derive(vellum_objects::Persistent)]
/// #[persistent(crate = "vellum_objects")]
/// struct Folder {
///     entries: vellum_objects::Array<Entry>, // `Array<Ref<Entry>>` would do
/// }
/// #[derive(vellum_objects::Persistent)]
/// #[persistent(crate = "vellum_objects")]
/// enum Entry {
///     File(vellum_objects::Text),
///     Folder(Folder),
/// }
/// ```
/// Fields and variants have no other names in the heap than in the program:
/// ```compile_fail
/// #[derive(vellum_objects::Persistent)]
/// #[persistent(crate = "vellum_objects")]
/// struct Node {
///     #[persistent(name = "value")]
///     number: u32,
/// }
/// ```
/// The same with persistent types:
/// ```
/// use vellum_objects::{Array, Ref, Text};
///
/// #[derive(vellum_objects::Persistent)]
/// #[persistent(crate = "vellum_objects")]
/// struct Node {
///     name: Text,
///     next: Option<Ref<Node>>,
///     all: Array<Ref<Node>>,
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be stored in a heap of objects",
    label = "this is not `Persistent`",
    note = "use `Ref<T>` for a pointer or a `Box`, `Text` for a `String`, `Array<T>` for a `Vec<T>`, and `u64` for a `usize`",
    note = "a struct or an enum of persistent fields becomes persistent by `#[derive(Persistent)]`"
)]
pub trait Persistent: Sized {
    /// Its alignment in bytes: 1, 2, 4 or 8.
    const ALIGN: usize;
    /// Its size in bytes, without the contents of texts and arrays: a multiple of `ALIGN`.
    const BYTES: usize;
    /// A hash of its whole description: different types have different ones.
    const FINGERPRINT: u32;
    /// Whether no value of it begins with 8 zero bytes ([`ALIGN`](Self::ALIGN)ed): they then stand for `None`.
    #[doc(hidden)]
    const ZERO_IS_NONE: bool = false;

    /// Whether all its values have the same size: none has texts or arrays.
    #[doc(hidden)]
    const IS_FIXED: bool = false;

    /// Its description.
    fn shape() -> Shape;

    /// Loads it from the bytes of an object. Impossible bytes are [refused](Reader::refuse), and the result must then
    /// be discarded.
    fn load<B: Bytes>(from: &Reader<B>, at: usize) -> Self;

    /// Stores it in the bytes of an object.
    fn store(&self, to: &mut Writer, at: usize);

    /// Loads an array of `N` values.
    #[doc(hidden)]
    #[inline(always)]
    fn load_array<B: Bytes, const N: usize>(from: &Reader<B>, at: usize) -> [Self; N] {
        std::array::from_fn(|index| Self::load(from, at + index * Self::BYTES))
    }

    /// Loads `count` values.
    #[doc(hidden)]
    fn load_many<B: Bytes>(from: &Reader<B>, at: usize, count: usize) -> Vec<Self> {
        (0..count).map(|index| Self::load(from, at + index * Self::BYTES)).collect()
    }
}

/// A type of objects to which references can lead: a type with a name. Derived together with [`Persistent`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be an object of a heap",
    note = "a struct or an enum becomes one by `#[derive(Persistent)]`"
)]
pub trait Object: Persistent {
    /// The name of the type in the heap.
    const NAME: &'static str;
}

/// The fingerprint of a name (FNV-1a).
pub const fn print_of(name: &str) -> u32 {
    let (mut rest, mut print) = (name.as_bytes(), 0x811c_9dc5_u32);
    while let [byte, behind @ ..] = rest {
        print = (print ^ *byte as u32).wrapping_mul(0x0100_0193);
        rest = behind;
    }
    print
}

/// Combines two fingerprints, in this order.
pub const fn mix(first: u32, second: u32) -> u32 {
    let mixed = (first.rotate_left(5) ^ second).wrapping_mul(0x9e37_79b1);
    mixed ^ mixed >> 15
}

/// Fingerprints below this have special meanings.
pub(crate) const FINGERPRINT_MIN: u32 = 16;

/// The last step of the fingerprint of an object.
pub const fn end(print: u32) -> u32 {
    if print < FINGERPRINT_MIN { print + FINGERPRINT_MIN } else { print }
}

macro_rules! numbers {
    ($($number:ident $read:ident $bits:ident)*) => {
        $(impl Persistent for $number {
            const ALIGN: usize = size_of::<$number>();
            const BYTES: usize = size_of::<$number>();
            const FINGERPRINT: u32 = print_of(stringify!($number));
            const IS_FIXED: bool = true;

            fn shape() -> Shape {
                Shape::Scalar(Scalar::$bits)
            }

            #[inline(always)]
            fn load<B: Bytes>(from: &Reader<B>, at: usize) -> Self {
                Self::from_le_bytes(from.$read(at).to_le_bytes())
            }

            #[inline]
            fn store(&self, to: &mut Writer, at: usize) {
                to.put(at, &self.to_le_bytes());
            }
        })*
    };
}

numbers! {
    u16 u16 U16
    u32 u32 U32
    u64 u64 U64
    i8 u8 I8
    i16 u16 I16
    i32 u32 I32
    i64 u64 I64
    f32 u32 F32
    f64 u64 F64
}

/// Bytes: many are copied at once.
impl Persistent for u8 {
    const ALIGN: usize = 1;
    const BYTES: usize = 1;
    const FINGERPRINT: u32 = print_of("u8");
    const IS_FIXED: bool = true;

    fn shape() -> Shape {
        Shape::Scalar(Scalar::U8)
    }

    #[inline(always)]
    fn load<B: Bytes>(from: &Reader<B>, at: usize) -> Self {
        from.u8(at)
    }

    #[inline]
    fn store(&self, to: &mut Writer, at: usize) {
        to.put(at, &[*self]);
    }

    #[inline(always)]
    fn load_array<B: Bytes, const N: usize>(from: &Reader<B>, at: usize) -> [Self; N] {
        from.copy_array(at)
    }

    fn load_many<B: Bytes>(from: &Reader<B>, at: usize, count: usize) -> Vec<Self> {
        from.copy(at, count)
    }
}

macro_rules! wide_numbers {
    ($($number:ident $bits:ident)*) => {
        $(impl Persistent for $number {
            const ALIGN: usize = 8;
            const BYTES: usize = 16;
            const FINGERPRINT: u32 = print_of(stringify!($number));
            const IS_FIXED: bool = true;

            fn shape() -> Shape {
                Shape::Scalar(Scalar::$bits)
            }

            fn load<B: Bytes>(from: &Reader<B>, at: usize) -> Self {
                (u128::from(from.u64(at)) | u128::from(from.u64(at + 8)) << 64) as Self
            }

            fn store(&self, to: &mut Writer, at: usize) {
                to.put(at, &self.to_le_bytes());
            }
        })*
    };
}

wide_numbers! { u128 U128 i128 I128 }

impl Persistent for bool {
    const ALIGN: usize = 1;
    const BYTES: usize = 1;
    const FINGERPRINT: u32 = print_of("bool");
    const IS_FIXED: bool = true;

    fn shape() -> Shape {
        Shape::Scalar(Scalar::Bool)
    }

    #[inline(always)]
    fn load<B: Bytes>(from: &Reader<B>, at: usize) -> Self {
        let byte = from.u8(at);
        if byte > 1 {
            from.refuse();
        }
        byte == 1
    }

    fn store(&self, to: &mut Writer, at: usize) {
        to.put(at, &[u8::from(*self)]);
    }
}

impl Persistent for char {
    const ALIGN: usize = 4;
    const BYTES: usize = 4;
    const FINGERPRINT: u32 = print_of("char");
    const IS_FIXED: bool = true;

    fn shape() -> Shape {
        Shape::Scalar(Scalar::Char)
    }

    fn load<B: Bytes>(from: &Reader<B>, at: usize) -> Self {
        char::from_u32(from.u32(at)).unwrap_or_else(|| {
            from.refuse();
            char::default()
        })
    }

    fn store(&self, to: &mut Writer, at: usize) {
        to.put(at, &u32::from(*self).to_le_bytes());
    }
}

impl<T: Object> Persistent for Ref<T> {
    const ALIGN: usize = 8;
    const BYTES: usize = 8;
    // Made from the name, so that types may refer to each other and to themselves.
    const FINGERPRINT: u32 = mix(print_of("Ref"), print_of(T::NAME));
    const ZERO_IS_NONE: bool = true;
    const IS_FIXED: bool = true;

    fn shape() -> Shape {
        Shape::Ref(T::NAME.to_owned())
    }

    #[inline(always)]
    fn load<B: Bytes>(from: &Reader<B>, at: usize) -> Self {
        let bits = from.u64(at);
        Self::from_bits(bits).unwrap_or_else(|| {
            from.refuse();
            AnyRef::NOWHERE.typed()
        })
    }

    #[inline]
    fn store(&self, to: &mut Writer, at: usize) {
        to.put(at, &self.to_bits().to_le_bytes());
    }
}

/// The offset of the value in an `Option`; unless zero stands for `None`, a byte before it says whether there is a
/// value.
const fn value_at<T: Persistent>() -> usize {
    if T::ZERO_IS_NONE { 0 } else { T::ALIGN }
}

impl<T: Persistent> Persistent for Option<T> {
    const ALIGN: usize = T::ALIGN;
    const BYTES: usize = value_at::<T>() + T::BYTES;
    const FINGERPRINT: u32 = mix(print_of("Option"), T::FINGERPRINT);
    const IS_FIXED: bool = T::IS_FIXED;

    fn shape() -> Shape {
        Shape::Option(Box::new(T::shape()))
    }

    #[inline(always)]
    fn load<B: Bytes>(from: &Reader<B>, at: usize) -> Self {
        let is_some = if T::ZERO_IS_NONE { from.u64(at) != 0 } else { bool::load(from, at) };
        is_some.then(|| T::load(from, at + value_at::<T>()))
    }

    fn store(&self, to: &mut Writer, at: usize) {
        if let Some(value) = self {
            if !T::ZERO_IS_NONE {
                to.put(at, &[1]);
            }
            value.store(to, at + value_at::<T>());
        }
    }
}

impl<T: Persistent, const N: usize> Persistent for [T; N] {
    const ALIGN: usize = T::ALIGN;
    const BYTES: usize = N * T::BYTES;
    const FINGERPRINT: u32 = mix(mix(print_of("[]"), T::FINGERPRINT), N as u32);
    const IS_FIXED: bool = T::IS_FIXED;

    fn shape() -> Shape {
        Shape::Fixed(N as u32, Box::new(T::shape()))
    }

    #[inline(always)]
    fn load<B: Bytes>(from: &Reader<B>, at: usize) -> Self {
        T::load_array(from, at)
    }

    fn store(&self, to: &mut Writer, at: usize) {
        for (index, element) in self.iter().enumerate() {
            element.store(to, at + index * T::BYTES);
        }
    }
}
