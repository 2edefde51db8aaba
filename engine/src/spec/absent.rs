//! Options of the contract that this version does not have: refused by name, never ignored.

use super::Violations;
use super::request::{Choice, IsolationChoice, NetworkChoice, ProfileChoice, SpecRequest};

fn absent(what: &str) -> String {
    format!("{what}not available in stepbox {}", crate::VERSION)
}

pub(super) fn check_absent(request: &SpecRequest, violations: &mut Violations) {
    let plain = [
        ("setup", request.setup.is_some()),
        ("egress_allow", request.egress_allow.is_some()),
        ("setup_network", request.setup_network.is_some()),
        ("packages", !request.packages.is_empty()),
        ("npm_packages", !request.npm_packages.is_empty()),
        ("egress_credentials", !request.egress_credentials.is_empty()),
        ("host_packages", !request.host_packages.is_empty()),
        ("devices", !request.devices.is_empty()),
    ];
    for (field, given) in plain {
        if given {
            violations.add(field, absent(""));
        }
    }
    check_choices(request, violations);
}

fn check_choices(request: &SpecRequest, violations: &mut Violations) {
    match request.network {
        Choice::Default | Choice::Named(NetworkChoice::None) => {}
        Choice::Named(NetworkChoice::Host | NetworkChoice::Internet) => violations.add(
            "network",
            format!("{}; write network=False", absent("a network is ")),
        ),
        Choice::Unknown(number) => violations.add("network", unknown(number)),
    }
    match request.security_profile {
        Choice::Default | Choice::Named(ProfileChoice::Default | ProfileChoice::Untrusted) => {}
        Choice::Unknown(number) => violations.add("security_profile", unknown(number)),
    }
    match request.isolation_mode {
        Choice::Default | Choice::Named(IsolationChoice::Full | IsolationChoice::Reduced) => {}
        Choice::Unknown(number) => violations.add("isolation_mode", unknown(number)),
    }
}

fn unknown(number: i32) -> String {
    format!("{number} is not a word of stepbox {}", crate::VERSION)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(request: &SpecRequest) -> Vec<String> {
        let mut violations = Violations::default();
        check_absent(request, &mut violations);
        violations
            .into_vec()
            .into_iter()
            .map(|violation| format!("{}: {}", violation.field, violation.description))
            .collect()
    }

    #[test]
    fn what_this_version_has_not_is_refused_by_name() {
        let word = || vec!["x".to_owned()];
        let map = || [("a".to_owned(), "b".to_owned())].into();
        let base = SpecRequest::default;
        let table: Vec<(&str, SpecRequest)> = vec![
            (
                "setup",
                SpecRequest {
                    setup: Some("pip install x".into()),
                    ..base()
                },
            ),
            (
                "egress_allow",
                SpecRequest {
                    egress_allow: Some(vec![]),
                    ..base()
                },
            ),
            (
                "setup_network",
                SpecRequest {
                    setup_network: Some("open".into()),
                    ..base()
                },
            ),
            (
                "packages",
                SpecRequest {
                    packages: word(),
                    ..base()
                },
            ),
            (
                "npm_packages",
                SpecRequest {
                    npm_packages: word(),
                    ..base()
                },
            ),
            (
                "egress_credentials",
                SpecRequest {
                    egress_credentials: map(),
                    ..base()
                },
            ),
            (
                "host_packages",
                SpecRequest {
                    host_packages: vec!["/x".into()],
                    ..base()
                },
            ),
            (
                "devices",
                SpecRequest {
                    devices: map(),
                    ..base()
                },
            ),
            (
                "network",
                SpecRequest {
                    network: Choice::Named(NetworkChoice::Host),
                    ..base()
                },
            ),
            (
                "network",
                SpecRequest {
                    network: Choice::Named(NetworkChoice::Internet),
                    ..base()
                },
            ),
            (
                "network",
                SpecRequest {
                    network: Choice::Unknown(77),
                    ..base()
                },
            ),
            (
                "isolation_mode",
                SpecRequest {
                    isolation_mode: Choice::Unknown(9),
                    ..base()
                },
            ),
        ];
        for (field, request) in table {
            let said = refused(&request);
            assert_eq!(said.len(), 1, "{field}: {said:?}");
            assert!(said[0].starts_with(&format!("{field}: ")), "{said:?}");
            assert!(said[0].contains(crate::VERSION), "{said:?}");
        }
    }

    #[test]
    fn what_has_no_effect_yet_is_accepted() {
        let request = SpecRequest {
            prewarm: Some(2),
            ttl_s: Some(60.0),
            deps_readonly: Some(false),
            resident: Some(false),
            network: Choice::Named(NetworkChoice::None),
            ..SpecRequest::default()
        };
        assert_eq!(refused(&request), Vec::<String>::new());
    }
}
