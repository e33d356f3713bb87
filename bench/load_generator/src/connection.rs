//! One connection to the server, whatever it speaks.

use std::io;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::rustls::pki_types::{pem::PemObject, CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};
use tokio_rustls::TlsConnector;

use crate::grpc::GrpcConnection;
use crate::outcome::Ended;
use crate::plan::{Plan, Protocol};
use crate::remoting::RemotingConnection;
use crate::script::{Call, Script};

/// Either protocol's connection. Clones share it.
#[derive(Clone)]
pub enum Connection {
    Grpc(GrpcConnection),
    Remoting(Rc<RemotingConnection>),
}

impl Connection {
    /// Connects; for gRPC up to the end of the HTTP/2 handshake.
    pub async fn open(plan: &Plan, script: &Script) -> io::Result<Connection> {
        let stream = TcpStream::connect(&plan.target).await?;
        stream.set_nodelay(true)?;
        let Some(authorities) = &plan.tls_ca else {
            return Connection::speak(plan, script, stream).await;
        };
        let (host, _) = plan.target.rsplit_once(':').unwrap_or((&plan.target, ""));
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        let connector = TlsConnector::from(Arc::new(tls(authorities, plan.protocol)?));
        Connection::speak(plan, script, connector.connect(name, stream).await?).await
    }

    async fn speak<T>(plan: &Plan, script: &Script, stream: T) -> io::Result<Connection>
    where
        T: AsyncRead + AsyncWrite + Unpin + 'static,
    {
        match plan.protocol {
            Protocol::Grpc => Ok(Connection::Grpc(GrpcConnection::open(plan, script, stream).await?)),
            Protocol::Remoting => Ok(Connection::Remoting(RemotingConnection::open(stream))),
        }
    }

    /// Makes one call and waits for its end.
    pub async fn call(&mut self, call: &Call) -> Ended {
        match self {
            Connection::Grpc(connection) => connection.call(call).await,
            Connection::Remoting(connection) => connection.call(call).await,
        }
    }
}

fn tls(authorities: &Path, protocol: Protocol) -> io::Result<ClientConfig> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(authorities).map_err(io::Error::other)? {
        let certificate = certificate.map_err(io::Error::other)?;
        roots.add(certificate).map_err(io::Error::other)?;
    }
    let mut config = ClientConfig::builder()
        .with_root_certificates(roots)
        .with_no_client_auth();
    if protocol == Protocol::Grpc {
        config.alpn_protocols = vec![b"h2".to_vec()];
    }
    Ok(config)
}
