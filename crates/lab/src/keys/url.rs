//! Keys that look like addresses of web pages, 12 to 200 bytes long, in the order of their numbers.
//!
//! A key is a host, a folder, a section, a page and a tail: `com.aabf/products/item-list/kdh7-archive`. As in the web, few
//! hosts have most pages: of 4096 consecutive numbers the first is a host's only one, the next host's too, and each further
//! host has twice as many as the one before. All keys of a host share its folder, all keys of a section its name, so long
//! prefixes are common to neighbours, and what tells two keys apart stands at places that differ. The letters that number
//! hosts, sections and pages are of fixed width, and what stands between them depends on what precedes it: so the order of
//! keys is the order of numbers.

use super::{
    Generator,
    text::{TEXT_BYTES_MAX, Text, letters},
};

/// Consecutive numbers that share thirteen hosts.
const BLOCK_BITS: u32 = 12;

/// Hosts of a block.
const HOSTS: u64 = BLOCK_BITS as u64 + 1;

/// Pages of a section.
const SECTION_BITS: u32 = 5;

/// Hosts whose names have four letters; later names begin with `z` and have eight.
const SHORT_HOSTS: u64 = 25 * 26 * 26 * 26;

/// What names are cut from.
const TEXT: &[u8] = b"/products/item-list/archive-2019/about_us.html?session=7f3a&lang=en/blog/how-to-choose-a-storage-\
engine/forum/thread-18273/post-4/wiki/Index_of_pages/images/thumb/640px-photo.jpeg/search?q=longest+common+prefix/news/\
world/europe/2024-11-03/user/profile/settings/download/v2.4.1/release-notes.txt/category/books/sort=price&page=12/";

/// The longest folder, section name and tail, in bytes.
const FOLDER_BYTES_MAX: u64 = 58;
const SECTION_BYTES_MAX: u64 = 50;
const TAIL_BYTES_MAX: u64 = 76;

const _: () = assert!(
    4 + 8 + 1 + 2 + 1 + FOLDER_BYTES_MAX + SECTION_BYTES_MAX + TAIL_BYTES_MAX <= TEXT_BYTES_MAX as u64
);
const _: () = assert!(TEXT.len() as u64 > 2 * TAIL_BYTES_MAX);

/// The key of a number.
#[inline]
pub fn url(number: u64) -> Text {
    let within = number & ((1 << BLOCK_BITS) - 1);
    let bits = u64::from(64 - within.leading_zeros());
    let host = (number >> BLOCK_BITS) * HOSTS + bits;
    let page = if bits == 0 { 0 } else { within - (1 << (bits - 1)) };
    let section = page >> SECTION_BITS;
    let (of_host, of_section, of_page) =
        (Generator::hash(host), Generator::hash(host << 8 | section), Generator::hash(!number));
    let mut key = Text::default();
    key.push(b"com.");
    if host < SHORT_HOSTS {
        key.push(&letters::<4>(host));
    } else {
        key.push(b"z");
        key.push(&letters::<7>(host - SHORT_HOSTS));
    }
    // Every other host has no folder, every other section no name.
    cut(&mut key, of_host, FOLDER_BYTES_MAX, of_host >> 63);
    key.push(b"/");
    key.push(&letters::<2>(section));
    cut(&mut key, of_section, SECTION_BYTES_MAX, of_section >> 63);
    key.push(&[b"0123456789abcdefghijklmnopqrstuv"[(page & 31) as usize]]);
    cut(&mut key, of_page, TAIL_BYTES_MAX, u64::from(of_page >> 62 != 0));
    key
}

/// Appends up to `max` bytes of the text, chosen by `hash`; none unless `wanted` is 1.
#[inline]
fn cut(key: &mut Text, hash: u64, max: u64, wanted: u64) {
    let size = (((hash & 0xffff) * (max + 1)) >> 16) as usize * wanted as usize;
    let from = (hash >> 16 & 0xffff) as usize % (TEXT.len() - max as usize);
    key.push(&TEXT[from..from + size]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_in_the_order_of_their_numbers_and_all_differ() {
        let numbers = [0, 1 << 20, 138_461_000, 1 << 40].into_iter().flat_map(|from| from..from + 30_000);
        let keys: Vec<Text> = numbers.map(url).collect();
        for pair in keys.windows(2) {
            assert!(pair[0].as_ref() < pair[1].as_ref(), "{:?}", pair.iter().map(text).collect::<Vec<_>>());
        }
    }

    #[test]
    fn lengths_are_what_is_promised_and_spread() {
        let lengths: Vec<usize> = (0..200_000).map(|number| url(number).as_ref().len()).collect();
        assert_eq!(lengths.iter().min(), Some(&12));
        assert!((180..=TEXT_BYTES_MAX).contains(lengths.iter().max().unwrap()));
        let mean = lengths.iter().sum::<usize>() / lengths.len();
        assert!((50..90).contains(&mean), "{mean} bytes on average");
        assert!(lengths.iter().filter(|length| **length < 24).count() > 2000);
    }

    #[test]
    fn a_key_is_always_the_same() {
        assert_eq!(text(&url(5)), text(&url(5)));
        assert!(text(&url(5)).starts_with("com.aaad"), "{}", text(&url(5)));
    }

    fn text(key: &Text) -> String {
        String::from_utf8(key.as_ref().to_vec()).unwrap()
    }
}
