// Prints where a topic lives: a name server's route as JSON.
//
// Usage: node lookup.mjs HOST:PORT TOPIC
//
// It exits 1 with one line on standard error if the call fails.
import { asJson, connect, describe } from './namesrv.mjs';

const [endpoint, topic, ...rest] = process.argv.slice(2);
if (!endpoint || topic === undefined || rest.length > 0) {
  console.error('usage: node lookup.mjs HOST:PORT TOPIC');
  process.exit(2);
}
const client = connect(endpoint);
client.GetTopicRoute({ topic }, { deadline: Date.now() + 20_000 }, (error, response) => {
  if (error) {
    console.error(describe(error));
    process.exitCode = 1;
  } else {
    console.log(asJson(response));
  }
  client.close();
});
