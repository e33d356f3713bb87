//! Frames of `RocketMQ`'s protocol.

use bytes::Bytes;

/// A frame of `RocketMQ`'s protocol.
pub fn frame(encoding: u8, header: &[u8], body: &[u8]) -> Bytes {
    let length = u32::try_from(4 + header.len() + body.len()).expect("short").to_be_bytes();
    let [_, h1, h2, h3] = u32::try_from(header.len()).expect("short").to_be_bytes();
    [&length[..], &[encoding, h1, h2, h3], header, body].concat().into()
}

/// A request as `RocketMQ` writes it.
pub fn request(code: i32, topic: &str, opaque: i32, body: &[u8]) -> Bytes {
    let header = format!(
        "{{\"code\":{code},\"extFields\":{{\"topic\":\"{topic}\"}},\"flag\":0,\"language\":\"JAVA\",\"opaque\":{opaque},\
         \"serializeTypeCurrentRPC\":\"JSON\",\"version\":513}}"
    );
    frame(0, header.as_bytes(), body)
}

/// The header of an answer: that of the request with the code 0.
pub fn own_header(request: &[u8]) -> Vec<u8> {
    if request.first() != Some(&b'{') {
        return [&[0, 0], &request[2..]].concat();
    }
    let text = String::from_utf8_lossy(request);
    let rest = text.split_once(',').expect("a header has members").1;
    format!("{{\"code\":0,{rest}").into_bytes()
}
