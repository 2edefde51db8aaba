//! What an interpreter reads its library from, and whether bytecode lies beside it.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2};
use sha2::{Digest, Sha256};

use crate::spec::Interpreter;

/// Changes when what is stored, or how, does.
const FORMAT: &str = "1";
/// Modules that most programs load, and that no release has frozen into the program.
const PROBES: &[&str] = &[
    "argparse.py",
    "ast.py",
    "inspect.py",
    "json/__init__.py",
    "logging/__init__.py",
    "random.py",
    "subprocess.py",
    "typing.py",
];
/// Modules of a directory of packages that are looked at.
const LOOKED_AT: usize = 64;
/// The first release that knows `PYTHONPYCACHEPREFIX`.
const FIRST_MINOR: u32 = 8;
const LIBRARY_DIRECTORIES: &[&str] = &["lib", "lib64"];
const SITES: &[&str] = &["site-packages", "dist-packages"];

/// The directories of one interpreter's modules, spelt as the interpreter spells them.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Library {
    executable: PathBuf,
    version: String,
    prefixes: Vec<PathBuf>,
    /// In the names of its bytecode: `cpython-311`.
    tag: String,
    pub standard: PathBuf,
    pub sites: Vec<PathBuf>,
}

impl Library {
    /// None: not an interpreter that this is for.
    #[must_use]
    pub fn of(interpreter: &Interpreter) -> Option<Self> {
        let mut numbers = interpreter.version.split('.');
        let (major, minor) = (numbers.next()?, numbers.next()?);
        let minor: u32 = minor.parse().ok()?;
        if major != "3" || minor < FIRST_MINOR {
            return None;
        }
        let mut seen = Vec::new();
        let mut new = |path: &Path| {
            fs::metadata(path).is_ok_and(|found| {
                let identity = (found.dev(), found.ino());
                let new = found.is_dir() && !seen.contains(&identity);
                seen.push(identity);
                new
            })
        };
        let mut standard = None;
        let mut sites = Vec::new();
        for prefix in &interpreter.prefixes {
            for (below, build) in LIBRARY_DIRECTORIES
                .iter()
                .flat_map(|below| ["", "t"].map(|build| (below, build)))
            {
                let library = prefix.join(below).join(format!("python3.{minor}{build}"));
                if standard.is_none() && library.join("os.py").is_file() {
                    standard = Some((library.clone(), build));
                }
                sites.extend(SITES.iter().map(|site| library.join(site)));
            }
            // Where distributions put packages of theirs and of the administrator's.
            let local = prefix.join("local/lib").join(format!("python3.{minor}"));
            sites.push(prefix.join("lib/python3/dist-packages"));
            sites.extend(SITES.iter().map(|site| local.join(site)));
        }
        let (standard, build) = standard?;
        sites.retain(|site| new(site));
        Some(Self {
            executable: interpreter.executable.clone(),
            version: interpreter.version.clone(),
            prefixes: interpreter.prefixes.clone(),
            tag: format!("cpython-3{minor}{build}"),
            standard,
            sites,
        })
    }

    #[must_use]
    pub fn tag(&self) -> &str {
        &self.tag
    }

    #[must_use]
    pub fn executable(&self) -> &Path {
        &self.executable
    }

    /// Libraries of the system's other interpreters, which every sandbox has.
    #[must_use]
    pub fn others(&self) -> Vec<PathBuf> {
        let entries = ["/usr/lib", "/usr/local/lib"]
            .into_iter()
            .filter_map(|directory| fs::read_dir(directory).ok())
            .flatten()
            .flatten();
        let mut others: Vec<_> = entries
            .filter(|entry| entry.file_name().as_encoded_bytes().starts_with(b"python3"))
            .map(|entry| entry.path())
            .filter(|path| {
                let mut own = self.sites.iter().chain([&self.standard]);
                path.is_dir() && !own.any(|own| own.starts_with(path))
            })
            .collect();
        others.sort();
        others
    }

    /// Whether the standard library has no bytecode that this interpreter would take.
    #[must_use]
    pub fn lacks_bytecode(&self) -> bool {
        let Ok(top) = open_directory(&self.standard) else {
            return false;
        };
        // The interpreter is the caller's: links in its library lead where it means them to.
        let how = ResolveFlags::NO_MAGICLINKS;
        PROBES
            .iter()
            .any(|probe| is_compiled(top.as_fd(), Path::new(probe), &self.tag, how) == Some(false))
    }

    /// Names the interpreter, and what it would read, by what is cheap to see. A content that changes unseen costs time
    /// alone: each piece of bytecode names the source that it was made of.
    #[must_use]
    pub fn digest(&self) -> String {
        let mut hash = self.interpreter_hash();
        for path in self.sites.iter().chain([&self.standard]) {
            add_identity(&mut hash, path);
        }
        hex(hash)
    }

    /// Names a directory of packages for this interpreter.
    #[must_use]
    pub fn digest_of_packages(&self, source: &Path) -> String {
        let mut hash = self.interpreter_hash();
        hash.update("packages");
        add_identity(&mut hash, source);
        hex(hash)
    }

    fn interpreter_hash(&self) -> Sha256 {
        let mut hash = Sha256::new();
        for text in [FORMAT, &self.version, &self.tag] {
            add(&mut hash, text.as_bytes());
        }
        for path in self.prefixes.iter().chain([&self.standard]) {
            add(&mut hash, path.as_os_str().as_encoded_bytes());
        }
        add_identity(&mut hash, &self.executable);
        hash
    }
}

/// With its length, so that two texts are not taken for two others.
fn add(hash: &mut Sha256, bytes: &[u8]) {
    hash.update(bytes.len().to_le_bytes());
    hash.update(bytes);
}

fn add_identity(hash: &mut Sha256, path: &Path) {
    add(hash, path.as_os_str().as_encoded_bytes());
    if let Ok(found) = fs::metadata(path) {
        hash.update(found.ino().to_le_bytes());
        hash.update(found.size().to_le_bytes());
        hash.update(found.mtime().to_le_bytes());
        hash.update(found.mtime_nsec().to_le_bytes());
    }
}

fn hex(hash: Sha256) -> String {
    hash.finalize()
        .iter()
        .fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
}

/// Whether a directory of packages has a module without bytecode, by its first modules.
#[must_use]
pub fn lacks_bytecode(directory: &Path, tag: &str) -> bool {
    compiled_modules(directory, tag).contains(&false)
}

/// Whether a directory of packages has a module with bytecode beside it, by its first modules.
#[must_use]
pub fn has_own_bytecode(directory: &Path, tag: &str) -> bool {
    compiled_modules(directory, tag).contains(&true)
}

/// For each of the first modules whether it is compiled. Code may have made what is there: no link is followed.
fn compiled_modules(directory: &Path, tag: &str) -> Vec<bool> {
    const PLAIN: ResolveFlags = ResolveFlags::BENEATH
        .union(ResolveFlags::NO_SYMLINKS)
        .union(ResolveFlags::NO_MAGICLINKS);
    let Ok(top) = open_directory(directory) else {
        return Vec::new();
    };
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries
        .take(16 * LOOKED_AT)
        .filter_map(|entry| {
            let name = PathBuf::from(entry.file_name());
            let source = if entry.file_type().ok()?.is_dir() {
                name.join("__init__.py")
            } else {
                name
            };
            is_compiled(top.as_fd(), &source, tag, PLAIN)
        })
        .take(LOOKED_AT)
        .collect()
}

fn open_directory(directory: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(openat(CWD, directory, flags, Mode::empty())?)
}

/// Whether bytecode that the interpreter would take lies beside a source, by the head that it writes itself. None: this
/// is no source.
fn is_compiled(top: BorrowedFd<'_>, source: &Path, tag: &str, how: ResolveFlags) -> Option<bool> {
    const HASHED: u64 = 1;
    let open = |path: &Path| {
        // What is no file must not keep us waiting.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = File::from(openat2(top, path, flags, Mode::empty(), how).ok()?);
        let found = file.metadata().ok()?;
        found.is_file().then_some((file, found))
    };
    if source.extension()? != "py" {
        return None;
    }
    let (_, found) = open(source)?;
    let head = || {
        let name = source.file_stem()?.to_str()?;
        let directory = source.with_file_name("__pycache__");
        let (mut file, _) = open(&directory.join(format!("{name}.{tag}.pyc")))?;
        let mut head = [0; 16];
        file.read_exact(&mut head).ok()?;
        Some(head)
    };
    let Some(head) = head() else {
        return Some(false);
    };
    let number = |at: usize| {
        let bytes = [head[at], head[at + 1], head[at + 2], head[at + 3]];
        u64::from(u32::from_le_bytes(bytes))
    };
    // The format keeps the low half of both.
    let low = |value: u64| value & u64::from(u32::MAX);
    let of_this_source =
        number(8) == low(found.mtime().cast_unsigned()) && number(12) == low(found.size());
    Some(number(4) & HASHED != 0 || of_this_source)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interpreter(prefix: &Path, version: &str) -> Interpreter {
        Interpreter {
            executable: prefix.join("bin/python3"),
            prefixes: vec![prefix.to_owned()],
            version: version.to_owned(),
        }
    }

    fn library(prefix: &Path) -> PathBuf {
        let library = prefix.join("lib/python3.11");
        fs::create_dir_all(library.join("site-packages")).unwrap();
        fs::write(library.join("os.py"), "").unwrap();
        fs::write(library.join("ast.py"), "x = 1\n").unwrap();
        library
    }

    fn compile(source: &Path, mtime: i64, size: u32) {
        let directory = source.with_file_name("__pycache__");
        fs::create_dir_all(&directory).unwrap();
        let mut head = vec![1, 2, 3, 4, 0, 0, 0, 0];
        head.extend(u32::try_from(mtime).unwrap().to_le_bytes());
        head.extend(size.to_le_bytes());
        let name = source.file_stem().unwrap().to_str().unwrap();
        fs::write(directory.join(format!("{name}.cpython-311.pyc")), head).unwrap();
    }

    #[test]
    fn bytecode_of_another_source_or_version_is_no_bytecode() {
        let place = tempfile::tempdir().unwrap();
        let source = library(place.path()).join("ast.py");
        let found = Library::of(&interpreter(place.path(), "3.11.7")).unwrap();
        assert!(found.lacks_bytecode());
        let mtime = fs::metadata(&source).unwrap().mtime();
        compile(&source, mtime - 1, 6);
        assert!(found.lacks_bytecode(), "made of an older source");
        compile(&source, mtime, 7);
        assert!(found.lacks_bytecode(), "made of a longer source");
        compile(&source, mtime, 6);
        assert!(!found.lacks_bytecode());
        assert!(lacks_bytecode(source.parent().unwrap(), "cpython-311"));
        assert!(has_own_bytecode(source.parent().unwrap(), "cpython-311"));
        assert!(!has_own_bytecode(source.parent().unwrap(), "cpython-312"));
    }

    #[test]
    fn a_link_in_packages_is_not_followed() {
        let place = tempfile::tempdir().unwrap();
        let theirs = place.path().join("theirs");
        let elsewhere = place.path().join("elsewhere");
        for directory in [&theirs, &elsewhere] {
            fs::create_dir(directory).unwrap();
        }
        let source = elsewhere.join("m.py");
        fs::write(&source, "").unwrap();
        compile(&source, fs::metadata(&source).unwrap().mtime(), 0);
        assert!(has_own_bytecode(&elsewhere, "cpython-311"));
        std::os::unix::fs::symlink(&source, theirs.join("m.py")).unwrap();
        let cached = elsewhere.join("__pycache__");
        std::os::unix::fs::symlink(&cached, theirs.join("__pycache__")).unwrap();
        assert!(!has_own_bytecode(&theirs, "cpython-311"));
        fs::remove_file(theirs.join("m.py")).unwrap();
        fs::copy(&source, theirs.join("m.py")).unwrap();
        assert!(!has_own_bytecode(&theirs, "cpython-311"));
        assert!(lacks_bytecode(&theirs, "cpython-311"));
    }

    #[test]
    fn another_interpreter_or_content_has_another_digest() {
        let place = tempfile::tempdir().unwrap();
        let other = tempfile::tempdir().unwrap();
        library(place.path());
        library(other.path());
        let digest =
            |prefix: &Path, version| Library::of(&interpreter(prefix, version)).unwrap().digest();
        let first = digest(place.path(), "3.11.7");
        assert_eq!(first, digest(place.path(), "3.11.7"));
        assert_ne!(first, digest(place.path(), "3.11.8"));
        assert_ne!(first, digest(other.path(), "3.11.7"));
        fs::write(place.path().join("lib/python3.11/site-packages/new.py"), "").unwrap();
        assert_ne!(first, digest(place.path(), "3.11.7"));
    }

    #[test]
    fn what_is_no_interpreter_that_knows_the_variable_is_left_alone() {
        let place = tempfile::tempdir().unwrap();
        library(place.path());
        for version in ["3.7.9", "2.7.18", "3", "", "x.y", "3.12.1"] {
            assert_eq!(Library::of(&interpreter(place.path(), version)), None);
        }
    }
}
