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

/// Waits for a child. On a signal, or when its time is over, it is asked to end, then made to.
pub fn wait(child: &mut Child, is_over: impl Fn() -> bool) -> std::io::Result<ExitStatus> {
    wait_with(child, is_over, PATIENCE)
}

fn wait_with(child: &mut Child, is_over: impl Fn() -> bool, patience: Duration) -> std::io::Result<ExitStatus> {
    let mut asked: Option<Instant> = None;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        match asked {
            None if interrupted().is_some() || is_over() => {
                sys::terminate(child.id());
                asked = Some(Instant::now());
            }
            Some(since) if since.elapsed() > patience => child.kill()?,
            _ => {}
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Who does not heed that the time is over is made to end, and who does has the time to.
    #[test]
    fn who_does_not_end_is_ended() {
        let begin = Instant::now();
        let ends = |trap: &str, patience| {
            let script = format!("trap '{trap}' TERM; echo ready; while :; do sleep 0.1; done");
            let mut command = Command::new("sh");
            let mut child = command.args(["-c", &script]).stdout(std::process::Stdio::piped()).spawn().unwrap();
            std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut [0; 6]).unwrap();
            exit_code(wait_with(&mut child, || true, patience).unwrap())
        };
        assert_eq!(ends("", Duration::from_millis(200)), 128 + 9);
        assert_eq!(ends("exit 7", Duration::from_secs(60)), 7);
        assert!(begin.elapsed() < Duration::from_secs(50));
    }
}
