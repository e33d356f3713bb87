// Opens a snapshot stream, reads its first message, and reads on when a line comes on standard input.
//
// Usage: node stalled.mjs HOST:PORT
//
// It prints {} after the first message. At the stream's end it exits 1 with one line on standard error.
import { connect, describe } from './namesrv.mjs';

const [endpoint, ...rest] = process.argv.slice(2);
if (!endpoint || rest.length > 0) {
  console.error('usage: node stalled.mjs HOST:PORT');
  process.exit(2);
}
const client = connect(endpoint);
const stream = client.StreamRouteSnapshot({}, { deadline: Date.now() + 60_000 });
stream.on('error', (error) => {
  console.error(describe(error));
  process.exitCode = 1;
  client.close();
  process.stdin.destroy();
});
stream.once('data', () => {
  stream.pause();
  console.log('{}');
  process.stdin.once('data', () => stream.on('data', () => {}).resume());
});
