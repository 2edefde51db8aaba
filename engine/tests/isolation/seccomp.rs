//! The two seccomp filters on the real kernel.
//!
//! Filters belong to threads: each test loads them in a thread of its own, which then runs a program, while the test's
//! thread stays free and reads the listener.

use std::{
    os::fd::{AsFd, OwnedFd},
    process::{Command, Output, Stdio},
    sync::mpsc,
    thread,
};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use stepbox_engine::{
    sandbox::seccomp::{base_filter, describe, refusal, step_filter},
    spec::Profile,
    sys::seccomp::{Notification, load, load_with_listener, receive, reply_errno},
};

/// Runs `python3 -c script` in a filtered thread. Replies to each notification until all that is filtered has ended: with
/// the errno of the policy, and with EPERM to an escape.
fn python_under_filters(script: &str) -> (Output, Vec<Notification>) {
    let mut python = Command::new("python3");
    python.args(["-c", script]).stdin(Stdio::null());
    let (hand_over, handed_over) = mpsc::channel();
    let filtered = thread::spawn(move || {
        hand_over.send(load_both_filters()).unwrap();
        python.output().expect("python3 is on PATH")
    });
    let notifications = answer_until_hang_up(&handed_over.recv().unwrap());
    (filtered.join().unwrap(), notifications)
}

fn load_both_filters() -> OwnedFd {
    rustix::thread::set_no_new_privs(true).unwrap();
    load(base_filter(Profile::Default)).unwrap();
    load_with_listener(step_filter(Profile::Default)).unwrap()
}

fn answer_until_hang_up(listener: &OwnedFd) -> Vec<Notification> {
    let bound = Timespec {
        tv_sec: 60,
        tv_nsec: 0,
    };
    let mut notifications = Vec::new();
    loop {
        let mut ready = [PollFd::new(listener, PollFlags::IN)];
        assert_ne!(
            poll(&mut ready, Some(&bound)).unwrap(),
            0,
            "neither a notification nor an end in a minute"
        );
        let events = ready[0].revents();
        if let Some(notification) = receive(listener.as_fd()).unwrap() {
            let errno = refused(&notification).unwrap_or(libc::EPERM);
            assert!(reply_errno(listener.as_fd(), notification.id, errno).unwrap());
            notifications.push(notification);
        } else if events.contains(PollFlags::HUP) {
            return notifications;
        }
    }
}

fn refused(notification: &Notification) -> Option<i32> {
    refusal(notification.arch, notification.nr, &notification.args)
}

fn described(notifications: &[Notification]) -> Vec<String> {
    notifications
        .iter()
        .map(|notification| describe(notification.arch, notification.nr))
        .collect()
}

fn stdout(output: &Output) -> String {
    assert!(
        output.status.success(),
        "{}: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// `attempt` prints how a call ends, `ok` or the name of its errno; `raw` makes a syscall by number.
const PRELUDE: &str = r#"
import ctypes, errno, os, socket, tempfile
libc = ctypes.CDLL(None, use_errno=True)
def attempt(label, call):
    try:
        call()
        print(label, "ok")
    except OSError as error:
        print(label, errno.errorcode[error.errno])
def raw(nr, *arguments):
    if libc.syscall(ctypes.c_long(nr), *[ctypes.c_ulong(a) if isinstance(a, int) else a for a in arguments]) < 0:
        raise OSError(ctypes.get_errno(), "")
"#;

fn script(body: &str, numbers: &[(&str, libc::c_long)]) -> String {
    let numbers: String = numbers
        .iter()
        .map(|(name, nr)| format!("{name} = {nr}\n"))
        .collect();
    format!("{PRELUDE}{numbers}{body}")
}

#[test]
fn refused_calls_return_their_errno_and_their_twins_succeed() {
    let body = r#"
attempt("getpid", lambda: raw(GETPID))
attempt("ptrace", lambda: raw(PTRACE, 0, 0, 0, 0))
attempt("process_vm_readv", lambda: raw(PROCESS_VM_READV, os.getpid(), 0, 0, 0, 0, 0))
attempt("clone3", lambda: raw(CLONE3, 0, 0))
attempt("io_uring_setup", lambda: raw(IO_URING_SETUP, 8, 0))
attempt("openat2", lambda: raw(OPENAT2, 0, 0, 0, 0))
attempt("unknown", lambda: raw(2000))
attempt("unshare files", lambda: raw(UNSHARE, 0x400))
attempt("unshare user", lambda: raw(UNSHARE, 0x10000000))
attempt("unix", lambda: socket.socket(socket.AF_UNIX).close())
attempt("inet", lambda: socket.socket(socket.AF_INET).close())
attempt("route", lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0).close())
attempt("audit", lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 9).close())
attempt("vsock", lambda: socket.socket(40, socket.SOCK_STREAM).close())
attempt("packet", lambda: socket.socket(17, socket.SOCK_RAW).close())
attempt("alg", lambda: socket.socket(38, socket.SOCK_SEQPACKET).close())
attempt("raw", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1).close())
with tempfile.TemporaryDirectory() as below:
    path = os.path.join(below, "file")
    attempt("create", lambda: os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o644)))
    attempt("create set-id", lambda: os.close(os.open(path + "2", os.O_CREAT | os.O_WRONLY, 0o4755)))
    attempt("chmod", lambda: os.chmod(path, 0o755))
    attempt("chmod set-id", lambda: os.chmod(path, 0o4755))
    print(oct(os.stat(path).st_mode), sorted(os.listdir(below)))
    attempt("mkfifo", lambda: os.mkfifo(path + "3"))
    attempt("mknod", lambda: os.mknod(path + "4", 0o20666, os.makedev(1, 3)))
controller, terminal = os.openpty()
attempt("window size", lambda: raw(IOCTL, terminal, 0x5413, ctypes.create_string_buffer(8)))
attempt("type", lambda: raw(IOCTL, terminal, 0x5412, ctypes.create_string_buffer(b"x")))
attempt("type, dressed", lambda: raw(IOCTL, terminal, 0x5412 | 1 << 32, ctypes.create_string_buffer(b"x")))
"#;
    let numbers = [
        ("GETPID", libc::SYS_getpid),
        ("PTRACE", libc::SYS_ptrace),
        ("PROCESS_VM_READV", libc::SYS_process_vm_readv),
        ("CLONE3", libc::SYS_clone3),
        ("IO_URING_SETUP", libc::SYS_io_uring_setup),
        ("OPENAT2", libc::SYS_openat2),
        ("UNSHARE", libc::SYS_unshare),
        ("IOCTL", libc::SYS_ioctl),
    ];
    let (output, notifications) = python_under_filters(&script(body, &numbers));
    let wanted = "getpid ok\nptrace EPERM\nprocess_vm_readv EPERM\nclone3 ENOSYS\nio_uring_setup ENOSYS\nopenat2 ENOSYS\n\
        unknown ENOSYS\nunshare files ok\nunshare user EPERM\nunix ok\ninet ok\nroute ok\naudit EAFNOSUPPORT\n\
        vsock EAFNOSUPPORT\npacket EAFNOSUPPORT\nalg EAFNOSUPPORT\nraw EPERM\ncreate ok\ncreate set-id EPERM\nchmod ok\n\
        chmod set-id EPERM\n0o100755 ['file']\nmkfifo ok\nmknod EPERM\nwindow size ok\ntype EPERM\ntype, dressed EPERM\n";
    assert_eq!(stdout(&output), wanted);
    let counted = ["ptrace", "process_vm_readv", "unshare"];
    assert_eq!(described(&notifications), counted);
    let errnos: Vec<_> = notifications.iter().map(refused).collect();
    assert_eq!(errnos, [Some(libc::EPERM); 3]);
}

#[test]
fn escapes_notify_with_number_and_arguments_and_do_not_happen() {
    let body = r#"
attempt("chdir", lambda: os.chdir("/"))
attempt("mount", lambda: raw(MOUNT, 0x11, 0x22, 0x33, 0x44, 0x55))
attempt("unshare mount", lambda: raw(UNSHARE, 0x20000))
attempt("clone net", lambda: raw(CLONE, 0x40000011, 0, 0, 0, 0))
attempt("setns", lambda: raw(SETNS, 99, 0))
attempt("bpf", lambda: raw(BPF, 0, 0, 0))
attempt("chroot", lambda: os.chroot("/"))
"#;
    let numbers = [
        ("MOUNT", libc::SYS_mount),
        ("UNSHARE", libc::SYS_unshare),
        ("CLONE", libc::SYS_clone),
        ("SETNS", libc::SYS_setns),
        ("BPF", libc::SYS_bpf),
    ];
    let (output, notifications) = python_under_filters(&script(body, &numbers));
    let wanted = "chdir ok\nmount EPERM\nunshare mount EPERM\nclone net EPERM\nsetns EPERM\nbpf EPERM\nchroot EPERM\n";
    assert_eq!(stdout(&output), wanted);
    let names = described(&notifications);
    assert_eq!(names, ["mount", "unshare", "clone", "setns", "bpf"]);
    assert!(
        notifications
            .iter()
            .all(|notification| refused(notification).is_none())
    );
    assert_eq!(notifications[0].args[..5], [0x11, 0x22, 0x33, 0x44, 0x55]);
    assert_eq!(notifications[1].args[0], 0x20000);
    assert!(
        notifications
            .iter()
            .all(|notification| notification.pid != 0)
    );
}

#[cfg(target_arch = "x86_64")]
#[test]
fn calls_by_another_abi_notify_and_are_named_as_such() {
    // mov eax, 20 (getpid of i386); int 0x80; cdqe; ret
    let body = r#"
import mmap
code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
code.write(bytes.fromhex("b814000000" "cd80" "4898" "c3"))
function = ctypes.CFUNCTYPE(ctypes.c_long)(ctypes.addressof(ctypes.c_char.from_buffer(code)))
print("i386", function())
attempt("x32", lambda: raw(0x40000000 | 39))
attempt("negative", lambda: raw(-1 & 0xffffffff))
"#;
    let (output, notifications) = python_under_filters(&script(body, &[]));
    assert_eq!(stdout(&output), "i386 -1\nx32 EPERM\nnegative ENOSYS\n");
    let names = described(&notifications);
    assert_eq!(names, ["i386 syscall 20", "x32 syscall 39"]);
}

#[test]
fn python_does_its_everyday_work_without_a_notification() {
    let body = r#"
import asyncio, multiprocessing, signal, sqlite3, subprocess, sys, threading
async def child():
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", "print(7)", stdout=subprocess.PIPE)
    return (await process.communicate())[0].strip()
for method in ("fork", "forkserver"):
    with multiprocessing.get_context(method).Pool(2) as pool:
        print(method, pool.map(abs, [-1, -2]))
print(asyncio.run(child()))
seen = []
threads = [threading.Thread(target=seen.append, args=(n,)) for n in range(4)]
[t.start() for t in threads]; [t.join() for t in threads]
print(sorted(seen))
with tempfile.TemporaryDirectory() as below:
    database = sqlite3.connect(os.path.join(below, "db"))
    database.execute("pragma journal_mode=wal"); database.execute("create table t (x)"); database.commit(); database.close()
    print(subprocess.run(["sh", "-c", "mkfifo f; chmod 700 f; ls"], cwd=below, capture_output=True).stdout)
server = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(server.getsockname())
print(os.sched_getaffinity(0) != set(), signal.getsignal(signal.SIGINT) is not None)
"#;
    let (output, notifications) = python_under_filters(&script(body, &[]));
    let wanted = "fork [1, 2]\nforkserver [1, 2]\nb'7'\n[0, 1, 2, 3]\nb'db\\nf\\n'\nTrue True\n";
    assert_eq!(stdout(&output), wanted);
    assert_eq!(notifications, []);
}

#[test]
fn thread_has_one_listener_at_most() {
    let errors = thread::spawn(|| {
        let listener = load_both_filters();
        // The step filter's own rule.
        let second = load_with_listener(step_filter(Profile::Default)).unwrap_err();
        drop(listener);
        second.raw_os_error()
    });
    assert_eq!(errors.join().unwrap(), Some(libc::EBUSY));
}

#[test]
fn receive_without_a_waiting_call_returns_at_once() {
    let (hand_over, handed_over) = mpsc::channel();
    let (release, released) = mpsc::channel::<()>();
    let filtered = thread::spawn(move || {
        hand_over.send(load_both_filters()).unwrap();
        released.recv().unwrap();
    });
    let listener = handed_over.recv().unwrap();
    assert_eq!(receive(listener.as_fd()).unwrap(), None);
    release.send(()).unwrap();
    filtered.join().unwrap();
}

#[test]
fn malformed_filters_are_refused() {
    assert_eq!(load(&[]).unwrap_err().raw_os_error(), Some(libc::EINVAL));
    let too_long = vec![
        libc::sock_filter {
            code: 6,
            jt: 0,
            jf: 0,
            k: 0
        };
        70_000
    ];
    assert_eq!(
        load(&too_long).unwrap_err().raw_os_error(),
        Some(libc::EINVAL)
    );
}
