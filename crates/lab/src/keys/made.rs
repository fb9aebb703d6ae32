//! Keys that are made of a table's size and the number of a tuple, in the order of the numbers.

use super::{
    Generator,
    text::{Text, letters},
};

/// Numbers of 64 bits in ascending order, one for each tuple, spread over all there are as if they were drawn at random.
#[derive(Debug)]
pub struct Spread {
    /// How far apart they lie on average.
    gap: u64,
}

impl Spread {
    /// For so many tuples.
    pub fn new(tuples: u64) -> Self {
        Self { gap: u64::MAX / tuples.max(1) }
    }

    /// The number of tuple `index`.
    #[inline]
    pub fn at(&self, index: u64) -> u64 {
        /// The first 48 bits of two numbers differ.
        const APART: u64 = 1 << 16;
        index * self.gap + Generator::hash(index) % self.gap.saturating_sub(APART).max(1)
    }
}

/// An identifier as RFC 9562 writes it, of version 4: 36 bytes. The first 48 bits are those of `number`.
pub fn uuid(number: u64) -> Text {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    let rest = Generator::hash(number);
    let high = number & !0xffff | 0x4000 | rest & 0xfff;
    let low = 1 << 63 | rest >> 2;
    let bits = u128::from(high) << 64 | u128::from(low);
    let mut key = Text::default();
    for (group, digits) in [8, 4, 4, 4, 12].into_iter().enumerate() {
        if group > 0 {
            key.push(b"-");
        }
        for _ in 0..digits {
            let done = key.as_ref().len() - group;
            key.push(&[HEX[(bits >> (124 - 4 * done)) as usize & 15]]);
        }
    }
    key
}

/// A key as YCSB makes it: `user` and a number, here in 20 digits each.
pub fn ycsb(number: u64) -> Text {
    let mut key = Text::default();
    key.push(b"user");
    key.push_digits(number, 20);
    key
}

/// How many users a customer has, and how many events a user.
const USERS: u64 = 1 << 8;
const EVENTS: u64 = 1 << 4;

/// The key of an event in the order-preserving encoding of a tuple: the number of a customer in 4 bytes, the name of a user, which ends with
/// two zeroes, and a time in milliseconds in 8 bytes.
pub fn composite(index: u64) -> Text {
    let (event, user, customer) = (index % EVENTS, index / EVENTS % USERS, index / EVENTS / USERS);
    let mut key = Text::default();
    key.push(&(customer as u32).to_be_bytes());
    key.push(&letters::<2>(user));
    let rest = Generator::hash(index / EVENTS);
    key.push(&letters::<12>(rest)[..2 + (rest >> 60) as usize % 11]);
    key.push(&[0, 0]);
    // The sign of a number is turned round, so that negative ones come first.
    let time = 1 << 63 | (1_600_000_000_000 + event * 100_000_000 + Generator::hash(index) % 100_000_000);
    key.push(&time.to_be_bytes());
    key
}

/// First names, in their order.
const FIRST: [&str; 48] = [
    "aisha",
    "alan",
    "alexander",
    "ana",
    "andrea",
    "anna",
    "antonio",
    "barbara",
    "ben",
    "carlos",
    "chen",
    "chris",
    "christine",
    "daniel",
    "david",
    "elena",
    "elizabeth",
    "emma",
    "fatima",
    "felix",
    "giulia",
    "hans",
    "hiroshi",
    "ingrid",
    "ivan",
    "james",
    "jan",
    "jose",
    "julia",
    "katarzyna",
    "kim",
    "laura",
    "li",
    "luca",
    "maria",
    "mark",
    "mohammed",
    "nina",
    "olga",
    "paul",
    "pedro",
    "rita",
    "sam",
    "sofia",
    "thomas",
    "victoria",
    "wei",
    "yuki",
];

/// Last names, in their order.
const LAST: [&str; 64] = [
    "ahmed",
    "andersson",
    "baker",
    "bauer",
    "bianchi",
    "brown",
    "chen",
    "clark",
    "costa",
    "davis",
    "dubois",
    "evans",
    "fernandez",
    "fischer",
    "garcia",
    "gonzalez",
    "green",
    "gupta",
    "hall",
    "hansen",
    "hoffmann",
    "ivanov",
    "jackson",
    "jansen",
    "johnson",
    "jones",
    "kaya",
    "khan",
    "kim",
    "kowalski",
    "kumar",
    "lee",
    "lopez",
    "martin",
    "meyer",
    "miller",
    "moore",
    "moreau",
    "mueller",
    "nguyen",
    "nielsen",
    "novak",
    "okafor",
    "olsen",
    "patel",
    "perez",
    "popov",
    "ricci",
    "roberts",
    "rossi",
    "santos",
    "sato",
    "schmidt",
    "silva",
    "singh",
    "smith",
    "suzuki",
    "taylor",
    "wang",
    "weber",
    "williams",
    "wilson",
    "yamamoto",
    "zhang",
];

const PEOPLE: u64 = (FIRST.len() * LAST.len()) as u64;

/// Where they have their mail.
const DOMAINS: [&str; 8] = [
    "gmail.com",
    "gmail.com",
    "yahoo.com",
    "hotmail.com",
    "outlook.com",
    "web.de",
    "mail.example.org",
    "students.uni-example.edu",
];

/// Addresses of electronic mail: first name, last name, a number, one of a few domains.
#[derive(Debug)]
pub struct Emails {
    /// How many people have the same names, and how many digits tell them apart.
    namesakes: u64,
    digits: usize,
}

impl Emails {
    /// For so many tuples.
    pub fn new(tuples: u64) -> Self {
        let namesakes = tuples.div_ceil(PEOPLE).max(1);
        Self { namesakes, digits: (namesakes - 1).checked_ilog10().map_or(1, |digits| digits as usize + 1) }
    }

    /// The key of a number.
    pub fn key(&self, index: u64) -> Text {
        let (person, namesake) = (index / self.namesakes, index % self.namesakes);
        let last = LAST.len() as u64;
        let mut key = Text::default();
        key.push(FIRST[(person / last) as usize % FIRST.len()].as_bytes());
        key.push(b".");
        key.push(LAST[(person % last) as usize].as_bytes());
        key.push_digits(namesake, self.digits);
        key.push(b"@");
        key.push(DOMAINS[Generator::hash(index) as usize % DOMAINS.len()].as_bytes());
        key
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vellum::KeyBuffer;

    fn text(key: Text) -> String {
        String::from_utf8(key.as_ref().to_vec()).unwrap()
    }

    #[test]
    fn names_are_in_their_order_so_that_keys_are() {
        assert!(FIRST.is_sorted() && LAST.is_sorted());
    }

    #[test]
    fn keys_look_as_people_have_them() {
        assert_eq!(text(uuid(0x0123_4567_89ab_cdef)).get(..15), Some("01234567-89ab-4"));
        assert_eq!(text(ycsb(42)), "user00000000000000000042");
        let email = text(Emails::new(5_000_000).key(1_000_000));
        assert!(email.starts_with("carlos.") && email.contains('@') && email.contains("."), "{email}");
        let event = composite(EVENTS * USERS * 7 + 3);
        assert_eq!(event.as_ref().get(..6), Some(&[0, 0, 0, 7, b'a', b'a'][..]));
    }

    #[test]
    fn composite_keys_are_those_of_tuples() {
        let key = composite(123_456);
        let bytes = key.as_ref();
        let (name, time) = bytes[4..].split_at(bytes.len() - 4 - 10);
        let tuple = (
            u32::from_be_bytes(bytes[..4].try_into().unwrap()),
            std::str::from_utf8(name).unwrap(),
            (u64::from_be_bytes(time[2..].try_into().unwrap()) ^ 1 << 63) as i64,
        );
        assert_eq!(KeyBuffer::of::<(u32, String, i64)>(&tuple).as_ref(), bytes);
    }
}
