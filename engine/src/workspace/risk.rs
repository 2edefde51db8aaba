//! What a change in the caller's own directory could make the caller's tools do.
//!
//! A private workspace is thrown away; one that the caller gave is later used by the caller's editor, shell and git.
//! Some names in it are read by those as instructions. A change to one of them is marked, with the reason in a
//! sentence, and so is a link that leads out: on the host it leads to the host's files.

use std::os::fd::AsFd;

use rustix::fs::{OFlags, readlinkat};
use rustix::io::Errno;

use super::path::split;
use super::{FileError, Tree, beneath, display, rights};
use crate::outcome::{ChangeKind, FileChange, FileKind};

pub use crate::spec::PROTECTED;

/// A name, at any depth, and what acts on it.
struct Rule {
    /// Components that must follow each other.
    path: &'static [&'static [u8]],
    /// Whether the rule is of what lies below, too.
    below: bool,
    why: &'static str,
}

const fn rule(path: &'static [&'static [u8]], below: bool, why: &'static str) -> Rule {
    Rule { path, below, why }
}

const GIT_HOOKS: &str = "git runs what is in it";
const GIT_CONFIG: &str = "git takes commands to run from it";

const RULES: &[Rule] = &[
    rule(&[b".git", b"hooks"], true, GIT_HOOKS),
    rule(&[b".git", b"config"], true, GIT_CONFIG),
    rule(&[b".git", b"config.worktree"], true, GIT_CONFIG),
    // Each submodule and worktree has a configuration and hooks of its own there.
    rule(&[b".git", b"modules"], true, GIT_CONFIG),
    rule(&[b".git", b"worktrees"], true, GIT_CONFIG),
    // A renamed directory is one change, without those below; a file here names another repository.
    rule(&[b".git"], false, GIT_CONFIG),
    rule(&[b".envrc"], true, "direnv runs it when a shell enters"),
    rule(
        &[b".vscode"],
        true,
        "the editor takes tasks and settings from it",
    ),
    rule(
        &[b".idea"],
        true,
        "the editor takes run configurations from it",
    ),
    rule(&[b".husky"], true, "git runs its hooks"),
    rule(
        &[b".mcp.json"],
        true,
        "agents start the servers that it names",
    ),
    rule(
        &[b".claude"],
        true,
        "agents take hooks and settings from it",
    ),
];

/// Why a changed entry is a risk to the host, or none. `link_target` is of a link; what it leads to is judged by its
/// text alone, so a way out through a second link is not seen here (see [`Tree::mark_host_risks`]).
#[must_use]
pub fn host_risk(path: &[u8], kind: FileKind, link_target: Option<&[u8]>) -> Option<String> {
    if let Some(rule) = RULES.iter().find(|rule| rule.applies(path)) {
        return Some(format!("{}: {}", display(path), rule.why));
    }
    let target = link_target.filter(|_| kind == FileKind::Symlink)?;
    leaves(path, target).then(|| leaving(target))
}

fn leaving(target: &[u8]) -> String {
    format!("link leaves the workspace: {}", display(target))
}

impl Rule {
    fn applies(&self, path: &[u8]) -> bool {
        let components: Vec<&[u8]> = path.split(|&b| b == b'/').collect();
        let mut windows = components.windows(self.path.len());
        if self.below {
            // Filesystems that ignore case exist on the host even where the sandbox has none.
            windows.any(|window| self.matches(window))
        } else {
            windows
                .next_back()
                .is_some_and(|window| self.matches(window))
        }
    }

    fn matches(&self, window: &[&[u8]]) -> bool {
        window
            .iter()
            .zip(self.path)
            .all(|(a, b)| a.eq_ignore_ascii_case(b))
    }
}

/// Whether the text of a link at `path` climbs above the root, or is absolute.
fn leaves(path: &[u8], target: &[u8]) -> bool {
    if target.starts_with(b"/") {
        return true;
    }
    let (directory, _) = split(path);
    let mut depth = if directory.is_empty() {
        0
    } else {
        directory.split(|&b| b == b'/').count()
    };
    for component in target.split(|&b| b == b'/') {
        match component {
            b"" | b"." => {}
            b".." => match depth.checked_sub(1) {
                Some(above) => depth = above,
                None => return true,
            },
            _ => depth += 1,
        }
    }
    false
}

impl Tree {
    /// Marks the changes that are a risk to the host. Links are judged by their text and by where the kernel says
    /// that they lead. For a workspace that is the caller's own; in a private one nothing is at risk.
    ///
    /// # Errors
    /// When the keeper's rights cannot be set.
    pub fn mark_host_risks(&self, changes: &mut [FileChange]) -> Result<(), FileError> {
        rights::with_override(|| {
            for change in changes {
                // What is no more is no risk; a hook that was deleted runs nothing.
                if change.change != ChangeKind::Deleted {
                    let target = self.link_target(change);
                    change.host_risk = host_risk(&change.path, change.kind, target.as_deref())
                        .or_else(|| self.leads_out(change, target.as_deref()?));
                }
            }
            Ok(())
        })
    }

    fn link_target(&self, change: &FileChange) -> Option<Vec<u8>> {
        if change.kind != FileKind::Symlink {
            return None;
        }
        let (directory, name) = split(&change.path);
        let directory = beneath::open_exactly(self.root(), directory, OFlags::PATH).ok()?;
        let target = readlinkat(directory.as_fd(), name, Vec::new()).ok()?;
        Some(target.into_bytes())
    }

    fn leads_out(&self, change: &FileChange, target: &[u8]) -> Option<String> {
        let refused = beneath::open_as_host(self.root(), &change.path, OFlags::PATH).err();
        (refused == Some(Errno::XDEV)).then(|| leaving(target))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;

    fn file(path: &str) -> Option<String> {
        host_risk(path.as_bytes(), FileKind::File, None)
    }

    fn link(path: &str, target: &str) -> Option<String> {
        host_risk(path.as_bytes(), FileKind::Symlink, Some(target.as_bytes()))
    }

    #[test]
    fn every_protected_path_and_what_is_below_it_is_a_risk_at_any_depth() {
        for path in PROTECTED {
            assert!(file(path).is_some(), "{path}");
            assert!(file(&format!("{path}/x")).is_some(), "{path}/x");
            assert!(file(&format!("sub/{path}")).is_some(), "sub/{path}");
        }
        assert!(file(".git").is_some());
        assert!(file(".GIT/Hooks/pre-commit").is_some());
        assert!(file(".git/modules/a/hooks/post-checkout").is_some());
    }

    #[test]
    fn names_that_only_look_like_protected_ones_are_none() {
        for path in [
            "git/hooks",
            ".git/objects/ab",
            ".gitignore",
            "a.envrc",
            ".git/index",
            "x/config",
        ] {
            assert_eq!(file(path), None, "{path}");
        }
    }

    #[test]
    fn a_link_is_a_risk_when_its_text_leads_out() {
        for (path, target) in [
            ("l", "/etc"),
            ("l", ".."),
            ("d/l", "../../x"),
            ("l", "d/../../x"),
        ] {
            assert!(link(path, target).is_some(), "{path} -> {target}");
        }
        for (path, target) in [("l", "d/x"), ("d/l", "../x"), ("d/l", "."), ("l", "..x")] {
            assert_eq!(link(path, target), None, "{path} -> {target}");
        }
    }

    #[test]
    fn the_reason_shows_no_control_character_of_the_target() {
        let risk = link("l", "/x\n\u{1b}[2J").unwrap();
        assert!(risk.contains("leaves the workspace"));
        assert!(!risk.chars().any(char::is_control));
    }
}
