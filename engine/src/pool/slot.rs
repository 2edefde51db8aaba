//! A slot: one cgroup, one spawner, one network namespace. It belongs to one session for its life and runs one step at
//! a time, in a sandbox that was made ahead.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{Gid, Uid};
use rustix::pipe::{PipeFlags, pipe_with};
use tokio::io::Interest;

use super::template::{Forked, SubTemplate, Template};
use super::{Channel, Launcher, PoolError};
use crate::launcher::message::{FromSpawner, RealmId, Role, ToSpawner, TreeRequest};
use crate::outcome::AppliedLimit;
use crate::sandbox::cgroup::{
    Branch, CgroupError, Cgroups, Counters, Hierarchy, OomWatch, SlotCgroup,
};
use crate::sandbox::init::FromInit;
use crate::sandbox::landlock::Fence;
use crate::sandbox::numbers::{self, Numbers};
use crate::sandbox::rootfs::RootSpec;
use crate::sandbox::skeleton::{CGROUPS, SkeletonSpec};
use crate::sandbox::template::Fork;
use crate::spec::Limits;
use crate::sys::{datagram, readiness};

/// A tree for a slot, to be mounted at `target` for all its sandboxes.
#[derive(Debug)]
pub struct Attachment {
    pub tree: OwnedFd,
    pub target: PathBuf,
    /// Emptied before each sandbox.
    pub scratch: bool,
}

/// A sandbox with no code in it: its init waits.
#[derive(Debug)]
pub struct Skeleton {
    pub control: Channel,
    pub init: OwnedFd,
    /// What its memory is measured by, where no cgroup does: [`crate::sandbox::skeleton::windows`].
    pub windows: Vec<OwnedFd>,
    /// The seccomp listener of all that will run in it; taken by the step.
    pub listener: Option<OwnedFd>,
    /// Taken by the step.
    pub streams: Option<Streams>,
    /// The ways into it for a process that is forked from a template, where the session has one.
    ways: Vec<OwnedFd>,
    /// What waits in it for code, or is on its way there. Without code for it it is to be ended: [`Self::clear`].
    pub forked: Option<Forked>,
    /// Microseconds of processor time that were spent in it before its step.
    pub spent_us: u64,
    /// No pid namespace holds what is in it: init ends all that when it is told to.
    alone: bool,
}

/// The standard streams of a step, as pipes: the end that reads, the end that writes.
#[derive(Debug)]
pub struct Streams {
    pub stdin: (OwnedFd, OwnedFd),
    pub stdout: (OwnedFd, OwnedFd),
    pub stderr: (OwnedFd, OwnedFd),
}

impl Streams {
    /// `owner` is the host id that must be able to open them by name, where it is not the engine's.
    fn make(owner: Option<u32>) -> std::io::Result<Self> {
        let streams = Self {
            stdin: pipe_with(PipeFlags::CLOEXEC)?,
            stdout: pipe_with(PipeFlags::CLOEXEC)?,
            stderr: pipe_with(PipeFlags::CLOEXEC)?,
        };
        if let Some(owner) = owner {
            let (uid, gid) = (Uid::from_raw(owner), Gid::from_raw(owner));
            for pipe in [&streams.stdin.0, &streams.stdout.0, &streams.stderr.0] {
                rustix::fs::fchown(pipe, Some(uid), Some(gid))?;
            }
        }
        Ok(streams)
    }
}

impl Skeleton {
    /// Has the sandbox end: all that is in it dies, and init after it.
    pub fn kill(&self) {
        let signal = if self.alone {
            rustix::process::Signal::TERM
        } else {
            rustix::process::Signal::KILL
        };
        // One that has ended already cannot be killed again.
        let _ = rustix::process::pidfd_send_signal(self.init.as_fd(), signal);
    }

    /// Leaves nothing in the sandbox but its init.
    pub async fn clear(&mut self) {
        let Some(forked) = self.forked.take() else {
            return;
        };
        forked.end().await;
        // Init tells of its end, unless the sandbox itself is gone, which the step will see.
        while let Ok(Some((message, _))) = self.control.receive().await {
            if matches!(message, FromInit::Exited { .. }) {
                return;
            }
        }
    }

    /// Ends the sandbox and waits until nothing of it is left.
    pub async fn end(self) -> Result<(), PoolError> {
        let failed = |source| PoolError::Io {
            what: "wait for a sandbox's end",
            source,
        };
        let init = self.init.try_clone().map_err(failed)?;
        drop(self);
        let watched = readiness::watch(init, Interest::READABLE).map_err(failed)?;
        watched.readable().await.map(drop).map_err(failed)
    }
}

impl Drop for Skeleton {
    fn drop(&mut self) {
        self.kill();
    }
}

#[derive(Debug)]
pub struct Slot {
    pub realm: RealmId,
    /// The host id of the sandbox's user.
    pub user: u32,
    /// Whether its sandboxes see bytecode of the store. None: it was not tried.
    pub bytecode: Option<bool>,
    /// What its session made for it on disk, to be removed with it.
    pub directory: Option<std::path::PathBuf>,
    spawner: Channel,
    cgroup: Option<SlotCgroup>,
    /// With the number of the template that it is a fork of.
    sub_template: Option<(u64, SubTemplate)>,
}

/// Tasks of ours in a step's cgroup beside the code's: its init, and of some forked steps who holds its memory.
const OWN_TASKS: u64 = 1;
const HOLDERS: u64 = 1;

impl Slot {
    /// Makes a slot in a realm. Takes milliseconds, and a network namespace: off the call path.
    pub async fn make(
        launcher: &Launcher,
        cgroups: &Arc<Cgroups>,
        realm: (RealmId, u32),
        name: String,
        root: &RootSpec,
    ) -> Result<Self, PoolError> {
        let (realm, user) = realm;
        let groups = Arc::clone(cgroups);
        let mut cgroup = blocking(move || {
            let mut cgroup = groups.slot(&name)?;
            cgroup.grant(user, user)?;
            Ok(cgroup)
        })
        .await?;
        let joins = cgroup.join_fds()?;
        let spawner = launcher
            .make_process(realm, Role::Spawner, root, &joins)
            .await?;
        drop(joins);
        match receive(&spawner).await? {
            (FromSpawner::Ready, _) => {}
            (FromSpawner::Failed(error), _) => return Err(error.into()),
            _ => return Err(PoolError::Gone("the spawner's protocol")),
        }
        let cgroup = blocking(move || {
            cgroup.seal()?;
            Ok(cgroup)
        })
        .await?;
        let shown = cgroup.shown();
        let slot = Self {
            realm,
            user,
            bytecode: None,
            directory: None,
            spawner,
            cgroup: Some(cgroup),
            sub_template: None,
        };
        // Nothing can be shown elsewhere than where it is.
        let shown = shown.into_iter().filter(|_| !launcher.alone);
        for (hierarchy, source) in shown {
            if let Err(error) = slot.show_cgroup(launcher, &hierarchy, source).await {
                tracing::debug!(%error, ?hierarchy, "a sandbox does not see its cgroup");
            }
        }
        Ok(slot)
    }

    /// Shows the slot's cgroup in a hierarchy, read-only, where programs look for it.
    async fn show_cgroup(
        &self,
        launcher: &Launcher,
        hierarchy: &Hierarchy,
        source: PathBuf,
    ) -> Result<(), PoolError> {
        let request = TreeRequest {
            realm: self.realm,
            source,
            identity: None,
            read_only: true,
            map_owner: false,
            no_exec: true,
        };
        let (tree, _, _) = launcher.clone_tree(request).await?;
        self.attach(&Attachment {
            tree,
            target: Path::new(CGROUPS).join(hierarchy.name()),
            scratch: false,
        })
        .await
    }

    /// Has the slot's sandboxes tell of `numbers`.
    pub async fn show_numbers(
        &self,
        launcher: &Launcher,
        numbers: Numbers,
    ) -> Result<(), PoolError> {
        if launcher.alone {
            return Ok(());
        }
        self.attach(&Attachment {
            tree: launcher.numbers(self.realm, numbers).await?,
            target: numbers::DEVICES.into(),
            scratch: false,
        })
        .await
    }

    /// Makes the slot's sub-template one of `template`, unless it is. To be called while no sandbox is in the slot; takes
    /// as long as joining cgroups does.
    pub async fn branch(&mut self, template: &Template) -> Result<(), PoolError> {
        if let Some((number, sub_template)) = self.sub_template.take() {
            if number == template.number && sub_template.is_alive() {
                self.sub_template = Some((number, sub_template));
                return Ok(());
            }
            sub_template.end().await;
        }
        let Some(mut cgroup) = self.cgroup.take() else {
            return Err(PoolError::Gone("the cgroup of a slot"));
        };
        let joins = cgroup.join_fds();
        let branched = match joins {
            Ok(joins) => template.branch(&joins).await,
            Err(error) => Err(error.into()),
        };
        let sealed = blocking(move || {
            let sealed = cgroup.seal();
            Ok((cgroup, sealed))
        });
        let (cgroup, sealed) = sealed.await?;
        self.cgroup = Some(cgroup);
        match branched {
            Ok(sub_template) => self.sub_template = Some((template.number, sub_template)),
            // The slot is as good as before.
            Err(error) => tracing::debug!(%error, "a slot has no part of its template"),
        }
        Ok(sealed?)
    }

    /// Whether a process can be forked into its sandboxes.
    #[must_use]
    pub fn can_fork(&self) -> bool {
        self.sub_template
            .as_ref()
            .is_some_and(|(_, sub_template)| sub_template.is_alive())
    }

    /// Whether what is forked into its sandboxes has its memory held by a second process.
    #[must_use]
    pub fn holds(&self, spec: &SkeletonSpec) -> bool {
        let large = |(_, sub_template): &(u64, SubTemplate)| sub_template.large;
        !spec.watched && self.can_fork() && self.sub_template.as_ref().is_some_and(large)
    }

    /// Has a process forked into a sandbox of this slot, to wait there. It is on its way at return.
    pub async fn fork(
        &self,
        skeleton: &mut Skeleton,
        spec: &SkeletonSpec,
        environment: Vec<(String, String)>,
    ) -> Result<(), PoolError> {
        let Some((_, sub_template)) = &self.sub_template else {
            return Err(PoolError::Gone("a sub-template"));
        };
        let leaf = match &self.cgroup {
            Some(cgroup) => cgroup.leaf()?,
            None => None,
        };
        let fork = Fork {
            users: spec.own_users(),
            fence: spec.fence.as_ref().map(Fence::flags),
            leaf: leaf.is_some(),
            tasks: spec.tasks,
            pinned: spec.pinned,
            held: self.holds(spec),
            kept: spec.kept.bits(),
            environment,
        };
        let ways = std::mem::take(&mut skeleton.ways);
        skeleton.forked = Some(sub_template.fork(fork, &ways, leaf.as_ref()).await?);
        Ok(())
    }

    /// Forks a process ahead of the step, and waits until it waits.
    pub async fn fork_ahead(
        &self,
        skeleton: &mut Skeleton,
        spec: &SkeletonSpec,
        environment: Vec<(String, String)>,
    ) -> Result<(), PoolError> {
        self.fork(skeleton, spec, environment).await?;
        if let Some(forked) = &mut skeleton.forked {
            forked.settle().await?;
            // Init is told before the step begins: its end is then seen by nobody in between.
            skeleton
                .control
                .send(&forked.adoption(), &[])
                .await
                .map_err(PoolError::io("init"))?;
        }
        skeleton.spent_us = self.counters().cpu_us.unwrap_or(0);
        Ok(())
    }

    /// Whether its spawner lives.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        !self.spawner.is_closed()
    }

    pub async fn attach(&self, attachment: &Attachment) -> Result<(), PoolError> {
        let request = ToSpawner::Attach {
            target: attachment.target.clone(),
            scratch: attachment.scratch,
        };
        self.tell(&request, &[attachment.tree.as_fd()]).await?;
        match receive(&self.spawner).await? {
            (FromSpawner::Attached, _) => Ok(()),
            (FromSpawner::Failed(error), _) => Err(error.into()),
            _ => Err(PoolError::Gone("the spawner's protocol")),
        }
    }

    /// Makes the next sandbox.
    pub async fn prepare(&self, spec: &SkeletonSpec) -> Result<Skeleton, PoolError> {
        let (ours, theirs) = datagram::pair().map_err(PoolError::io("socket pair"))?;
        let leaf = match &self.cgroup {
            Some(cgroup) => cgroup.leaf()?,
            None => None,
        };
        let mut beside = vec![theirs.as_fd()];
        beside.extend(leaf.iter().map(AsFd::as_fd));
        self.tell(&ToSpawner::Prepare(spec.clone()), &beside)
            .await?;
        drop(theirs);
        let control = Channel::new(ours).map_err(PoolError::io("init's socket"))?;
        let init = match receive(&self.spawner).await? {
            (FromSpawner::Prepared, descriptors) => descriptors
                .into_iter()
                .next()
                .ok_or(PoolError::Gone("the spawner's protocol"))?,
            (FromSpawner::Failed(error), _) => return Err(error.into()),
            _ => return Err(PoolError::Gone("the spawner's protocol")),
        };
        let mut skeleton = Skeleton {
            control,
            init,
            windows: Vec::new(),
            listener: None,
            streams: None,
            ways: Vec::new(),
            forked: None,
            spent_us: 0,
            alone: spec.alone.is_some(),
        };
        loop {
            let message = skeleton.control.receive().await;
            match message.map_err(PoolError::io("init"))? {
                Some((FromInit::Windows, windows)) => skeleton.windows.extend(windows),
                Some((FromInit::Joinable, ways)) => skeleton.ways = ways,
                Some((FromInit::Ready, descriptors)) => {
                    skeleton.listener = descriptors.into_iter().next();
                    let own = rustix::process::geteuid().as_raw();
                    let streams = Streams::make((self.user != own).then_some(self.user));
                    skeleton.streams = Some(streams.map_err(PoolError::io("streams of a step"))?);
                    return Ok(skeleton);
                }
                Some((FromInit::Failed(error), _)) => return Err(error.into()),
                _ => return Err(PoolError::Gone("a sandbox's init")),
            }
        }
    }

    /// Writes the limits that differ from the last ones. `held`: the process of the step will be one that [`Self::holds`]
    /// speaks of.
    pub fn apply(&mut self, limits: &Limits, held: bool) -> Result<Vec<AppliedLimit>, PoolError> {
        let own = OWN_TASKS + if held { HOLDERS } else { 0 };
        match &mut self.cgroup {
            Some(cgroup) => Ok(cgroup.apply(limits, own)?),
            None => Ok(Vec::new()),
        }
    }

    pub fn oom_watch(&self) -> Result<Option<OomWatch>, PoolError> {
        match &self.cgroup {
            Some(cgroup) => Ok(cgroup.oom_watch()?),
            None => Ok(None),
        }
    }

    /// Makes the cgroup of one step of a sandbox that stays, where the slot can have one. Takes a moment that an asynchronous
    /// thread has.
    pub fn branch_off(&self, number: u64) -> Result<Option<Branch>, PoolError> {
        match &self.cgroup {
            Some(cgroup) => Ok(cgroup.branch(&format!("step-{number}"))?),
            None => Ok(None),
        }
    }

    /// Makes streams for a step of a sandbox that stays.
    pub fn streams(user: u32) -> std::io::Result<Streams> {
        let own = rustix::process::geteuid().as_raw();
        Streams::make((user != own).then_some(user))
    }

    /// What the kernel counted for the step. A count that cannot be read is unknown.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.cgroup
            .as_ref()
            .and_then(|cgroup| cgroup.counters().ok())
            .unwrap_or_default()
    }

    /// OOM kills of this step so far.
    #[must_use]
    pub fn oom_kills(&self) -> u64 {
        self.cgroup
            .as_ref()
            .and_then(|cgroup| cgroup.oom_kills().ok().flatten())
            .unwrap_or(0)
    }

    /// Proves that nothing of the last step is left, and clears its counts.
    pub async fn reset(&mut self) -> Result<(), PoolError> {
        let Some(mut cgroup) = self.cgroup.take() else {
            return Ok(());
        };
        self.cgroup = Some(
            blocking(move || {
                cgroup.reset()?;
                Ok(cgroup)
            })
            .await?,
        );
        Ok(())
    }

    /// Ends the spawner and removes the cgroup.
    pub async fn close(self) -> Result<(), PoolError> {
        let Self {
            spawner,
            cgroup,
            sub_template,
            ..
        } = self;
        // Both end when their sockets close; the cgroup can go when they are gone, which the removal retries for.
        drop((spawner, sub_template));
        match cgroup {
            Some(cgroup) => blocking(move || cgroup.remove()).await,
            None => Ok(()),
        }
    }

    async fn tell(
        &self,
        request: &ToSpawner,
        descriptors: &[std::os::fd::BorrowedFd<'_>],
    ) -> Result<(), PoolError> {
        self.spawner
            .send(request, descriptors)
            .await
            .map_err(|_| PoolError::Gone("the spawner"))
    }
}

async fn receive(spawner: &Channel) -> Result<(FromSpawner, Vec<OwnedFd>), PoolError> {
    spawner
        .receive()
        .await
        .map_err(PoolError::io("spawner"))?
        .ok_or(PoolError::Gone("the spawner"))
}

/// Runs what blocks for milliseconds away from the runtime's own threads.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, CgroupError> + Send + 'static,
) -> Result<T, PoolError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => Ok(done?),
        Err(_) => Err(PoolError::Gone("a worker thread")),
    }
}
