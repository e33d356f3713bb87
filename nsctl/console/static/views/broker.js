// One broker group: its brokers, intents about it, what happened to it, and its topics.

import { agoTime, clockTime, count, field, h, note, pill, table } from "../dom.js";
import { href, topicHref } from "../place.js";
import { role } from "./broker_table.js";
import { entries } from "./entries.js";
import { brokerState, intentOf, kindPill, nameOf, pager, PERMISSIONS, problems, range } from "./parts.js";

export const load = ({ cluster = "", name = "", containing, start }, ask) => ask("broker", { cluster, broker: name, contains: containing, start });

export function render(found, { overview, parameters }) {
  const intent = intentOf(overview, found.cluster, found.broker);
  return [
    h("h1", { tabindex: "-1", class: "mono" }, found.broker),
    h("p", { "data-key": "of" }, "Broker group of cluster ", h("a", { href: href("brokers", { cluster: found.cluster }) }, found.cluster)),
    intent && h("p", { class: "note warn", "data-key": "intent" }, intent.mark, ` since `, clockTime(intent.since),
      intent.ends_at && [" until ", clockTime(intent.ends_at)], intent.caller && ` by ${intent.caller}`, intent.comment && `: ${intent.comment}`),
    overview.permitActions && found.brokers.some((broker) => broker.state !== "left") && buttons(found, overview, intent),
    brokers(found, overview),
    topics(found, overview, parameters),
    history(found, overview),
  ].filter(Boolean);
}

function buttons(found, overview, intent) {
  const acts = !intent?.drained ? ["drain"] : intent.everywhere ? ["restore"] : ["drain", "restore"];
  if (overview.permitConfirming && found.brokers.some((broker) => broker.state === "unconfirmed")) acts.push("confirm");
  return h("p", { class: "acts", "data-key": "acts" }, acts.map((act) => h("button", {
    type: "button", "data-act": act, "data-broker": found.broker, "data-cluster": found.cluster, disabled: overview.stale,
  }, act === "confirm" ? "confirm the loss" : act)));
}

function channel({ channel: had, state }) {
  if (!had) return "none: its death shows after its timeout";
  return ["left", "unconfirmed", "doubted"].includes(state) ? "ended" : pill("good", "open");
}

function brokers(found, overview) {
  const rows = found.brokers.map((broker) => ({
    key: JSON.stringify([broker.id, broker.addr]),
    kind: broker.state === "left" ? "gone" : broker.state,
    cells: [
      role(broker), h("span", { class: "mono name" }, broker.addr), brokerState(overview, broker), agoTime(broker.heardAt),
      channel(broker), `${count(broker.timeout / 1000)} s`,
      found.registeredBy[broker.addr] ? h("span", { class: "mono" }, found.registeredBy[broker.addr]) : "", count(broker.topicsVersion),
    ],
  }));
  return h("section", { "aria-labelledby": "title-brokers", "data-key": "brokers" }, h("h2", { id: "title-brokers" }, "Brokers"),
    rows.length
      ? table(`Brokers of ${found.broker}`, ["Role", "Address", "State", "Heard of", "Agent's channel", "Timeout", "Registered by", "Topics version"], rows)
      : note("info", overview.servers.some((server) => server.state === "connecting") ? "Asking the name servers."
        : "No name server that answers has a broker of this name; the journal tells whether there was one."));
}

function topics({ topics: found, broker }, overview, parameters) {
  const frame = (...content) => h("section", { "aria-labelledby": "title-topics", "data-key": "topics" },
    h("h2", { id: "title-topics" }, "Topics ", found.at != null && h("small", null, `at ${nameOf(overview, found.at)}`)), content);
  if (found.problem) return frame(note("bad", found.problem.message || found.problem.reason));
  if (!found.total) return frame(note("info", "It has no topics."));
  const rows = found.rows.map((topic) => ({
    key: topic.topic,
    cells: [
      [h("a", { href: topicHref(topic.topic) }, topic.topic), kindPill(topic.kind)], topic.permission,
      topic.reported_perm === undefined ? "the same" : PERMISSIONS[topic.reported_perm & 7],
      count(topic.read_queue_nums ?? 0), count(topic.write_queue_nums ?? 0),
    ],
  }));
  return frame(
    h("form", { "data-view": "broker", role: "search", class: "search" }, field("containing", "Name has in it", parameters.containing ?? "")),
    range(found, rows.length, "topic"),
    table(`Topics of ${broker}`, ["Topic", "Permission", "Broker reports", "Read queues", "Write queues"], rows),
    pager(found, "broker", parameters));
}

function history(found, overview) {
  return h("section", { "aria-labelledby": "title-history", "data-key": "history" },
    h("h2", { id: "title-history" }, "Journal ", h("small", null, h("a", { href: href("journal", { broker: found.broker }) }, "all of it"))),
    problems(overview, found.historyProblems, "show its journal"),
    found.history.length ? entries(overview, found.history) : note("info", "There is nothing in it."));
}
