//! The encodings of keys: they have the order of the keys, come back as they were, and none in the middle of a key is the
//! beginning of another.

use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::{cmp::Ordering, fmt::Debug};
use vellum::{AsKey, AsPrefix, KeyBuffer, KeyType, Place};

/// So many keys of each type, of which each pair is compared.
const KEYS: usize = 150;

fn encoded<K: KeyType + ?Sized>(key: &impl AsKey<K>, place: Place) -> KeyBuffer {
    let mut buffer = KeyBuffer::default();
    key.encode(&mut buffer, place);
    buffer
}

/// Checks some keys, which `order` compares.
fn check_by<K, Q>(keys: &[Q], order: impl Fn(&Q, &Q) -> Ordering)
where
    K: KeyType<Owned = Q> + ?Sized,
    Q: AsKey<K> + Debug,
{
    let same = |a: &Q, b: &Q| order(a, b) == Ordering::Equal;
    for key in keys {
        let whole = encoded::<K>(key, Place::Last);
        assert_eq!(key.encoded().as_ref(), &*whole, "{key:?}");
        let back = K::from_bytes((&whole[..]).into()).unwrap_or_else(|| panic!("{key:?} as {whole:?}"));
        assert!(same(&back, key), "{key:?} came back as {back:?}");

        let inside = encoded::<K>(key, Place::Inside);
        let followed = [&inside[..], b"\0\x01\xff"].concat();
        let mut rest = &followed[..];
        let back = K::decode(&mut rest, Place::Inside).unwrap_or_else(|| panic!("{key:?} as {inside:?}"));
        assert!(same(&back, key) && rest == b"\0\x01\xff", "{key:?} came back as {back:?}, and {rest:?}");
        for length in 0..inside.len() {
            let mut cut = &inside[..length];
            assert!(K::decode(&mut cut, Place::Inside).is_none(), "{length} bytes of {key:?}");
        }
    }
    for (a, b) in keys.iter().flat_map(|a| keys.iter().map(move |b| (a, b))) {
        for place in [Place::Last, Place::Inside] {
            let (x, y) = (encoded::<K>(a, place), encoded::<K>(b, place));
            assert_eq!(x.cmp(&y), order(a, b), "{a:?} is {x:?}, {b:?} is {y:?} in {place:?}");
            let free = place == Place::Last || same(a, b) || !y.starts_with(&x);
            assert!(free, "{a:?} is {x:?}, with which {b:?} begins, {y:?}");
        }
    }
}

/// Checks random keys of a type that has an order, some that are given, and what becomes of random bytes.
fn check<K, Q>(given: Vec<Q>, mut make: impl FnMut(&mut StdRng) -> Q)
where
    K: KeyType<Owned = Q> + ?Sized,
    Q: AsKey<K> + Debug + Ord,
{
    let mut random = StdRng::seed_from_u64(0x7ab1e);
    let mut keys = given;
    keys.extend((0..KEYS).map(|_| make(&mut random)));
    check_by::<K, Q>(&keys, Q::cmp);
    // What is taken for a key is one: it has these bytes and no others.
    for _ in 0..2000 {
        let bytes = text(&mut random);
        if let Some(key) = K::from_bytes((&bytes[..]).into()) {
            assert_eq!(&*encoded::<K>(&key, Place::Last), &bytes[..], "{key:?}");
        }
        let mut rest = &bytes[..];
        if let Some(key) = K::decode(&mut rest, Place::Inside) {
            let taken = &bytes[..bytes.len() - rest.len()];
            assert_eq!(&*encoded::<K>(&key, Place::Inside), taken, "{key:?}");
        }
    }
}

/// Bytes that are often zero, one or the highest, and have much in common.
fn text(random: &mut StdRng) -> Vec<u8> {
    let length = random.random_range(0..9);
    (0..length).map(|_| [0, 0, 1, 2, b'a', 254, 255][random.random_range(0..7)]).collect()
}

fn string(random: &mut StdRng) -> String {
    let length = random.random_range(0..6);
    (0..length).map(|_| ['\0', '\0', '\u{1}', 'a', 'ä', '\u{10ffff}'][random.random_range(0..6)]).collect()
}

macro_rules! integers {
    ($($number:ty)*) => {
        $(check::<$number, _>(vec![0, 1, <$number>::MIN, <$number>::MAX, <$number>::MAX / 2, <$number>::MIN / 2], |random| {
            let bytes: [u8; size_of::<$number>()] = random.random();
            <$number>::from_le_bytes(bytes) >> random.random_range(0..<$number>::BITS)
        });)*
    };
}

#[test]
fn integers_have_their_order() {
    integers! { u8 u16 u32 u64 u128 usize i8 i16 i32 i64 i128 isize }
}

#[test]
fn floats_have_their_total_order() {
    let mut random = StdRng::seed_from_u64(3);
    let special = [0.0, 1.0, f64::MIN_POSITIVE, 5e-324, f64::MAX, f64::INFINITY, f64::NAN];
    let mut keys: Vec<f64> = special.into_iter().flat_map(|number| [number, -number]).collect();
    keys.extend((0..KEYS).map(|_| f64::from_bits(random.random())));
    check_by::<f64, f64>(&keys, f64::total_cmp);
    let mut keys: Vec<f32> = keys.into_iter().map(|number| number as f32).collect();
    keys.extend((0..KEYS).map(|_| f32::from_bits(random.random())));
    check_by::<f32, f32>(&keys, f32::total_cmp);
}

#[test]
fn truth_and_characters_have_their_order() {
    check::<bool, _>(vec![false, true], |random| random.random());
    check::<char, _>(vec!['\0', 'a', char::MAX, '\u{d7ff}', '\u{e000}'], |random| {
        char::from_u32(random.random_range(0..0x11_0000)).unwrap_or('b')
    });
}

#[test]
fn strings_and_bytes_have_their_order() {
    check::<str, _>(vec![String::new()], string);
    check::<String, _>(vec![String::new()], string);
    check::<[u8], _>(vec![Vec::new()], text);
    check::<Vec<u8>, _>(vec![Vec::new()], text);
    check::<[u8; 3], _>(vec![[0; 3], [255; 3]], |random| random.random());
    check::<[u8; 0], _>(vec![[]], |_| []);
}

#[test]
fn options_have_their_order() {
    check::<Option<u16>, _>(vec![None, Some(0), Some(u16::MAX)], |random| {
        random.random::<bool>().then(|| random.random())
    });
    check::<Option<String>, _>(vec![None, Some(String::new())], |random| {
        random.random::<bool>().then(|| string(random))
    });
    check::<Option<Option<Vec<u8>>>, _>(vec![None, Some(None)], |random| Some(Some(text(random))));
}

#[test]
fn tuples_have_their_order() {
    check::<(), _>(vec![()], |_| ());
    check::<(String,), _>(vec![], |random| (string(random),));
    check::<(String, Vec<u8>), _>(vec![], |random| (string(random), text(random)));
    check::<(Vec<u8>, u8, Vec<u8>), _>(vec![], |random| {
        (text(random), random.random_range(0..3), text(random))
    });
    check::<(i16, Option<String>, bool, char), _>(vec![], |random| {
        (random.random_range(-2..2), random.random::<bool>().then(|| string(random)), random.random(), 'x')
    });
    check::<(u8, u8, u8, u8, u8, u8, u8, String), _>(vec![], |random| {
        let mut few = || random.random_range(0..2);
        let (a, b, c, d, e, f, g) = (few(), few(), few(), few(), few(), few(), few());
        (a, b, c, d, e, f, g, string(random))
    });
}

#[test]
fn nested_ones_have_their_order() {
    type Nested = ((Vec<u8>, Option<(String, i8)>), Option<Vec<u8>>, ((), [u8; 2]));
    check::<Nested, _>(vec![], |random| {
        let inner = random.random::<bool>().then(|| (string(random), random.random_range(-1..1)));
        let option = random.random::<bool>().then(|| text(random));
        ((text(random), inner), option, ((), [random.random_range(0..2), 0]))
    });
}

#[test]
fn prefixes_are_those_of_their_keys_and_of_no_others() {
    fn begins<K: KeyType + ?Sized>(prefix: impl AsPrefix<K>, key: impl AsKey<K>) -> bool {
        let mut buffer = KeyBuffer::default();
        prefix.encode_prefix(&mut buffer);
        KeyBuffer::of::<K>(&key).starts_with(&buffer)
    }
    type Names = (String, u8, String);
    assert!(begins::<Names>(("ab",), ("ab", 7, "c")));
    assert!(!begins::<Names>(("a",), ("ab", 7, "c")), "the element is another one");
    assert!(begins::<Names>(("ab", 7), ("ab", 7, "c")));
    assert!(!begins::<Names>(("ab", 8), ("ab", 7, "c")));
    assert!(begins::<str>("ab", "abc") && !begins::<str>("b", "abc"));
    assert!(begins::<[u8]>([1], [1, 2]) && begins::<[u8; 2]>([1], [1, 2]));
}

#[test]
fn what_may_be_given_is_encoded_alike() {
    let one = KeyBuffer::of::<(u64, String)>(&(5, "x"));
    assert_eq!(one, KeyBuffer::of::<(u64, String)>(&(&5, String::from("x"))));
    assert_eq!(one, KeyBuffer::of::<(u64, String)>(&&(5, &String::from("x"))));
    assert_eq!(KeyBuffer::of::<Option<String>>(&None::<&str>), KeyBuffer::of::<Option<u8>>(&None::<u8>));
    assert_eq!(&*KeyBuffer::of::<(i8, Vec<u8>, u16)>(&(-1, b"a\0b", 258)), b"\x7fa\0\x01b\0\0\x01\x02");
}

#[test]
fn the_names_of_types_stay_as_they_are() {
    fn name<K: KeyType + ?Sized>() -> String {
        K::type_name()
    }
    assert_eq!(name::<[u8]>(), "bytes");
    assert_eq!(name::<Vec<u8>>(), "bytes");
    assert_eq!(name::<[u8; 16]>(), "bytes[16]");
    assert_eq!(name::<(String, Option<u8>)>(), "(str, option(u8))");
    let numbers =
        [name::<u8>(), name::<u16>(), name::<u32>(), name::<u64>(), name::<u128>(), name::<usize>()];
    assert_eq!(numbers, ["u8", "u16", "u32", "u64", "u128", "u64"]);
    let numbers =
        [name::<i8>(), name::<i16>(), name::<i32>(), name::<i64>(), name::<i128>(), name::<isize>()];
    assert_eq!(numbers, ["i8", "i16", "i32", "i64", "i128", "i64"]);
    assert_eq!(
        [name::<f32>(), name::<f64>(), name::<bool>(), name::<char>()],
        ["f32", "f64", "bool", "char"]
    );
    assert_eq!([name::<()>(), name::<(u8,)>()], ["()", "(u8)"]);
}
