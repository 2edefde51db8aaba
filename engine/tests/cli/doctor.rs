//! `stepbox doctor`.

use crate::program::Place;

#[test]
fn a_host_that_runs_sandboxes_is_said_to_and_nothing_is_left() {
    let ended = Place::new().stepbox(&["doctor"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.stdout.contains("can run here"), "{ended:?}");
    assert!(!ended.stdout.contains("MISSING"), "{ended:?}");
}

#[test]
fn json_has_every_probe_with_a_name_of_its_own() {
    let told = Place::new().stepbox(&["doctor", "--json"]).json();
    assert_eq!(told["ready"], true, "{told}");
    let probes = told["probes"].as_array().unwrap();
    let mut names: Vec<_> = probes.iter().map(|probe| probe["name"].as_str()).collect();
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count);
    assert!(names.contains(&Some("sandbox")) && names.contains(&Some("user_namespaces")));
}

/// In a user namespace in which no further one may be made: the count is of that namespace alone.
#[test]
fn where_no_user_namespace_can_be_made_the_cause_and_the_way_out_are_said() {
    let place = Place::new();
    let program = env!("CARGO_BIN_EXE_stepbox");
    let within = |words: &str| {
        let script =
            format!("echo 0 >/proc/sys/user/max_user_namespaces && exec {program} {words}");
        let here = place.command(&["doctor"]);
        let mut unshare = std::process::Command::new("unshare");
        unshare.args(["--user", "--map-root-user", "sh", "-c", &script]);
        for (name, value) in here.get_envs() {
            unshare.env(name, value.unwrap());
        }
        let ended: crate::program::Ended = unshare.output().unwrap().into();
        place.assert_nothing_left();
        ended
    };
    let ended = within("doctor --json");
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let told = ended.json();
    let probes = told["probes"].as_array().unwrap();
    let namespaces = probes
        .iter()
        .find(|probe| probe["name"] == "user_namespaces")
        .unwrap();
    assert_eq!(namespaces["available"], false);
    let said = namespaces["detail"].as_str().unwrap();
    assert!(said.contains("user.max_user_namespaces"), "{said}");

    let reduced = within("run --isolation reduced --no-enforce-limits -c 'print(1)'");
    let possible = probes
        .iter()
        .any(|probe| probe["name"] == "reduced" && probe["available"] == true);
    if possible {
        assert_eq!(
            (reduced.code, &*reduced.stdout),
            (Some(0), "1\n"),
            "{reduced:?}"
        );
        assert!(
            reduced.stderr.contains("isolation is reduced"),
            "{reduced:?}"
        );
    } else {
        assert_eq!(reduced.code, Some(125), "{reduced:?}");
        assert!(reduced.stderr.contains("reduced: "), "{reduced:?}");
    }

    let ended = within("run -c 'print(1)'");
    assert_eq!((ended.code, &*ended.stdout), (Some(125), ""), "{ended:?}");
    assert!(ended.stderr.contains(said), "{ended:?}");
    let mend = namespaces["mend"].as_str().unwrap();
    assert!(
        ended.stderr.contains(&format!("to mend it: {mend}")),
        "{ended:?}"
    );
}
