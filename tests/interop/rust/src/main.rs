//! Registers a broker, looks up its topics, watches them, and resumes the watch after a break.
//!
//! Usage: `namesrv-client HOST:PORT BROKER-NAME BROKER-ADDR TOPIC ADDED-TOPIC`
//!
//! It prints one line for each step, and exits with code 1 and one line on standard error if a step fails. It was
//! written from `protos/` alone.

use std::error::Error;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status, Streaming};

use api::registration_service_client::RegistrationServiceClient;
use api::route_service_client::RouteServiceClient;

/// The code that `build.rs` generates.
#[allow(clippy::all, clippy::pedantic)]
mod api {
    tonic::include_proto!("namesrv_api.v1");
}

const CALL_TIMEOUT: Duration = Duration::from_secs(6);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
const QUEUES: i32 = 4;
const READ_AND_WRITE: i32 = 6;

type Outcome<T> = Result<T, Box<dyn Error>>;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [endpoint, name, addr, topic, added] = arguments.as_slice() else {
        eprintln!("usage: namesrv-client HOST:PORT BROKER-NAME BROKER-ADDR TOPIC ADDED-TOPIC");
        std::process::exit(2);
    };
    if let Err(error) = walk(endpoint, name, addr, topic, added).await {
        eprintln!("{}", described(error.as_ref()));
        std::process::exit(1);
    }
}

/// The code, and the text, of a refused call; the text of another error.
fn described(error: &(dyn Error + 'static)) -> String {
    error
        .downcast_ref::<Status>()
        .map_or_else(|| error.to_string(), |status| format!("{:?}: {}", status.code(), status.message()))
}

async fn walk(endpoint: &str, name: &str, addr: &str, topic: &str, added: &str) -> Outcome<()> {
    let channel =
        Endpoint::from_shared(format!("http://{endpoint}"))?.connect_timeout(CONNECT_TIMEOUT).connect().await?;
    let mut broker = Broker::open(channel.clone(), name, addr).await?;
    broker.register(&[topic]).await?;
    let mut routes = RouteServiceClient::new(channel);
    look_up(&mut routes, topic).await?;
    look_up(&mut routes, added).await?;

    let mut watch = Watch::open(&mut routes, &[topic], None).await?;
    watch.until_bookmark(1).await?;
    watch.add(added).await?;
    let point = watch.until_bookmark(2).await?;
    drop(watch);

    broker.register(&[topic, added]).await?;
    let mut watch = Watch::open(&mut routes, &[topic, added], Some(point)).await?;
    watch.until_bookmark(1).await?;
    broker.unregister().await?;
    watch.until_bookmark(1).await?;
    Ok(())
}

/// A request with the deadline of an ordinary call.
fn timed<T>(message: T) -> tonic::Request<T> {
    let mut request = tonic::Request::new(message);
    request.set_timeout(CALL_TIMEOUT);
    request
}

/// A broker that registers over a channel: when its process ends, the channel ends, and the broker leaves the routes.
struct Broker {
    client: RegistrationServiceClient<Channel>,
    identity: api::BrokerIdentity,
    channel_id: String,
    counter: i64,
    /// The name server's events. Dropping it ends the channel.
    _events: Streaming<api::OpenChannelResponse>,
}

impl Broker {
    async fn open(channel: Channel, name: &str, addr: &str) -> Outcome<Self> {
        let mut client = RegistrationServiceClient::new(channel);
        let request = api::OpenChannelRequest { holder: format!("rust client {name}") };
        let mut events = client.open_channel(request).await?.into_inner();
        let first = events.message().await?.and_then(|message| message.event);
        let Some(api::open_channel_response::Event::Opened(opened)) = first else {
            return Err("the first message of a channel was not opened".into());
        };
        let identity = api::BrokerIdentity {
            cluster_name: "DefaultCluster".into(),
            broker_name: name.into(),
            broker_id: Some(0),
            broker_addr: addr.into(),
        };
        Ok(Self { client, identity, channel_id: opened.channel_id, counter: 0, _events: events })
    }

    async fn register(&mut self, topics: &[&str]) -> Outcome<()> {
        self.counter += 1;
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis();
        let version = api::DataVersion {
            timestamp_millis: Some(i64::try_from(now)?),
            counter: Some(self.counter),
            state_version: None,
        };
        let request = api::RegisterBrokerRequest {
            broker: Some(self.identity.clone()),
            data_version: Some(version),
            topic_configs: topics.iter().map(|topic| topic_config(topic)).collect(),
            channel_id: Some(self.channel_id.clone()),
            ..Default::default()
        };
        let answer = self.client.register_broker(timed(request)).await?.into_inner();
        println!("registered changed={}", answer.changed.unwrap_or_default());
        Ok(())
    }

    async fn unregister(&mut self) -> Outcome<()> {
        let request = api::UnregisterBrokerRequest { broker: Some(self.identity.clone()), ..Default::default() };
        let answer = self.client.unregister_broker(timed(request)).await?.into_inner();
        println!("unregistered removed={}", answer.removed.unwrap_or_default());
        Ok(())
    }
}

fn topic_config(topic: &str) -> api::TopicConfig {
    api::TopicConfig {
        topic: topic.into(),
        read_queue_nums: Some(QUEUES),
        write_queue_nums: Some(QUEUES),
        perm: Some(READ_AND_WRITE),
        ..Default::default()
    }
}

async fn look_up(client: &mut RouteServiceClient<Channel>, topic: &str) -> Outcome<()> {
    let request = api::GetTopicRouteRequest { topic: topic.into(), ..Default::default() };
    match client.get_topic_route(timed(request)).await {
        Ok(answer) => println!("route {topic} {}", text_of(answer.into_inner().route.as_ref())),
        Err(status) if status.code() == Code::NotFound => println!("route {topic} none"),
        Err(status) => return Err(status.into()),
    }
    Ok(())
}

/// The masters of a route, or `none`.
fn text_of(route: Option<&api::TopicRouteData>) -> String {
    let brokers = route.map(|route| route.broker_datas.as_slice()).unwrap_or_default();
    let masters: Vec<String> = brokers
        .iter()
        .flat_map(|group| group.broker_addrs.iter().map(move |one| (group, one)))
        .filter(|(_, one)| one.broker_id == Some(0))
        .map(|(group, one)| format!("{}={}", group.broker_name, one.broker_addr))
        .collect();
    if masters.is_empty() { "none".into() } else { masters.join(",") }
}

/// An open watch, whose topics can be changed.
struct Watch {
    requests: mpsc::Sender<api::WatchTopicRoutesRequest>,
    responses: Streaming<api::WatchTopicRoutesResponse>,
}

impl Watch {
    async fn open(
        client: &mut RouteServiceClient<Channel>,
        topics: &[&str],
        resume_after: Option<api::ResumePoint>,
    ) -> Outcome<Self> {
        let (requests, sent) = mpsc::channel(1);
        let first = api::WatchTopicRoutesRequest {
            topics: topics.iter().map(ToString::to_string).collect(),
            resume_after,
            ..Default::default()
        };
        requests.send(first).await?;
        // No deadline: a watch ends when one side leaves.
        let responses = client.watch_topic_routes(ReceiverStream::new(sent)).await?.into_inner();
        Ok(Self { requests, responses })
    }

    async fn add(&self, topic: &str) -> Outcome<()> {
        let change = api::WatchTopicRoutesRequest { topics: vec![topic.into()], ..Default::default() };
        self.requests.send(change).await?;
        Ok(())
    }

    /// Prints the changes up to a bookmark that counts so many requests. Returns the point to resume from.
    ///
    /// A broker that no removal explains is kept for a while by a careful client, as the contract advises. This program
    /// prints what it is told.
    async fn until_bookmark(&mut self, request_count: i64) -> Outcome<api::ResumePoint> {
        while let Some(message) = tokio::time::timeout(CALL_TIMEOUT, self.responses.message()).await?? {
            for change in &message.changes {
                let reasons: Vec<&str> = change.removals.iter().map(|removal| removal.reason().as_str_name()).collect();
                let route = text_of(change.route.as_ref());
                println!("change {} {route} {}", change.topic, reasons.join(","));
            }
            if message.bookmark && message.request_count >= request_count {
                let header = message.header.ok_or("a message without a header")?;
                println!("bookmark");
                return Ok(api::ResumePoint { epoch: header.epoch, revision: Some(header.revision) });
            }
        }
        Err("the watch ended without an error".into())
    }
}
