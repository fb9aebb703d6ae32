//! Address space for the tables of a store: mapped by the system or, in unit tests, which open many thousands of tiny
//! stores, reused, because mapping it and touching its pages would take three quarters of their time.

#[cfg(not(test))]
pub use vellum_vm::Mapping;

#[cfg(test)]
pub use reused::Mapping;

#[cfg(test)]
mod reused {
    use std::{cell::RefCell, ops::Deref, ptr};
    use vellum_vm::VmError;

    /// Larger mappings are returned to the system, in bytes.
    const BYTES_MAX: usize = 1 << 20;
    /// How many mappings a thread keeps.
    const KEPT_MAX: usize = 64;

    thread_local! {
        /// The mappings that were dropped, filled with zeroes.
        static KEPT: RefCell<Vec<vellum_vm::Mapping>> = const { RefCell::new(Vec::new()) };
    }

    /// Like the system's mapping.
    #[derive(Debug)]
    pub struct Mapping(Option<vellum_vm::Mapping>);

    impl Mapping {
        pub fn reserve(bytes: usize, purpose: &'static str) -> Result<Self, VmError> {
            Self::reserve_up_to(bytes, bytes, purpose)
        }

        pub fn reserve_up_to(wanted: usize, least: usize, purpose: &'static str) -> Result<Self, VmError> {
            let kept = KEPT.with_borrow_mut(|kept| {
                let found = kept.iter().rposition(|mapping| mapping.len() == wanted)?;
                Some(kept.swap_remove(found))
            });
            match kept {
                Some(mapping) => Ok(Self(Some(mapping))),
                None => Ok(Self(Some(vellum_vm::Mapping::reserve_up_to(wanted, least, purpose)?))),
            }
        }

        pub fn for_table(mut self) -> Self {
            Self(self.0.take().map(vellum_vm::Mapping::for_table))
        }
    }

    impl Deref for Mapping {
        type Target = vellum_vm::Mapping;

        fn deref(&self) -> &vellum_vm::Mapping {
            self.0.as_ref().unwrap()
        }
    }

    impl Drop for Mapping {
        fn drop(&mut self) {
            let Some(mapping) = self.0.take().filter(|mapping| mapping.len() <= BYTES_MAX) else { return };
            // SAFETY: the bytes are mapped, and nothing refers to them any more.
            unsafe { ptr::write_bytes(mapping.base().as_ptr(), 0, mapping.len()) };
            // If there is no list, at the end of a thread, the mapping is returned to the system.
            let _ = KEPT.try_with(|kept| {
                let mut kept = kept.borrow_mut();
                if kept.len() < KEPT_MAX {
                    kept.push(mapping);
                }
            });
        }
    }
}
