//! Programs that run under watch: they end when we are asked to.

use crate::error::{At, Fail};
use crate::sys;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

static SIGNAL: AtomicI32 = AtomicI32::new(0);
static WATCHED: OnceLock<()> = OnceLock::new();
const LOOK: Duration = Duration::from_millis(10);
/// Who was asked to end and does not is ended after this time.
const PATIENCE: Duration = Duration::from_secs(10);

/// From now on, signals that end a program are only remembered, so that what
/// was begun can be undone. Children get them as usual.
pub fn watch() -> Result<(), Fail> {
    if WATCHED.set(()).is_err() {
        return Ok(());
    }
    sys::block_ending_signals().at("signals")?;
    let watcher = || loop {
        SIGNAL.store(sys::wait_for_ending_signal(), Ordering::SeqCst);
    };
    std::thread::Builder::new().name("signals".into()).spawn(watcher).at("signals")?;
    Ok(())
}

/// The signal that asked us to end.
pub fn interrupted() -> Option<i32> {
    match SIGNAL.load(Ordering::SeqCst) {
        0 => None,
        signal => Some(signal),
    }
}

/// The failure of what was interrupted, with the exit code that shells expect.
pub fn interruption(signal: i32) -> Fail {
    Fail::new("interrupted; everything is unmounted and detached").with_code(128 + signal as u8)
}

/// Waits for a child; on a signal it is asked to end, then made to.
pub fn wait(child: &mut Child, mut each: impl FnMut()) -> std::io::Result<ExitStatus> {
    let mut asked: Option<Instant> = None;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        match (interrupted(), asked) {
            (Some(_), None) => {
                sys::terminate(child.id());
                asked = Some(Instant::now());
            }
            (_, Some(since)) if since.elapsed() > PATIENCE => child.kill()?,
            _ => {}
        }
        each();
        std::thread::sleep(LOOK);
    }
}

/// The exit code that a shell would show.
pub fn exit_code(status: ExitStatus) -> u8 {
    match (status.code(), status.signal()) {
        (Some(code), _) => code as u8,
        (None, Some(signal)) => 128 + signal as u8,
        (None, None) => 1,
    }
}

/// Starts a program, or says why it cannot be.
pub fn spawn(command: &mut Command) -> Result<Child, Fail> {
    let program = command.get_program().to_string_lossy().into_owned();
    sys::unblock_in_child(command);
    command.spawn().map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => Fail::at(&program, "no such program").with_code(127),
        std::io::ErrorKind::PermissionDenied => Fail::at(&program, "may not be run").with_code(126),
        _ => Fail::at(&program, e),
    })
}
