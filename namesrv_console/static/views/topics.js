// Topics, searched by the console: there may be a hundred thousand.

import { count, h, note, pill, plural, topicHref } from "../dom.js";
import { nameOf } from "./overview.js";

export const load = ({ containing, start, differing }, ask) => ask("topics", { contains: containing, start, differing });

export function render(found, { overview, parameters }) {
  const { containing = "", differing } = parameters;
  const last = found.start + found.topics.length;
  const problems = found.problems.map((problem, index) => problem
    && note("warn", `${nameOf(overview, index)} does not say which topics it has: ${problem.message || problem.reason}`));
  return [
    h("h1", { tabindex: "-1" }, "Topics"),
    h("form", { "data-view": "topics", role: "search", class: "search" },
      h("label", { for: "containing" }, "Name has in it"),
      // Not "contains": a form's field of that name hides the form's own contains(), which scripts that look at a page call.
      h("input", { id: "containing", name: "containing", type: "search", value: containing, maxlength: 255,
        autocomplete: "off", autocapitalize: "off", spellcheck: "false" }),
      overview.servers.length > 1 && h("label", { class: "check" },
        h("input", { type: "checkbox", name: "differing", value: "1", checked: differing === "1" }),
        "only those that are not at every name server")),
    ...problems.filter(Boolean),
    h("p", { role: "status" }, found.matched
      ? `${count(found.start + 1)} to ${count(last)} of ${plural(found.matched, "topic")}`
      : "No topic is like that.", found.matched !== found.total && ` (there are ${count(found.total)})`),
    h("ul", { class: "topics" }, found.topics.map((topic) => h("li", { "data-key": topic.name },
      h("a", { href: topicHref(topic.name) }, topic.name),
      topic.missingAt.length > 0 && [" ", pill("warn",
        `not at ${topic.missingAt.map((index) => nameOf(overview, index)).join(", ")}`)]))),
    pager(found, parameters),
  ].filter(Boolean);
}

function pager(found, parameters) {
  const href = (start) => `#/topics?${new URLSearchParams({ ...parameters, start })}`;
  const before = Math.max(0, found.start - found.pageSize);
  const after = found.start + found.pageSize;
  if (found.start === 0 && after >= found.matched) return null;
  return h("nav", { class: "pager", "aria-label": "Pages" },
    found.start > 0 && h("a", { href: href(before), "data-key": "before" }, "Page before"),
    after < found.matched && h("a", { href: href(after), "data-key": "after" }, "Next page"));
}
