//! Runs other programs.

use std::fmt::Display;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use crate::error::{Doing, Error, Result};

/// Runs a program to its end and returns what it printed; it does not see the terminal's Ctrl-C, so that cleaning up is
/// not cut short.
pub fn run(line: &[impl AsRef<str>]) -> Result<String> {
    run_with(line, &[])
}

/// Like [`run`], with environment variables.
pub fn run_with(line: &[impl AsRef<str>], environment: &[(&str, &str)]) -> Result<String> {
    let words: Vec<&str> = line.iter().map(AsRef::as_ref).collect();
    let Some((program, arguments)) = words.split_first() else { return Ok(String::new()) };
    let mut command = Command::new(program);
    command.args(arguments).envs(environment.iter().copied()).stdin(Stdio::null()).process_group(0);
    let output = command.output().doing(|| format!("running `{}`", words.join(" ")))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).trim().to_owned();
    Err(Error::Command { line: words.join(" "), outcome: format!("{}: {}", output.status, tail(&text, 600)) })
}

/// A word of a command line for the record: of a path, but that of a device, only the last name. Where somebody keeps his
/// files is nobody's business and says nothing of what was measured.
pub fn for_the_record(word: &str) -> String {
    let path = std::path::Path::new(word);
    let name = path.file_name().filter(|_| path.is_absolute() && !path.starts_with("/dev"));
    name.map_or_else(|| word.to_owned(), |name| name.to_string_lossy().into_owned())
}

/// The last `bytes` or so of a text.
pub fn tail(text: &str, bytes: usize) -> &str {
    let mut start = text.len().saturating_sub(bytes);
    while !text.is_char_boundary(start) {
        start += 1;
    }
    &text[start..]
}

/// Whether a program of this name is in PATH or among the administrator's programs.
pub fn find(program: &str) -> bool {
    let path = std::env::var("PATH").unwrap_or_default();
    let places = path.split(':').chain(["/usr/sbin", "/sbin"]);
    places.filter(|p| !p.is_empty()).any(|place| std::path::Path::new(place).join(program).is_file())
}

/// For cleaning up: a failure is said and does not stop the rest.
pub fn best_effort<T, E: Display>(doing: &str, result: std::result::Result<T, E>) {
    if let Err(error) = result {
        eprintln!("nenrin-bench: {doing}: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_has_no_directories() {
        let words =
            [("/home/me/bin/nenrin", "nenrin"), ("/dev/loop0", "/dev/loop0"), ("--dir", "--dir"), ("a/b", "a/b")];
        for (word, recorded) in words {
            assert_eq!(for_the_record(word), recorded);
        }
    }

    #[test]
    fn output_and_failure() {
        assert_eq!(run(&["echo", "a", "b"]).unwrap(), "a b\n");
        let text = run(&["sh", "-c", "echo why >&2; exit 3"]).unwrap_err().to_string();
        assert!(text.contains("why") && text.contains('3'), "{text}");
    }

    #[test]
    fn tails_keep_characters_whole() {
        assert_eq!(tail("abc", 2), "bc");
        assert_eq!(tail("aé", 1), "");
        assert_eq!(tail("a", 5), "a");
    }
}
