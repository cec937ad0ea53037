//! tun
