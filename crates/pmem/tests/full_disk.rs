//! A file system without room. A test of its own, because the limit that stands for it holds for the whole process.

mod common;

use common::{Place, create, fill, value};
use vellum_pmem::Variable;

#[test]
fn a_full_file_system_is_an_error_and_not_a_signal() {
    // A limit on file sizes stands for a full disk: the file cannot be extended.
    let place = Place::new();
    let store = create::<Variable>(&place);
    let mut client = store.client().unwrap();
    let limit = std::fs::metadata(place.path()).unwrap().len() + (300 << 10);
    // SAFETY: the limit is a plain structure. The signal that ends a process at the limit is not ignored: none comes.
    unsafe {
        let limit = libc::rlimit { rlim_cur: limit, rlim_max: libc::RLIM_INFINITY };
        assert_eq!(libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit), 0);
    }
    let stored = fill(&mut client, 3000);
    assert!(client.delete(&0u64.to_le_bytes()).unwrap());
    assert_eq!(store.len(), stored - 1);
    for key in 1..stored {
        assert_eq!(client.get(&key.to_le_bytes()).unwrap(), Some(value(key, 3000)));
    }
    // SAFETY: as above.
    unsafe {
        let limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
        libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit);
    }
}
