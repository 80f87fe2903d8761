//! Lock for tests that change the machine: one at a time.

use megapage_kernel::KernelRoot;
use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::path::Path;
use std::rc::{Rc, Weak};

/// Lock that a test holds while it changes anything that all processes share: pools, sysctls,
/// mounts. It is an flock(2) of `megapage-test.lock` in the directory for temporary files. So it
/// holds between threads and between processes, and ends with its process. A thread that holds it
/// may take it again.
#[derive(Clone, Debug)]
pub struct MachineLock {
    _file: Rc<File>,
}

thread_local! {
    static HELD: RefCell<Weak<File>> = const { RefCell::new(Weak::new()) };
}

impl MachineLock {
    /// Waits until no other thread or process holds the lock, then restores the pools of a test
    /// that was killed.
    ///
    /// # Panics
    /// If the lock file can be neither opened nor made.
    pub fn take() -> MachineLock {
        if let Some(file) = HELD.with(|held| held.borrow().upgrade()) {
            return MachineLock { _file: file };
        }
        let path = std::env::temp_dir().join("megapage-test.lock");
        let file = open(&path).and_then(|file| file.lock().map(|()| file));
        let file = Rc::new(file.unwrap_or_else(|error| panic!("{}: {error}", path.display())));
        HELD.with(|held| *held.borrow_mut() = Rc::downgrade(&file));
        if crate::is_root()
            && let Err(error) = crate::pool::recover(&KernelRoot::live())
        {
            eprintln!("pools that a killed test has left are not restored: {error}");
        }
        MachineLock { _file: file }
    }
}

/// Opens for reading first. With fs.protected_regular, opening another process's file in /tmp with
/// O_CREAT is refused even to root, and flock needs only reading.
fn open(path: &Path) -> io::Result<File> {
    match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            match File::options().read(true).write(true).create_new(true).open(path) {
                // Another process was faster.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => File::open(path),
                made => made,
            }
        }
        opened => opened,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::time::Duration;

    #[test]
    fn a_thread_may_take_it_twice_and_another_waits() {
        let outer = MachineLock::take();
        let inner = MachineLock::take();
        let (sender, receiver) = mpsc::channel();
        let other = std::thread::spawn(move || {
            let _lock = MachineLock::take();
            sender.send(()).unwrap();
        });
        drop(inner);
        assert!(receiver.recv_timeout(Duration::from_millis(200)).is_err(), "still held by `outer`");
        drop(outer);
        receiver.recv_timeout(Duration::from_secs(600)).expect("free again");
        other.join().unwrap();
    }
}
