// Topics, searched by the console: there may be a hundred thousand.

import { checkbox, count, field, h, pill, plural } from "../dom.js";
import { topicHref } from "../place.js";
import { kindPill, nameOf, pager, problems, range } from "./parts.js";

const KINDS = ["normal", "ordered", "retry", "dead-letter", "system"];

export const load = ({ containing, start, differing, kind }, ask) => ask("topics", { contains: containing, start, differing, kind });

export function render(found, { overview, parameters }) {
  const { containing = "", differing, kind = "" } = parameters;
  return [
    h("h1", { tabindex: "-1" }, "Topics"),
    h("form", { "data-view": "topics", role: "search", class: "search" },
      // Not "contains": a form's field of that name hides the form's own contains(), which scripts that look at a page call.
      field("containing", "Name has in it", containing),
      h("label", { for: "field-kind" }, "Kind"),
      h("select", { id: "field-kind", name: "kind" }, h("option", { value: "" }, "all"), KINDS.map((one) =>
        h("option", { value: one, selected: one === kind }, `${one.replace("-", " ")} (${count(found.kinds[one] ?? 0)})`))),
      overview.servers.length > 1 && checkbox("differing", "only those that are not at every name server", differing === "1")),
    ...problems(overview, found.problems, "say which topics it has"),
    range(found, found.topics.length, "topic"),
    found.matched !== found.total && h("p", { class: "quiet" }, `There are ${plural(found.total, "topic")} in all.`),
    h("ul", { class: "topics" }, found.topics.map((topic) => h("li", { "data-key": topic.name },
      h("a", { href: topicHref(topic.name) }, topic.name), kindPill(topic.kind),
      topic.missingAt.length > 0 && [" ", pill("warn",
        `not at ${topic.missingAt.map((index) => nameOf(overview, index)).join(", ")}`)]))),
    pager(found, "topics", parameters),
  ].filter(Boolean);
}
