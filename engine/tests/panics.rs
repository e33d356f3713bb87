//! Panics of a program whose standard error is closed.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

const PANICS: &str = "NAMESRV_ENGINE_TEST_PANICS";

#[test]
fn a_panic_that_nobody_can_read_of_ends_its_thread_and_not_the_process() {
    if std::env::var_os(PANICS).is_some() {
        namesrv_engine::tell_panics_in_lines();
        assert!(std::thread::spawn(|| panic!("of a thread")).join().is_err());
        return;
    }
    let (nobody, stderr) = UnixStream::pair().expect("two sockets");
    drop(nobody);
    let this = std::env::current_exe().expect("a path");
    let ended = Command::new(this)
        .args(["--exact", "--nocapture", "a_panic_that_nobody_can_read_of_ends_its_thread_and_not_the_process"])
        .env(PANICS, "1")
        .stdout(Stdio::null())
        .stderr(OwnedFd::from(stderr))
        .status();
    assert!(ended.expect("starts").success());
}
