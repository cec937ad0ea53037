//! The servers of a prober. On TCP a server sends its name with the client's address, and then echoes or counts the
//! client's bytes, as the client chooses. On UDP it sends the same in answer to every datagram.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;

use manx_policy_compiler::model::Protocol;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrStorage, bind, setsockopt, socket, sockopt,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream, UdpSocket};

use crate::plan::port::Port;

/// The first byte from a TCP client that wants all its bytes echoed.
pub(super) const ECHO: u8 = b'e';
/// The first byte from a TCP client that wants its bytes read and, at the end, their count as eight bytes, big-endian.
pub(super) const SINK: u8 = b's';

/// Serves a TCP or UDP port on these addresses until the process ends. Other protocols are served by raw sockets.
pub(super) fn serve(port: Port, at: &[IpAddr], name: &Arc<str>) -> io::Result<()> {
    for ip in at {
        let address = SocketAddr::new(*ip, port.number);
        let served = match port.protocol {
            Protocol::Tcp => serve_tcp(address, name.clone()),
            Protocol::Udp => serve_udp(address, name.clone()),
            Protocol::Sctp => Ok(()),
        };
        match served {
            // The kernel may lack IPv6.
            Err(error) if ip.is_ipv6() && error.raw_os_error() == Some(libc::EAFNOSUPPORT) => {}
            other => other?,
        }
    }
    Ok(())
}

/// Restricts a socket to one family, because the IPv4 side has a socket of its own.
fn one_family(fd: &impl AsFd, address: SocketAddr) -> io::Result<()> {
    if address.is_ipv6() {
        setsockopt(fd, sockopt::Ipv6V6Only, &true)?;
    }
    Ok(())
}

fn serve_tcp(address: SocketAddr, name: Arc<str>) -> io::Result<()> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    one_family(&socket, address)?;
    socket.bind(address)?;
    let listener = socket.listen(1024)?;
    tokio::spawn(accept(listener, name));
    Ok(())
}

async fn accept(listener: TcpListener, name: Arc<str>) {
    loop {
        match listener.accept().await {
            Ok((stream, client)) => {
                let name = name.clone();
                // A client that disconnects does not affect others.
                tokio::spawn(async move { talk(stream, &name, client.ip()).await.ok() });
            }
            // The process may have no descriptors left, for example. Later clients may succeed.
            Err(_) => tokio::time::sleep(std::time::Duration::from_millis(50)).await,
        }
    }
}

async fn talk(mut stream: TcpStream, name: &str, client: IpAddr) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.write_all(format!("{name} {client}\n").as_bytes()).await?;
    let mut buffer = vec![0; 256 << 10];
    match stream.read_u8().await? {
        ECHO => loop {
            let length = stream.read(&mut buffer).await?;
            if length == 0 {
                return Ok(());
            }
            stream.write_all(&buffer[..length]).await?;
        },
        SINK => {
            let mut total = 0_u64;
            loop {
                let length = stream.read(&mut buffer).await?;
                if length == 0 {
                    return stream.write_all(&total.to_be_bytes()).await;
                }
                total += length as u64;
            }
        }
        _ => Ok(()),
    }
}

fn serve_udp(address: SocketAddr, name: Arc<str>) -> io::Result<()> {
    let family = if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let socket = socket(family, SockType::Datagram, flags, None)?;
    one_family(&socket, address)?;
    bind(socket.as_raw_fd(), &SockaddrStorage::from(address))?;
    let socket = UdpSocket::from_std(socket.into())?;
    tokio::spawn(async move {
        let mut buffer = [0; 2048];
        loop {
            // An error here comes from an ICMP error for an earlier answer.
            if let Ok((length, from)) = socket.recv_from(&mut buffer).await {
                let mut answer = buffer[..length.min(8)].to_vec();
                answer.extend(format!("{name} {}", from.ip()).as_bytes());
                let _ = socket.send_to(&answer, from).await;
            }
        }
    });
    Ok(())
}
