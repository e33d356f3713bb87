// Prints topics' routes as they change: one line of JSON for each change and each bookmark.
//
// Usage: node watch.mjs [--after EPOCH/REVISION] [--add TOPIC] HOST:PORT TOPIC|PREFIX*...
//
// The topic of --add joins the open watch after the first bookmark. A change is {"revision": ..., "change": a TopicRouteChange}, a bookmark {"revision": ..., "epoch": ...,
// "bookmark": true}: the point to give to --after, so that only what changed since is printed. It ends when it is
// ended, or exits 1 with one line on standard error if the stream fails.
import { asJson, connect, describe } from './namesrv.mjs';

const words = process.argv.slice(2);
const point = words[0] === '--after' ? words.splice(0, 2)[1] : undefined;
let added = words[0] === '--add' ? words.splice(0, 2)[1] : undefined;
const [endpoint, ...names] = words;
if (!endpoint || names.length === 0) {
  console.error('usage: node watch.mjs [--after EPOCH/REVISION] [--add TOPIC] HOST:PORT TOPIC|PREFIX*...');
  process.exit(2);
}
const request = {
  topics: names.filter((name) => !name.endsWith('*')),
  topic_prefixes: names.filter((name) => name.endsWith('*')).map((name) => name.slice(0, -1)),
};
if (point) {
  const [epoch, revision] = point.split('/');
  request.resume_after = { epoch, revision };
}

const client = connect(endpoint);
// No deadline: a watch ends when one side leaves.
const stream = client.WatchTopicRoutes();
stream.write(request);
stream.on('data', ({ header: { epoch, revision }, changes, bookmark }) => {
  for (const change of changes) {
    console.log(asJson({ revision, change }));
  }
  if (bookmark) console.log(asJson({ revision, epoch, bookmark }));
  if (bookmark && added) {
    stream.write({ topics: [added] });
    added = undefined;
  }
});
stream.on('error', (error) => {
  console.error(describe(error));
  process.exitCode = 1;
  client.close();
});
stream.on('end', () => client.close());
