use stepbox_engine::config::ServeFlags;

use crate::served::{Served, argv};

#[tokio::test]
async fn an_engine_that_nobody_uses_ends_by_itself() {
    let served = Served::with(ServeFlags {
        idle_exit: Some(0.001),
        ..ServeFlags::default()
    })
    .await;
    served.ended().await;
}

#[tokio::test]
async fn an_engine_whose_parent_is_gone_ends_at_once() {
    // This process is not its own parent, so the one that is watched counts as ended.
    let own = i32::try_from(std::process::id()).expect("a pid");
    let served = Served::with(ServeFlags {
        parent_pid: Some(own),
        ..ServeFlags::default()
    })
    .await;
    served.ended().await;
}

#[tokio::test]
async fn an_engine_that_can_make_no_sandbox_any_more_ends() {
    let served = Served::with(ServeFlags::default()).await;
    served.fake.lose();
    served.ended().await;
}

#[tokio::test]
async fn the_socket_is_where_the_caller_wants_it_and_goes_with_the_engine() {
    let dir = tempfile::tempdir().expect("tempdir");
    let socket = dir.path().join("sub/my.sock");
    let token = dir.path().join("token");
    let served = Served::with(ServeFlags {
        socket: Some(socket.clone()),
        token_file: Some(token.clone()),
        ..ServeFlags::default()
    })
    .await;
    assert_eq!(
        (served.socket(), &served.ready.token_file),
        (socket.clone(), &token)
    );
    let (mut client, id) = served.session().await;
    client.run(argv(&id, &["true"])).await.expect("ran");
    drop(client);
    served.stop().await;
    assert!(!socket.exists() && !token.exists());
}
