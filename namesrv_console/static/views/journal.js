// What changed, who did it and why, at all name servers.

import { h, note } from "../dom.js";
import { entries, nameOf } from "./overview.js";

export const load = ({ topic, broker, before }, ask) => ask("journal", { topic, broker, before });

export function render(found, { overview, parameters }) {
  const { topic = "", broker = "", before } = parameters;
  const older = new URLSearchParams({ ...(topic && { topic }), ...(broker && { broker }), before: found.before });
  const newest = new URLSearchParams({ ...(topic && { topic }), ...(broker && { broker }) });
  return [
    h("h1", { tabindex: "-1" }, "Journal"),
    h("form", { "data-view": "journal", role: "search", class: "search" },
      field("topic", "Topic", topic), field("broker", "Broker", broker)),
    ...found.problems.map((problem, index) => problem
      && note("warn", `${nameOf(overview, index)} does not show its journal: ${problem.message || problem.reason}`)),
    found.entries.length ? entries(overview, found.entries) : note("info", "There is nothing in it."),
    h("nav", { class: "pager", "aria-label": "Pages" },
      before && h("a", { href: `#/journal?${newest}`, "data-key": "newest" }, "Newest"),
      found.before !== null && h("a", { href: `#/journal?${older}`, "data-key": "older" }, "Older")),
  ].filter(Boolean);
}

function field(name, label, value) {
  return [
    h("label", { for: `journal-${name}` }, label),
    h("input", { id: `journal-${name}`, name, type: "search", value, maxlength: 255, autocomplete: "off",
      autocapitalize: "off", spellcheck: "false" }),
  ];
}
