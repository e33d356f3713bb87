//! Panics as JSON objects on standard error, one a line, for log collectors and people.

use std::any::Any;
use std::io::Write as _;
use std::panic::PanicHookInfo;

/// Has panics be told so from now on. Where `RUST_BACKTRACE` asks for it, Rust's own text with the stack comes first.
pub fn tell_panics_in_lines() {
    let with_stack = std::env::var_os("RUST_BACKTRACE").is_some_and(|value| value != "0");
    let rusts_own = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if with_stack {
            rusts_own(panic);
        }
        // In one write, so that no other line is written in between. A failed write is ignored: a panic in here would end the
        // process.
        let _ = std::io::stderr().write_all((line_of(panic) + "\n").as_bytes());
    }));
}

fn line_of(panic: &PanicHookInfo<'_>) -> String {
    let at = panic.location().map(ToString::to_string).unwrap_or_default();
    let thread = std::thread::current();
    object(&[
        ("event", "engine_panicked"),
        ("level", "error"),
        ("logger", "namesrv_engine"),
        ("problem", text_of(panic.payload())),
        ("at", &at),
        ("thread", thread.name().unwrap_or_default()),
    ])
}

/// What a panic says.
pub(crate) fn text_of(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<&str>().copied().or(payload.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("a panic without a text")
}

fn object(fields: &[(&str, &str)]) -> String {
    let members: Vec<_> = fields.iter().map(|(name, value)| format!("\"{name}\": \"{}\"", escaped(value))).collect();
    format!("{{{}}}", members.join(", "))
}

fn escaped(text: &str) -> String {
    let mut found = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '"' | '\\' => found.extend(['\\', character]),
            ' '..='~' => found.push(character),
            _ => found.extend(character.encode_utf16(&mut [0; 2]).iter().map(|half| format!("\\u{half:04x}"))),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_an_object_whatever_the_text_is() {
        assert_eq!(
            object(&[("event", "engine_panicked"), ("problem", "a \"b\\\n\u{1b}ä\u{1f600}")]),
            r#"{"event": "engine_panicked", "problem": "a \"b\\\u000a\u001b\u00e4\ud83d\ude00"}"#
        );
    }

    #[test]
    fn a_panic_says_what_and_where() {
        static TOLD: std::sync::Mutex<String> = std::sync::Mutex::new(String::new());
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(|panic| *TOLD.lock().expect("nobody panics with it") = line_of(panic)));
        let ended = std::thread::Builder::new().name("engine-0".to_owned()).spawn(|| panic!("it {}", "broke"));
        assert!(ended.expect("starts").join().is_err());
        std::panic::set_hook(before);
        let told = TOLD.lock().expect("nobody panics with it");
        assert!(told.contains(r#""problem": "it broke", "at": "src/panics.rs:"#), "{told}");
        assert!(told.ends_with(r#""thread": "engine-0"}"#), "{told}");
    }
}
