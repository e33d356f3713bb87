// Clusters, their brokers, and what changed last.

import { agoTime, clockTime, count, h, note, pill, plural, table } from "../dom.js";

const BROKERS_SHOWN = 300; // of a cluster; the filter finds the others
const FILTER_FROM = 8; // fewer brokers are seen at one glance

export const STATES = {
  ready: ["good", "ready"],
  warming: ["warn", "warming up"],
  unreachable: ["bad", "unreachable"],
  connecting: ["idle", "connecting"],
};

export const load = async () => null;

export function render(_, { overview, left, parameters }) {
  const filter = (parameters.filter ?? "").toLowerCase();
  const brokers = [...overview.brokers, ...left.values()].sort(byName);
  const shown = brokers.filter((broker) =>
    [broker.cluster, broker.broker, broker.addr, broker.state].some((text) => text.toLowerCase().includes(filter)));
  return [
    h("h1", { tabindex: "-1" }, "Overview"),
    cards(overview),
    notes(overview),
    figures(overview),
    brokers.length >= FILTER_FROM && form(filter),
    clusters(overview, shown, filter),
    latest(overview),
  ].filter(Boolean).flat();
}

const byName = (one, other) =>
  one.cluster.localeCompare(other.cluster) || one.broker.localeCompare(other.broker) || one.id - other.id;

export const nameOf = (overview, index) => overview.servers[index].name;

function cards(overview) {
  const items = overview.servers.map((server, index) => {
    const [kind, text] = STATES[server.state];
    const counts = server.version && [
      h("span", null, plural(server.brokers, "broker")), h("span", null, plural(server.topics, "topic")),
      h("span", null, `revision ${count(server.revision)}`),
    ];
    return h("li", { "data-key": `server-${index}`, class: `card ${kind}` },
      h("p", { class: "card-title" }, h("strong", null, server.name), pill(kind, text)),
      server.name !== server.endpoint && h("p", { class: "quiet mono" }, server.endpoint),
      counts && h("p", { class: "facts" }, counts),
      server.guard && h("p", null, pill("warn", "guard holds lost brokers")),
      server.refusal && h("p", { class: "quiet" }, `refuses: ${server.refusal}`),
      server.state === "unreachable" && h("p", { class: "quiet" },
        server.answeredAt ? ["last answer ", agoTime(server.answeredAt)] : "never answered", `. ${server.problem}`));
  });
  return h("section", { "aria-labelledby": "title-servers", "data-key": "servers" },
    h("h2", { id: "title-servers", class: "unseen" }, "Name servers"), h("ul", { class: "cards" }, items));
}

function notes(overview) {
  const found = [];
  if (overview.differenceCount) {
    found.push(note("warn", h("strong", null, "The name servers do not agree: "),
      plural(overview.differenceCount, "difference"), ". ", h("a", { href: "#/servers" }, "See which")));
  }
  if (overview.servers.some((server) => server.guard)) {
    found.push(note("warn", h("strong", null, "The mass-loss guard holds brokers. "),
      "Many brokers were lost at once; they stay in the routes as unconfirmed. ",
      "If they are really gone: nsctl guard confirm-loss"));
  }
  for (const server of overview.servers.filter((server) => server.leaderLost)) {
    found.push(note("warn", h("strong", null, `${server.name} has lost its leader ${server.leader}. `),
      `It answers from its last copy. ${server.leaderLost}`));
  }
  const holds = overview.intents.filter((intent) => intent.kind === "TOPIC_HOLD").length;
  if (holds) found.push(note("info", `${plural(holds, "topic")} on hold. `, h("a", { href: "#/servers" }, "See which")));
  return h("div", { "data-key": "notes" }, found);
}

function figures(overview) {
  const of = (what) => new Set(overview.brokers.map(what)).size;
  const topics = Math.max(0, ...overview.servers
    .filter((server) => overview.stale || server.state !== "unreachable").map((server) => server.topics ?? 0));
  const figure = (number, one, many) =>
    h("div", null, h("dt", null, number === 1 ? one : many ?? `${one}s`), h("dd", null, count(number)));
  return h("dl", { class: "figures", "data-key": "figures" },
    figure(of((broker) => broker.cluster), "cluster"),
    figure(of((broker) => `${broker.cluster} ${broker.broker}`), "broker group"),
    figure(overview.brokers.length, "broker"),
    figure(topics, "topic"));
}

function form(filter) {
  return h("form", { "data-view": "overview", "data-key": "filter", role: "search", class: "search" },
    h("label", { for: "filter" }, "Show only"),
    h("input", { id: "filter", name: "filter", type: "search", value: filter, maxlength: 255, autocomplete: "off",
      placeholder: "cluster, broker, address or state" }));
}

function clusters(overview, brokers, filter) {
  const names = [...new Set(brokers.map((broker) => broker.cluster))];
  if (!names.length) {
    const asked = overview.servers.some((server) => server.state === "connecting");
    return note("info", filter ? "No broker matches." : asked ? "Asking the name servers." : "There are no brokers.");
  }
  return names.map((name, index) => {
    const all = brokers.filter((broker) => broker.cluster === name);
    const columns = ["Broker", "Role", "Address", "State", "Heard of", "Topics version"];
    if (overview.permitActions) columns.push("Act");
    const rows = all.slice(0, BROKERS_SHOWN).map((broker, row) =>
      brokerRow(overview, broker, row === 0 || all[row - 1].broker !== broker.broker));
    return h("section", { "data-key": `cluster-${name}`, "aria-labelledby": `cluster-${index}` },
      h("h2", { id: `cluster-${index}` }, "Cluster ", name, " ", h("small", null, plural(all.filter((broker) => broker.state !== "left").length, "broker"))),
      table(`Brokers of cluster ${name}`, columns, rows),
      all.length > BROKERS_SHOWN && note("info", `${count(all.length - BROKERS_SHOWN)} more; filter to see them.`));
  });
}

function brokerState(overview, broker) {
  const missing = broker.missingAt.map((index) => nameOf(overview, index)).join(", ");
  switch (broker.state) {
    case "left": return pill("bad", "left ", agoTime(broker.leftAt));
    case "unconfirmed": return pill("warn", "unconfirmed");
    case "late": return pill("warn", "late");
    case "partly": return pill("warn", `not at ${missing}`);
    default: return pill(overview.stale ? "idle" : "good", overview.stale ? "was live" : "live");
  }
}

function brokerRow(overview, broker, firstOfGroup) {
  const decided = overview.intents.find((intent) => intent.broker === broker.broker
    && (intent.cluster === null || intent.cluster === broker.cluster));
  const drained = decided?.kind === "WIPE_WRITE_PERM";
  const answering = overview.servers
    .filter((server) => overview.stale || ["ready", "warming"].includes(server.state)).length;
  const everywhere = decided && decided.servers.length >= answering;
  const where = decided && !everywhere ? ` at ${decided.servers.map((index) => nameOf(overview, index)).join(", ")}` : "";
  const mark = decided && pill(drained ? "warn" : "idle", drained ? "drained" : "write permission given", where);
  const acts = !drained ? ["drain"] : everywhere ? ["restore"] : ["drain", "restore"];
  if (overview.permitConfirming && broker.state === "unconfirmed") acts.push("confirm");
  const gone = broker.state === "left";
  const cells = [
    [h("span", { class: "name" }, broker.broker), " ", mark],
    broker.id === 0 ? "master" : `slave\u00a0${broker.id}`,
    h("span", { class: "mono" }, broker.addr),
    [brokerState(overview, broker), !gone && !broker.channel && broker.state !== "unconfirmed"
      && h("span", { class: "quiet" }, " no channel")],
    agoTime(broker.heardAt),
    count(broker.topicsVersion),
  ];
  if (overview.permitActions) cells.push(firstOfGroup && !gone
    ? h("div", { class: "buttons" }, acts.map((act) => button(broker, act, overview.stale))) : "");
  const key = JSON.stringify([broker.broker, broker.id, broker.addr]);
  return { key, kind: gone ? "gone" : broker.state, cells };
}

function button(broker, act, stale) {
  return h("button", { type: "button", "data-act": act, "data-broker": broker.broker, "data-cluster": broker.cluster, disabled: stale,
    "aria-label": `${act} ${broker.broker} of ${broker.cluster}` }, act);
}

export function entries(overview, list) {
  return h("ol", { class: "journal" }, list.map((entry) =>
    h("li", { "data-key": `${entry.at} ${entry.servers} ${entry.revisions}` },
      h("p", { class: "quiet" }, clockTime(entry.at), ` ${entry.cause}`,
        overview.servers.length > 1 && ` at ${entry.servers.map((index) => nameOf(overview, index)).join(", ")}`,
        entry.caller && [" by ", h("span", { class: "mono" }, entry.caller)]),
      h("p", null, entry.summary),
      entry.comment && h("p", { class: "comment" }, entry.comment))));
}

function latest(overview) {
  return h("section", { "aria-labelledby": "title-latest", "data-key": "latest" },
    h("h2", { id: "title-latest" }, "What changed last"),
    overview.latest.length ? entries(overview, overview.latest) : note("info", "Nothing yet."),
    h("p", { class: "after" }, h("a", { href: "#/journal" }, "The whole journal")));
}
