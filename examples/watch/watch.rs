//! Prints where topics live, each time that it changes: `watch HOST:PORT[,HOST:PORT...] TOPIC...`

use std::collections::{HashMap, HashSet};
use std::env;
use std::error::Error;
use std::fs;
use std::pin::pin;
use std::process::ExitCode;
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until, timeout};
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, Request, Status};
use tonic_types::StatusExt;

use api::RemovalReason;
use api::route_service_client::RouteServiceClient;

/// The code that `build.rs` generates from `protos/`.
#[allow(clippy::all, clippy::pedantic)]
mod api {
    tonic::include_proto!("namesrv_api.v1");
}

/// A watch has no deadline. Its first message has one: a first message is always sent.
const FIRST_MESSAGE: Duration = Duration::from_secs(5);
const SHORTEST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// Pings find a name server that vanished within 10 s.
const KEEPALIVE: Duration = Duration::from_secs(5);
const BOOKMARK_IS_OLD: [&str; 2] = ["EPOCH_CHANGED", "REVISION_COMPACTED"];
/// How long a topic keeps its route when all its brokers vanish and the name server does not know that they ended.
const HOLD_SECONDS: u64 = 120;
const ENDED: [RemovalReason; 6] = [
    RemovalReason::Unregistered,
    RemovalReason::BrokerDown,
    RemovalReason::Replaced,
    RemovalReason::NotInRegistration,
    RemovalReason::DeletedByOperator,
    RemovalReason::LossConfirmed,
];
/// Codes with which every name server would answer the same.
const MY_MISTAKE: [Code; 4] = [
    Code::InvalidArgument,
    Code::Unauthenticated,
    Code::PermissionDenied,
    Code::Unimplemented,
];

/// The state that a new stream begins with.
#[derive(Default)]
struct Watch {
    topics: Vec<String>,
    credentials: Credentials,
    /// The name server sent everything up to this point. It is of one name server, and means nothing to another.
    bookmark: Option<api::ResumePoint>,
    /// Since the last message.
    failures: u32,
    /// The brokers of each topic's route, by name and id.
    brokers: HashMap<String, HashSet<(String, i64)>>,
    /// Topics whose lost route is kept for now, and until when.
    holds: HashMap<String, Instant>,
}

impl Watch {
    /// Prints what a name server sends, until the stream breaks.
    async fn follow(&mut self, namesrv: &str, endpoint: &Endpoint) -> Result<(), Status> {
        let revision = self
            .bookmark
            .as_ref()
            .and_then(|bookmark| bookmark.revision);
        let after = revision.map_or("from the beginning".into(), |revision| {
            format!("after {revision}")
        });
        println!("watching {namesrv} {after}");
        let request = api::WatchTopicRoutesRequest {
            topics: self.topics.clone(),
            resume_after: self.bookmark.clone(),
            ..Default::default()
        };
        let mut client =
            RouteServiceClient::with_interceptor(endpoint.connect_lazy(), self.credentials.clone());
        let first_message = async {
            // Later messages would add topics to the open watch.
            let mut stream = client
                .watch_topic_routes(tokio_stream::once(request))
                .await?
                .into_inner();
            let message = stream.message().await?;
            Ok::<_, Status>((stream, message))
        };
        let (mut stream, mut next) = self
            .meanwhile(timeout(FIRST_MESSAGE, first_message))
            .await
            .map_err(|_| Status::deadline_exceeded("no first message in time"))??;
        while let Some(message) = next {
            self.failures = 0;
            message.changes.iter().for_each(|change| self.take(change));
            if let (true, Some(header)) = (message.bookmark, message.header) {
                self.bookmark = Some(api::ResumePoint {
                    epoch: header.epoch,
                    revision: header.revision,
                });
            }
            next = self.meanwhile(stream.message()).await?;
        }
        Ok(())
    }

    /// Waits for the output. Until then, believes the loss of each topic whose time is over.
    async fn meanwhile<T>(&mut self, awaited: impl Future<Output = T>) -> T {
        let mut awaited = pin!(awaited);
        loop {
            let Some((topic, until)) = self.holds.iter().min_by_key(|(_, until)| **until) else {
                return awaited.await;
            };
            tokio::select! {
                output = &mut awaited => return output,
                () = sleep_until(*until) => {
                    let topic = topic.clone();
                    self.lose(&topic);
                }
            }
        }
    }

    /// Prints who left the route of a topic since the last message, and its whole route, if it has one.
    fn take(&mut self, change: &api::TopicRouteChange) {
        let topic = &change.topic;
        self.holds.remove(topic);
        let known = self.brokers.entry(topic.clone()).or_default();
        for gone in &change.removals {
            let reason = gone
                .reason()
                .as_str_name()
                .trim_start_matches("REMOVAL_REASON_");
            println!(
                "{topic}: {} {} left, {reason}",
                gone.broker_name, gone.broker_addr
            );
            if ENDED.contains(&gone.reason()) {
                known.retain(|(name, id)| !is_of(gone, name, *id));
            }
        }
        match &change.route {
            None if !known.is_empty() => {
                println!(
                    "{topic}: its brokers may live, so its route is kept for {HOLD_SECONDS} s"
                );
                let until = Instant::now() + Duration::from_secs(HOLD_SECONDS);
                self.holds.insert(topic.clone(), until);
            }
            None => self.lose(topic), // not there yet, deleted, or its last broker left
            Some(route) => {
                known.clear();
                for group in &route.broker_datas {
                    print!("{topic}: {}", group.broker_name);
                    for one in &group.broker_addrs {
                        let id = one.broker_id.unwrap_or_default();
                        known.insert((group.broker_name.clone(), id));
                        print!(" {id}={}", one.broker_addr);
                    }
                    println!();
                }
            }
        }
    }

    /// Believes that a topic has no route.
    fn lose(&mut self, topic: &str) {
        self.brokers.remove(topic);
        self.holds.remove(topic);
        println!("{topic}: no route");
    }

    /// Watches until a name server says that this cannot work.
    async fn run(&mut self, namesrvs: &[&str], endpoints: &[Endpoint]) {
        let mut at = 0;
        loop {
            let (mut code, mut reason, mut wanted) = (Code::Ok, String::new(), Duration::ZERO);
            if let Err(status) = self.follow(namesrvs[at], &endpoints[at]).await {
                code = status.code();
                (reason, wanted) = reason_and_pause(&status);
                eprintln!("{}: {code:?} {reason}: {}", namesrvs[at], status.message());
            }
            if MY_MISTAKE.contains(&code) || reason == "LIMIT_EXCEEDED" {
                return;
            }
            if BOOKMARK_IS_OLD.contains(&reason.as_str()) {
                self.bookmark = None;
                continue;
            }
            self.failures += 1;
            let most = LONGEST_PAUSE.min(SHORTEST_PAUSE * 2_u32.pow(self.failures.min(10)));
            // A connection breaks more often than a name server: the same one is asked once more, after the bookmark.
            let stays = self.bookmark.is_some() && self.failures == 1 && reason != "SHUTTING_DOWN";
            let mut following = if stays { at } else { (at + 1) % namesrvs.len() };
            if reason == "WATCH_EXPIRED" {
                following = fastrand::usize(..namesrvs.len()); // so that watches spread over all name servers again
            }
            if following != at {
                (at, self.bookmark, wanted) = (following, None, Duration::ZERO);
            }
            self.meanwhile(sleep(wanted.max(most.mul_f64(fastrand::f64()))))
                .await;
        }
    }
}

/// Whether a broker is among those that left: one, a whole group, or without a name all of the topic.
fn is_of(gone: &api::BrokerRemoval, name: &str, id: i64) -> bool {
    let same_id = gone.broker_id.is_none_or(|gone_id| gone_id == id);
    gone.broker_name.is_empty() || (gone.broker_name == name && same_id)
}

/// The reason of the name server's table, and how long it wants not to be asked.
fn reason_and_pause(status: &Status) -> (String, Duration) {
    let details = status.get_error_details();
    let info = details
        .error_info()
        .filter(|info| info.domain == "namesrv.dev");
    let wanted = details.retry_info().and_then(|retry| retry.retry_delay);
    (
        info.map(|info| info.reason.clone()).unwrap_or_default(),
        wanted.unwrap_or_default(),
    )
}

/// TLS and a token. Without TLS, connections are plaintext.
#[derive(Clone, Default)]
struct Credentials {
    tls: Option<ClientTlsConfig>,
    authorization: Option<MetadataValue<Ascii>>,
}

impl Credentials {
    /// Reads the credentials from the environment. Without `NAMESRV_CA`, there is no TLS.
    fn read() -> Result<Self, Box<dyn Error>> {
        let Ok(ca) = env::var("NAMESRV_CA") else {
            return Ok(Self::default());
        };
        let mut tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(fs::read(ca)?));
        if let (Ok(certificate), Ok(key)) = (env::var("NAMESRV_CERT"), env::var("NAMESRV_KEY")) {
            tls = tls.identity(Identity::from_pem(fs::read(certificate)?, fs::read(key)?));
        }
        let token = env::var("NAMESRV_TOKEN").ok();
        let authorization = token
            .map(|token| format!("Bearer {token}").parse())
            .transpose()?;
        Ok(Self {
            tls: Some(tls),
            authorization,
        })
    }

    fn endpoint(&self, namesrv: &str) -> Result<Endpoint, tonic::transport::Error> {
        let endpoint = match &self.tls {
            None => Endpoint::from_shared(format!("http://{namesrv}"))?,
            Some(tls) => {
                Endpoint::from_shared(format!("https://{namesrv}"))?.tls_config(tls.clone())?
            }
        };
        Ok(endpoint
            .http2_keep_alive_interval(KEEPALIVE)
            .keep_alive_timeout(KEEPALIVE))
    }
}

/// Sends the token with each call of a client that is made `with_interceptor`.
impl Interceptor for Credentials {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(authorization) = &self.authorization {
            request
                .metadata_mut()
                .insert("authorization", authorization.clone());
        }
        Ok(request)
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<ExitCode, Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [namesrvs, topics @ ..] = arguments.as_slice() else {
        return Ok(usage());
    };
    if topics.is_empty() {
        return Ok(usage());
    }
    let namesrvs: Vec<&str> = namesrvs.split(',').collect();
    let credentials = Credentials::read()?;
    let endpoints = namesrvs
        .iter()
        .map(|namesrv| credentials.endpoint(namesrv))
        .collect::<Result<Vec<_>, _>>()?;
    let mut watch = Watch {
        topics: topics.to_vec(),
        credentials,
        ..Default::default()
    };
    watch.run(&namesrvs, &endpoints).await;
    Ok(ExitCode::FAILURE)
}

fn usage() -> ExitCode {
    eprintln!("usage: watch HOST:PORT[,HOST:PORT...] TOPIC...");
    ExitCode::from(2)
}
