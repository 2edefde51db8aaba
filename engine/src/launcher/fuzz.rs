//! What the processes of a sandbox say, as bytes that nobody vouches for.

use std::fmt::Debug;
use std::os::fd::AsFd;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::message::{Changes, FromKeeper, FromSpawner, Listing};
use crate::sandbox::init::{FromInit, Request, ToInit};
use crate::sandbox::template::FromTemplate;
use crate::sys::datagram;

/// Parsed within the size of what was sent, and said again as it was heard.
fn said_again<M: Serialize + DeserializeOwned + Debug>(bytes: &[u8]) -> Option<M> {
    let heard: M = postcard::from_bytes(bytes).ok()?;
    let again = postcard::to_stdvec(&heard).expect("what was heard can be said");
    assert!(again.len() <= bytes.len(), "it grew: {heard:?}");
    let once_more: M = postcard::from_bytes(&again).expect("what was said is heard");
    assert_eq!(postcard::to_stdvec(&once_more).ok(), Some(again));
    Some(heard)
}

/// The parsers alone: of datagrams, and of what travels in memfds. The first byte chooses the message.
pub fn messages(bytes: &[u8]) {
    let Some((kind, bytes)) = bytes.split_first() else {
        return;
    };
    match kind % 8 {
        0 => drop(said_again::<FromInit>(bytes)),
        1 => drop(said_again::<FromTemplate>(bytes)),
        2 => drop(said_again::<FromSpawner>(bytes)),
        3 => drop(said_again::<FromKeeper>(bytes)),
        4 => drop(said_again::<Changes>(bytes)),
        5 => drop(said_again::<Listing>(bytes)),
        6 => drop(said_again::<ToInit>(bytes)),
        _ => drop(said_again::<Request>(bytes)),
    }
}

/// A whole datagram with descriptors beside it: what arrives is the message and exactly those, or nothing of either.
pub fn answers(bytes: &[u8]) {
    let Some((beside, bytes)) = bytes.split_first() else {
        return;
    };
    let beside = usize::from(*beside) % (datagram::MAX_DESCRIPTORS + 1);
    let (ours, theirs) = datagram::pair().expect("a pair");
    if datagram::send_bytes(theirs.as_fd(), bytes, &vec![theirs.as_fd(); beside]).is_err() {
        return;
    }
    let expected = postcard::from_bytes::<FromInit>(bytes)
        .ok()
        .filter(|_| bytes.len() <= datagram::MAX_MESSAGE && !bytes.is_empty());
    match (datagram::receive::<FromInit>(ours.as_fd()), expected) {
        (Ok(Some((heard, descriptors))), Some(expected)) => {
            assert_eq!(format!("{heard:?}"), format!("{expected:?}"));
            assert_eq!(descriptors.len(), beside);
        }
        (Ok(None), None) => assert!(bytes.is_empty()),
        (Err(_), None) => {}
        (heard, expected) => panic!("{heard:?} for {expected:?}"),
    }
    // Whatever it was, the next message is heard as if there had been none before it.
    datagram::send(theirs.as_fd(), &FromInit::Started, &[]).expect("said");
    let next = datagram::receive::<FromInit>(ours.as_fd()).expect("heard");
    assert!(matches!(next, Some((FromInit::Started, beside)) if beside.is_empty()));
}
