// Prints where topics live, each time that it changes: node watch.mjs HOST:PORT[,HOST:PORT...] TOPIC...
import { readFileSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import grpc from '@grpc/grpc-js';
import protoLoader from '@grpc/proto-loader';
import protobuf from 'protobufjs';

// A watch has no deadline; its first message has one, and it always comes.
const FIRST_MESSAGE_MS = 5000;
const SHORTEST_PAUSE_MS = 100;
const LONGEST_PAUSE_MS = 5000;
const CHANNEL_OPTIONS = {
  // A name server that vanished without a word is noticed within 10 s.
  'grpc.keepalive_time_ms': 5000,
  'grpc.keepalive_timeout_ms': 5000,
  // A new connection each time: this program decides when to try again, and not the library.
  'grpc.use_local_subchannel_pool': 1,
};
const BOOKMARK_IS_OLD = ['EPOCH_CHANGED', 'REVISION_COMPACTED'];
// How long a topic keeps its route when all its brokers vanish and the name server does not know that they ended.
const HOLD_SECONDS = 120;
const ENDED = ['UNREGISTERED', 'BROKER_DOWN', 'REPLACED', 'NOT_IN_REGISTRATION', 'DELETED_BY_OPERATOR', 'LOSS_CONFIRMED'];
// Codes with which every name server would answer the same.
const MY_MISTAKE = ['INVALID_ARGUMENT', 'UNAUTHENTICATED', 'PERMISSION_DENIED', 'UNIMPLEMENTED'];

const options = { includeDirs: ['protos'], longs: String, enums: String, defaults: true, oneofs: true };
const contract = protoLoader.loadSync('namesrv_api/v1/route_service.proto', options);
const { RouteService } = grpc.loadPackageDefinition(contract).namesrv_api.v1;

// The parts of google/rpc/status.proto and google/rpc/error_details.proto that are read here.
const { root } = protobuf.parse(`
  syntax = "proto3";
  message Any { string type_url = 1; bytes value = 2; }
  message Status { int32 code = 1; string message = 2; repeated Any details = 3; }
  message ErrorInfo { string reason = 1; string domain = 2; }
  message Duration { int64 seconds = 1; int32 nanos = 2; }
  message RetryInfo { Duration retry_delay = 1; }
`);

// What is kept between two streams. All that happened up to the bookmark was told; it is of one name server, and means
// nothing to another. Failures are counted since the last message. Of each topic: the brokers of its route, and the timer
// of a lost route that is kept for now.
const watch = { bookmark: null, failures: 0, brokers: new Map(), holds: new Map() };


// Reads the credentials from the environment. Without NAMESRV_CA, connections are plaintext.
function readCredentials() {
  const { NAMESRV_CA, NAMESRV_CERT, NAMESRV_KEY, NAMESRV_TOKEN } = process.env;
  if (!NAMESRV_CA) return grpc.credentials.createInsecure();
  const [ca, key, certificate] = [NAMESRV_CA, NAMESRV_KEY, NAMESRV_CERT].map((file) => (file ? readFileSync(file) : null));
  const tls = grpc.credentials.createSsl(ca, key, certificate);
  if (!NAMESRV_TOKEN) return tls;
  const token = grpc.credentials.createFromMetadataGenerator((_call, done) => {
    const metadata = new grpc.Metadata();
    metadata.set('authorization', `Bearer ${NAMESRV_TOKEN}`);
    done(null, metadata);
  });
  // gRPC sends the token with each call.
  return grpc.credentials.combineChannelCredentials(tls, token);
}


const credentials = readCredentials();

// Says what a name server tells; resolves when the stream breaks, with the error.
function follow(namesrv, topics) {
  console.log(`watching ${namesrv} ${watch.bookmark ? `after ${watch.bookmark.revision}` : 'from the beginning'}`);
  const client = new RouteService(namesrv, credentials, CHANNEL_OPTIONS);
  const stream = client.WatchTopicRoutes();
  // Later messages would add topics to the open watch.
  stream.write({ topics, resumeAfter: watch.bookmark });
  const firstMessage = setTimeout(() => stream.cancel(), FIRST_MESSAGE_MS);
  stream.on('data', ({ header: { epoch, revision }, changes, bookmark }) => {
    clearTimeout(firstMessage);
    watch.failures = 0;
    changes.forEach(take);
    if (bookmark) watch.bookmark = { epoch, revision };
  });
  return new Promise((resolve) => {
    stream.on('error', resolve);
    stream.on('end', () => resolve(undefined));
  }).finally(() => {
    clearTimeout(firstMessage);
    client.close();
  });
}

// Prints who left the route of a topic since the last message, and its whole route, if it has one.
function take({ topic, route, removals }) {
  clearTimeout(watch.holds.get(topic));
  let known = watch.brokers.get(topic) ?? [];
  for (const gone of removals) {
    const reason = gone.reason.replace('REMOVAL_REASON_', '');
    console.log(`${topic}: ${gone.brokerName} ${gone.brokerAddr} left, ${reason}`);
    if (ENDED.includes(reason)) known = known.filter((broker) => !isOf(gone, broker));
  }
  if (!route && known.length > 0) {
    console.log(`${topic}: its brokers may live, so its route is kept for ${HOLD_SECONDS} s`);
    watch.holds.set(topic, setTimeout(() => lose(topic), HOLD_SECONDS * 1000));
    watch.brokers.set(topic, known);
  } else if (!route) {
    lose(topic); // not there yet, deleted, or its last broker left: the watch goes on
  } else {
    known = [];
    for (const { brokerName, brokerAddrs } of route.brokerDatas) {
      known.push(...brokerAddrs.map(({ brokerId }) => ({ brokerName, brokerId })));
      console.log(`${topic}: ${brokerName}`, ...brokerAddrs.map((one) => `${one.brokerId}=${one.brokerAddr}`));
    }
    watch.brokers.set(topic, known);
  }
}

// Believes that a topic has no route.
function lose(topic) {
  watch.brokers.delete(topic);
  console.log(`${topic}: no route`);
}

// Whether a broker is among those that left: one, a whole group, or without a name all of the topic.
function isOf(gone, { brokerName, brokerId }) {
  const sameId = gone._brokerId !== 'brokerId' || gone.brokerId === brokerId;
  return !gone.brokerName || (gone.brokerName === brokerName && sameId);
}

// The reason of the name server's table, and the milliseconds after which it wants to be asked again.
function reasonAndPause(error) {
  const found = { reason: '', wantedMs: 0 };
  const [bytes] = error?.metadata?.get('grpc-status-details-bin') ?? [];
  for (const { typeUrl, value } of bytes ? root.lookupType('Status').decode(bytes).details : []) {
    const name = typeUrl.split('/google.rpc.')[1];
    const detail = ['ErrorInfo', 'RetryInfo'].includes(name) ? root.lookupType(name).decode(value) : {};
    if (detail.domain === 'namesrv.dev') found.reason = detail.reason;
    if (detail.retryDelay) found.wantedMs = Number(detail.retryDelay.seconds) * 1000 + detail.retryDelay.nanos / 1e6;
  }
  return found;
}

// Watches until a name server says that this cannot work.
async function main(namesrvs, topics) {
  for (let at = 0; ; ) {
    const error = await follow(namesrvs[at], topics);
    const code = grpc.status[error?.code ?? grpc.status.OK];
    let { reason, wantedMs } = reasonAndPause(error);
    if (error) console.error(`${namesrvs[at]}: ${code} ${reason}: ${error.details}`);
    if (MY_MISTAKE.includes(code) || reason === 'LIMIT_EXCEEDED') return;
    if (BOOKMARK_IS_OLD.includes(reason)) {
      watch.bookmark = null;
      continue;
    }
    watch.failures += 1;
    const pauseMs = Math.random() * Math.min(LONGEST_PAUSE_MS, SHORTEST_PAUSE_MS * 2 ** watch.failures);
    // A connection breaks more often than a name server: the same one is asked once more, after the bookmark.
    const stays = watch.bookmark && watch.failures === 1 && reason !== 'SHUTTING_DOWN';
    let following = stays ? at : (at + 1) % namesrvs.length;
    // So that watches spread over all name servers again.
    if (reason === 'WATCH_EXPIRED') following = Math.floor(Math.random() * namesrvs.length);
    if (following !== at) {
      at = following;
      watch.bookmark = null;
      wantedMs = 0;
    }
    await sleep(Math.max(pauseMs, wantedMs));
  }
}

const [namesrvs, ...topics] = process.argv.slice(2);
if (topics.length > 0) {
  await main(namesrvs.split(','), topics);
  process.exitCode = 1;
} else {
  console.error('usage: node watch.mjs HOST:PORT[,HOST:PORT...] TOPIC...');
  process.exitCode = 2;
}
