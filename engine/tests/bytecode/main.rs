//! The promise that an interpreter without bytecode is compiled once, in the background and in a sandbox, and that what
//! is kept of it can be neither wrong nor written by code.
//!
//! A host on which sandboxes cannot run fails here; one without a `python3` that can be copied skips by name.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![expect(
    clippy::disallowed_methods,
    reason = "the engine is started as its clients do, and the host's interpreter is asked where it is"
)]

mod engine;
mod prefix;

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use stepbox_engine::api::pb;

use engine::{Engine, Place};
use prefix::Prefix;

/// Where a module's bytecode is, what kind it is, and whether Python looks in the store.
const WHENCE: &str = "import json, sys\n\
    try: kind = open(json.__cached__, 'rb').read(8)[4]\n\
    except OSError: kind = None\n\
    print(sys.pycache_prefix, json.__cached__, kind)";
const CHECKED_HASH: &str = "3";

fn mount(source: &Path, target: &str) -> pb::Mount {
    pb::Mount {
        source: source.as_os_str().as_encoded_bytes().to_vec().into(),
        target: target.as_bytes().to_vec().into(),
        read_only: true,
        allow_sockets: false,
    }
}

/// Rewrites a file; neither its size nor its time tells.
fn change_unseen(path: &Path, text: &str, replace: bool) {
    let before = fs::metadata(path).unwrap();
    if replace {
        let new = path.with_extension("new");
        fs::write(&new, text).unwrap();
        fs::rename(&new, path).unwrap();
    } else {
        fs::write(path, text).unwrap();
    }
    let file = File::options().write(true).open(path).unwrap();
    file.set_modified(before.modified().unwrap()).unwrap();
    let after = fs::metadata(path).unwrap();
    assert_eq!(
        (before.len(), before.modified().unwrap()),
        (after.len(), after.modified().unwrap())
    );
}

#[tokio::test]
async fn the_standard_library_is_compiled_behind_the_steps_and_read_from_the_store() {
    let Some(prefix) = Prefix::copied() else {
        return;
    };
    let own = prefix.library.join("own_module.py");
    fs::write(&own, "VALUE = 1\n").unwrap();
    let place = Place::new();
    let mut engine = Engine::start(&place).await;
    let session = engine.session(prefix.spec()).await;
    let first = engine.python(&session, WHENCE).await;
    assert!(first.starts_with("None "), "{first}");

    let then = engine
        .python_until(&session, WHENCE, "/opt/stepbox/bytecode ")
        .await;
    let words: Vec<_> = then.split_whitespace().collect();
    assert!(words[1].starts_with("/opt/stepbox/bytecode/"), "{then}");
    assert_eq!(words[2], CHECKED_HASH, "{then}");
    let other = engine.session(prefix.spec()).await;
    let at_once = engine.python(&other, WHENCE).await;
    assert_eq!(at_once, then, "a session that opens later has it at once");

    // Bytecode of another content is not run.
    let value = "import own_module as m, os; print(m.VALUE, os.path.exists(m.__cached__))";
    assert_eq!(engine.python(&other, value).await, "1 True\n");
    change_unseen(&own, "VALUE = 2\n", false);
    assert_eq!(engine.python(&other, value).await, "2 True\n");
    change_unseen(&own, "VALUE = 3\n", true);
    assert_eq!(engine.python(&other, value).await, "3 True\n");

    // Code cannot write to the store, by any name; its own bytecode has a place.
    let attempts = "import errno, json, os, py_compile\n\
        def refused(act, *words):\n\
        \x20   try: act(*words)\n\
        \x20   except OSError as error: return errno.errorcode[error.errno]\n\
        print(refused(open, json.__cached__, 'wb'), refused(os.unlink, json.__cached__),\n\
        \x20   refused(os.mkdir, '/opt/stepbox/bytecode/x'), refused(os.rename, '/opt/stepbox/bytecode', '/tmp/x'))\n\
        for name in ['/workspace/mine.py', '/tmp/mine.py']:\n\
        \x20   open(name, 'w').write('x = 1')\n\
        \x20   print(os.path.exists(py_compile.compile(name, doraise=True)))";
    let before = place.store_names();
    let said = engine.python(&other, attempts).await;
    let refusals: Vec<_> = said.lines().next().unwrap().split(' ').collect();
    assert!(
        refusals
            .iter()
            .all(|word| ["EROFS", "EACCES", "EPERM", "EBUSY", "EXDEV"].contains(word)),
        "{said}"
    );
    assert!(said.ends_with("True\nTrue\n"), "{said}");
    assert_eq!(before, place.store_names());

    // A caller's own word wins.
    let mut spec = prefix.spec();
    spec.env
        .insert("PYTHONPYCACHEPREFIX".into(), "/workspace/mine".into());
    let session = engine.session(spec).await;
    let said = engine.python(&session, WHENCE).await;
    assert!(said.starts_with("/workspace/mine "), "{said}");
    engine.stop().await;
    place.assert_only_the_store_is_left();
}

#[tokio::test]
async fn the_store_cannot_be_mounted_and_its_neighbour_can() {
    let place = Place::new();
    let store = place.store();
    fs::create_dir_all(&store).unwrap();
    let neighbour = place.path("neighbour");
    fs::create_dir(&neighbour).unwrap();
    let link = place.path("link");
    symlink(&store, &link).unwrap();
    let mut engine = Engine::start(&place).await;
    for source in [&store, &link, &store.join("..")] {
        let spec = pb::SandboxSpec {
            mounts: vec![mount(source, "/data")],
            ..pb::SandboxSpec::default()
        };
        let refused = engine.try_session(spec).await;
        assert!(refused.is_err(), "{}", source.display());
    }
    let onto = |target: &str| pb::SandboxSpec {
        mounts: vec![mount(&neighbour, target)],
        ..pb::SandboxSpec::default()
    };
    for target in ["/opt/stepbox/bytecode", "/opt/stepbox/bytecode/usr"] {
        assert!(engine.try_session(onto(target)).await.is_err(), "{target}");
    }
    for target in ["/data", "/opt/stepbox/deps"] {
        engine.session(onto(target)).await;
    }
    engine.stop().await;
}

#[tokio::test]
async fn engines_that_start_together_compile_once() {
    let Some(prefix) = Prefix::copied() else {
        return;
    };
    let place = Place::new();
    let mut engines = [Engine::start(&place).await, Engine::start(&place).await];
    let mut sessions = Vec::new();
    for engine in &mut engines {
        sessions.push(engine.session(prefix.spec()).await);
    }
    for (engine, session) in engines.iter_mut().zip(&sessions) {
        engine
            .python_until(session, WHENCE, "/opt/stepbox/bytecode ")
            .await;
    }
    let mut logs = String::new();
    for engine in engines {
        logs += &engine.stop().await;
    }
    assert_eq!(logs.matches("bytecode was compiled").count(), 1, "{logs}");
    assert_eq!(place.store_names().len(), 2, "the entry and the lock");
    place.assert_only_the_store_is_left();
}

#[tokio::test]
async fn an_entry_that_is_half_there_is_not_used() {
    let Some(prefix) = Prefix::copied() else {
        return;
    };
    let place = Place::new();
    let mut engine = Engine::start(&place).await;
    let session = engine.session(prefix.spec()).await;
    let whole = engine
        .python_until(&session, WHENCE, "/opt/stepbox/bytecode ")
        .await;
    engine.stop().await;

    // As an engine leaves it that dies, with a file that was not written to its end.
    let names = place.store_names();
    let entry = place
        .store()
        .join(names.iter().find(|name| *name != "lock").unwrap());
    let part = entry.with_extension("part");
    fs::rename(&entry, &part).unwrap();
    let cached = whole.split_whitespace().nth(1).unwrap();
    let torn = part.join(cached.strip_prefix("/opt/stepbox/bytecode/").unwrap());
    let bytes = fs::read(&torn).unwrap();
    fs::write(&torn, &bytes[..bytes.len() / 2]).unwrap();

    let mut engine = Engine::start(&place).await;
    let session = engine.session(prefix.spec()).await;
    let said = engine.python(&session, WHENCE).await;
    assert!(said.starts_with("None "), "{said}");
    let again = engine
        .python_until(&session, WHENCE, "/opt/stepbox/bytecode ")
        .await;
    assert_eq!(again, whole);
    engine.stop().await;
    assert_eq!(place.store_names(), names);
    place.assert_only_the_store_is_left();
}

#[tokio::test]
async fn an_interpreter_with_bytecode_is_left_alone_and_packages_without_are_compiled() {
    let Some(prefix) = Prefix::copied() else {
        return;
    };
    prefix.compile();
    let place = Place::new();
    let packages = place.path("packages");
    fs::create_dir_all(packages.join("bare")).unwrap();
    fs::write(packages.join("bare/__init__.py"), "VALUE = 1\n").unwrap();
    let mut engine = Engine::start(&place).await;
    let session = engine.session(prefix.spec()).await;
    let beside = engine.python(&session, WHENCE).await;
    assert!(beside.starts_with("None "), "{beside}");
    assert!(!beside.ends_with("None\n"), "it has bytecode: {beside}");
    assert!(!place.store().exists(), "nothing was wanted");

    let with_packages = |workspace: Option<PathBuf>| {
        let mut spec = prefix.spec();
        spec.mounts = vec![mount(&packages, "/opt/stepbox/deps")];
        spec.env
            .insert("PYTHONPATH".into(), "/opt/stepbox/deps".into());
        spec.workspace = workspace.map(|path| path.as_os_str().as_encoded_bytes().to_vec().into());
        spec
    };
    let session = engine.session(with_packages(None)).await;
    let code = "import bare, json, os, sys\n\
        print(sys.pycache_prefix, bare.VALUE, bare.__cached__, os.path.exists(bare.__cached__), \
        os.path.islink(json.__cached__), os.path.exists(json.__cached__))";
    let said = engine
        .python_until(&session, code, "/opt/stepbox/bytecode ")
        .await;
    let words: Vec<_> = said.split_whitespace().collect();
    assert!(words[2].starts_with("/opt/stepbox/bytecode/opt/stepbox/deps/bare/"));
    assert_eq!(words[3..], ["True"; 3], "{said}");
    let module = packages.join("bare/__init__.py");
    change_unseen(&module, "VALUE = 2\n", true);
    // Each sandbox of a session that opens when it is there has it.
    let session = engine.session(with_packages(None)).await;
    let changed = engine.python(&session, code).await;
    assert_eq!(changed, said.replace(" 1 ", " 2 "));

    // What else a session brings may have bytecode of its own, which would be passed over.
    let workspace = place.path("workspace");
    let with_mount = |source: &Path| {
        let mut spec = with_packages(Some(workspace.clone()));
        spec.mounts.push(mount(source, "/data"));
        spec
    };
    let data = place.path("data");
    for directory in [&workspace, &data] {
        fs::create_dir(directory).unwrap();
    }
    fs::write(data.join("theirs.py"), "VALUE = 1\n").unwrap();
    let session = engine.session(with_mount(&data)).await;
    let said = engine.python(&session, WHENCE).await;
    assert!(said.starts_with("/opt/stepbox/bytecode "), "{said}");
    prefix.compile_in(&data);
    let session = engine.session(with_mount(&data)).await;
    let said = engine.python(&session, WHENCE).await;
    assert!(said.starts_with("None "), "{said}");
    fs::create_dir(workspace.join(".deps")).unwrap();
    let session = engine.session(with_packages(Some(workspace.clone()))).await;
    let said = engine.python(&session, WHENCE).await;
    assert!(said.starts_with("None "), "{said}");
    engine.stop().await;
    place.assert_only_the_store_is_left();
}
