//! The side that asks.

use super::{Hello, MountData, REPLY_BYTES_MAX, Reply, Request, sockets};
use crate::device;
use crate::error::{Fail, INTERRUPTED};
use crate::members;
use crate::mounts::{self, FSTYPE, Mount};
use crate::size::show_bytes;
use crate::sys;
use serde::de::DeserializeOwned;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// How long a daemon may take to say who it is.
const HELLO_TIME: Duration = Duration::from_secs(5);

/// A connection to the owner of a volume.
pub struct Client {
    stream: BufReader<UnixStream>,
    /// What the owner said of itself.
    pub hello: Hello,
}

impl Client {
    /// Connects, and asks who is there. `None` where nobody answers, or somebody
    /// who is neither `uid` nor root.
    fn connect(socket: &Path, uid: u32) -> Option<Self> {
        let stream = sys::connect_now(socket).ok()?;
        let peer = sys::peer_uid(&stream).ok()?;
        if peer != uid && peer != 0 {
            return None;
        }
        stream.set_read_timeout(Some(HELLO_TIME)).ok()?;
        let mut stream = BufReader::new(stream);
        let hello = call(&mut stream, &Request::Hello, &mut |()| ()).ok()?;
        // What is asked later may take its time.
        stream.get_ref().set_read_timeout(None).ok()?;
        Some(Self { stream, hello })
    }

    /// Asks, and waits for the answer.
    ///
    /// # Errors
    /// What the owner answered; or that it went away.
    pub fn call<T: DeserializeOwned>(&mut self, request: &Request) -> Result<T, Fail> {
        call(&mut self.stream, request, &mut |()| ())
    }

    /// Asks for something long: `each` gets the parts as they come.
    ///
    /// # Errors
    /// As [`Client::call`].
    pub fn call_for_parts<T: DeserializeOwned, P: DeserializeOwned>(
        &mut self,
        request: &Request,
        each: &mut dyn FnMut(P),
    ) -> Result<T, Fail> {
        call(&mut self.stream, request, each)
    }

    /// Whether the owner's process has closed the connection by now.
    pub fn has_ended(&self) -> bool {
        let mut stream = self.stream.get_ref();
        let _ = stream.set_nonblocking(true);
        let ended = match stream.read(&mut [0]) {
            Ok(bytes) => bytes == 0,
            Err(e) => e.kind() != io::ErrorKind::WouldBlock,
        };
        let _ = stream.set_nonblocking(false);
        ended
    }

    /// Whether the owner lets go of the volume, or has ended: why something that was asked of it failed.
    pub fn has_left(&mut self) -> bool {
        self.has_ended() || self.call::<Hello>(&Request::Hello).map_or(true, |hello| hello.closing)
    }

    /// A failure of something long, where the volume was unmounted meanwhile: `what` is told then.
    pub fn unless_left(&mut self, why: Fail, what: &str) -> Fail {
        if self.has_left() { Fail::new(format!("unmounted meanwhile: {what}")).with_code(INTERRUPTED) } else { why }
    }

    /// Waits until the owner's process has closed the connection.
    pub fn wait_for_end(mut self) {
        let _ = self.stream.get_ref().set_read_timeout(Some(Duration::from_secs(30)));
        let mut rest = [0; 64];
        while matches!(self.stream.read(&mut rest), Ok(n) if n > 0) {}
    }
}

fn call<T: DeserializeOwned, P: DeserializeOwned>(
    stream: &mut BufReader<UnixStream>,
    request: &Request,
    each: &mut dyn FnMut(P),
) -> Result<T, Fail> {
    let mut line = serde_json::to_string(request).map_err(|e| strange(&e))?;
    line.push('\n');
    stream.get_mut().write_all(line.as_bytes()).map_err(|e| gone(&e))?;
    loop {
        let mut answer = Vec::new();
        let bytes = stream.by_ref().take(REPLY_BYTES_MAX).read_until(b'\n', &mut answer).map_err(|e| gone(&e))?;
        match serde_json::from_slice(&answer) {
            Ok(Reply::Part(part)) => each(part),
            Ok(Reply::Ok(value)) => return Ok(value),
            Ok(Reply::Error { code, message }) => return Err(Fail { code, message }),
            Err(_) if bytes as u64 == REPLY_BYTES_MAX => {
                return Err(Fail::new(format!("the owner's answer has more than {}", show_bytes(REPLY_BYTES_MAX))));
            }
            // It ends with a line, or with who wrote it.
            Err(_) if !answer.ends_with(b"\n") => return Err(gone(&io::ErrorKind::UnexpectedEof.into())),
            Err(e) => return Err(strange(&e)),
        }
    }
}

fn gone(e: &io::Error) -> Fail {
    Fail::new(format!("the process that owns the volume went away: {e}"))
}

fn strange(e: &serde_json::Error) -> Fail {
    Fail::new(format!("the owner's answer makes no sense: {e}"))
}

/// Asks the daemons of this user, and as another user also root's, for the one that fits: all at once, since one that
/// is stopped, or waits for its device, must not keep us from another.
fn find(uids: &[u32], fits: impl Fn(&Hello) -> bool) -> Option<Client> {
    let (sender, found) = mpsc::channel();
    for (socket, uid) in uids.iter().flat_map(|uid| sockets(*uid).into_iter().map(move |s| (s, *uid))) {
        let sender = sender.clone();
        let ask = move || {
            if let Some(client) = Client::connect(&socket, uid) {
                // Who asked may have found another.
                let _ = sender.send(client);
            }
        };
        // Without a thread there is no more of this process than this command.
        let _ = sys::spawned_deaf(|| thread::Builder::new().name("nenrin-hello".into()).spawn(ask));
    }
    drop(sender);
    found.into_iter().find(|c| fits(&c.hello))
}

/// The owner of the volume on this device, or one of these, if it is one that answers us.
pub fn owner_of_device(path: &Path) -> Option<Client> {
    let identities: Vec<String> = members::split(path).iter().flat_map(|p| device::identities(p)).collect();
    if identities.is_empty() {
        return None;
    }
    find(&[sys::euid(), 0], |hello| hello.identities.iter().any(|i| identities.contains(i)))
}

/// The owner of the volume that `path` lies on, its mount, and the path without links.
///
/// # Errors
/// The path does not lie on a volume; the owner is gone, or somebody else's.
pub fn owner_of_directory(path: &Path) -> Result<(Client, Mount, PathBuf), Fail> {
    match mount_of_directory(path)? {
        (Some(client), mount, real) => Ok((client, mount, real)),
        (None, mount, _) => {
            let point = mount.point.display();
            let text = format!(
                "the volume was mounted by another user; ask as that user or as root; nenrin history and restore \
                 answer you, and earlier states are in {point}/.nenrin/at/WHEN"
            );
            Err(Fail::at(path.display(), text))
        }
    }
}

/// As [`owner_of_directory`], without the owner where that is another user's, whom it does not answer.
///
/// # Errors
/// As there.
pub fn mount_of_directory(path: &Path) -> Result<(Option<Client>, Mount, PathBuf), Fail> {
    let (mount, real) = mounts::of(path)?;
    if mount.fstype != FSTYPE {
        return Err(Fail::at(path.display(), format!("lies on {}, not on a nenrin volume", mount.fstype)));
    }
    if mounts::is_dead(&mount.point) {
        let point = mount.point.display();
        let text = format!(
            "the program behind this mount had ended; nenrin mount {} {point} goes on from what was committed, \
             nenrin umount {point} clears it",
            mount.source.display()
        );
        return Err(Fail::at(path.display(), text));
    }
    // An owner that could not tell the number of its mount still knows the place.
    let is_it = |m: &MountData| match m.device.as_str() {
        "" => Path::new(&m.directory) == mount.point,
        device => device == mount.device,
    };
    let found = find(&[mount.user], |hello| hello.mounts.iter().any(is_it));
    match found {
        None if mount.user != sys::euid() && sys::euid() != 0 => Ok((None, mount, real)),
        Some(client) => Ok((Some(client), mount, real)),
        None => Err(Fail::at(path.display(), "the process that owns the volume does not answer")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a command makes of these bytes, after which nothing comes: the parts, and the answer.
    fn told(bytes: &[u8]) -> (Vec<u32>, Result<Vec<u32>, String>) {
        let (mut owner, command) = UnixStream::pair().unwrap();
        owner.write_all(bytes).unwrap();
        owner.shutdown(std::net::Shutdown::Write).unwrap();
        let mut parts = Vec::new();
        let each = &mut |some: Vec<u32>| parts.extend(some);
        let answer = call(&mut BufReader::new(command), &Request::Segments, each);
        (parts, answer.map_err(|fail| fail.message))
    }

    #[test]
    fn parts_come_before_the_answer() {
        assert_eq!(told(b"{\"ok\":[7]}\n"), (vec![], Ok(vec![7])));
        assert_eq!(
            told(b"{\"part\":[1,2]}\n{\"part\":[]}\n{\"part\":[3]}\n{\"ok\":[4]}\n"),
            (vec![1, 2, 3], Ok(vec![4]))
        );
    }

    /// Half of an answer is never told as all of it.
    #[test]
    fn an_answer_that_ends_in_the_middle_is_an_error() {
        let (_, answer) = told(b"{\"part\":[1]}\n{\"error\":{\"code\":1,\"message\":\"damaged\"}}\n");
        assert_eq!(answer.unwrap_err(), "damaged");
        for cut in [
            &b""[..],
            b"{\"part\":[1]}\n",
            b"{\"part\":[1]}\n{\"part\":[2",
            b"{\"part\":[1]}\n{\"ok\":[2,",
            b"{\"part\":\"\xc3",
        ] {
            let why = told(cut).1.unwrap_err();
            assert!(why.starts_with("the process that owns the volume went away"), "{why}");
        }
        for nonsense in [&b"{\"part\":[1]}\n{\"later\":[2]}\n"[..], b"{\"ok\":[2,{\"error\":1}\n"] {
            let why = told(nonsense).1.unwrap_err();
            assert!(why.starts_with("the owner's answer makes no sense"), "{why}");
        }
    }
}
