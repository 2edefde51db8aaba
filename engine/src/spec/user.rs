//! Who the code is in its sandbox: a name or numbers of the image.

use serde::{Deserialize, Serialize};

use super::Violations;
use super::text::{nearest, shown};

/// A user of a sandbox as its code sees it.
#[derive(Clone, Debug, Eq, Hash, PartialEq, Serialize, Deserialize)]
pub struct User {
    pub uid: u32,
    pub gid: u32,
    /// In its passwd file.
    pub name: String,
}

/// The user of a session that names none.
pub const DEFAULT_ID: u32 = 1000;
const DEFAULT_NAME: &str = "user";

/// The accounts of the `host` image, which are none of the host's: those that every distribution numbers alike, and the
/// sandbox's own.
pub const ACCOUNTS: [(&str, u32, u32); 8] = [
    ("root", 0, 0),
    ("daemon", 1, 1),
    ("bin", 2, 2),
    ("sys", 3, 3),
    ("mail", 8, 8),
    ("www-data", 33, 33),
    (DEFAULT_NAME, DEFAULT_ID, DEFAULT_ID),
    ("nobody", 65_534, 65_534),
];
/// The groups of the `host` image.
pub const GROUPS: [(&str, u32); 8] = [
    ("root", 0),
    ("daemon", 1),
    ("bin", 2),
    ("sys", 3),
    ("mail", 8),
    ("www-data", 33),
    (DEFAULT_NAME, DEFAULT_ID),
    ("nogroup", 65_534),
];

impl Default for User {
    fn default() -> Self {
        Self {
            uid: DEFAULT_ID,
            gid: DEFAULT_ID,
            name: DEFAULT_NAME.to_owned(),
        }
    }
}

impl User {
    fn with(uid: u32, gid: u32) -> Self {
        let known = ACCOUNTS.iter().find(|(_, known, _)| *known == uid);
        // A number without an account gets one: programs ask who they are.
        let name = known.map_or(DEFAULT_NAME, |(name, _, _)| name);
        Self {
            uid,
            gid,
            name: name.to_owned(),
        }
    }
}

/// A name or `uid[:gid]`; not said: the default.
pub(super) fn parse_user(given: Option<&str>, violations: &mut Violations) -> User {
    let Some(given) = given else {
        return User::default();
    };
    match parse(given) {
        Ok(user) => user,
        Err(why) => {
            violations.add("user", format!("{}: {why}", shown(given)));
            User::default()
        }
    }
}

fn parse(given: &str) -> Result<User, String> {
    let (user, group) = match given.split_once(':') {
        Some((user, group)) => (user, Some(group)),
        None => (given, None),
    };
    let account = ACCOUNTS.iter().find(|(name, _, _)| *name == user);
    let uid = match account {
        Some((_, uid, _)) => *uid,
        None => number(user, ACCOUNTS.map(|(name, _, _)| name), "user")?,
    };
    let gid = match group {
        None => {
            let known = ACCOUNTS.iter().find(|(_, known, _)| *known == uid);
            known.map_or(uid, |(_, _, gid)| *gid)
        }
        Some(group) => match GROUPS.iter().find(|(name, _)| *name == group) {
            Some((_, gid)) => *gid,
            None => number(group, GROUPS.map(|(name, _)| name), "group")?,
        },
    };
    Ok(User::with(uid, gid))
}

/// The highest number means "none" to the kernel.
fn number(text: &str, names: [&'static str; 8], what: &str) -> Result<u32, String> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    match text.parse() {
        Ok(number) if digits && number < u32::MAX => Ok(number),
        _ if digits => Err(format!(
            "{text} is too large a number; write at most 4294967294"
        )),
        _ => Err(format!(
            "the image has no {what} of this name; did you mean {:?}? Write a name of the image or numbers, \
             such as \"root\", \"1234\" or \"1000:100\"",
            nearest(text, names)
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_a_name_or_numbers_of_the_image() {
        let table = [
            ("root", (0, 0, "root")),
            ("nobody", (65_534, 65_534, "nobody")),
            ("1234", (1234, 1234, "user")),
            ("0", (0, 0, "root")),
            ("33", (33, 33, "www-data")),
            ("1000:100", (1000, 100, "user")),
            ("daemon:nogroup", (1, 65_534, "daemon")),
        ];
        for (given, (uid, gid, name)) in table {
            let user = parse(given).expect(given);
            assert_eq!((user.uid, user.gid, user.name.as_str()), (uid, gid, name));
        }
        let mut violations = Violations::default();
        assert_eq!(parse_user(None, &mut violations), User::default());
        assert!(violations.is_empty());
    }

    #[test]
    fn a_name_that_the_image_lacks_is_refused_with_the_nearest() {
        assert!(
            parse("rot")
                .expect_err("refused")
                .contains("did you mean \"root\"?")
        );
        assert!(parse("root:nobdy").is_err());
        for wrong in [
            "",
            ":",
            "1000:",
            "-1",
            "+1",
            "4294967295",
            "99999999999",
            "1:2:3",
            "a\nb",
        ] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
    }
}
