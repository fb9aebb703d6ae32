//! Names of files: a new name that takes no other file's place, and what has the name that an open file had.

use crate::File;
use std::ffi::CString;
use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// What has a name by which an open file was known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Named {
    /// The file itself.
    Itself,
    /// Another file, or something that is no file.
    Another,
    /// Nothing, and the file has another name: it was moved.
    Moved,
    /// Nothing, and the file has no name: it was removed.
    Removed,
}

/// Says what has this name now. A symbolic link is something else than the file to which it leads. A file that the
/// system does not know counts as having its name.
///
/// # Errors
/// The errors of the file system.
pub fn named(path: &Path, file: &dyn File) -> io::Result<Named> {
    let Some(about) = about(file)? else { return Ok(Named::Itself) };
    match fs::symlink_metadata(path) {
        Ok(there) if (there.dev(), there.ino()) == (about.st_dev, about.st_ino) => Ok(Named::Itself),
        Ok(_) => Ok(Named::Another),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Ok(if about.st_nlink > 0 { Named::Moved } else { Named::Removed })
        }
        Err(error) => Err(error),
    }
}

/// Whether an open file has more than one name.
///
/// # Errors
/// The errors of the file system.
pub fn has_other_names(file: &dyn File) -> io::Result<bool> {
    Ok(about(file)?.is_some_and(|about| about.st_nlink > 1))
}

/// What the system knows of an open file. It takes no other descriptor, of which there may be none left.
fn about(file: &dyn File) -> io::Result<Option<libc::stat>> {
    let Some(descriptor) = file.descriptor() else { return Ok(None) };
    let mut about = MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: the descriptor is open as long as it is borrowed, and there is room for the result.
    if unsafe { libc::fstat(descriptor.as_raw_fd(), about.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call has written it.
    Ok(Some(unsafe { about.assume_init() }))
}

/// Renames a file, and fails if anything has the new name. Both are one step where the file system can do that. On others
/// the file has both names for a moment, or, if they have no hard links, a file that is made in that moment is replaced.
///
/// # Errors
/// [`io::ErrorKind::AlreadyExists`], and the errors of the file system.
pub fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    match rename_at_once(from, to) {
        Err(error) if lacks_renaming(&error) => link_and_remove(from, to),
        renamed => renamed,
    }
}

fn rename_at_once(from: &Path, to: &Path) -> io::Result<()> {
    let (from, to) = (CString::new(from.as_os_str().as_bytes())?, CString::new(to.as_os_str().as_bytes())?);
    let (here, flags) = (libc::AT_FDCWD, libc::RENAME_NOREPLACE);
    // SAFETY: both are strings that end in zero, and live as long as the call; no memory is changed. By number, because
    // not every C library has the function.
    let outcome =
        unsafe { libc::syscall(libc::SYS_renameat2, here, from.as_ptr(), here, to.as_ptr(), flags) };
    if outcome == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Whether the kernel or the file system cannot do both at once.
fn lacks_renaming(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EINVAL | libc::EOPNOTSUPP))
}

fn link_and_remove(from: &Path, to: &Path) -> io::Result<()> {
    match fs::hard_link(from, to) {
        Ok(()) => fs::remove_file(from),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(error),
        // The file system has no hard links.
        Err(_) if fs::symlink_metadata(to).is_ok() => Err(io::ErrorKind::AlreadyExists.into()),
        Err(_) => fs::rename(from, to),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DiskFile, FileOptions};

    #[test]
    fn a_new_name_takes_no_files_place() {
        let folder = tempfile::tempdir().unwrap();
        let [from, to, link] = ["from", "to", "link"].map(|name| folder.path().join(name));
        for rename in [rename_new, link_and_remove] {
            fs::write(&from, b"new").unwrap();
            rename(&from, &to).unwrap();
            assert!(!from.exists() && fs::read(&to).unwrap() == b"new");
            fs::write(&from, b"newer").unwrap();
            // A link that leads nowhere is there, too.
            std::os::unix::fs::symlink("nowhere", &link).unwrap();
            for taken in [&to, &link] {
                assert_eq!(rename(&from, taken).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
            }
            assert!(fs::read(&from).unwrap() == b"newer" && fs::read(&to).unwrap() == b"new");
            [&from, &to, &link].into_iter().for_each(|path| fs::remove_file(path).unwrap());
            assert_eq!(rename(&from, &to).unwrap_err().kind(), io::ErrorKind::NotFound);
        }
    }

    #[test]
    fn a_file_is_known_by_itself_and_not_by_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let [path, other] = ["path", "other"].map(|name| folder.path().join(name));
        fs::write(&path, b"").unwrap();
        let file = DiskFile::open(&path, &FileOptions::default()).unwrap();
        let now = || named(&path, &file).unwrap();
        assert_eq!((now(), has_other_names(&file).unwrap()), (Named::Itself, false));
        fs::hard_link(&path, &other).unwrap();
        assert!(has_other_names(&file).unwrap());
        fs::remove_file(&path).unwrap();
        assert_eq!(now(), Named::Moved);
        std::os::unix::fs::symlink("other", &path).unwrap();
        assert_eq!(now(), Named::Another);
        fs::remove_file(&path).unwrap();
        fs::write(&path, b"").unwrap();
        assert_eq!(now(), Named::Another);
        fs::remove_file(&path).unwrap();
        fs::remove_file(&other).unwrap();
        assert_eq!(now(), Named::Removed);
    }
}
