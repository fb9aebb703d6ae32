//! Options and tuples.

use super::{AsKey, AsPrefix, KeyBuffer, KeyType, Place};

impl<K: KeyType> KeyType for Option<K> {
    type Owned = Option<K::Owned>;

    fn type_name() -> String {
        format!("option({})", K::type_name())
    }

    fn decode(bytes: &mut &[u8], place: Place) -> Option<Self::Owned> {
        let (mark, rest) = bytes.split_first()?;
        *bytes = rest;
        match mark {
            0 => Some(None),
            1 => K::decode(bytes, place).map(Some),
            _ => None,
        }
    }
}

impl<K: KeyType, Q: AsKey<K>> AsKey<Option<K>> for Option<Q> {
    type Encoded<'k>
        = KeyBuffer
    where
        Q: 'k;

    fn encoded(&self) -> KeyBuffer {
        KeyBuffer::of::<Option<K>>(self)
    }

    /// `None` comes before all other values.
    fn encode(&self, buffer: &mut KeyBuffer, place: Place) {
        buffer.push(u8::from(self.is_some()));
        self.iter().for_each(|key| key.encode(buffer, place));
    }
}

impl<K: KeyType, Q: AsKey<K>> AsKey<Option<K>> for &Option<Q> {
    type Encoded<'k>
        = KeyBuffer
    where
        Self: 'k;

    fn encoded(&self) -> KeyBuffer {
        KeyBuffer::of::<Option<K>>(*self)
    }

    fn encode(&self, buffer: &mut KeyBuffer, place: Place) {
        (**self).encode(buffer, place);
    }
}

/// The empty tuple: a table with such values is a set.
impl KeyType for () {
    type Owned = ();

    fn type_name() -> String {
        "()".to_owned()
    }

    fn decode(_: &mut &[u8], _: Place) -> Option<()> {
        Some(())
    }
}

impl AsKey<()> for () {
    type Encoded<'k> = [u8; 0];

    fn encoded(&self) -> [u8; 0] {
        []
    }

    fn encode(&self, _: &mut KeyBuffer, _: Place) {}
}

/// A tuple of some length; the last element is given separately.
macro_rules! tuple {
    ($($key:ident $given:ident $at:tt),*; $last_key:ident $last_given:ident $last_at:tt) => {
        impl<$($key: KeyType,)* $last_key: KeyType> KeyType for ($($key,)* $last_key,) {
            type Owned = ($($key::Owned,)* $last_key::Owned,);

            fn type_name() -> String {
                let names = [$($key::type_name(),)* $last_key::type_name()];
                format!("({})", names.join(", "))
            }

            fn decode(bytes: &mut &[u8], place: Place) -> Option<Self::Owned> {
                Some(($($key::decode(bytes, Place::Inside)?,)* $last_key::decode(bytes, place)?,))
            }
        }

        impl<$($key: KeyType, $given: AsKey<$key>,)* $last_key: KeyType, $last_given: AsKey<$last_key>>
            AsKey<($($key,)* $last_key,)> for ($($given,)* $last_given,)
        {
            type Encoded<'k> = KeyBuffer where Self: 'k;

            fn encoded(&self) -> KeyBuffer {
                KeyBuffer::of::<($($key,)* $last_key,)>(self)
            }

            fn encode(&self, buffer: &mut KeyBuffer, place: Place) {
                $(self.$at.encode(buffer, Place::Inside);)*
                self.$last_at.encode(buffer, place);
            }
        }

        impl<$($key: KeyType, $given: AsKey<$key>,)* $last_key: KeyType, $last_given: AsKey<$last_key>>
            AsKey<($($key,)* $last_key,)> for &($($given,)* $last_given,)
        {
            type Encoded<'k> = KeyBuffer where Self: 'k;

            fn encoded(&self) -> KeyBuffer {
                KeyBuffer::of::<($($key,)* $last_key,)>(*self)
            }

            fn encode(&self, buffer: &mut KeyBuffer, place: Place) {
                (**self).encode(buffer, place);
            }
        }
    };
}

tuple! { ; A P 0 }
tuple! { A P 0; B Q 1 }
tuple! { A P 0, B Q 1; C R 2 }
tuple! { A P 0, B Q 1, C R 2; D S 3 }
tuple! { A P 0, B Q 1, C R 2, D S 3; E T 4 }
tuple! { A P 0, B Q 1, C R 2, D S 3, E T 4; F U 5 }
tuple! { A P 0, B Q 1, C R 2, D S 3, E T 4, F U 5; G V 6 }
tuple! { A P 0, B Q 1, C R 2, D S 3, E T 4, F U 5, G V 6; H W 7 }

/// The first elements of longer tuples: each of these prefixes may be followed by some of the other types.
macro_rules! prefixes {
    ($($key:ident $given:ident $at:tt),*;) => {};
    ($($key:ident $given:ident $at:tt),*; $next:ident $($others:ident)*) => {
        prefixes! { @one $($key $given $at),*; [$next]; $($others)* }
    };
    (@one $($key:ident $given:ident $at:tt),*; [$($more:ident)*];) => {
        prefixes! { @impl $($key $given $at),*; $($more)* }
    };
    (@one $($key:ident $given:ident $at:tt),*; [$($more:ident)*]; $next:ident $($others:ident)*) => {
        prefixes! { @impl $($key $given $at),*; $($more)* }
        prefixes! { @one $($key $given $at),*; [$($more)* $next]; $($others)* }
    };
    (@impl $($key:ident $given:ident $at:tt),*; $($more:ident)*) => {
        impl<$($key: KeyType, $given: AsKey<$key>,)* $($more: KeyType),*>
            AsPrefix<($($key,)* $($more,)*)> for ($($given,)*)
        {
            fn encode_prefix(&self, buffer: &mut KeyBuffer) {
                $(self.$at.encode(buffer, Place::Inside);)*
            }
        }
    };
}

prefixes! { A P 0; B C D E F G H }
prefixes! { A P 0, B Q 1; C D E F G H }
prefixes! { A P 0, B Q 1, C R 2; D E F G H }
prefixes! { A P 0, B Q 1, C R 2, D S 3; E F G H }
prefixes! { A P 0, B Q 1, C R 2, D S 3, E T 4; F G H }
prefixes! { A P 0, B Q 1, C R 2, D S 3, E T 4, F U 5; G H }
prefixes! { A P 0, B Q 1, C R 2, D S 3, E T 4, F U 5, G V 6; H }
