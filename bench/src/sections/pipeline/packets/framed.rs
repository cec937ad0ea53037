//! A port in memory that carries Ethernet frames. Packets arrive with a header in front, as network cards write it, and
//! leave with one. The code of Manx's veth port reads and writes the header.

use std::io;
use std::os::fd::RawFd;

use manx_dataplane::packet::{Capabilities, Packet, Pool};
use manx_dataplane::port::link::{ETHERNET_LEN, Frame, Link};
use manx_dataplane::port::{PacketIo, Received, Transmitted};
use manx_dataplane::tables::PortId;

/// A port that wraps another one, and adds or removes the Ethernet headers.
pub(crate) struct Framed<P> {
    port: P,
    link: Link,
}

impl<P> Framed<P> {
    /// `link` is this end of the link.
    pub(crate) const fn new(port: P, link: Link) -> Self {
        Self { port, link }
    }
}

impl<P: PacketIo + 'static> PacketIo for Framed<P> {
    fn receive(
        &mut self,
        pool: &mut Pool,
        into: &mut Vec<Packet>,
        limit: usize,
    ) -> io::Result<Received> {
        let before = into.len();
        let mut received = self.port.receive(pool, into, limit)?;
        let refused = into.extract_if(before.., |packet| match sort(&self.link, packet) {
            Frame::Packet(len) => {
                packet.pull_front(ETHERNET_LEN);
                packet.set_len(len);
                false
            }
            Frame::Malformed => {
                received.malformed += 1;
                true
            }
            // The generator sends no ARP requests.
            Frame::NotOurs | Frame::Question(_) | Frame::Message(_) => {
                received.not_ours += 1;
                true
            }
        });
        refused.for_each(|packet| pool.put(packet));
        Ok(received)
    }

    fn transmit(&mut self, pool: &mut Pool, packets: &mut Vec<Packet>) -> io::Result<Transmitted> {
        let put_on = |packet: &mut Packet| {
            self.link.header(packet.bytes()).is_some_and(|header| packet.push_front(&header))
        };
        let bare = packets.extract_if(.., |packet| !put_on(packet));
        let refused = bare.map(|packet| pool.put(packet)).count();
        let done = self.port.transmit(pool, packets)?;
        Ok(Transmitted { refused: done.refused + refused, ..done })
    }

    fn capabilities(&self) -> Capabilities {
        self.port.capabilities()
    }

    fn descriptor(&self) -> Option<RawFd> {
        self.port.descriptor()
    }

    fn is_mapped(&self) -> bool {
        self.port.is_mapped()
    }

    fn unwrapped(self: Box<Self>) -> Box<dyn PacketIo> {
        self
    }
}

/// The two ends of a port's link: that of the worker, and the opposite one.
pub(crate) fn link_ends(PortId(number): PortId) -> [Link; 2] {
    let [own, peer] = [0, 1].map(|end| [2, 0, 0, number as u8, 0, end]);
    [(own, peer), (peer, own)].map(|(own, peer)| Link { own, peer, addresses: Vec::new() })
}

fn sort(link: &Link, frame: &Packet) -> Frame {
    match frame.bytes().split_first_chunk() {
        Some((header, payload)) => link.sort(header, payload),
        None => Frame::Malformed,
    }
}

#[cfg(test)]
mod tests {
    use manx_dataplane::parse::parse;

    use super::super::peers::Peers;
    use super::super::station::{Pace, Station};
    use super::super::stream::{Direction, LEN, Stream};
    use super::*;

    /// Receives ten packets with the link of port `port`. The frames are addressed to port 1.
    fn take_in(port: u16) -> (Framed<Station>, Station, Vec<Packet>, Received, Pool) {
        let ([near, _], [_, far]) = (link_ends(PortId(port)), link_ends(PortId(1)));
        let station = Station::new(Some(far)).unwrap();
        station.check(true);
        station.load(Stream::udp(&Peers::near(), Direction::Request, 0, 10), 10, Pace::DEVICE);
        let mut framed = Framed::new(station.clone(), near);
        let (mut pool, mut packets) = (Pool::new(16), Vec::new());
        let received = framed.receive(&mut pool, &mut packets, 32).unwrap();
        (framed, station, packets, received, pool)
    }

    #[test]
    fn frames_lose_their_header_and_leave_with_that_of_their_link() {
        let (mut framed, station, mut packets, received, mut pool) = take_in(1);
        assert_eq!(received, Received { drained: true, ..Received::default() });
        assert!(packets.iter().all(|it| it.len() == LEN && parse(it.bytes()).is_ok()));
        let sent = framed.transmit(&mut pool, &mut packets).unwrap();
        assert_eq!(sent, Transmitted { sent: 10, refused: 0 });
        assert_eq!((station.transmitted(), pool.available()), ((10, 0), 16));
    }

    #[test]
    fn what_is_for_another_is_not_taken_in_and_what_is_no_frame_is_broken() {
        let (mut framed, station, mut packets, received, mut pool) = take_in(2);
        assert_eq!((packets.len(), received.not_ours, pool.available()), (0, 10, 16));
        packets.extend(pool.take_filled(&[0; LEN]));
        let sent = framed.transmit(&mut pool, &mut packets).unwrap();
        assert_eq!((sent, pool.available()), (Transmitted { sent: 0, refused: 1 }, 16));
        packets.extend(pool.take_filled(&[0x45; LEN]));
        let _ = framed.transmit(&mut pool, &mut packets).unwrap();
        assert_eq!(station.transmitted(), (1, 1));
    }
}
