// Entries of the journal. What they name is a link.

import { clockTime, h } from "../dom.js";
import { brokerHref, topicHref } from "../place.js";
import { nameOf } from "./parts.js";

export function entries(overview, list) {
  return h("ol", { class: "journal" }, list.map((entry) =>
    h("li", { "data-key": `${entry.at} ${entry.servers} ${entry.positions}` },
      h("p", { class: "quiet" }, clockTime(entry.at), ` ${entry.cause}`,
        overview.servers.length > 1 && ` at ${entry.servers.map((index) => nameOf(overview, index)).join(", ")}`,
        entry.caller && [" by ", h("span", { class: "mono" }, entry.caller)]),
      h("p", null, linked(entry)),
      entry.comment && h("p", { class: "comment" }, entry.comment))));
}

function linked({ summary, mentions }) {
  const characters = [...summary]; // places are counted in characters, as the console counts them
  let end = 0;
  const parts = mentions.map(({ at, broker, cluster, topic }) => {
    const before = characters.slice(end, at).join("");
    end = at + [...(topic ?? broker)].length;
    return [before, h("a", { href: topic ? topicHref(topic) : brokerHref(cluster, broker) }, topic ?? broker)];
  });
  return [parts, characters.slice(end).join("")];
}
