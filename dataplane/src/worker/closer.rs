//! A separate thread closes the ports that no worker serves any longer. Closing a packet socket takes 13 ms and more,
//! because the kernel waits until no core uses it (RCU). A worker that waited that long would serve no port in the
//! meantime.

use std::io;
use std::thread::{self, JoinHandle};

use crossbeam::channel::{Receiver, Sender, unbounded};

use crate::port::PacketIo;

/// The largest number of ports that are closed at the same time. For each port, the kernel waits for the same cores, so
/// closing this many takes as long as closing one.
const AT_ONCE: usize = 32;

/// A port, and a sender that is dropped after the port is closed. A receiver may wait for that.
type Port = (Box<dyn PacketIo>, Option<Sender<()>>);

/// A handle of the thread that closes ports. Without a thread, which is the default, the caller closes them.
#[derive(Clone, Default)]
pub(super) struct Closer(Option<Sender<Port>>);

/// The thread that closes ports. It ends when no [`Closer`] can send to it any more and all ports are closed. Dropping
/// this value waits for that end.
pub(super) struct Closing(Option<JoinHandle<()>>);

impl Closer {
    /// Starts the thread.
    pub(super) fn start() -> io::Result<(Self, Closing)> {
        let (sender, ports) = unbounded();
        let thread = thread::Builder::new().name("closing".to_owned());
        let thread = thread.spawn(move || close_all(&ports))?;
        Ok((Self(Some(sender)), Closing(Some(thread))))
    }

    /// Closes a port on the thread, then drops `told`.
    pub(super) fn close(&self, port: Box<dyn PacketIo>, told: Option<Sender<()>>) {
        let port = (port, told);
        match &self.0 {
            // If the thread has ended, it returns the port as an error, and the port is closed here.
            Some(thread) => drop(thread.send(port)),
            None => drop(port),
        }
    }
}

impl Drop for Closing {
    fn drop(&mut self) {
        if let Some(thread) = self.0.take() {
            // An error means that the thread has ended by a panic. Then each worker has closed its own ports.
            let _ = thread.join();
        }
    }
}

fn close_all(ports: &Receiver<Port>) {
    while let Ok(first) = ports.recv() {
        thread::scope(|scope| {
            for port in ports.try_iter().take(AT_ONCE - 1) {
                // If no thread can be started for the port, it is closed here.
                let _ = thread::Builder::new().spawn_scoped(scope, move || drop(port));
            }
            drop(first);
        });
    }
}
