// Name servers side by side, and where they differ.

import { agoTime, clockTime, count, h, note, pill, table } from "../dom.js";
import { brokerHref, topicHref } from "../place.js";
import { nameOf, STATES } from "./parts.js";

const CLOCK_MILLIS = 1000; // a clock that is further from the console's is told

export const load = async () => null;

export function render(_, { overview }) {
  return [
    h("h1", { tabindex: "-1" }, "Name servers"),
    sideBySide(overview.servers),
    differences(overview),
    intents(overview),
  ].filter(Boolean);
}

function sideBySide(servers) {
  const known = (what) => (server) => (server.version === undefined ? "" : what(server));
  const rows = [
    ["Address", (server) => h("span", { class: "mono" }, server.endpoint)],
    ["State", (server) => pill(...STATES[server.state])],
    ["Answers", (server) => {
      if (server.state !== "unreachable") return server.version === undefined ? "" : "every second";
      return server.answeredAt ? ["last ", agoTime(server.answeredAt)] : "never";
    }],
    ["Problem", (server) => server.problem ?? server.refusal ?? "", (server) => server.problem || server.refusal],
    ["Guard", known((server) => (server.guard_tripped ? pill("warn", "holds lost brokers") : "quiet"))],
    ["Brokers", known((server) => count(server.live_broker_count))],
    ["of these unconfirmed", known((server) => count(server.unconfirmed_broker_count))],
    ["of these doubted", known((server) => count(server.doubted_broker_count ?? 0))],
    ["Topics", known((server) => count(server.topic_count))],
    ["Revision", known((server) => count(server.header.revision))],
    ["Started", known((server) => clockTime(server.started_at))],
    ["Version", known((server) => server.version)],
    ["Event loop's longest delay", known((server) => `${count(Math.round(server.loopLagMillis * 10) / 10)} ms`)],
    ["Clock", (server) => (server.clockAhead === undefined ? "" : clockText(server.clockAhead))],
  ].filter(([, , present]) => !present || servers.some(present));
  return h("section", { "aria-labelledby": "title-side", "data-key": "side" },
    h("h2", { id: "title-side" }, "Side by side"),
    table("Name servers side by side", ["", ...servers.map((server) => server.name)],
      rows.map(([title, cell]) => ({ key: title, cells: [title, ...servers.map(cell)] }))));
}

function clockText(ahead) {
  if (Math.abs(ahead) < CLOCK_MILLIS) return "as the console's";
  return pill("warn", `${count(Math.round(Math.abs(ahead) / 1000))} s ${ahead > 0 ? "ahead" : "behind"}`);
}

function differences(overview) {
  const { servers, differences: found, differenceCount } = overview;
  const comparable = servers.filter((server) => !["unreachable", "connecting"].includes(server.state)).length;
  const title = h("h2", { id: "title-differences" }, "Differences");
  const frame = (...content) =>
    h("section", { "aria-labelledby": "title-differences", "data-key": "differences" }, title, content);
  if (comparable < 2) return frame(note("info", "Fewer than two name servers answer: there is nothing to compare."));
  const topics = h("p", { class: "after" }, h("a", { href: "#/topics?differing=1" }, "Topics that are not at every name server"));
  if (!found.length) return frame(note("good", `The ${comparable} name servers that answer hold the same brokers.`), topics);
  const rows = found.map((difference) => ({
    key: JSON.stringify([difference.intent, difference.cluster, difference.broker, difference.id, difference.addr, difference.topic]),
    cells: [
      difference.intent
        ? [h("strong", null, difference.intent), ` ${difference.topic || difference.broker} of ${difference.cluster || "every cluster"}`]
        : [h("a", { href: brokerHref(difference.cluster, difference.broker) }, difference.broker),
          ` id ${difference.id} ${difference.addr} of ${difference.cluster}`],
      agoTime(difference.since),
      ...difference.said.map((said) => said ?? "not compared"),
    ],
  }));
  return frame(
    table("What differs", ["What", "Since", ...servers.map((server) => server.name)], rows),
    differenceCount > found.length && note("info", `${count(differenceCount - found.length)} more are not shown.`),
    topics);
}

const KINDS = { WIPE_WRITE_PERM: "drained", ADD_WRITE_PERM: "write permission given", TOPIC_HOLD: "topic on hold" };

function subject({ topic, broker_name: broker, cluster_name: cluster }) {
  if (topic) return h("a", { href: topicHref(topic) }, topic);
  return cluster ? h("a", { href: brokerHref(cluster, broker) }, broker) : broker;
}

function intents(overview) {
  const rows = overview.intents.map((intent) => ({
    key: JSON.stringify([intent.kind, intent.cluster_name, intent.broker_name, intent.topic]),
    cells: [
      subject(intent), [KINDS[intent.kind] ?? intent.kind, intent.awaits_registration && pill("warn", "not registered yet")],
      intent.cluster_name ?? "every cluster",
      clockTime(intent.since), intent.ends_at ? clockTime(intent.ends_at) : "lifted", intent.caller, intent.comment,
      intent.servers.map((index) => nameOf(overview, index)).join(", "),
    ],
  }));
  return h("section", { "aria-labelledby": "title-intents", "data-key": "intents" },
    h("h2", { id: "title-intents" }, "Operators' intents"),
    rows.length
      ? table("Intents in force", ["What", "Intent", "Cluster", "Since", "Until", "By", "Why", "At"], rows)
      : note("info", "Nothing is drained or on hold."));
}
