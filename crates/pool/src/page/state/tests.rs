//! Tests of the state word.

use super::*;

fn resident() -> PageState {
    let state = PageState::evicted();
    assert!(state.try_exclusive(state.load()));
    assert_eq!(state.release_exclusive(false).1, Wake::None);
    state
}

#[test]
fn zero_is_evicted() {
    assert!(PageState::evicted().load().is_evicted());
    assert!(!PageState::evicted().load().is_readable());
}

#[test]
fn a_change_grows_the_version_and_a_look_does_not() {
    let state = resident();
    let seen = state.load();
    assert!(state.try_exclusive(seen));
    assert!(!state.validate(seen));
    let _ = state.release_exclusive(false);
    assert!(state.validate(seen));
    assert!(state.try_exclusive(state.load()));
    let _ = state.release_exclusive(true);
    assert!(!state.validate(seen));
    assert!(state.load().is_dirty());
}

#[test]
fn shared_holders_do_not_disturb_optimistic_readers() {
    let state = resident();
    let seen = state.load();
    assert!(state.try_shared(state.load()));
    assert!(state.try_shared(state.load()));
    assert_eq!(state.load().shared_holders(), 2);
    assert!(state.validate(seen));
    assert!(!state.try_upgrade_shared());
    let _ = state.release_shared();
    assert!(state.try_upgrade_shared());
    assert!(!state.validate(seen));
    let _ = state.release_exclusive(false);
}

#[test]
fn a_page_is_clean_only_if_it_still_is_what_was_copied() {
    let state = resident();
    let change = || {
        assert!(state.try_exclusive(state.load()));
        let _ = state.release_exclusive(true);
        state.load()
    };
    let first = change();
    let second = change();
    assert!(!state.try_clean(first) && state.load().is_dirty());
    assert!(state.try_exclusive(second));
    assert!(!state.try_clean(second), "it may be changing");
    let _ = state.release_exclusive(false);
    assert!(state.try_shared(state.load()));
    assert!(state.try_clean(second) && !state.load().is_dirty());
    assert_eq!(state.load().shared_holders(), 1);
    assert!(!state.try_clean(second));
    let _ = state.release_shared();
    assert!(state.validate(second), "readers are not disturbed");
}

#[test]
fn the_shared_latch_has_room_for_252() {
    let state = resident();
    for _ in 0..SHARED_HOLDERS_MAX {
        assert!(state.try_shared(state.load()));
    }
    assert!(!state.try_shared(state.load()));
    assert!(state.load().is_readable());
    for _ in 0..SHARED_HOLDERS_MAX {
        let _ = state.release_shared();
    }
    assert!(state.load().is_unlocked());
}

#[test]
fn an_eviction_is_noticed_even_after_the_page_came_back() {
    let state = resident();
    let seen = state.load();
    assert!(state.try_exclusive(seen));
    let _ = state.release_exclusive_evicted();
    assert!(state.try_exclusive(state.load()));
    let _ = state.release_exclusive(false);
    assert!(!state.validate(seen));
}

#[test]
fn a_mark_is_undone_by_a_reader_and_kept_valid() {
    let state = resident();
    let seen = state.load();
    assert!(state.try_mark(seen));
    assert!(state.validate(seen));
    assert!(state.try_unmark(state.load()));
    assert!(state.load().is_unlocked());
}

#[test]
fn the_last_shared_holder_says_whether_the_page_was_used() {
    let state = resident();
    assert!(state.try_mark(state.load()));
    assert!(state.try_shared(state.load()));
    assert!(state.announce_waiting(Want::Exclusive));
    assert_eq!(state.release_shared_marked(), Wake::All);
    assert!(state.load().is_marked());
    for is_first in [true, false] {
        assert!(state.try_shared(state.load()) && state.try_shared(state.load()));
        let _ = if is_first { state.release_shared_marked() } else { state.release_shared() };
        let _ = if is_first { state.release_shared() } else { state.release_shared_marked() };
        assert!(if is_first { state.load().is_unlocked() } else { state.load().is_marked() });
    }
}

#[test]
fn the_table_of_transitions_refuses_what_would_be_a_bug() {
    let word = |state: u64, rest: u64| Word(state << STATE_SHIFT | rest);
    assert!(is_allowed(word(UNLOCKED, 5), word(EXCLUSIVE, 5)));
    assert!(is_allowed(word(EXCLUSIVE, 5 | WAITING), word(UNLOCKED, 6 | DIRTY)));
    assert!(is_allowed(word(EXCLUSIVE, VERSION_MASK), word(EVICTED, 0)));
    assert!(!is_allowed(word(UNLOCKED, 5), word(EVICTED, 6)), "evicted without a latch");
    assert!(!is_allowed(word(EVICTED, 5), word(SHARED_FIRST, 5)), "shared without being read in");
    assert!(!is_allowed(word(EXCLUSIVE, 5), word(EVICTED, 5)), "evicted with the same version");
    assert!(!is_allowed(word(EXCLUSIVE, 5 | DIRTY), word(EVICTED, 6 | DIRTY)), "evicted with changes");
    assert!(!is_allowed(word(EXCLUSIVE, 5 | DIRTY), word(UNLOCKED, 5)), "clean by itself");
    assert!(!is_allowed(word(EXCLUSIVE, 5 | WAITING), word(UNLOCKED, 6 | WAITING)), "a lost wake-up");
    assert!(!is_allowed(word(SHARED_FIRST, 5 | WAITING), word(UNLOCKED, 5 | WAITING)), "a lost wake-up");
    assert!(!is_allowed(word(SHARED_FIRST + 2, 5), word(SHARED_FIRST, 5)), "two holders at once");
    assert!(!is_allowed(word(UNLOCKED, 5), word(UNLOCKED, 5 | WAITING)), "waiting for nobody");
    assert!(!is_allowed(word(MARKED, 5), word(UNLOCKED, 6)), "a change without a latch");
}

#[test]
fn the_release_that_clears_the_waiting_bit_says_so() {
    let state = resident();
    assert!(!state.announce_waiting(Want::Exclusive));
    assert!(state.try_shared(state.load()));
    assert!(!state.announce_waiting(Want::Shared));
    assert!(state.announce_waiting(Want::Exclusive));
    assert!(state.must_sleep(Want::Exclusive));
    assert_eq!(state.release_shared(), Wake::All);
    assert!(!state.must_sleep(Want::Exclusive));
    assert!(state.try_exclusive(state.load()));
    assert!(state.announce_waiting(Want::Read));
    assert_eq!(state.release_exclusive(true).1, Wake::All);
    assert_eq!(state.load().version(), 1);
}
