//! The socket from both sides: permissions, bounds, one request per connection.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::time::Instant;

use super::*;

/// Answers the next request in place of the daemon.
fn answer_next(control: &Control, answer: Answer) -> Request {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        if let Some((request, tell)) = control.next() {
            tell.send(answer).unwrap();
            return request;
        }
        assert!(Instant::now() < deadline, "no request came");
        std::thread::yield_now();
    }
}

/// Sends bytes, and returns the answer.
fn raw(state_dir: &Path, bytes: &[u8]) -> String {
    let mut stream = UnixStream::connect(socket(state_dir)).unwrap();
    // The daemon may refuse before it has read everything.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let mut text = String::new();
    let _ = stream.read_to_string(&mut text);
    text
}

#[test]
fn request_and_answer_arrive() {
    let dir = tempfile::tempdir().unwrap();
    let control = Control::open(dir.path(), true).unwrap();
    let path = dir.path().to_owned();
    let client = std::thread::spawn(move || {
        change(&path, &Request::Pause(vec!["db-*".to_owned()])).unwrap()
    });
    let request = answer_next(&control, Answer::Done(vec!["VM db-1 is paused".to_owned()]));
    assert_eq!(request, Request::Pause(vec!["db-*".to_owned()]));
    assert_eq!(client.join().unwrap(), ["VM db-1 is paused"]);
}

#[test]
fn only_the_owner_may_use_the_socket() {
    let dir = tempfile::tempdir().unwrap();
    let _control = Control::open(dir.path(), true).unwrap();
    let metadata = std::fs::symlink_metadata(socket(dir.path())).unwrap();
    assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
    assert_eq!(metadata.uid(), rustix::process::geteuid().as_raw());
}

#[test]
fn daemon_removes_only_its_own_socket() {
    let dir = tempfile::tempdir().unwrap();
    let dry = Control::open(dir.path(), false).unwrap();
    let second = Control::open(dir.path(), false).unwrap_err();
    assert!(matches!(second, ControlError::InUse(_)), "{second}");
    let live = Control::open(dir.path(), true).unwrap();
    drop(dry);
    assert!(socket(dir.path()).exists(), "it belongs to the other daemon");
    drop(live);
    assert!(!socket(dir.path()).exists());
    assert!(matches!(status(dir.path()), Err(AskError::NoDaemon(_))));
    // A socket without a listening process, as after kill -9.
    drop(std::os::unix::net::UnixListener::bind(socket(dir.path())).unwrap());
    assert!(matches!(status(dir.path()), Err(AskError::NoDaemon(_))));
    Control::open(dir.path(), false).unwrap();
}

#[test]
fn invalid_requests_are_refused_without_the_daemon() {
    let dir = tempfile::tempdir().unwrap();
    let control = Control::open(dir.path(), true).unwrap();
    for (bytes, wanted) in [
        (&b"nonsense"[..], "invalid request"),
        (b"", "invalid request"),
        (b"\"stop\"", "unknown variant"),
        (b"\"status\" \"status\"", "trailing characters"),
        (b"\xff", "UTF-8"),
    ] {
        let answer = raw(dir.path(), bytes);
        assert!(answer.contains(wanted), "{bytes:?}: {answer}");
    }
    let long = vec![b'['; MAX_REQUEST as usize + 4096];
    let answer = raw(dir.path(), &long);
    assert!(answer.is_empty() || answer.contains("at most 65536 bytes"), "{answer}");
    assert!(control.next().is_none(), "none of them came to the daemon");
}

#[test]
fn slow_client_is_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let control = Control::open(dir.path(), true).unwrap();
    let mut slow = UnixStream::connect(socket(dir.path())).unwrap();
    slow.write_all(b"[").unwrap();
    let path = dir.path().to_owned();
    let client = std::thread::spawn(move || change(&path, &Request::Resume(Vec::new())));
    answer_next(&control, Answer::Done(Vec::new()));
    client.join().unwrap().unwrap();
    let mut text = String::new();
    slow.read_to_string(&mut text).unwrap();
    assert!(text.contains("not complete after 2s"), "{text}");
}
