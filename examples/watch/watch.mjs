// Prints where topics live, each time that it changes: node watch.mjs HOST:PORT[,HOST:PORT...] TOPIC...
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
// Codes with which every name server would answer the same.
const MY_MISTAKE = ['INVALID_ARGUMENT', 'UNAUTHENTICATED', 'PERMISSION_DENIED', 'UNIMPLEMENTED'];

const options = { includeDirs: ['protos'], longs: String, enums: String, defaults: true };
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
// nothing to another. Failures are counted since the last message.
const watch = { bookmark: null, failures: 0 };

// Says what a name server tells; resolves when the stream breaks, with the error.
function follow(namesrv, topics) {
  console.log(`watching ${namesrv} ${watch.bookmark ? `after ${watch.bookmark.revision}` : 'from the beginning'}`);
  const client = new RouteService(namesrv, grpc.credentials.createInsecure(), CHANNEL_OPTIONS);
  const stream = client.WatchTopicRoutes({ topics, resumeAfter: watch.bookmark });
  const firstMessage = setTimeout(() => stream.cancel(), FIRST_MESSAGE_MS);
  stream.on('data', ({ header: { epoch, revision }, changes, bookmark }) => {
    clearTimeout(firstMessage);
    watch.failures = 0;
    changes.forEach(say);
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

// Prints the whole route after a change, or that there is none, and who left it since the last message.
function say({ topic, route, removals }) {
  for (const { brokerName, brokerAddr, reason } of removals) {
    console.log(`${topic}: ${brokerName} ${brokerAddr} left, ${reason.replace('REMOVAL_REASON_', '')}`);
  }
  // Not there yet, deleted, or its last broker left: the watch goes on.
  if (!route) console.log(`${topic}: no route`);
  for (const { brokerName, brokerAddrs } of route?.brokerDatas ?? []) {
    console.log(`${topic}: ${brokerName}`, ...brokerAddrs.map((one) => `${one.brokerId}=${one.brokerAddr}`));
  }
}

// The reason of the name server's table, and the milliseconds after which it wants to be asked again.
function reasonAndPause(error) {
  const found = { reason: '', wantedMs: 0 };
  const [bytes] = error?.metadata?.get('grpc-status-details-bin') ?? [];
  for (const { typeUrl, value } of bytes ? root.lookupType('Status').decode(bytes).details : []) {
    const name = typeUrl.split('/google.rpc.')[1];
    const detail = ['ErrorInfo', 'RetryInfo'].includes(name) ? root.lookupType(name).decode(value) : {};
    if (detail.domain === 'namesrv') found.reason = detail.reason;
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
    if (namesrvs.length > 1 && !stays) {
      at = (at + 1) % namesrvs.length;
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
