//! What can be wrong with a node, and why a change of one is refused.

/// What is wrong with the bytes of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NodeFault {
    /// The bytes are not one page.
    #[error("a node has 4096 bytes, not {bytes}")]
    Size {
        /// How many there are.
        bytes: usize,
    },
    /// There cannot be so many slots.
    #[error("it claims {count} slots, more than there is room for")]
    Count {
        /// What the node says.
        count: usize,
    },
    /// The heap begins in the slots, in the fences, or at a place that is no multiple of 4.
    #[error("its heap cannot begin at byte {start}")]
    HeapStart {
        /// What the node says.
        start: usize,
    },
    /// The bytes of heap in use are not the sum of its parts.
    #[error("it claims {stored} bytes of heap in use, but has {computed}")]
    HeapUsed {
        /// What the node says.
        stored: usize,
        /// The bytes that its fences and records need, or the size of the heap if that is exceeded.
        computed: usize,
    },
    /// A fence is too long, or an absent one has bytes (those of the prefix aside), or flags are unknown.
    #[error("its fences are malformed: flags {flags:#x}, lengths {lower} and {upper}")]
    Fences {
        /// The flags of the node.
        flags: u8,
        /// The length of the lower fence.
        lower: usize,
        /// The length of the upper fence.
        upper: usize,
    },
    /// The lower fence is not below the upper one.
    #[error("its lower fence is not below its upper fence")]
    FenceOrder,
    /// The prefix is not what both fences have in common, or a fence does not begin with it.
    #[error("its prefix of {length} bytes does not agree with its fences")]
    Prefix {
        /// The length of the prefix that the node gives.
        length: usize,
    },
    /// Bytes that must be zero are not.
    #[error("byte {at} is reserved and not zero")]
    Reserved {
        /// The place of the byte in the page.
        at: usize,
    },
    /// A slot gives lengths beyond the limits or pads its head with something other than zeroes.
    #[error("slot {index} is malformed")]
    Slot {
        /// The slot.
        index: usize,
    },
    /// A record lies outside the heap.
    #[error("the record of slot {index} lies outside the heap")]
    Record {
        /// The slot.
        index: usize,
    },
    /// A record shares bytes with another one.
    #[error("the record of slot {index} overlaps another one")]
    Overlap {
        /// The slot.
        index: usize,
    },
    /// A key is not above the one before it.
    #[error("the key of slot {index} is not above the one before it")]
    Order {
        /// The slot.
        index: usize,
    },
    /// A key is not between the fences.
    #[error("the key of slot {index} is not between the fences")]
    OutsideFences {
        /// The slot; for a key that was to be inserted, where it would have gone.
        index: usize,
    },
    /// A hint is not the head that it should be, or a fingerprint not that of its key.
    #[error("hint or fingerprint {index} is wrong")]
    Hint {
        /// The hint, 0 to 15, or the fingerprint, 0 to 63.
        index: usize,
    },
    /// A leaf was expected and the node is an inner one, or the other way round, or levels do not match.
    #[error("it has level {level}, which does not fit the operation")]
    Level {
        /// The level that the node gives.
        level: u8,
    },
    /// There is no such slot.
    #[error("it has no slot {index}")]
    Index {
        /// The slot that was asked for.
        index: usize,
    },
    /// The node has too little in it to be split, or no place where both halves fit.
    #[error("it cannot be split")]
    Split,
    /// The page is not the one to which a recorded change was done.
    #[error("it is not the page to which a recorded change was done")]
    NotRecorded,
    /// Two nodes to be merged are not neighbours at the separator.
    #[error("its fence is not the separator from its neighbour")]
    Neighbour,
}

/// Why a change of a node was refused. The node is as it was, unless the operation says otherwise.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NodeError {
    /// There is no room, even after compaction: split the node, or do not merge.
    #[error("the node has no room")]
    Full,
    /// The node has the key already.
    #[error("the key is already in the node")]
    Exists,
    /// The key or the value is longer than the limits allow, or a blob reference has the wrong length.
    #[error("the key or the value is too long for a node")]
    TooLarge,
    /// The node is damaged, or of the wrong kind for the operation.
    #[error("the node is damaged: {0}")]
    Fault(#[from] NodeFault),
}
