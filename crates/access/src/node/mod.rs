//! The node of the B+tree: a slotted page of 4096 bytes, and nothing else.
//!
//! The module knows bytes only: no page ids beyond storing them, no latches, no input or output. It is
//! written once for two kinds of reader. [`NodeView`] reads through [`vellum_base::Bytes`], either under a
//! latch or optimistically, where the bytes may change during the read. So each of its functions ends and
//! none panics, whatever the bytes say, and the caller discards what it read from bytes that changed, after
//! validation. [`NodeMut`] writes under an exclusive latch. It too survives a damaged page, with a
//! [`NodeFault`] instead of a panic, and never writes to the page header (bytes 0..32).
//!
//! # What a node is
//!
//! A node covers the keys in `(lower fence, upper fence]`: the lower fence is exclusive, the upper one
//! inclusive, and either may be absent, which means infinite. Its *prefix* is cut off each key, and the *rest* of
//! the key is stored. If there are both fences, the prefix is what they have in common at their beginning: every
//! key that the node may hold begins with it. If one is absent, at the root and at the two ends of each level,
//! the fences say nothing; there the prefix is something that all keys which the node *does* hold begin with, and
//! the fence, if there is one, as well. Such a prefix grows when the node is built anew or has doubled its keys,
//! if a leaf then takes no more bytes. The prefix of an inner node with a single separator and no fence is all but
//! the last four bytes of the separator. A key that is covered and lacks the prefix makes it shorter: all records are
//! then written anew. If that leaves no room, the node is full, and is split before or after all its keys.
//! The first four bytes of the rest, zero-padded, are the *head*, kept in the
//! slot as a big-endian number; only what goes beyond the head, the *tail*, lies in the heap. So a key
//! whose rest is at most four bytes is compared by its slot alone, as one 64-bit number: head, then length. In an inner
//! node the head has eight bytes, and length, place and child share a second number: separators are few and often alike
//! at their beginnings, and each comparison of tails there would be a cache miss after the other. See `entry.rs`.
//!
//! A leaf of up to 64 records whose keys go beyond their heads has *fingerprints* in the place of its hints: a byte of the hash of
//! each key. A lookup compares them all at once and touches the one record that it is about, however many keys tie in their
//! heads; a search for a place in the order goes by heads. See `fingerprints.rs`.
//!
//! A *leaf* (level 0) maps keys to values, which lie in the record or are references to blobs. An *inner*
//! node maps keys to children: child `i` covers the keys in `(separator[i - 1], separator[i]]`, and the
//! last child, number `count`, those beyond the last separator up to the upper fence.
//!
//! # Where the ideas come from
//!
//! Prefix and suffix truncation: Bayer and Unterauer, *Prefix B-trees*, TODS 1977. Fence keys and heads
//! ("poor man's normalised keys"): Graefe, *Modern B-tree techniques*, 2011. Heads together with sampled
//! hints in one cache line: Leis, Haubenschild, Neumann, *Optimistic lock coupling*, 2019, and Leis et al.,
//! *Virtual-memory assisted buffer management*, SIGMOD 2023. Here the record's value length sits in the slot
//! too, hints are the last heads of ranges of 2^k slots, so that they bound the search within a range on both
//! sides, and inner nodes keep the child beside the slot, so that its place follows from the slot's number.
//!
//! # Layout
//!
//! Little-endian. Bytes 0..32 are the page header ([`vellum_base::PageHeader`]), which this module leaves
//! alone.
//!
//! | bytes | field |
//! |---|---|
//! | 32..34 | count: slots of a leaf, separators of an inner node |
//! | 34..36 | prefix length in bytes |
//! | 36 | level: 0 for a leaf, else one more than that of its children |
//! | 37 | flags: bit 0 = there is a lower fence, bit 1 = there is an upper fence, bit 2 = fingerprints, bit 3 = long heads; others zero |
//! | 38..40 | heap start: where the lowest record that was placed begins, a multiple of 4 |
//! | 40..48 | prefix word: the first 8 bytes of the prefix as a big-endian number, zero-padded |
//! | 48..50 | length of the lower fence, prefix included; of the prefix, if there is no lower fence |
//! | 50..52 | length of the upper fence, prefix included; zero if there is none |
//! | 52..54 | heap bytes in use: fences and live records, each rounded up to a multiple of 4 |
//! | 54..64 | zero |
//! | 64..128 | 16 hints of 4 bytes: hint `i` is the head of slot `(i + 1) * 2^k - 1` or the upper half of that of the entry, or 0xffffffff where there is no such slot; `k` is the least number with `16 * 2^k >= count` |
//! | 64..128 | with bit 2 of the flags: 64 fingerprints of a byte instead; zero where there is no slot |
//! | 128.. | leaf: `count` slots of 8 bytes. Inner: `count + 1` entries of 16 bytes, of which the last has a child only |
//! | .. | free |
//! | heap start..fences | records, in any order, with holes |
//! | fences | upper fence without the prefix, then lower fence, which ends at byte 4096; they begin at the next lower multiple of 4 |
//!
//! The prefix is the beginning of the lower fence; if there is none, the prefix stands in its place. A slot is one number of 64 bits:
//!
//! | bits | field |
//! |---|---|
//! | 32..64 | head: the first 4 bytes of the rest of the key, big-endian, zero-padded |
//! | 21..32 | length of the rest of the key in bytes, 0 to 1024 |
//! | 10..21 | length of the value, 0 to 1024, or 1025 for a reference of 24 bytes to a blob |
//! | 0..10 | place of the record in the page, divided by 4; zero if the record is empty |
//!
//! An entry is two numbers of 64 bits. The first is the head: the first 8 bytes of the rest of the key, big-endian, zero-padded. The
//! second:
//!
//! | bits | field |
//! |---|---|
//! | 53..64 | length of the rest of the key in bytes, 0 to 1024 |
//! | 50..53 | zero |
//! | 40..50 | place of the record in the page, divided by 4; zero if the record is empty |
//! | 0..40 | page id of the child |
//!
//! Inner nodes of earlier files lack bit 3 of the flags. Their entries are a slot without a value, and a child's page id.
//!
//! A record is the value followed by the tail of the key, padded with zeroes to a multiple of 4. Slots
//! ascend strictly by key.
//!
//! # Limits
//!
//! A key has up to [`MAX_KEY_BYTES`], an inline value up to [`MAX_INLINE_VALUE_BYTES`], both together up to
//! [`MAX_INLINE_RECORD_BYTES`], which is chosen so that a leaf with two fences of maximal length holds one
//! maximal record. Therefore splitting always makes progress. A node of several keys can be split between two of
//! them, because the halves keep its prefix; a node of a single key can be split beside it, with any prefix.
#![forbid(unsafe_code)]

mod ahead;
mod build;
mod copy;
mod edit;
mod end;
mod entry;
mod fault;
mod fingerprints;
mod frame;
mod inner_builder;
mod inner_search;
mod layout;
mod leaf_builder;
mod merge;
mod pass;
mod probe;
mod search;
mod separator;
mod shape;
mod split;
mod validate;
mod view;
mod write;

#[cfg(test)]
mod entry_tests;
#[cfg(test)]
mod fingerprint_tests;
#[cfg(test)]
mod search_tests;
#[cfg(test)]
mod tests;

pub use copy::{CopySize, LeafCopy};
pub use end::End;
pub use fault::{NodeError, NodeFault};
pub(crate) use inner_builder::InnerBuilder;
pub use layout::{
    BLOB_REFERENCE_BYTES, MAX_INLINE_RECORD_BYTES, MAX_INLINE_VALUE_BYTES, MAX_INNER_COUNT, MAX_KEY_BYTES,
    MAX_LEAF_COUNT, NODE_BYTES, ValueKind,
};
pub(crate) use leaf_builder::LeafBuilder;
pub(crate) use pass::{Side, exchange_separator, pass_child};
pub use separator::shortest_separator;
pub use split::Split;
pub use view::{Find, NodeView, ValueAt};
pub use write::NodeMut;
