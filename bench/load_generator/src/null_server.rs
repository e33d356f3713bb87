//! A server that answers every call with the same bytes: what the load generator itself can do at most.

use std::io;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use h2::server::SendResponse;
use http::{HeaderMap, HeaderValue, Response};
use tokio::net::{TcpListener, TcpStream};

/// What it answers to everything, as long as the route of a topic of one broker.
const ANSWER_BYTES: usize = 150;

/// It ends by then even if the program that started it has ended.
const LONGEST_LIFE: Duration = Duration::from_secs(3_600);

/// Serves on a free port of loopback, which a line of JSON on standard error names, until it is killed.
pub async fn serve() -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let listen = listener.local_addr()?.to_string();
    eprintln!("{}", serde_json::json!({"event": "null_started", "listen": listen}));
    let connections = async {
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            tokio::task::spawn_local(async move {
                // A client that goes takes its connection with it.
                let _ = grpc(stream).await;
            });
        }
    };
    let served = tokio::time::timeout(LONGEST_LIFE, connections);
    served.await.unwrap_or(Ok(()))
}

async fn grpc(stream: TcpStream) -> io::Result<()> {
    let mut connection = h2::server::handshake(stream).await.map_err(io::Error::other)?;
    let mut message = BytesMut::from(&[0, 0, 0, 0, ANSWER_BYTES as u8][..]);
    message.resize(5 + ANSWER_BYTES, 0);
    let message = message.freeze();
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    while let Some(request) = connection.accept().await {
        let (request, respond) = request.map_err(io::Error::other)?;
        tokio::task::spawn_local(answer(request.into_body(), respond, message.clone(), trailers.clone()));
    }
    Ok(())
}

async fn answer(
    mut body: h2::RecvStream,
    mut respond: SendResponse<Bytes>,
    message: Bytes,
    trailers: HeaderMap,
) -> Result<(), h2::Error> {
    while let Some(chunk) = body.data().await {
        body.flow_control().release_capacity(chunk?.len())?;
    }
    let mut head = Response::new(());
    head.headers_mut()
        .insert("content-type", HeaderValue::from_static("application/grpc"));
    let mut stream = respond.send_response(head, false)?;
    stream.send_data(message, false)?;
    stream.send_trailers(trailers)
}
