// Name servers, what is wrong, what changed last, and the clusters.

import { agoTime, count, h, note, pill, plural } from "../dom.js";
import { clusters } from "./clusters.js";
import { entries } from "./entries.js";
import { guard } from "./guard.js";
import { STATES } from "./parts.js";

export const load = ({ containing, unhealthy, sort, open, shut }, ask) => ask("clusters", { contains: containing, unhealthy, sort, open, shut });

export function render(found, { overview, parameters }) {
  return [
    h("h1", { tabindex: "-1" }, "Overview"),
    cards(overview),
    notes(overview),
    figures(overview),
    latest(overview),
    clusters(found, overview, parameters),
  ];
}

function cards(overview) {
  const items = overview.servers.map((server, index) => {
    const [kind, text] = STATES[server.state];
    const counts = server.version && [
      h("span", null, plural(server.live_broker_count, "broker")), h("span", null, plural(server.topic_count, "topic")),
      h("span", null, `revision ${count(server.header.revision)}`),
    ];
    return h("li", { "data-key": `server-${index}`, class: `card ${kind}` },
      h("p", { class: "card-title" }, h("strong", null, server.name), pill(kind, text)),
      server.name !== server.endpoint && h("p", { class: "quiet mono" }, server.endpoint),
      counts && h("p", { class: "facts" }, counts),
      server.guard_tripped && h("p", null, pill("warn", "guard holds lost brokers")),
      server.refusal && h("p", { class: "quiet" }, `refuses: ${server.refusal}`),
      server.state === "unreachable" && h("p", { class: "quiet" },
        server.answeredAt ? ["last answer ", agoTime(server.answeredAt)] : "never answered", `. ${server.problem}`));
  });
  return h("section", { "aria-labelledby": "title-servers", "data-key": "servers" },
    h("h2", { id: "title-servers", class: "unseen" }, "Name servers"), h("ul", { class: "cards" }, items));
}

function notes(overview) {
  const found = [guard(overview)];
  if (overview.differenceCount) {
    found.push(note("warn", h("strong", null, "The name servers do not agree: "),
      plural(overview.differenceCount, "difference"), ". ", h("a", { href: "#/servers" }, "See which")));
  }
  const holds = overview.intents.filter((intent) => intent.kind === "TOPIC_HOLD").length;
  if (holds) found.push(note("info", `${plural(holds, "topic")} on hold. `, h("a", { href: "#/servers" }, "See which")));
  return h("div", { "data-key": "notes" }, found);
}

function figures({ figures: { clusters: some, groups, brokers, topics } }) {
  const figure = (number, one) => h("div", null, h("dt", null, number === 1 ? one : `${one}s`), h("dd", null, count(number)));
  return h("dl", { class: "figures", "data-key": "figures" },
    figure(some, "cluster"), figure(groups, "broker group"), figure(brokers, "broker"), figure(topics, "topic"));
}

function latest(overview) {
  return h("section", { "aria-labelledby": "title-latest", "data-key": "latest", class: "latest" },
    h("h2", { id: "title-latest" }, "What changed last ", h("small", null, h("a", { href: "#/journal" }, "the whole journal"))),
    overview.latest.length ? entries(overview, overview.latest) : note("info", "Nothing yet."));
}
