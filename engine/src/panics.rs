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
    let fields = [
        ("event", "engine_panicked"),
        ("level", "error"),
        ("logger", "namesrv_engine"),
        ("problem", text_of(panic.payload())),
        ("at", at.as_str()),
        ("thread", thread.name().unwrap_or_default()),
    ];
    let members: Vec<_> = fields.iter().map(|(name, value)| format!("\"{name}\": \"{}\"", escaped(value))).collect();
    format!("{{{}}}", members.join(", "))
}

/// What a panic says.
pub(crate) fn text_of(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<&str>().copied().or(payload.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("a panic without a text")
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
