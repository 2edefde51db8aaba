//! What a slot is given before it is ready: the session's trees, its part of the template, a sandbox, and in it a process
//! that waits.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::environment::WORKSPACE;
use super::slots::{Kind, Ready, SessionMount, Slots};
use crate::launcher::message::TreeRequest;
use crate::pool::{Attachment, Booted, PoolError, Skeleton, Slot};
use crate::sandbox::identity::{home, temporary};
use crate::sandbox::skeleton::SkeletonSpec;
use crate::spec::Profile;

/// Where a session's own directory has those of its slots.
pub(super) const SLOTS: &str = "slots";
/// Of a slot's own directory what holds the code's file where nothing can be mounted.
pub(super) const CODE: &str = "code";
/// How long a fork ahead may take.
const FORK_PATIENCE: Duration = Duration::from_secs(5);

fn cannot_make(source: std::io::Error) -> PoolError {
    PoolError::Io {
        what: "make a directory of the session",
        source,
    }
}

impl Slots {
    /// Gives the slot the session's trees, and makes its first sandbox.
    pub(super) async fn equip(self: &Arc<Self>, slot: Slot) -> Result<Ready, PoolError> {
        let number = {
            let mut state = self.state();
            state.numbers += 1;
            state.numbers
        };
        let mut slot = slot;
        slot.show_numbers(&self.launcher, self.numbers).await?;
        let own = self.place.directory.join(SLOTS).join(number.to_string());
        slot.directory = Some(self.place.seen(&own));
        self.place.make_directory(&own).map_err(cannot_make)?;
        let interpreter = self.root.interpreter.as_ref();
        for (below, target) in [("home", home(interpreter)), ("tmp", temporary(interpreter))] {
            let source = own.join(below);
            self.place.make_directory(&source).map_err(cannot_make)?;
            let mount = SessionMount {
                source,
                identity: None,
                target: target.into(),
                read_only: false,
                ours: true,
            };
            self.attach(&slot, &mount, true).await?;
        }
        if self.skeleton.alone.is_some() {
            let code = SessionMount {
                source: own.join(CODE),
                identity: None,
                target: own.join(CODE),
                read_only: false,
                ours: true,
            };
            self.place
                .make_directory(&code.source)
                .map_err(cannot_make)?;
            self.attach(&slot, &code, true).await?;
        }
        for mount in &self.mounts {
            self.attach(&slot, mount, false).await?;
        }
        self.give_bytecode(&mut slot).await;
        let skeleton = self.furnish(&mut slot).await?;
        Ok(Ready { slot, skeleton })
    }

    /// Gives an empty slot its part of the template, where there is one, and its next sandbox.
    pub(super) async fn furnish(self: &Arc<Self>, slot: &mut Slot) -> Result<Skeleton, PoolError> {
        if let Some(Booted::Ready(template, _)) = self.template() {
            slot.branch(&template).await?;
        }
        let mut skeleton = slot.prepare(&self.skeleton_of(slot)).await?;
        let ahead = {
            let state = self.state();
            state.waiting.is_empty() && state.last == Kind::Forkable
        };
        // Somebody who waits is served sooner by a fork on demand.
        if ahead && slot.can_fork() {
            self.fork_ahead(slot, &mut skeleton).await;
        }
        Ok(skeleton)
    }

    /// The sandbox of this slot: without namespaces the slot's own directories are where they are.
    fn skeleton_of(&self, slot: &Slot) -> SkeletonSpec {
        let mut spec = self.skeleton.clone();
        if let (Some(_), Some(own)) = (&spec.alone, &slot.directory) {
            let written = ["home", "tmp"].map(|name| own.join(name));
            spec.fence = spec
                .fence
                .map(|fence| fence.with([own.join(CODE)], written));
            spec.alone = Some(own.join(CODE));
        }
        spec
    }

    /// Has the first step that is to come forked, if it can be.
    pub(super) fn warm_up(self: &Arc<Self>) {
        {
            let mut state = self.state();
            state.warming = true;
            state.last = Kind::Forkable;
        }
        // One that stands already is had at once; one that does not has this done when it does.
        if matches!(self.template(), Some(Booted::Ready(..))) {
            self.outfit_later();
        }
    }

    /// The template that slots are to have a part of, if any is wanted.
    fn template(self: &Arc<Self>) -> Option<Booted> {
        let warm = self.warm.as_ref()?;
        if !self.state().warming {
            return None;
        }
        let booted = warm.get();
        if matches!(booted, Booted::Booting) {
            self.outfit_later();
        }
        Some(booted)
    }

    /// Gives the free slots their part of the template when it stands, one after the other.
    fn outfit_later(self: &Arc<Self>) {
        if std::mem::replace(&mut self.state().outfitting, true) {
            return;
        }
        let slots = Arc::clone(self);
        tokio::spawn(async move {
            let stands = match &slots.warm {
                Some(warm) => warm.wait().await.is_some(),
                None => false,
            };
            slots.state().outfitting = false;
            if !stands {
                return;
            }
            loop {
                let plain = {
                    let mut state = slots.state();
                    let plain = |ready: &Ready| !ready.slot.can_fork();
                    let found = state.free.iter().position(plain);
                    found.map(|index| state.free.swap_remove(index))
                };
                let Some(Ready { slot, skeleton }) = plain else {
                    return;
                };
                slots.recycle(slot, skeleton).await;
            }
        });
    }

    /// Without it the step's process is forked on demand, or executed.
    async fn fork_ahead(&self, slot: &Slot, skeleton: &mut Skeleton) {
        let Some(warm) = &self.warm else {
            return;
        };
        let forking = slot.fork_ahead(skeleton, &self.skeleton, warm.environment(slot));
        let forked = tokio::time::timeout(FORK_PATIENCE, forking).await;
        if !matches!(forked, Ok(Ok(()))) {
            tracing::debug!(?forked, "an interpreter could not be forked ahead");
            skeleton.forked = None;
        }
    }

    /// Has the step's process forked, if the slot can. Without it the step executes its interpreter.
    pub(super) async fn fork(&self, slot: &Slot, skeleton: &mut Skeleton) {
        let Some(warm) = self.warm.as_ref().filter(|_| slot.can_fork()) else {
            return;
        };
        let environment = warm.environment(slot);
        if let Err(error) = slot.fork(skeleton, &self.skeleton, environment).await {
            tracing::debug!(%error, "an interpreter could not be forked");
            skeleton.forked = None;
        }
    }

    async fn attach(
        &self,
        slot: &Slot,
        mount: &SessionMount,
        scratch: bool,
    ) -> Result<(), PoolError> {
        let attachment = Attachment {
            tree: self.tree(mount).await?,
            target: mount.target.clone(),
            scratch,
        };
        slot.attach(&attachment).await
    }

    /// A detached tree of a mount of the session, owned by the sandbox's user one way or the other.
    pub(super) async fn tree(&self, mount: &SessionMount) -> Result<OwnedFd, PoolError> {
        let request = TreeRequest {
            realm: self.realm.0,
            source: mount.source.clone(),
            identity: mount.identity,
            read_only: mount.read_only,
            no_exec: self.no_exec(mount),
            map_owner: true,
        };
        let (tree, mapped, _) = self.launcher.clone_tree(request).await?;
        if mapped {
            return self.remember(mount, tree).await;
        }
        if !mount.ours || mount.target == Path::new(WORKSPACE) {
            self.owners.note_untranslated();
        }
        if mount.ours {
            let source = self.place.seen(&mount.source);
            std::os::unix::fs::chown(source, Some(self.realm.1), Some(self.realm.1)).map_err(
                |source| PoolError::Io {
                    what: "give a directory to the sandbox's user",
                    source,
                },
            )?;
        } else if !mount.read_only {
            return self.borrow(mount.source.clone(), tree).await;
        }
        Ok(tree)
    }

    /// Where code may change owners in a tree of the caller's, whoever is left at the end knows of it.
    async fn remember(&self, mount: &SessionMount, tree: OwnedFd) -> Result<OwnedFd, PoolError> {
        if self.skeleton.kept.is_empty() || mount.ours || mount.read_only {
            return Ok(tree);
        }
        let (owners, source) = (Arc::clone(&self.owners), mount.source.clone());
        let remembered = tokio::task::spawn_blocking(move || {
            owners.remember(&source, &tree)?;
            Ok(tree)
        });
        remembered
            .await
            .unwrap_or_else(|error| Err(std::io::Error::other(error)))
            .map_err(|source| PoolError::Io {
                what: "remember whose a workspace or mount is",
                source,
            })
    }

    /// Nothing that untrusted code can write is executed, nor what lies in a place where it can.
    fn no_exec(&self, mount: &SessionMount) -> bool {
        self.skeleton.profile == Profile::Untrusted
            && (!mount.read_only || mount.target.starts_with(WORKSPACE))
    }

    async fn borrow(&self, source: PathBuf, tree: OwnedFd) -> Result<OwnedFd, PoolError> {
        let owners = Arc::clone(&self.owners);
        let borrowed = tokio::task::spawn_blocking(move || {
            owners.borrow(&source, &tree)?;
            Ok(tree)
        });
        borrowed
            .await
            .unwrap_or_else(|error| Err(std::io::Error::other(error)))
            .map_err(|source| PoolError::Io {
                what: "give a workspace or mount to the sandbox's user",
                source,
            })
    }
}
