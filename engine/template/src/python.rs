//! The part of the interpreter's C interface that is used here: functions and layouts that are the same from 3.8 on.
#![allow(unsafe_code, reason = "the interpreter's interface is one of pointers")]

use core::ffi::{CStr, c_char, c_int, c_long, c_void};
use core::ptr::{null, null_mut};

use crate::results;
use crate::sys::memory::Wanted;

/// An object of the interpreter's; owned by whoever has it, or null with an exception set.
pub type Object = *mut c_void;

type Function = unsafe extern "C" fn(Object, Object) -> Object;
type FunctionOfNames = unsafe extern "C" fn(Object, Object, Object) -> Object;

unsafe extern "C" {
    fn PyOS_BeforeFork();
    fn PyOS_AfterFork_Parent();
    fn PyOS_AfterFork_Child();
    fn PyModule_Create2(definition: *mut ModuleDefinition, version: c_int) -> Object;
    fn PyBytes_FromStringAndSize(bytes: *const c_char, length: isize) -> Object;
    fn PyBytes_AsStringAndSize(
        object: Object,
        bytes: *mut *mut c_char,
        length: *mut isize,
    ) -> c_int;
    fn PyList_New(length: isize) -> Object;
    fn PyList_SetItem(list: Object, index: isize, item: Object) -> c_int;
    fn PyTuple_New(length: isize) -> Object;
    fn PyTuple_SetItem(tuple: Object, index: isize, item: Object) -> c_int;
    fn PyLong_AsLong(object: Object) -> c_long;
    fn PyLong_FromSsize_t(number: isize) -> Object;
    fn PyBool_FromLong(truth: c_long) -> Object;
    fn PyErr_Occurred() -> Object;
    fn PyErr_SetString(kind: Object, text: *const c_char);
    fn PyErr_CheckSignals() -> c_int;
    fn PyEval_SaveThread() -> *mut c_void;
    fn PyEval_RestoreThread(thread: *mut c_void);
    fn fflush(stream: *mut c_void) -> c_int;
    static PyExc_OSError: Object;
    static mut _Py_NoneStruct: [usize; 2];
    static stdout: *mut c_void;
    static PyExc_KeyboardInterrupt: Object;
    fn PySys_GetObject(name: *const c_char) -> Object;
    fn PySys_SetObject(name: *const c_char, value: Object) -> c_int;
    fn Py_LeaveRecursiveCall();
    fn PyRun_SimpleFileExFlags(
        file: *mut c_void,
        name: *const c_char,
        close: c_int,
        flags: *mut c_void,
    ) -> c_int;
    fn Py_FinalizeEx() -> c_int;
    fn Py_IncRef(object: Object);
    fn PyObject_CallObject(callable: Object, arguments: Object) -> Object;
    fn PyErr_Clear();
    fn PyTuple_GetItem(tuple: Object, index: isize) -> Object;
}

// The library's own.
unsafe extern "C" {
    fn fopen(path: *const c_char, mode: *const c_char) -> *mut c_void;
    fn exit(code: c_int) -> !;
    fn raise(number: c_int) -> c_int;
    fn pause() -> c_int;
    fn signal(number: c_int, handler: usize) -> usize;
}

const INTERRUPT: c_int = 2;
const DEFAULT_HANDLER: usize = 0;

#[repr(C)]
struct MethodDefinition {
    name: *const c_char,
    function: Option<Function>,
    flags: c_int,
    doc: *const c_char,
}

/// With room for a head of the interpreter's that no version has outgrown.
#[repr(C)]
struct ModuleDefinition {
    references: isize,
    kind: *mut c_void,
    init: *mut c_void,
    index: isize,
    copy: *mut c_void,
    name: *const c_char,
    doc: *const c_char,
    size: isize,
    methods: *mut MethodDefinition,
    slots: *mut c_void,
    traverse: *mut c_void,
    clear: *mut c_void,
    free: *mut c_void,
}

const NO_ARGUMENT: c_int = 4;
const ARGUMENTS_AND_NAMES: c_int = 3;
const ONE_ARGUMENT: c_int = 8;
const API_VERSION: c_int = 1013;

const fn method(name: &'static CStr, function: Function, flags: c_int) -> MethodDefinition {
    MethodDefinition {
        name: name.as_ptr(),
        function: Some(function),
        flags,
        doc: null(),
    }
}

const END: MethodDefinition = MethodDefinition {
    name: null(),
    function: None,
    flags: 0,
    doc: null(),
};

/// The interpreter tells by the flags how many arguments a function takes.
const DISPLAY: Function =
    // SAFETY: a pointer to a function, which is called with as many arguments as it takes.
    unsafe { core::mem::transmute::<FunctionOfNames, Function>(display) };

static mut METHODS: [MethodDefinition; 26] = [
    method(c"begin", begin, ONE_ARGUMENT),
    method(c"serve", serve, ONE_ARGUMENT),
    method(c"wait", wait, NO_ARGUMENT),
    method(c"show", show, NO_ARGUMENT),
    method(c"keep_written", keep_written, ONE_ARGUMENT),
    method(c"keep_read", keep_read, ONE_ARGUMENT),
    method(c"refuse", refuse, ONE_ARGUMENT),
    method(c"attach", attach, ONE_ARGUMENT),
    method(c"next_cell", next_cell, NO_ARGUMENT),
    method(c"begin_cell", begin_cell, NO_ARGUMENT),
    method(c"hear_interrupt", hear_interrupt, NO_ARGUMENT),
    method(c"finish_cell", finish_cell, ONE_ARGUMENT),
    method(c"run", run, NO_ARGUMENT),
    method(c"keep_end", keep_end, ONE_ARGUMENT),
    method(c"trial", trial, ONE_ARGUMENT),
    method(c"set_script", set_script, ONE_ARGUMENT),
    method(c"attach_results", attach_results, ONE_ARGUMENT),
    method(c"equip", equip, ONE_ARGUMENT),
    method(c"prepare", prepare, NO_ARGUMENT),
    method(c"parts", parts, NO_ARGUMENT),
    method(c"room", room, NO_ARGUMENT),
    method(c"keep", keep_result, ONE_ARGUMENT),
    method(c"lose", lose, NO_ARGUMENT),
    method(c"await_again", await_again, NO_ARGUMENT),
    method(c"display", DISPLAY, ARGUMENTS_AND_NAMES),
    END,
];

static mut MODULE: ModuleDefinition = ModuleDefinition {
    references: 1,
    kind: null_mut(),
    init: null_mut(),
    index: 0,
    copy: null_mut(),
    name: c"_stepbox".as_ptr(),
    doc: null(),
    size: -1,
    methods: null_mut(),
    slots: null_mut(),
    traverse: null_mut(),
    clear: null_mut(),
    free: null_mut(),
};

/// What the interpreter calls to import the module.
#[unsafe(no_mangle)]
pub extern "C" fn PyInit__stepbox() -> Object {
    // SAFETY: the interpreter calls this once, with its lock held.
    unsafe {
        MODULE.methods = (&raw mut METHODS).cast();
        PyModule_Create2(&raw mut MODULE, API_VERSION)
    }
}

extern "C" fn begin(_module: Object, socket: Object) -> Object {
    match number(socket) {
        Some(socket) => crate::serve::begin(socket),
        None => null_mut(),
    }
}

extern "C" fn serve(_module: Object, memory: Object) -> Object {
    match number(memory) {
        Some(memory) => crate::serve::serve(memory),
        None => null_mut(),
    }
}

extern "C" fn wait(_module: Object, _nothing: Object) -> Object {
    crate::child::wait()
}

extern "C" fn refuse(_module: Object, text: Object) -> Object {
    match bytes_of(text) {
        Some(text) => crate::serve::refuse(text),
        None => null_mut(),
    }
}

/// Runs the code, and ends the process, as the interpreter does with the script that it is given: it is the interpreter that
/// reads the file, shows an exception, hears of an exit, waits for threads, calls exit handlers and takes modules apart.
///
/// It is called in place of the flush of the standard error stream that follows a script, which is `boot.py`: where no frame
/// is below.
extern "C" fn run(_module: Object, _nothing: Object) -> Object {
    // SAFETY: the name is a C string; what is given back is the interpreter's, which sets it again.
    unsafe { PySys_SetObject(c"stderr".as_ptr(), PySys_GetObject(c"__stderr__".as_ptr())) };
    // The call of this function was counted. Nothing returns to it.
    // SAFETY: there is a call to be taken back.
    unsafe { Py_LeaveRecursiveCall() };
    let Some(Ended {
        failed,
        interrupted,
        unflushed,
        over,
    }) = run_to_the_end(script())
    else {
        // As the interpreter says that it cannot open its script.
        crate::sys::process::exit(2);
    };
    if interrupted {
        // SAFETY: no pointer.
        unsafe { signal(INTERRUPT, DEFAULT_HANDLER) };
        // SAFETY: no pointer; the code may have blocked it.
        unsafe { raise(INTERRUPT) };
    }
    let code = match (interrupted, unflushed) {
        (true, _) => 130,
        (false, true) => 120,
        (false, false) => c_int::from(failed),
    };
    if over {
        crate::sys::process::exit(code.unsigned_abs());
    }
    // SAFETY: no pointer. What C libraries registered for the end is run.
    unsafe { exit(code) }
}

/// Three functions: whether a short end is as good as the whole one, `Main.is_over` of `boot.py`; and what traces and what
/// profiles the code, which would see that one run.
static mut END_OF_STEP: Object = null_mut();

extern "C" fn keep_end(_module: Object, functions: Object) -> Object {
    // SAFETY: the interpreter's lock is held, and the object is kept for ever.
    unsafe {
        Py_IncRef(functions);
        END_OF_STEP = functions;
    }
    none()
}

fn is_over() -> bool {
    // SAFETY: only a look; whoever has the interpreter's lock sets it.
    if unsafe { END_OF_STEP.is_null() } {
        // An interpreter of the step's own.
        return false;
    }
    let ask = |index| {
        // SAFETY: the interpreter's lock is held; the tuple is kept, and its three functions take no argument.
        unsafe { PyObject_CallObject(PyTuple_GetItem(END_OF_STEP, index), null_mut()) }
    };
    if results::is_audited() || ask(1) != nobody() || ask(2) != nobody() {
        return false;
    }
    let answer = ask(0);
    if answer.is_null() {
        // SAFETY: there is an exception, of which nobody is to hear.
        unsafe { PyErr_Clear() };
        return false;
    }
    // SAFETY: an object of the interpreter's, a small number.
    unsafe { PyLong_AsLong(answer) != 0 }
}

struct Ended {
    failed: bool,
    interrupted: bool,
    unflushed: bool,
    /// Nothing is left that would be heard of.
    over: bool,
}

/// Runs a file as the interpreter's script. None: there is no such file.
fn run_whole(path: &CStr) -> Option<bool> {
    // SAFETY: both are C strings.
    let file = unsafe { fopen(path.as_ptr(), c"rb".as_ptr()) };
    if file.is_null() {
        return None;
    }
    // SAFETY: an open file, which the interpreter closes, and its name; no flags are none.
    Some(unsafe { PyRun_SimpleFileExFlags(file, path.as_ptr(), 1, null_mut()) } != 0)
}

/// Runs a script, shows the value of its last expression, and ends the interpreter. None: there is no such file.
fn run_to_the_end(path: &CStr) -> Option<Ended> {
    let failed = match results::run(path) {
        Some(failed) => failed,
        None => run_whole(path)?,
    };
    // SAFETY: a look at what the interpreter notes of an exception that nobody caught, by the name that it has.
    let interrupted =
        failed && unsafe { PySys_GetObject(c"last_type".as_ptr()) == PyExc_KeyboardInterrupt };
    let over = !interrupted && is_over();
    if over {
        // What compiled code has printed.
        // SAFETY: all streams of the library.
        unsafe { fflush(null_mut()) };
    }
    // SAFETY: nothing of the interpreter's is used after this.
    let unflushed = !over && unsafe { Py_FinalizeEx() } < 0;
    Some(Ended {
        failed,
        interrupted,
        unflushed,
        over,
    })
}

/// Goes the way of a step to its end, says so to a descriptor, and waits to be killed.
extern "C" fn trial(_module: Object, done: Object) -> Object {
    let Some(done) = number(done) else {
        return null_mut();
    };
    let ended = run_to_the_end(TRIAL);
    if ended.is_some_and(|ended| !ended.failed) {
        let _ = crate::sys::write_all(crate::sys::Fd(done), b".");
        loop {
            // SAFETY: no argument.
            unsafe { pause() };
        }
    }
    crate::sys::process::exit(1)
}

/// The file of a trial.
const TRIAL: &CStr = c"/run/stepbox/trial.py";

/// The file of the code.
const SCRIPT: &CStr = c"/run/stepbox/main.py";

/// Lets other processes of this user look at this one.
extern "C" fn show(_module: Object, _nothing: Object) -> Object {
    let shown = crate::sys::process::set_dumpable(true).is_ok();
    // SAFETY: the interpreter's lock is held.
    unsafe { PyBool_FromLong(shown.into()) }
}

extern "C" fn keep_written(_module: Object, ranges: Object) -> Object {
    keep(&crate::serve::WRITTEN, ranges)
}

extern "C" fn keep_read(_module: Object, ranges: Object) -> Object {
    keep(&crate::serve::READ, ranges)
}

fn keep(wanted: &Wanted, ranges: Object) -> Object {
    let Some(ranges) = bytes_of(ranges) else {
        return null_mut();
    };
    wanted.keep(ranges);
    // SAFETY: the interpreter's lock is held.
    unsafe { PyBool_FromLong(1) }
}

/// What is run, and what the process seems to have been started with in the place of ours.
extern "C" fn set_script(_module: Object, path: Object) -> Object {
    let Some(text) = bytes_of(path) else {
        return null_mut();
    };
    // Where that cannot be, tools see another name, and nothing else.
    let _ = crate::sys::arguments::replace_first(text);
    // SAFETY: the interpreter's lock is held, and the object is kept for ever.
    unsafe {
        Py_IncRef(path);
        OWN_SCRIPT = path;
    }
    none()
}

/// The path of the script as an object of bytes, where it is not the usual one.
static mut OWN_SCRIPT: Object = null_mut();

fn script() -> &'static CStr {
    unsafe extern "C" {
        fn PyBytes_AsString(bytes: Object) -> *const c_char;
    }
    // SAFETY: bytes that are kept for ever; behind them the interpreter keeps a NUL.
    unsafe {
        if OWN_SCRIPT.is_null() {
            SCRIPT
        } else {
            CStr::from_ptr(PyBytes_AsString(OWN_SCRIPT))
        }
    }
}

/// Maps the memory for results; its descriptor is no longer needed then.
extern "C" fn attach_results(_module: Object, descriptor: Object) -> Object {
    match number(descriptor).map(|descriptor| results::attach(crate::sys::Fd(descriptor))) {
        Some(Ok(())) => none(),
        Some(Err(_)) => fail(c"the memory for results could not be mapped"),
        None => null_mut(),
    }
}

extern "C" fn equip(module: Object, display: Object) -> Object {
    results::equip(module, display)
}

extern "C" fn prepare(_module: Object, _nothing: Object) -> Object {
    results::prepare()
}

extern "C" fn parts(_module: Object, _nothing: Object) -> Object {
    results::parts()
}

extern "C" fn room(_module: Object, _nothing: Object) -> Object {
    results::room()
}

extern "C" fn keep_result(_module: Object, record: Object) -> Object {
    match bytes_of(record) {
        Some(record) => results::keep(record),
        None => null_mut(),
    }
}

extern "C" fn lose(_module: Object, _nothing: Object) -> Object {
    results::lose()
}

extern "C" fn await_again(_module: Object, _nothing: Object) -> Object {
    results::await_again()
}

extern "C" fn display(_module: Object, arguments: Object, names: Object) -> Object {
    results::display(arguments, names)
}

extern "C" fn attach(_module: Object, descriptor: Object) -> Object {
    match number(descriptor) {
        Some(descriptor) => crate::cell::attach(descriptor),
        None => null_mut(),
    }
}

extern "C" fn next_cell(_module: Object, _nothing: Object) -> Object {
    crate::cell::next()
}

extern "C" fn begin_cell(_module: Object, _nothing: Object) -> Object {
    crate::cell::begin()
}

extern "C" fn hear_interrupt(_module: Object, _nothing: Object) -> Object {
    crate::cell::hear()
}

extern "C" fn finish_cell(_module: Object, answer: Object) -> Object {
    match bytes_of(answer) {
        Some(answer) => crate::cell::finish(answer),
        None => null_mut(),
    }
}

fn number(object: Object) -> Option<u32> {
    // SAFETY: the interpreter hands over an object; one that is no number sets an exception.
    let number = unsafe { PyLong_AsLong(object) };
    // SAFETY: only a look.
    if number == -1 && !unsafe { PyErr_Occurred() }.is_null() {
        return None;
    }
    u32::try_from(number).ok()
}

fn bytes_of<'a>(object: Object) -> Option<&'a [u8]> {
    let mut start = null_mut();
    let mut length = 0;
    // SAFETY: the interpreter hands over an object; one that is not bytes sets an exception.
    if unsafe { PyBytes_AsStringAndSize(object, &raw mut start, &raw mut length) } < 0 {
        return None;
    }
    // SAFETY: the caller's reference keeps the object during the call.
    Some(unsafe { core::slice::from_raw_parts(start.cast_const().cast(), length.unsigned_abs()) })
}

pub fn bytes(bytes: &[u8]) -> Object {
    // SAFETY: the pointer and the length are those of one slice; the interpreter copies it.
    unsafe { PyBytes_FromStringAndSize(bytes.as_ptr().cast(), bytes.len().cast_signed()) }
}

/// A list of `items`, of which there are `length`.
pub fn list(length: usize, items: impl Iterator<Item = Object>) -> Object {
    // SAFETY: a new list, whose places are all filled below before anybody sees it.
    let list = unsafe { PyList_New(length.cast_signed()) };
    if !list.is_null() {
        for (index, item) in items.take(length).enumerate() {
            // SAFETY: the index is below the length; the list takes the item over.
            unsafe { PyList_SetItem(list, index.cast_signed(), item) };
        }
    }
    list
}

pub fn tuple<const N: usize>(items: [Object; N]) -> Object {
    // SAFETY: a new tuple, whose places are all filled below before anybody sees it.
    let tuple = unsafe { PyTuple_New(N.cast_signed()) };
    if !tuple.is_null() {
        for (index, item) in items.into_iter().enumerate() {
            // SAFETY: the index is below the length; the tuple takes the item over.
            unsafe { PyTuple_SetItem(tuple, index.cast_signed(), item) };
        }
    }
    tuple
}

/// Sets an exception, and gives what a function returns then.
pub fn fail(text: &CStr) -> Object {
    // SAFETY: the text is a C string, which the interpreter copies.
    unsafe { PyErr_SetString(PyExc_OSError, text.as_ptr()) };
    null_mut()
}

/// A new reference to `None`.
pub fn none() -> Object {
    unsafe extern "C" {
        fn Py_IncRef(object: Object);
    }
    // SAFETY: the interpreter's own object, with its lock held.
    unsafe { Py_IncRef(nobody()) };
    nobody()
}

/// `None`, of whoever has it.
pub fn nobody() -> Object {
    (&raw mut _Py_NoneStruct).cast()
}

pub fn integer(number: usize) -> Object {
    // SAFETY: the interpreter's lock is held.
    unsafe { PyLong_FromSsize_t(number.cast_signed()) }
}

/// A text of this library's for the interpreter. It ends with a NUL.
pub const fn text(text: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(text) => text,
        Err(_) => panic!("a NUL within, or none at the end"),
    }
}

/// Lets other threads run while `body` does, which must not touch the interpreter.
pub fn unlocked<T>(body: impl FnOnce() -> T) -> T {
    // SAFETY: the lock is held, and taken back below by the same thread.
    let thread = unsafe { PyEval_SaveThread() };
    let done = body();
    // SAFETY: what the line above gave.
    unsafe { PyEval_RestoreThread(thread) };
    done
}

/// Runs the handlers of signals that have arrived. True: one of them raised.
pub fn signals_raise() -> bool {
    // SAFETY: the lock is held.
    unsafe { PyErr_CheckSignals() != 0 }
}

/// Writes out what the library that the interpreter is linked with holds back of standard output.
pub fn flush_library() {
    // SAFETY: the library's own stream, which it sets before any code runs.
    let stream = unsafe { stdout };
    // SAFETY: as above; a failure is as if nothing had been printed.
    unlocked(|| unsafe { fflush(stream) });
}

pub fn before_fork() {
    // SAFETY: the interpreter's lock is held, as everywhere here.
    unsafe { PyOS_BeforeFork() };
}

pub fn after_fork_in_parent() {
    // SAFETY: follows `before_fork` in the same process.
    unsafe { PyOS_AfterFork_Parent() };
}

pub fn after_fork_in_child() {
    // SAFETY: follows `before_fork`, in the process that was forked.
    unsafe { PyOS_AfterFork_Child() };
}

/// What the precompiled core names and nothing here uses: a panic ends the process.
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() {}
