//! Files of a session's workspace, through its keeper. The engine holds descriptors that the keeper opened, never paths.

use std::io::SeekFrom;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::fs::File;
use tokio::io::{AsyncReadExt, AsyncSeekExt, AsyncWriteExt};

use super::SessionError;
use super::engine::Engine;
use super::record::Session;
use crate::launcher::message::Edited;
use crate::outcome::FileStat;
use crate::workspace::{FileError, FileReason, display};

/// A file being written: it appears whole at [`FileWrite::commit`], or not at all.
#[derive(Debug)]
pub struct FileWrite {
    begun: Begun,
    path: Vec<u8>,
    file: File,
    written: u64,
}

/// A write of the keeper's; dropped without [`Begun::commit`] it is let go of.
#[derive(Debug)]
struct Begun {
    session: Arc<Session>,
    /// None when it was committed.
    write: Option<u64>,
}

/// A file being read.
#[derive(Debug)]
pub struct FileRead {
    /// Bytes of the whole file when it was opened.
    pub size: u64,
    path: Vec<u8>,
    file: File,
    left: u64,
}

impl FileWrite {
    /// Adds bytes at the end.
    pub async fn write(&mut self, data: &[u8]) -> Result<(), SessionError> {
        let written = self.written + data.len() as u64;
        self.begun
            .session
            .quota
            .admit(&self.path, written, 1)
            .await?;
        self.file
            .write_all(data)
            .await
            .map_err(|error| failed(&self.path, &error))?;
        self.written = written;
        Ok(())
    }

    /// Makes the file appear; gives its size in bytes.
    pub async fn commit(mut self) -> Result<u64, SessionError> {
        self.file
            .flush()
            .await
            .map_err(|error| failed(&self.path, &error))?;
        self.begun.commit().await
    }
}

impl Begun {
    async fn commit(mut self) -> Result<u64, SessionError> {
        let Some(write) = self.write.take() else {
            return Ok(0);
        };
        self.session.touched.store(true, Ordering::Release);
        let size = self.session.keeper.commit_write(write).await?;
        self.session.quota.wrote(size, 1);
        Ok(size)
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        if let Some(write) = self.write.take() {
            let session = Arc::clone(&self.session);
            tokio::spawn(async move {
                // A keeper that is gone has taken the unfinished file with it.
                let _ = session.keeper.abort_write(write).await;
            });
        }
    }
}

impl FileRead {
    /// The next bytes, at most `max`; empty at the end.
    pub async fn read(&mut self, max: usize) -> Result<Vec<u8>, SessionError> {
        let size = usize::try_from(self.left).map_or(max, |left| left.min(max));
        let mut buffer = vec![0; size];
        let read = self
            .file
            .read(&mut buffer)
            .await
            .map_err(|error| failed(&self.path, &error))?;
        self.left -= read as u64;
        buffer.truncate(read);
        Ok(buffer)
    }
}

fn failed(path: &[u8], error: &std::io::Error) -> SessionError {
    let reason = match error.raw_os_error() {
        Some(libc::ENOSPC | libc::EDQUOT) => FileReason::NoSpace,
        Some(libc::EFBIG) => FileReason::TooLarge,
        _ => FileReason::Other,
    };
    FileError {
        path: display(path),
        reason,
        message: error.to_string(),
    }
    .into()
}

fn file(fd: OwnedFd) -> File {
    File::from_std(std::fs::File::from(fd))
}

impl Engine {
    /// The session, whose files will not be as the last step left them.
    fn find_to_write(&self, id: &str) -> Result<Arc<Session>, SessionError> {
        let session = self.find(id)?;
        session.touched.store(true, Ordering::Release);
        Ok(session)
    }

    /// `mode`: permission bits of a new file.
    pub async fn write_file(
        &self,
        id: &str,
        path: Vec<u8>,
        mode: Option<u32>,
    ) -> Result<FileWrite, SessionError> {
        let session = self.find_to_write(id)?;
        session.quota.admit(&path, 0, 1).await?;
        let (fd, write) = session.keeper.begin_write(path.clone(), mode).await?;
        Ok(FileWrite {
            begun: Begun {
                session,
                write: Some(write),
            },
            path,
            file: file(fd),
            written: 0,
        })
    }

    /// Replaces the first of two texts by the second in a file, once or, with `all`, everywhere.
    pub async fn edit_file(
        &self,
        id: &str,
        path: Vec<u8>,
        texts: (Vec<u8>, Vec<u8>),
        all: bool,
    ) -> Result<Edited, SessionError> {
        let session = self.find_to_write(id)?;
        session.quota.admit(&path, 0, 1).await?;
        let (edited, write) = session.keeper.edit(path.clone(), &texts, all).await?;
        let begun = Begun {
            session,
            write: Some(write),
        };
        begun.session.quota.admit(&path, edited.size, 1).await?;
        begun.commit().await?;
        Ok(edited)
    }

    /// `max`: refuse a larger file. `length`: none reads to the end.
    pub async fn read_file(
        &self,
        id: &str,
        path: Vec<u8>,
        offset: u64,
        length: Option<u64>,
        max: u64,
    ) -> Result<FileRead, SessionError> {
        let session = self.find(id)?;
        let (fd, stat) = session.keeper.open_read(path.clone(), max).await?;
        let mut file = file(fd);
        file.seek(SeekFrom::Start(offset))
            .await
            .map_err(|error| failed(&path, &error))?;
        // The file may grow while it is read: what was refused as too large must not come in by growing.
        let rest = stat.size.saturating_sub(offset);
        Ok(FileRead {
            size: stat.size,
            path,
            file,
            left: length.map_or(rest, |length| length.min(rest)),
        })
    }

    /// The entries, and whether the walk ended at its budget.
    pub async fn list_files(
        &self,
        id: &str,
        path: Vec<u8>,
        recursive: bool,
        files_only: bool,
    ) -> Result<(Vec<FileStat>, bool), SessionError> {
        let listing = self
            .find(id)?
            .keeper
            .list(path, recursive, files_only)
            .await?;
        Ok((listing.files, listing.truncated))
    }

    /// Of the entry itself: a link is not followed.
    pub async fn stat_file(&self, id: &str, path: Vec<u8>) -> Result<FileStat, SessionError> {
        Ok(self.find(id)?.keeper.stat(path).await?)
    }

    pub async fn make_dir(&self, id: &str, path: Vec<u8>) -> Result<(), SessionError> {
        let session = self.find_to_write(id)?;
        session.quota.admit(&path, 0, 1).await?;
        session.keeper.make_dir(path).await?;
        session.quota.wrote(0, 1);
        Ok(())
    }

    pub async fn remove(
        &self,
        id: &str,
        path: Vec<u8>,
        recursive: bool,
    ) -> Result<(), SessionError> {
        Ok(self
            .find_to_write(id)?
            .keeper
            .remove(path, recursive)
            .await?)
    }

    pub async fn rename(
        &self,
        id: &str,
        source: Vec<u8>,
        target: Vec<u8>,
        replace: bool,
    ) -> Result<(), SessionError> {
        Ok(self
            .find_to_write(id)?
            .keeper
            .rename(source, target, replace)
            .await?)
    }
}
