//! The part of the interpreter's C interface that is used here: functions and layouts that are the same from 3.8 on.
#![allow(unsafe_code, reason = "the interpreter's interface is one of pointers")]

use core::ffi::{CStr, c_char, c_int, c_long, c_void};
use core::ptr::{null, null_mut};

use crate::sys::memory::Wanted;

/// An object of the interpreter's; owned by whoever has it, or null with an exception set.
pub type Object = *mut c_void;

type Function = unsafe extern "C" fn(Object, Object) -> Object;

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
}

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

static mut METHODS: [MethodDefinition; 14] = [
    method(c"begin", begin, ONE_ARGUMENT),
    method(c"serve", serve, ONE_ARGUMENT),
    method(c"asked", asked, NO_ARGUMENT),
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

extern "C" fn asked(_module: Object, _nothing: Object) -> Object {
    // SAFETY: the interpreter's lock is held.
    unsafe { PyBool_FromLong(crate::child::asked().into()) }
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
    let none = (&raw mut _Py_NoneStruct).cast();
    // SAFETY: the interpreter's own object, with its lock held.
    unsafe { Py_IncRef(none) };
    none
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
