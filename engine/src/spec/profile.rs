//! Profiles: names for what a machine's owner gives to sandboxes again and again, in the `stepbox.toml` of the user whose
//! engine it is. A request names them; what is in them is parsed here, and stands where the request says nothing.
//!
//! The engine reads the file, not its clients: one parser judges what every client gets, by the same rules as the
//! options themselves; the file is that of the user whose rights the sandbox is made with; and a caller of another
//! machine cannot have its own taken for it. Each mistake is told with the file, the line and the key.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use toml_edit::{Document, Item, Table, Value};

use super::mount::{Host, HostAccess};
use super::request::{Cap, SpecRequest};
use super::session::{QUOTA_LEAST_BYTES, parse_cpus, parse_memory};
use super::text::{shown, shown_path, whole_path};
use super::{Violations, parse_size};

/// Devices of one session at most.
const MOST_DEVICES: usize = 16;

/// A device of the host that a sandbox gets, under the same path.
#[derive(Clone, Debug, Eq, Hash, PartialEq, Serialize, Deserialize)]
pub struct Device {
    pub path: PathBuf,
    pub major: u32,
    pub minor: u32,
}

/// Why a node is not given to a sandbox.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum DeviceRefusal {
    #[error("there is no such device on this host")]
    Missing,
    #[error("it is not below /dev")]
    Elsewhere,
    #[error(
        "it is a link, and a link can come to lead elsewhere; write the device that it leads to"
    )]
    Link,
    #[error("it is not a character device")]
    Kind,
    #[error("devices of the memory, the kernel and its terminals are never given to a sandbox")]
    Kernel,
    #[error(
        "the user of the engine may not read and write it; make that user a member of the device's group"
    )]
    Closed,
}

/// The file, as it is on disk.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ProfileFile {
    pub path: PathBuf,
    pub text: String,
}

/// Why there are no profiles.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum ProfileFileError {
    #[error(
        "there is no place for stepbox.toml: the engine was started without HOME and XDG_CONFIG_HOME"
    )]
    NoPlace,
    #[error("{} is not there; profiles are written in it", whole_path(.0))]
    Missing(PathBuf),
    #[error("{} cannot be read: {errno}", whole_path(.path), errno = std::io::Error::from_raw_os_error(*.errno))]
    Unreadable { path: PathBuf, errno: i32 },
    #[error(
        "{} can be written by others than its owner, or is not the engine's user's; chmod go-w it",
        whole_path(.0)
    )]
    NotOurs(PathBuf),
    #[error("{} is not a text of at most 1 MiB", whole_path(.0))]
    NotText(PathBuf),
}

/// What profiles gave that is no option of the request.
#[derive(Debug, Default)]
pub(super) struct Applied {
    pub(super) devices: Vec<Device>,
    /// Who named the workspace, if a profile did: for a refusal of it.
    pub(super) workspace: Option<Origin>,
}

/// Where something was written.
#[derive(Clone, Debug)]
pub(super) struct Origin {
    /// The request's field.
    pub(super) field: String,
    /// File, line and key.
    pub(super) place: String,
}

/// A kind of profile, and its keys.
#[derive(Clone, Copy, Debug)]
struct Kind {
    name: &'static str,
    keys: &'static [&'static str],
}

const KINDS: [Kind; 3] = [
    Kind {
        name: "vcpu",
        keys: &["cpus", "memory"],
    },
    Kind {
        name: "vdisk",
        keys: &["size", "path"],
    },
    Kind {
        name: "vgpio",
        keys: &["devices"],
    },
];

/// Fills in what the request leaves to its profiles.
pub(super) fn apply(
    request: &mut SpecRequest,
    host: &dyn Host,
    access: &HostAccess,
    violations: &mut Violations,
) -> Applied {
    let names = std::mem::take(&mut request.profiles);
    let mut wanted = Vec::new();
    for name in &names {
        match parse_name(name) {
            Some(parts) => wanted.push((field(name), parts)),
            None => violations.add(
                field(name),
                "write \"vcpu:NAME\", \"vdisk:NAME\" or \"vgpio:NAME\"",
            ),
        }
    }
    if wanted.is_empty() {
        return Applied::default();
    }
    let file = match host.profiles() {
        Ok(file) => file,
        Err(error) => {
            violations.add("profiles", error.to_string());
            return Applied::default();
        }
    };
    if let HostAccess::Below(allowed) = access
        && !allowed
            .iter()
            .any(|directory| file.path.starts_with(directory))
    {
        violations.add(
            "profiles",
            "they are those of the engine's user; over TCP they are only for callers of an engine whose \
             --allow-host-path covers the directory of stepbox.toml",
        );
        return Applied::default();
    }
    let document = match Document::parse(file.text.as_str()) {
        Ok(document) => document,
        Err(error) => {
            let line = error
                .span()
                .map_or(1, |span| line_at(&file.text, span.start));
            let said = error
                .message()
                .split_whitespace()
                .collect::<Vec<_>>()
                .join(" ");
            violations.add(
                "profiles",
                format!("{}:{line}: not TOML: {said}", whole_path(&file.path)),
            );
            return Applied::default();
        }
    };
    let mut reader = Reader {
        file: &file,
        host,
        violations,
        given: BTreeMap::new(),
        applied: Applied::default(),
    };
    for (field, (kind, name)) in &wanted {
        reader.profile(request, document.as_table(), field, *kind, name);
    }
    reader.applied
}

fn field(name: &str) -> String {
    format!("profiles[{}]", shown(name))
}

fn parse_name(text: &str) -> Option<(Kind, String)> {
    let (kind, name) = text.split_once(':')?;
    let kind = KINDS.into_iter().find(|known| known.name == kind)?;
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    (!name.is_empty() && name.chars().all(plain)).then(|| (kind, name.to_owned()))
}

fn line_at(text: &str, offset: usize) -> usize {
    text.bytes()
        .take(offset)
        .filter(|byte| *byte == b'\n')
        .count()
        + 1
}

struct Reader<'a> {
    file: &'a ProfileFile,
    host: &'a dyn Host,
    violations: &'a mut Violations,
    /// Which profile has given a key already.
    given: BTreeMap<&'static str, String>,
    applied: Applied,
}

impl Reader<'_> {
    fn profile(
        &mut self,
        request: &mut SpecRequest,
        file: &Table,
        field: &str,
        kind: Kind,
        name: &str,
    ) {
        let tables = file.get(kind.name).and_then(Item::as_table_like);
        let Some(item) = tables.and_then(|tables| tables.get(name)) else {
            let known: Vec<_> = tables
                .into_iter()
                .flat_map(|tables| tables.iter())
                .map(|(known, _)| format!("\"{}:{known}\"", kind.name))
                .collect();
            let instead = if known.is_empty() {
                String::new()
            } else {
                format!("; it has {}", known.join(", "))
            };
            let path = whole_path(&self.file.path);
            return self.violations.add(
                field,
                format!("{path} has no table [{}.{name}]{instead}", kind.name),
            );
        };
        let Some(table) = item.as_table_like() else {
            let place = self.place(item, kind, name, None);
            return self.violations.add(
                field,
                format!(
                    "{place}: it is no table; write [{}.{name}] and its keys below",
                    kind.name
                ),
            );
        };
        for (key, item) in table.iter() {
            let spelt = table.key(key).and_then(toml_edit::Key::span);
            let place = match spelt.or_else(|| item.span()) {
                Some(span) => self.place_at(span.start, kind, name, Some(key)),
                None => self.place(item, kind, name, Some(key)),
            };
            let Some(known) = kind.keys.iter().find(|known| **known == key) else {
                self.violations.add(
                    field,
                    format!(
                        "{place}: there is no such key; write {}",
                        kind.keys.join(" or ")
                    ),
                );
                continue;
            };
            let origin = Origin {
                field: field.to_owned(),
                place,
            };
            if let Some(other) = self.given.insert(known, field.to_owned()) {
                self.violations.add(
                    field,
                    format!("{}: {other} gives it too; name one of both", origin.place),
                );
                continue;
            }
            let taken = match item.as_value() {
                Some(value) => self.take(request, known, value, &origin),
                None => Err("it is a table; write a value".to_owned()),
            };
            if let Err(why) = taken {
                self.violations
                    .add(field, format!("{}: {why}", origin.place));
            }
        }
    }

    fn place(&self, item: &Item, kind: Kind, name: &str, key: Option<&str>) -> String {
        self.place_at(item.span().map_or(0, |span| span.start), kind, name, key)
    }

    fn place_at(&self, offset: usize, kind: Kind, name: &str, key: Option<&str>) -> String {
        let line = line_at(&self.file.text, offset);
        let key = key.map_or_else(String::new, |key| format!(".{}", key.escape_debug()));
        let path = whole_path(&self.file.path);
        format!("{path}:{line}: {}.{name}{key}", kind.name)
    }

    /// Takes one key. What the request says itself is left as it is, and what the file says is judged all the same.
    fn take(
        &mut self,
        request: &mut SpecRequest,
        key: &str,
        value: &Value,
        origin: &Origin,
    ) -> Result<(), String> {
        match key {
            "cpus" => {
                let cpus = number(value)?;
                parse_cpus(cpus)?;
                request.cpus.get_or_insert(cpus);
            }
            "memory" => {
                let bytes = size(value)?;
                let whole = bytes.is_multiple_of(1 << 20);
                if !whole {
                    return Err("write whole mebibytes, such as \"512m\"".to_owned());
                }
                parse_memory(bytes >> 20)?;
                fill(&mut request.memory_mb, bytes >> 20);
            }
            "size" => {
                let bytes = size(value)?;
                if bytes < QUOTA_LEAST_BYTES {
                    return Err(format!(
                        "{bytes} bytes are too few; write at least \"{}k\"",
                        QUOTA_LEAST_BYTES >> 10
                    ));
                }
                fill(&mut request.workspace_max_bytes, bytes);
            }
            "path" => {
                let path = Path::new(text(value, "a path, such as \"/srv/work\"")?);
                if !path.is_absolute() {
                    return Err(format!(
                        "{} is relative; write an absolute path, with nothing left for a shell",
                        shown_path(path)
                    ));
                }
                if request.workspace.is_none() {
                    request.workspace = Some(path.to_owned());
                    self.applied.workspace = Some(origin.clone());
                }
            }
            _ => return self.devices(value),
        }
        Ok(())
    }

    fn devices(&mut self, value: &Value) -> Result<(), String> {
        const SPELLING: &str = "a list of devices, such as [\"/dev/gpiochip0\"]";
        let list = value.as_array().ok_or_else(|| wrong(value, SPELLING))?;
        if list.len() > MOST_DEVICES {
            return Err(format!("{} devices; at most {MOST_DEVICES}", list.len()));
        }
        for item in list {
            let path = PathBuf::from(text(item, SPELLING)?);
            let device = self
                .host
                .device(&path)
                .map_err(|refusal| format!("{}: {refusal}", shown_path(&path)))?;
            if !self.applied.devices.contains(&device) {
                self.applied.devices.push(device);
            }
        }
        Ok(())
    }
}

fn fill(cap: &mut Cap, value: u64) {
    if !matches!(cap, Cap::Max(_)) {
        *cap = Cap::Max(value);
    }
}

fn number(value: &Value) -> Result<f64, String> {
    #[expect(
        clippy::cast_precision_loss,
        reason = "past the digits of a float it is too many cores anyway"
    )]
    let whole = value.as_integer().map(|whole| whole as f64);
    value
        .as_float()
        .or(whole)
        .ok_or_else(|| wrong(value, "a number of cores, such as 0.5"))
}

fn size(value: &Value) -> Result<u64, String> {
    if let Some(number) = value.as_integer() {
        return parse_size(&number.to_string());
    }
    parse_size(text(value, "a size, such as \"512m\"")?)
}

fn text<'a>(value: &'a Value, spelling: &str) -> Result<&'a str, String> {
    value.as_str().ok_or_else(|| wrong(value, spelling))
}

fn wrong(value: &Value, spelling: &str) -> String {
    format!("it is {}; write {spelling}", an(value.type_name()))
}

fn an(kind: &str) -> String {
    let article = if kind.starts_with(['a', 'i']) {
        "an"
    } else {
        "a"
    };
    format!("{article} {kind}")
}

#[cfg(test)]
#[path = "profile_tests.rs"]
mod tests;
