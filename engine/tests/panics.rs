//! Panics, with a reader of standard error and without.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

const PANICS: &str = "NAMESRV_ENGINE_TEST_PANICS";

#[test]
fn a_panic_ends_its_thread_alone_with_a_line_that_need_not_be_read() {
    if std::env::var_os(PANICS).is_some() {
        namesrv_engine::tell_panics_in_lines();
        let named = std::thread::Builder::new().name("engine-0".to_owned());
        let thread = named.spawn(|| panic!("it {}\n\u{1b}\u{e4}\u{1f600}", "\"broke\\"));
        assert!(thread.expect("starts").join().is_err());
        return;
    }
    let (nobody, closed) = UnixStream::pair().expect("two sockets");
    drop(nobody);
    let this = std::env::current_exe().expect("a path");
    let [unread, read] = [Stdio::from(OwnedFd::from(closed)), Stdio::piped()].map(|stderr| {
        Command::new(&this)
            .args(["--exact", "--nocapture", "a_panic_ends_its_thread_alone_with_a_line_that_need_not_be_read"])
            .env(PANICS, "1")
            .env_remove("RUST_BACKTRACE")
            .stdout(Stdio::null())
            .stderr(stderr)
            .output()
            .expect("starts")
    });
    assert!(unread.status.success() && read.status.success());
    let line = String::from_utf8(read.stderr).expect("ASCII");
    let begin = r#"{"event": "engine_panicked", "level": "error", "logger": "namesrv_engine", "problem": "it \"broke\\\u000a\u001b\u00e4\ud83d\ude00", "at": "tests/panics.rs:"#;
    assert!(line.starts_with(begin), "{line}");
    assert!(line.ends_with("\"thread\": \"engine-0\"}\n"), "{line}");
}
