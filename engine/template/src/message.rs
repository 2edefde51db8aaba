//! What the engine says to a template and to what is forked from it, and what they answer.
//!
//! The engine's side is `engine/src/launcher/message.rs` and `engine/src/sandbox/init.rs`: types in the encoding of
//! postcard, of which this reads and writes what those types use. A test of the engine's reads these with those.

/// Reads one message. Nothing of what was asked for beyond its end is there.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(*first)
    }

    pub fn boolean(&mut self) -> Option<bool> {
        Some(self.byte()? != 0)
    }

    pub fn number(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    pub fn length(&mut self) -> Option<usize> {
        usize::try_from(self.number()?).ok()
    }

    pub fn bytes(&mut self) -> Option<&'a [u8]> {
        let length = self.length()?;
        if length > self.rest.len() {
            return None;
        }
        let (bytes, rest) = self.rest.split_at(length);
        self.rest = rest;
        Some(bytes)
    }

    /// Strings in a row: their number, and a reader that gives them.
    pub fn strings(&mut self, each: usize) -> Option<Strings<'a>> {
        let count = self.length()?;
        let start = *self;
        for _ in 0..count.checked_mul(each)? {
            self.bytes()?;
        }
        let length = start.rest.len() - self.rest.len();
        Some(Strings {
            count,
            encoded: &start.rest[..length],
        })
    }
}

/// A list of strings, or of tuples of them, as it lies in a message.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Strings<'a> {
    /// How many entries.
    pub count: usize,
    pub encoded: &'a [u8],
}

impl<'a> Strings<'a> {
    /// All strings, those of a tuple one after the other.
    pub fn iter(self) -> impl Iterator<Item = &'a [u8]> {
        let mut reader = Reader::new(self.encoded);
        core::iter::from_fn(move || reader.bytes())
    }
}

/// The filters that what is forked from a template loads.
#[derive(Clone, Copy, Debug)]
pub struct Filters<'a> {
    pub step: &'a [u8],
    pub pin: &'a [u8],
}

/// What a template is told first.
#[derive(Clone, Copy, Debug)]
pub struct Setup<'a> {
    pub filters: Filters<'a>,
    /// Names of modules to import.
    pub preload: Strings<'a>,
    /// The variables of most steps: names and values.
    pub environment: Strings<'a>,
}

impl<'a> Setup<'a> {
    pub fn read(bytes: &'a [u8]) -> Option<Self> {
        let mut reader = Reader::new(bytes);
        Some(Self {
            filters: Filters {
                step: reader.bytes()?,
                pin: reader.bytes()?,
            },
            preload: reader.strings(1)?,
            environment: reader.strings(2)?,
        })
    }
}

/// What a template, or a sub-template, is asked for.
#[derive(Clone, Copy, Debug)]
pub enum Order<'a> {
    /// A sub-template. Beside it: its socket, then descriptors of `cgroup.procs` to join.
    Branch,
    /// A process that waits in a sandbox.
    Fork(Fork<'a>),
}

#[derive(Clone, Copy, Debug)]
pub struct Fork<'a> {
    /// The sandbox has a user namespace of its own.
    pub users: bool,
    /// The rules of a fence are beside it, and these are the flags to put it up with.
    pub fence: Option<u32>,
    /// The directory of a cgroup2 to be born in is beside it.
    pub leaf: bool,
    /// Tasks of the code, where a limit of its user namespace counts them.
    pub tasks: Option<u64>,
    pub pinned: bool,
    /// A second process may hold the memory.
    pub held: bool,
    /// Capabilities of the code.
    pub kept: u64,
    /// What the code's environment will most likely be.
    pub environment: Strings<'a>,
}

impl<'a> Order<'a> {
    pub fn read(bytes: &'a [u8]) -> Option<Self> {
        let mut reader = Reader::new(bytes);
        match reader.byte()? {
            0 => Some(Self::Branch),
            1 => Some(Self::Fork(Fork {
                users: reader.boolean()?,
                fence: match reader.byte()? {
                    0 => None,
                    _ => Some(u32::try_from(reader.number()?).ok()?),
                },
                leaf: reader.boolean()?,
                tasks: match reader.byte()? {
                    0 => None,
                    _ => Some(reader.number()?),
                },
                pinned: reader.boolean()?,
                held: reader.boolean()?,
                kept: reader.number()?,
                environment: reader.strings(2)?,
            })),
            _ => None,
        }
    }
}

/// What starts the code: the same message that an init is sent.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    pub arguments: Strings<'a>,
    pub environment: Strings<'a>,
    pub directory: &'a [u8],
    /// The name of the code's file, and what is in it.
    pub code: Option<(&'a [u8], &'a [u8])>,
    processors: Reader<'a>,
}

/// A message to a process that waits.
#[derive(Clone, Copy, Debug)]
pub enum Go<'a> {
    Request(Request<'a>),
    /// The request is in a memfd beside the streams.
    Long,
}

impl<'a> Go<'a> {
    pub fn read(bytes: &'a [u8]) -> Option<Self> {
        let (kind, rest) = bytes.split_first()?;
        match kind {
            0 => Some(Self::Request(Request::read(rest)?)),
            1 => Some(Self::Long),
            _ => None,
        }
    }
}

impl<'a> Request<'a> {
    pub fn read(bytes: &'a [u8]) -> Option<Self> {
        let mut reader = Reader::new(bytes);
        Some(Self {
            arguments: reader.strings(1)?,
            environment: reader.strings(2)?,
            directory: reader.bytes()?,
            code: match reader.byte()? {
                0 => None,
                _ => Some((reader.bytes()?, reader.bytes()?)),
            },
            processors: reader,
        })
    }

    /// The processors as a mask; none: those that the process has.
    pub fn affinity(&self) -> Option<[u64; 16]> {
        let mut reader = self.processors;
        let count = reader.number()?;
        let mut mask = [0; 16];
        for _ in 0..count {
            let number = reader.length()?;
            *mask.get_mut(number / 64)? |= 1 << (number % 64);
        }
        (count > 0).then_some(mask)
    }
}

/// What a forked process, a template or a sub-template says.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Word {
    /// A template serves, and this is what it holds in KiB; a sub-template is in its cgroups.
    Ready(u32),
    /// The code runs.
    Started,
    /// A place in the way to that, and the error there.
    Failed { place: Place, errno: u32 },
    /// A forked process of this number waits, and its listener is beside it. `holder`: the number of the process that holds
    /// its memory, or 0.
    Waits { number: u32, holder: u32 },
}

/// Where something failed; the engine names the plan's step.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Place {
    Read = 0,
    Join = 1,
    Fork = 2,
    Enter = 3,
    Session = 4,
    Limits = 5,
    Capabilities = 6,
    Filter = 7,
    Code = 8,
    Directory = 9,
    Streams = 10,
    Affinity = 11,
    Fence = 12,
}

/// The longest [`Word`].
const WORD: usize = 12;

impl Word {
    /// The message, and how much of it counts.
    pub fn encode(self) -> ([u8; WORD], usize) {
        let mut bytes = [0; WORD];
        let length = match self {
            Self::Ready(number) => append(&mut bytes, 1, number),
            Self::Started => {
                bytes[0] = 1;
                1
            }
            Self::Failed { place, errno } => {
                [bytes[0], bytes[1]] = [2, place as u8];
                append(&mut bytes, 2, errno)
            }
            Self::Waits { number, holder } => {
                bytes[0] = 4;
                let at = append(&mut bytes, 1, number);
                append(&mut bytes, at, holder)
            }
        };
        (bytes, length)
    }
}

/// Writes a number from a place on; gives the place behind it.
fn append(bytes: &mut [u8; WORD], start: usize, number: u32) -> usize {
    let mut at = start;
    let mut rest = number;
    while rest > 0x7f {
        bytes[at] = rest as u8 | 0x80;
        rest >>= 7;
        at += 1;
    }
    bytes[at] = rest as u8;
    at + 1
}
