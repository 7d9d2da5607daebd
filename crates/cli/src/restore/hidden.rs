//! Names of the directories in which copies are made.

/// Whether a name is that of a directory in which a copy was made.
pub use nenrin_fuse::is_of_restore as is_hidden;
use nenrin_fuse::{RESTORING, restoring};
use std::ffi::OsString;
use std::io;

/// A new one, that nobody else has.
///
/// # Errors
/// There is nothing random.
pub fn new_name() -> io::Result<OsString> {
    let random = u128::from_le_bytes(crate::sys::random()?);
    Ok(restoring(std::process::id(), random).into())
}

/// The process that made a directory of such a name.
pub fn maker(name: &[u8]) -> Option<u32> {
    let name = std::str::from_utf8(name).ok().filter(|name| is_hidden(name.as_bytes()))?;
    name.strip_prefix(RESTORING)?.split('-').next()?.parse().ok()
}

/// Whether a path leads into one of these.
pub fn has_hidden(path: &[u8]) -> bool {
    path.split(|b| *b == b'/').any(is_hidden)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_is_one_of_ours_by_accident() {
        let name = new_name().unwrap().into_string().unwrap();
        assert_eq!((is_hidden(name.as_bytes()), maker(name.as_bytes())), (true, Some(std::process::id())));
        assert_ne!(name, new_name().unwrap().into_string().unwrap());
        assert!(has_hidden(format!("d/{name}/copy").as_bytes()));
        let hex = "0123456789abcdef0123456789abcdef";
        assert!(is_hidden(format!(".restoring-7-{hex}").as_bytes()));
        for other in ["", ".restoring-1999", ".restoring-7-", ".restoring-7-0123456789abcdef"] {
            assert!(!is_hidden(other.as_bytes()), "{other}");
        }
        for (pid, hex) in
            [("", hex), ("x", hex), ("7", &hex[1..]), ("7", &hex.to_uppercase()), ("7", &hex.replace('0', "g"))]
        {
            assert!(!is_hidden(format!(".restoring-{pid}-{hex}").as_bytes()), "{pid} {hex}");
        }
        assert!(!is_hidden(format!("{name}0").as_bytes()) && !is_hidden(&name.as_bytes()[1..]));
    }
}
