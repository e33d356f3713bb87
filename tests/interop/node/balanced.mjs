// Looks a topic up at several name servers again and again, as a service config says.
//
// Usage: node balanced.mjs FILE HOST:PORT,HOST:PORT... TOPIC
//
// For each line of standard input it prints the calls since the line before: {"answers": {EPOCH: number of answers},
// "failures": [...]}.
import { readFileSync } from 'node:fs';
import { createInterface } from 'node:readline';
import { connect, describe } from './namesrv.mjs';

const CALLERS = 2;
// Bounds the list where every call fails.
const MOST_FAILURES = 10;

const [file, endpoints, topic] = process.argv.slice(2);
if (!topic) {
  console.error('usage: node balanced.mjs FILE HOST:PORT,HOST:PORT... TOPIC');
  process.exit(2);
}

let tally = { answers: {}, failures: [] };
const routes = connect(`ipv4:${endpoints}`, { 'grpc.service_config': readFileSync(file, 'utf8') });

function call() {
  routes.GetTopicRoute({ topic }, (error, answer) => {
    if (!error) tally.answers[answer.header.epoch] = (tally.answers[answer.header.epoch] ?? 0) + 1;
    else if (tally.failures.length < MOST_FAILURES) tally.failures.push(describe(error));
    setImmediate(call);
  });
}

for (let caller = 0; caller < CALLERS; caller += 1) call();
for await (const _line of createInterface({ input: process.stdin })) {
  console.log(JSON.stringify(tally));
  tally = { answers: {}, failures: [] };
}
process.exit(0);
