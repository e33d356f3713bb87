//! The other end of a connection.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use bytes::Bytes;
use ring::digest::{SHA256, digest};
use tokio_rustls::rustls::pki_types::CertificateDer;

use crate::accept::Door;
use crate::ledger::{Account, Hold, Kind};

/// Most certificates that a client may show, and their bytes together. TLS itself takes 64 KiB and needs two or three.
const MAX_CERTIFICATES: usize = 8;
const MAX_CHAIN_BYTES: usize = 16 << 10;

/// Bytes of certificates that a connection may keep as a part of its own state: what TLS has, and a copy of the first.
const PLAIN_CHAIN_BYTES: usize = 8 << 10;

/// The certificate of a client.
#[derive(Debug)]
pub struct Certificate {
    /// In DER.
    pub der: Bytes,
    /// Its SHA-256. Callers with this certificate are known by it.
    pub(crate) digest: Bytes,
    /// The bytes of a long chain.
    _chain: Hold,
}

/// The other end of a connection, as long as it lasts.
#[derive(Debug)]
pub struct Peer {
    /// Its address as gRPC writes it: `ipv4:127.0.0.1:4711`, `ipv6:%5B::1%5D:4711`.
    pub address: String,
    /// The account of its address.
    pub(crate) account: Arc<Account>,
    /// The certificate that it showed and we checked.
    pub certificate: Option<Certificate>,
    /// The generation of authorities under which it was checked.
    pub(crate) authorities_generation: u64,
}

impl Peer {
    /// The other end of a connection, whose address is written as its protocol does.
    pub(crate) fn of(address: SocketAddr, account: Arc<Account>, door: Door) -> Self {
        let (ip, port) = (address.ip().to_canonical(), address.port());
        let address = match (door, ip) {
            (Door::Remoting(_), _) => SocketAddr::new(ip, port).to_string(),
            (Door::Grpc, IpAddr::V4(ip)) => format!("ipv4:{ip}:{port}"),
            (Door::Grpc, IpAddr::V6(ip)) => format!("ipv6:%5B{ip}%5D:{port}"),
        };
        Self { address, account, certificate: None, authorities_generation: 0 }
    }

    /// Takes the certificates that the client showed, its own first. Fails if they are too many or too long, in words.
    pub(crate) fn shows(&mut self, chain: &[CertificateDer<'_>]) -> Result<(), String> {
        let bytes: usize = chain.iter().map(|der| der.len()).sum();
        if chain.len() > MAX_CERTIFICATES || bytes > MAX_CHAIN_BYTES {
            return Err(format!(
                "the client shows {} certificates of {bytes} bytes together; {MAX_CERTIFICATES} of {MAX_CHAIN_BYTES} bytes \
                 are the most; see what its tls_cert holds",
                chain.len()
            ));
        }
        let Some(own) = chain.first() else { return Ok(()) };
        let more = (bytes + own.len()).saturating_sub(PLAIN_CHAIN_BYTES);
        let chain = self.account.hold(Kind::BytesIn, more).map_err(|_| "there is no room for its certificates")?;
        let digest = Bytes::copy_from_slice(digest(&SHA256, own).as_ref());
        self.certificate = Some(Certificate { der: Bytes::copy_from_slice(own), digest, _chain: chain });
        Ok(())
    }
}

/// What connections are counted by: an IPv4 address, or the /64 of an IPv6 address, which one site has to itself.
pub(crate) fn site_of(address: IpAddr) -> u64 {
    match address.to_canonical() {
        IpAddr::V4(v4) => u64::from(u32::from(v4)),
        IpAddr::V6(v6) => (u128::from(v6) >> 64) as u64,
    }
}

/// Whose connections are counted together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Owner {
    /// All programs of this machine.
    Machine,
    /// Everybody at one address, or of one IPv6 site.
    Site(u64),
}

impl Owner {
    /// The owner of a connection. With `trust_loopback`, those from loopback addresses are the machine's.
    pub(crate) fn of(address: SocketAddr, trust_loopback: bool) -> Self {
        let ip = address.ip().to_canonical();
        if trust_loopback && ip.is_loopback() { Self::Machine } else { Self::Site(site_of(ip)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::Ledger;

    impl Peer {
        pub(crate) fn unknown() -> Self {
            Self::of(
                SocketAddr::from(([127, 0, 0, 1], 0)),
                Ledger::new(&crate::limits::Limits::default()).account(Owner::Machine),
                Door::Grpc,
            )
        }
    }

    fn account() -> Arc<Account> {
        Arc::clone(&Peer::unknown().account)
    }

    fn address(text: &str) -> SocketAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn addresses_are_written_as_grpc_writes_them() {
        for (told, written) in [
            ("127.0.0.1:80", "ipv4:127.0.0.1:80"),
            ("[::1]:80", "ipv6:%5B::1%5D:80"),
            ("[::ffff:1.2.3.4]:80", "ipv4:1.2.3.4:80"),
        ] {
            assert_eq!(Peer::of(address(told), account(), Door::Grpc).address, written);
        }
    }

    #[test]
    fn an_owner_is_this_machine_an_ipv4_address_or_an_ipv6_site() {
        let owner = |told| Owner::of(address(told), true);
        for told in ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
            assert_eq!(owner(told), Owner::Machine, "{told}");
        }
        assert_eq!(owner("1.2.3.4:1"), owner("[::ffff:1.2.3.4]:2"));
        assert_eq!(owner("[2001:db8::1]:1"), owner("[2001:db8::2]:1"));
        assert_ne!(owner("[2001:db8::1]:1"), owner("[2001:db8:0:1::1]:1"));
    }
}
