//! The PROXY protocol, versions 1 and 2: a load balancer says whose connection it forwards.
//!
//! Only networks that the operator names may say so: an address decides about shares and permits.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::time::sleep;

/// Longest preamble. Version 1 has up to 107 bytes, version 2 addresses and further fields.
const MOST: usize = 1 << 10;

/// Pause before another look at a preamble that has arrived in part.
const PAUSE: Duration = Duration::from_millis(10);

/// How version 2 begins.
pub(crate) const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
const LOCAL: u8 = 0x20;
const PROXY: u8 = 0x21;
const TCP_OVER_IPV4: u8 = 0x11;
const TCP_OVER_IPV6: u8 = 0x21;

/// A network: an address and the length of its prefix.
#[derive(Debug, Clone, Copy)]
#[cfg_attr(feature = "python", derive(pyo3::FromPyObject))]
pub struct Network(pub IpAddr, pub u8);

impl Network {
    pub(crate) fn contains(&self, address: IpAddr) -> bool {
        let bits = |address: IpAddr| match address.to_canonical() {
            IpAddr::V4(v4) => (u128::from(u32::from(v4)) << 96, true),
            IpAddr::V6(v6) => (u128::from(v6), false),
        };
        let ((mine, is_v4), (other, other_is_v4)) = (bits(self.0), bits(address));
        is_v4 == other_is_v4 && (mine ^ other).leading_zeros() >= u32::from(self.1)
    }
}

/// Reads the preamble of a connection, and nothing after it. Returns whose connection it is, or None if it is the proxy's.
pub(crate) async fn read(stream: &mut TcpStream) -> io::Result<Option<SocketAddr>> {
    let mut bytes = [0; MOST];
    loop {
        let came = stream.peek(&mut bytes).await?;
        match parse(&bytes[..came]) {
            Some(Ok((length, source))) => {
                stream.read_exact(&mut bytes[..length]).await?;
                return Ok(source);
            }
            None if (1..MOST).contains(&came) => sleep(PAUSE).await,
            _ => return Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

/// The length of a preamble, and whose connection it is. None if more must arrive.
fn parse(bytes: &[u8]) -> Option<Result<(usize, Option<SocketAddr>), ()>> {
    let begins = |begin: &[u8]| bytes.starts_with(begin) || begin.starts_with(bytes);
    if begins(SIGNATURE) {
        let &[version, family, l0, l1] = bytes.get(SIGNATURE.len()..)?.first_chunk()?;
        let (at, length) = (SIGNATURE.len() + 4, usize::from(u16::from_be_bytes([l0, l1])));
        if at + length > MOST {
            return Some(Err(()));
        }
        let addresses = bytes.get(at..at + length)?;
        Some(source_of(version, family, addresses).map(|source| (at + length, source)))
    } else if begins(b"PROXY ") {
        let Some(length) = bytes.windows(2).position(|end| end == b"\r\n") else {
            return (bytes.len() > 107).then_some(Err(()));
        };
        Some(source_in_line(&bytes[..length]).map(|source| (length + 2, source)))
    } else {
        Some(Err(()))
    }
}

fn source_of(version: u8, family: u8, addresses: &[u8]) -> Result<Option<SocketAddr>, ()> {
    match (version, family) {
        (PROXY, TCP_OVER_IPV4) => {
            let &[a, b, c, d, _, _, _, _, p0, p1] = addresses.first_chunk().ok_or(())?;
            Ok(Some((Ipv4Addr::new(a, b, c, d), u16::from_be_bytes([p0, p1])).into()))
        }
        (PROXY, TCP_OVER_IPV6) => {
            let ip: [u8; 16] = *addresses.first_chunk().ok_or(())?;
            let &[p0, p1] = addresses.get(32..).and_then(<[u8]>::first_chunk).ok_or(())?;
            Ok(Some((Ipv6Addr::from(ip), u16::from_be_bytes([p0, p1])).into()))
        }
        (LOCAL | PROXY, _) => Ok(None),
        _ => Err(()),
    }
}

fn source_in_line(line: &[u8]) -> Result<Option<SocketAddr>, ()> {
    let mut words = std::str::from_utf8(line).map_err(drop)?.split(' ').skip(1);
    match words.next() {
        Some("TCP4" | "TCP6") => {
            let (ip, port) = (words.next().ok_or(())?, words.nth(1).ok_or(())?);
            Ok(Some((ip.parse::<IpAddr>().map_err(drop)?, port.parse().map_err(drop)?).into()))
        }
        Some("UNKNOWN") => Ok(None),
        _ => Err(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version_2(version: u8, family: u8, addresses: &[u8]) -> Vec<u8> {
        [SIGNATURE, &[version, family, 0, u8::try_from(addresses.len()).expect("short")], addresses].concat()
    }

    #[test]
    fn both_versions_say_whose_connection_it_is() {
        let line = b"PROXY TCP4 192.0.2.7 10.0.0.1 4711 9876\r\n".to_vec();
        let v4 = version_2(PROXY, TCP_OVER_IPV4, &[192, 0, 2, 7, 10, 0, 0, 1, 18, 103, 38, 148, 9, 9, 9]);
        let v6 = [&Ipv6Addr::LOCALHOST.octets()[..], &[0; 16], &[18, 103, 0, 0]].concat();
        let v6 = version_2(PROXY, TCP_OVER_IPV6, &v6);
        for (bytes, source) in [
            (line, Some("192.0.2.7:4711")),
            (b"PROXY TCP6 2001:db8::1 ::1 4711 9876\r\n".to_vec(), Some("[2001:db8::1]:4711")),
            (b"PROXY UNKNOWN\r\n".to_vec(), None),
            (v4, Some("192.0.2.7:4711")),
            (v6, Some("[::1]:4711")),
            (version_2(LOCAL, 0, &[]), None),
        ] {
            let source = source.map(|text| text.parse().expect("an address"));
            assert_eq!(parse(&[&bytes[..], b"GET"].concat()), Some(Ok((bytes.len(), source))));
            assert!((0..bytes.len()).all(|end| parse(&bytes[..end]).is_none()), "more must arrive");
        }
        for bytes in
            [&b"GET / HTTP"[..], b"PROXY TCP4 x y 1 2\r\n", b"PROXY HTTP\r\n", &version_2(0x31, 0x11, &[0; 12])]
        {
            assert_eq!(parse(bytes), Some(Err(())));
        }
    }

    #[test]
    fn a_network_has_the_addresses_of_its_prefix() {
        let ip = |text: &str| text.parse::<IpAddr>().expect("an address");
        assert!(Network(ip("10.1.0.0"), 16).contains(ip("10.1.255.1")));
        assert!(Network(ip("10.1.0.0"), 16).contains(ip("::ffff:10.1.0.9")));
        assert!(!Network(ip("10.1.0.0"), 16).contains(ip("10.2.0.1")));
        assert!(Network(ip("2001:db8::"), 32).contains(ip("2001:db8:1::1")));
        assert!(!Network(ip("::"), 0).contains(ip("10.0.0.1")));
    }
}
