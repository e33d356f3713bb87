// What changed, who did it and why, at all name servers.

import { field, h, note } from "../dom.js";
import { entries } from "./entries.js";
import { problems } from "./parts.js";

export const load = ({ topic, broker, before }, ask) => ask("journal", { topic, broker, before });

export function render(found, { overview, parameters }) {
  const { topic = "", broker = "", before } = parameters;
  const older = new URLSearchParams({ ...(topic && { topic }), ...(broker && { broker }), before: found.before });
  const newest = new URLSearchParams({ ...(topic && { topic }), ...(broker && { broker }) });
  return [
    h("h1", { tabindex: "-1" }, "Journal"),
    h("form", { "data-view": "journal", role: "search", class: "search" },
      field("topic", "Topic", topic), field("broker", "Broker", broker)),
    ...problems(overview, found.problems, "show its journal"),
    found.entries.length ? entries(overview, found.entries) : note("info", "There is nothing in it."),
    h("nav", { class: "pager", "aria-label": "Pages" },
      before && h("a", { href: `#/journal?${newest}`, "data-key": "newest" }, "Newest"),
      found.before !== null && h("a", { href: `#/journal?${older}`, "data-key": "older" }, "Older")),
  ].filter(Boolean);
}
