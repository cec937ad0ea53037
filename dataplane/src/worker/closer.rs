//! A thread of its own closes the ports that no worker serves any more. To close a packet socket takes 13 ms and more,
//! because the kernel waits until no core uses it (RCU). A worker that waited so long would serve no port meanwhile.

use std::io;
use std::thread::{self, JoinHandle};

use crossbeam::channel::{Receiver, Sender, unbounded};

use crate::port::PacketIo;

/// The most ports that are closed at the same time. All of them wait for the same cores.
const AT_ONCE: usize = 32;

/// A port, and a sender that is dropped after it, for which a receiver may wait.
type Port = (Box<dyn PacketIo>, Option<Sender<()>>);

/// The way to the thread that closes ports. By default the caller closes them.
#[derive(Clone, Default)]
pub(super) struct Closer(Option<Sender<Port>>);

/// The thread, which ends when no [`Closer`] leads to it any more and all ports are closed. Dropping it waits for that.
pub(super) struct Closing(Option<JoinHandle<()>>);

impl Closer {
    /// Starts the thread.
    pub(super) fn start() -> io::Result<(Self, Closing)> {
        let (sender, ports) = unbounded();
        let thread = thread::Builder::new().name("closing".to_owned());
        let thread = thread.spawn(move || close_all(&ports))?;
        Ok((Self(Some(sender)), Closing(Some(thread))))
    }

    /// Closes a port on the thread, and then drops `told`.
    pub(super) fn close(&self, port: Box<dyn PacketIo>, told: Option<Sender<()>>) {
        let port = (port, told);
        match &self.0 {
            // A thread that is gone gives the port back, and it is closed here.
            Some(thread) => drop(thread.send(port)),
            None => drop(port),
        }
    }
}

impl Drop for Closing {
    fn drop(&mut self) {
        if let Some(thread) = self.0.take() {
            // It can only have ended by a panic, and then each port was closed by its worker.
            let _ = thread.join();
        }
    }
}

fn close_all(ports: &Receiver<Port>) {
    while let Ok(first) = ports.recv() {
        thread::scope(|scope| {
            for port in ports.try_iter().take(AT_ONCE - 1) {
                // Without a thread for it, it is closed here.
                let _ = thread::Builder::new().spawn_scoped(scope, move || drop(port));
            }
            drop(first);
        });
    }
}
