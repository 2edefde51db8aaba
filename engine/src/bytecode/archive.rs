//! What a compile in a sandbox hands back, and the files that are made of it.
//!
//! The bytes come out of a sandbox: a name may lead nowhere but below the part that is being built, and no link that
//! they make is ever followed here.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Component, Path, PathBuf};

/// Files and links of one entry, and the directories that are made for them.
const MOST_FILES: u64 = 200_000;
/// Bytes of one entry's files.
const MOST_BYTES: u64 = 256 << 20;
const LONGEST_NAME: usize = 4096;

/// Why nothing more is taken.
#[derive(Debug, thiserror::Error)]
pub enum UnpackError {
    #[error("a record of kind {0:#x}")]
    Kind(u8),
    #[error("the name {}", .0.display())]
    Name(PathBuf),
    #[error("nothing was done")]
    Nothing,
    #[error("make {}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
}

/// An entry that is being built, and how far it is.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Part {
    /// The first module that is not done.
    pub next: u64,
    pub files: u64,
    pub bytes: u64,
    pub complete: bool,
}

impl Part {
    /// Takes the records of one round. A round that ended in the middle of a module goes on after it.
    ///
    /// # Errors
    /// What is not a record, leads elsewhere, or could not be written.
    pub fn unpack(&mut self, directory: &Path, mut records: &[u8]) -> Result<(), UnpackError> {
        let before = self.next;
        while let Some(record) = take(&mut records) {
            let Record { kind, name, data } = record;
            match kind {
                b'N' => self.next = number(name)? + 1,
                b'M' => self.next = number(name)?,
                b'E' => {
                    self.complete = true;
                    return Ok(());
                }
                b'L' => {
                    let place = place(directory, name)?;
                    self.files += 1 + make(&place, |place| symlink(path_of(data), place))?;
                }
                b'F' => {
                    let place = place(directory, name)?;
                    self.bytes += data.len() as u64;
                    self.files += 1 + make(&place, |place| write(place, data))?;
                }
                other => return Err(UnpackError::Kind(other)),
            }
            if self.files >= MOST_FILES || self.bytes >= MOST_BYTES {
                // What is left is compiled each time, as it was.
                self.complete = true;
                return Ok(());
            }
        }
        // A round that only says where it began would be asked for again for ever.
        if self.next <= before {
            return Err(UnpackError::Nothing);
        }
        Ok(())
    }
}

struct Record<'a> {
    kind: u8,
    name: &'a [u8],
    data: &'a [u8],
}

/// The next whole record.
fn take<'a>(records: &mut &'a [u8]) -> Option<Record<'a>> {
    fn text<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
        let (length, after) = rest.split_first_chunk::<4>()?;
        let (text, after) =
            after.split_at_checked(usize::try_from(u32::from_le_bytes(*length)).ok()?)?;
        *rest = after;
        Some(text)
    }
    let (kind, mut rest) = records.split_first()?;
    let name = text(&mut rest)?;
    let data = text(&mut rest)?;
    *records = rest;
    Some(Record {
        kind: *kind,
        name,
        data,
    })
}

fn path_of(bytes: &[u8]) -> &Path {
    Path::new(std::ffi::OsStr::from_bytes(bytes))
}

fn number(name: &[u8]) -> Result<u64, UnpackError> {
    std::str::from_utf8(name)
        .ok()
        .and_then(|text| text.parse().ok())
        .filter(|number| *number < u64::from(u32::MAX))
        .ok_or_else(|| UnpackError::Name(path_of(name).to_owned()))
}

/// Where a file or link of this name goes. Bytecode alone is made, and no directory is named like bytecode: so no name
/// leads through a link that was made before it.
fn place(directory: &Path, name: &[u8]) -> Result<PathBuf, UnpackError> {
    let path = path_of(name);
    let is_bytecode = |name: &std::ffi::OsStr| name.as_bytes().ends_with(b".pyc");
    let mut parts: Vec<_> = path.components().collect();
    let last = parts.pop();
    let fine = name.len() <= LONGEST_NAME
        && !name.contains(&0)
        && matches!(last, Some(Component::Normal(last)) if is_bytecode(last))
        && parts.first() == Some(&Component::RootDir)
        && parts[1..]
            .iter()
            .all(|part| matches!(part, Component::Normal(part) if !is_bytecode(part)));
    match path.strip_prefix("/") {
        Ok(below) if fine => Ok(directory.join(below)),
        _ => Err(UnpackError::Name(path.to_owned())),
    }
}

/// Makes what a round that was cut short may have made already. Gives how many directories were made for it: a name has
/// room for two thousand.
fn make(place: &Path, how: impl Fn(&Path) -> io::Result<()>) -> Result<u64, UnpackError> {
    let made = || {
        let directories = place.parent().map_or(Ok(0), open_directories)?;
        match fs::remove_file(place) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => how(place).map(|()| directories),
        }
    };
    made().map_err(|source| UnpackError::Io {
        path: place.to_owned(),
        source,
    })
}

/// Makes directories that the sandbox's user may look into, whatever the engine's mask is. Gives how many there were to make.
pub(super) fn open_directories(path: &Path) -> io::Result<u64> {
    if path.symlink_metadata().is_ok_and(|found| found.is_dir()) {
        return Ok(0);
    }
    let above = path.parent().map_or(Ok(0), open_directories)?;
    fs::create_dir(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))?;
    Ok(above + 1)
}

fn write(place: &Path, data: &[u8]) -> io::Result<()> {
    let mut file = File::create_new(place)?;
    file.write_all(data)?;
    file.set_permissions(fs::Permissions::from_mode(0o644))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(kind: u8, name: &str, data: &[u8]) -> Vec<u8> {
        let length = |bytes: &[u8]| u32::try_from(bytes.len()).unwrap().to_le_bytes();
        let mut record = vec![kind];
        record.extend(length(name.as_bytes()));
        record.extend(name.as_bytes());
        record.extend(length(data));
        record.extend(data);
        record
    }

    #[test]
    fn files_and_links_are_made_below_the_part() {
        let place = tempfile::tempdir().unwrap();
        let mut part = Part::default();
        let round = [
            record(b'N', "0", b""),
            record(b'F', "/lib/a.pyc", b"code"),
            record(b'N', "1", b""),
            record(b'L', "/lib/b.pyc", b"/lib/__pycache__/b.pyc"),
            record(b'M', "2", b""),
        ]
        .concat();
        part.unpack(place.path(), &round).unwrap();
        assert_eq!(fs::read(place.path().join("lib/a.pyc")).unwrap(), b"code");
        let link = fs::read_link(place.path().join("lib/b.pyc")).unwrap();
        assert_eq!(link, Path::new("/lib/__pycache__/b.pyc"));
        assert_eq!((part.next, part.files, part.complete), (2, 3, false));
        // The same again, as after a crash: the directory is there.
        let mut again = Part::default();
        again.unpack(place.path(), &round).unwrap();
        assert_eq!(again, Part { files: 2, ..part });
        part.unpack(place.path(), &record(b'E', "2", b"")).unwrap();
        assert!(part.complete);
    }

    #[test]
    fn directories_are_counted_as_files_are() {
        let place = tempfile::tempdir().unwrap();
        let name = format!("/{}m.pyc", "d/".repeat(2000));
        let mut part = Part::default();
        let round = [record(b'N', "0", b""), record(b'F', &name, b"")].concat();
        part.unpack(place.path(), &round).unwrap();
        assert_eq!(part.files, 2001);
    }

    #[test]
    fn no_name_leads_out_of_the_part() {
        let place = tempfile::tempdir().unwrap();
        for name in [
            "a.pyc",
            "/../a.pyc",
            "/x/../../a.pyc",
            "/",
            "",
            "/a",
            "/a.pyc/b.pyc",
            "/a\0.pyc",
        ] {
            for kind in [b'F', b'L'] {
                let said = Part::default().unpack(place.path(), &record(kind, name, b"/etc/x"));
                assert!(matches!(said, Err(UnpackError::Name(_))), "{name:?}");
            }
        }
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
        let allowed = record(b'F', "/x/a.pyc", b"");
        Part::default()
            .unpack(place.path(), &[record(b'N', "0", b""), allowed].concat())
            .unwrap();
    }

    #[test]
    fn a_module_that_ends_the_compiler_is_left_out_of_the_next_round() {
        let place = tempfile::tempdir().unwrap();
        let mut part = Part::default();
        let mut round = [record(b'N', "7", b""), record(b'F', "/a.pyc", b"code")].concat();
        round.truncate(round.len() - 1);
        part.unpack(place.path(), &round).unwrap();
        assert_eq!((part.next, part.files), (8, 0), "half a record is none");
        let said = part.unpack(place.path(), b"");
        assert!(matches!(said, Err(UnpackError::Nothing)), "{said:?}");
    }
}
