//! What code shows beside its output, and how its script is run so that the value of a last expression is among that.
//!
//! It is left in memory that the engine has too, piece by piece as it is shown: what the process comes to afterwards takes
//! nothing back. Nothing of it is done, or compiled, before there is something to show.
#![allow(unsafe_code, reason = "the interpreter's interface is one of pointers")]

use core::ffi::{CStr, c_char, c_int, c_void};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::board;
use crate::python::{self, Object};
use crate::sys::shared::{self, Shared};
use crate::sys::{self, Answer, Fd};

/// The functions that show: `parts` in it makes them.
const RESULTS: &CStr = python::text(concat!(include_str!("results.py"), "\0"));
/// The function that finds a script's last expression.
const SPLIT: &CStr = python::text(concat!(include_str!("split.py"), "\0"));

static MEMORY: Shared = Shared::new(board::SIZE);
/// The process whose results they are: what it forks shows nothing.
static OWNER: AtomicU32 = AtomicU32::new(0);

/// Maps the memory that `fd` names.
pub fn attach(fd: Fd) -> Answer<()> {
    MEMORY.attach(fd)?;
    OWNER.store(shared::process(), Ordering::Relaxed);
    Ok(())
}

fn is_owner() -> bool {
    OWNER.load(Ordering::Relaxed) == shared::process()
}

fn word(offset: usize) -> Option<&'static core::sync::atomic::AtomicU64> {
    MEMORY.word(offset).ok().filter(|_| is_owner())
}

/// How many bytes of a record there is room for; `None`: nobody would see it.
pub fn room() -> Object {
    let (Some(length), Some(count)) = (word(board::LENGTH), word(board::COUNT)) else {
        return python::none();
    };
    let used = length.load(Ordering::Relaxed) as usize;
    let full = count.load(Ordering::Relaxed) >= board::MOST_RECORDS as u64;
    python::integer(if full {
        0
    } else {
        board::MOST.saturating_sub(used)
    })
}

/// Leaves a record, if there is room. It counts once all of it is there.
pub fn keep(record: &[u8]) -> Object {
    let kept = || {
        let (length, count) = (word(board::LENGTH)?, word(board::COUNT)?);
        let used = length.load(Ordering::Relaxed) as usize;
        let end = used.checked_add(record.len())?;
        if end > board::MOST || count.load(Ordering::Relaxed) >= board::MOST_RECORDS as u64 {
            return None;
        }
        MEMORY.write(board::AREA + used, record).ok()?;
        length.store(end as u64, Ordering::Release);
        count.fetch_add(1, Ordering::Release);
        Some(())
    };
    if kept().is_none() {
        return lose();
    }
    python::none()
}

/// Says that something found no room.
pub fn lose() -> Object {
    if let Some(lost) = word(board::LOST) {
        lost.store(1, Ordering::Release);
    }
    python::none()
}

unsafe extern "C" {
    fn PyErr_Clear();
    fn PyErr_Print();
    fn PyEval_EvalCode(code: Object, globals: Object, locals: Object) -> Object;
    fn PyEval_GetBuiltins() -> Object;
    fn PyDict_New() -> Object;
    fn PyImport_AddModule(name: *const c_char) -> Object;
    fn PyDict_SetItemString(dict: Object, key: *const c_char, value: Object) -> c_int;
    fn PyDict_GetItemString(dict: Object, key: *const c_char) -> Object;
    fn PyObject_Call(callable: Object, arguments: Object, names: Object) -> Object;
    fn PyObject_CallObject(callable: Object, arguments: Object) -> Object;
    fn PyObject_SetAttrString(object: Object, name: *const c_char, value: Object) -> c_int;
    fn PySys_AddAuditHook(hook: AuditHook, data: *mut c_void) -> c_int;
    fn PyTuple_GetItem(tuple: Object, index: isize) -> Object;
    fn PyTuple_Size(tuple: Object) -> isize;
    fn PyUnicode_AsUTF8AndSize(text: Object, length: *mut isize) -> *const c_char;
    fn PyUnicode_FromString(text: *const c_char) -> Object;
    fn PyUnicode_DecodeFSDefault(text: *const c_char) -> Object;
    fn Py_IncRef(object: Object);
    fn Py_DecRef(object: Object);
    fn PyInterpreterState_Get() -> *mut c_void;
    fn PyInterpreterState_Main() -> *mut c_void;
    fn Py_CompileStringExFlags(
        text: *const c_char,
        name: *const c_char,
        start: c_int,
        flags: *mut c_void,
        optimize: c_int,
    ) -> Object;
}

type AuditHook = extern "C" fn(*const c_char, Object, *mut c_void) -> c_int;

/// A whole file, to the compiler.
const FILE: c_int = 257;

static mut MODULE: Object = null_mut();
/// What `results.py` and `split.py` gave.
static mut SHOWING: Object = null_mut();
static mut SPLITTING: Object = null_mut();

/// Keeps the module, makes `display` known, and has the hook for imports. `display` is a function of this module's.
pub fn equip(module: Object, display: Object) -> Object {
    // SAFETY: the interpreter's lock is held; both objects are kept for ever.
    unsafe {
        Py_IncRef(module);
        MODULE = module;
        // As other functions that are everywhere.
        let builtins = PyUnicode_FromString(c"builtins".as_ptr());
        PyObject_SetAttrString(display, c"__module__".as_ptr(), builtins);
        // The module itself: whoever calls may have others.
        let module = PyImport_AddModule(c"builtins".as_ptr());
        if !module.is_null() {
            PyObject_SetAttrString(module, c"display".as_ptr(), display);
        }
        PySys_AddAuditHook(audit, null_mut());
        PyErr_Clear();
    }
    python::none()
}

/// Runs a text of ours, and gives what its function of this name gives for the module; null with an exception.
fn made(text: &CStr, function: &CStr) -> Object {
    // SAFETY: the interpreter's lock is held; each object that is used was made by the line before and is not null; what is
    // not given back lives as long as the process.
    unsafe {
        let code =
            Py_CompileStringExFlags(text.as_ptr(), c"<stepbox>".as_ptr(), FILE, null_mut(), -1);
        if code.is_null() {
            return code;
        }
        let scope = PyDict_New();
        PyDict_SetItemString(scope, c"__builtins__".as_ptr(), PyEval_GetBuiltins());
        let done = PyEval_EvalCode(code, scope, scope);
        Py_DecRef(code);
        if done.is_null() {
            return done;
        }
        Py_IncRef(MODULE);
        let arguments = python::tuple([MODULE]);
        PyObject_CallObject(PyDict_GetItemString(scope, function.as_ptr()), arguments)
    }
}

/// The functions that show, as a tuple; a new reference, or null with an exception.
pub fn parts() -> Object {
    // SAFETY: the interpreter's lock is held.
    unsafe {
        if SHOWING.is_null() {
            SHOWING = made(RESULTS, c"parts");
        }
        if !SHOWING.is_null() {
            Py_IncRef(SHOWING);
        }
        SHOWING
    }
}

/// Makes ready what runs a script; a template does it once for all.
pub fn prepare() -> Object {
    if splitting().is_null() {
        return null_mut();
    }
    parts()
}

fn splitting() -> Object {
    // SAFETY: the interpreter's lock is held.
    unsafe {
        if SPLITTING.is_null() {
            SPLITTING = made(SPLIT, c"parts");
        }
        SPLITTING
    }
}

/// Places of the functions in what `parts` gives.
const DISPLAY: isize = 0;
const SHOW: isize = 1;
const IMPORTED: isize = 2;

/// `display`: what it is given is shown.
pub fn display(arguments: Object, names: Object) -> Object {
    let parts = parts();
    if parts.is_null() {
        return parts;
    }
    // SAFETY: a tuple that is kept for ever, and what the interpreter hands over.
    unsafe { PyObject_Call(PyTuple_GetItem(parts, DISPLAY), arguments, names) }
}

/// Calls one of the parts with one object, which it takes over. Nothing that goes wrong is heard of.
fn tell(part: isize, object: Object) {
    // SAFETY: the interpreter's lock is held; the tuples are of the lengths that are looked at.
    unsafe {
        let parts = parts();
        if !parts.is_null() {
            let arguments = python::tuple([object]);
            let done = PyObject_CallObject(PyTuple_GetItem(parts, part), arguments);
            Py_DecRef(arguments);
            if !done.is_null() {
                Py_DecRef(done);
            }
        }
        PyErr_Clear();
    }
}

/// Modules in which something is to be put in its place when they are first imported.
const AWAITED: [&[u8]; 3] = [
    b"matplotlib.pyplot",
    b"multiprocessing.util",
    b"IPython.display",
];
static AWAITS: AtomicU32 = AtomicU32::new(0);

/// The code listens to what the interpreter does.
static AUDITED: AtomicBool = AtomicBool::new(false);

/// Whether it does.
pub fn is_audited() -> bool {
    AUDITED.load(Ordering::Relaxed)
}

extern "C" fn audit(event: *const c_char, arguments: Object, _data: *mut c_void) -> c_int {
    // SAFETY: the interpreter names each event by a C string.
    let event = unsafe { CStr::from_ptr(event) };
    if event == c"import" {
        imports(arguments);
    } else if event == c"sys.addaudithook" {
        AUDITED.store(true, Ordering::Relaxed);
    }
    0
}

fn imports(arguments: Object) {
    let mut length = 0;
    // SAFETY: the event comes with a tuple, which a program that makes events of this name may have made of anything.
    let name = unsafe {
        if PyTuple_Size(arguments) < 1 {
            PyErr_Clear();
            return;
        }
        let name = PyUnicode_AsUTF8AndSize(PyTuple_GetItem(arguments, 0), &raw mut length);
        if name.is_null() {
            PyErr_Clear();
            return;
        }
        core::slice::from_raw_parts(name.cast::<u8>(), length.unsigned_abs())
    };
    let Some(index) = AWAITED.iter().position(|awaited| *awaited == name) else {
        return;
    };
    let bit = 1 << index;
    // The objects here are those of one interpreter. Asked for within, it is imported as ever.
    // SAFETY: the interpreter's lock is held.
    let own = unsafe { PyInterpreterState_Get() == PyInterpreterState_Main() };
    if own && AWAITS.fetch_or(bit, Ordering::Relaxed) & bit == 0 {
        // SAFETY: the tuple's own object, which is given a reference of its own.
        unsafe {
            let name = PyTuple_GetItem(arguments, 0);
            Py_IncRef(name);
            tell(IMPORTED, name);
        }
    }
}

/// A module was not there after all.
pub fn await_again() -> Object {
    AWAITS.store(0, Ordering::Relaxed);
    python::none()
}

/// Runs a script whose last statement is an expression, and shows its value; gives whether it failed. None: it is to be run as
/// any other is, of which nothing has been done.
pub fn run(path: &CStr) -> Option<bool> {
    if !has_value(path) || splitting().is_null() {
        // SAFETY: the interpreter's lock is held.
        unsafe { PyErr_Clear() };
        return None;
    }
    // SAFETY: the interpreter's lock is held; each object is the result of the line before, looked at for null. What is left
    // behind lives as long as the process.
    unsafe {
        let arguments = python::tuple([PyUnicode_DecodeFSDefault(path.as_ptr())]);
        let found = PyObject_CallObject(SPLITTING, arguments);
        Py_DecRef(arguments);
        if found.is_null() || PyTuple_Size(found) != 3 {
            PyErr_Clear();
            return None;
        }
        let [scope, body, last] = [0, 1, 2].map(|index| PyTuple_GetItem(found, index));
        Py_IncRef(scope);
        let (scope, done) = (scope, PyEval_EvalCode(body, scope, scope));
        let value = if done.is_null() {
            done
        } else {
            Py_DecRef(done);
            PyEval_EvalCode(last, scope, scope)
        };
        // What is not in use is gone, as when a script was run whole.
        Py_DecRef(found);
        if value.is_null() {
            PyErr_Print();
            forget(scope);
            Py_DecRef(scope);
            return Some(true);
        }
        if value == python::nobody() {
            Py_DecRef(value);
        } else {
            tell(SHOW, value);
        }
        forget(scope);
        // Held on to, it would keep from their end the things that the script made.
        Py_DecRef(scope);
        Some(false)
    }
}

/// What the interpreter takes out of the module when its script has ended.
fn forget(scope: Object) {
    unsafe extern "C" {
        fn PyDict_DelItemString(dict: Object, key: *const c_char) -> c_int;
    }
    for name in [c"__file__", c"__cached__"] {
        // SAFETY: the dictionary of the module, which is kept.
        unsafe {
            if PyDict_DelItemString(scope, name.as_ptr()) < 0 {
                PyErr_Clear();
            }
        }
    }
}

/// Bytes at the end of a script in which its last line is looked for.
const TAIL: usize = 1024;

/// Whether the last line may be a part of an expression that has a value. No: it prints, which most do and has none, or
/// assigns.
fn has_value(path: &CStr) -> bool {
    let mut room = [0; TAIL];
    let Ok(tail) = sys::tail(path, &mut room) else {
        return false;
    };
    let mut end = tail.len();
    loop {
        let start = tail[..end]
            .iter()
            .rposition(|byte| *byte == b'\n' || *byte == b'\r')
            .map_or(0, |at| at + 1);
        let line = tail[start..end].trim_ascii_end();
        if line.is_empty() || line.trim_ascii_start().starts_with(b"#") {
            if start == 0 {
                // All of a small file, or more than is looked at.
                return tail.len() == TAIL;
            }
            end = start - 1;
            continue;
        }
        // The start of a line that is longer than what is looked at is not known.
        return (start == 0 && tail.len() == TAIL) || !(prints(line) || assigns(line));
    }
}

/// Whether the line is nothing but an assignment to a name: it ends no text and no bracket that were begun before it.
fn assigns(line: &[u8]) -> bool {
    let is_letter = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    let name = line.iter().take_while(|byte| is_letter(byte)).count();
    let Some(value) = line[name..].strip_prefix(b" = ").filter(|_| name > 0) else {
        return false;
    };
    let mut depth = 0_usize;
    for byte in value {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' if depth > 0 => depth -= 1,
            b')' | b']' | b'}' | b'#' | b';' | b'\'' | b'"' | b'\\' => return false,
            _ => {}
        }
    }
    depth == 0
}

/// Whether the line is one call of `print`.
fn prints(line: &[u8]) -> bool {
    let Some(rest) = line.strip_prefix(b"print(") else {
        return false;
    };
    let mut depth = 1_usize;
    for (at, byte) in rest.iter().enumerate() {
        match byte {
            b'(' => depth += 1,
            b')' => depth -= 1,
            b'#' | b';' => return false,
            _ => {}
        }
        if depth == 0 {
            return at + 1 == rest.len();
        }
    }
    false
}
