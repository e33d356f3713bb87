// All brokers, or those of a cluster, page by page.

import { checkbox, field, h } from "../dom.js";
import { brokerTable } from "./broker_table.js";
import { pager, range } from "./parts.js";

export const load = ({ cluster, containing, unhealthy, sort, start }, ask) => ask("brokers", { cluster, contains: containing, unhealthy, sort, start });

export function render(found, { overview, parameters }) {
  const { cluster = "", containing = "", unhealthy, sort } = parameters;
  const title = cluster ? `Brokers of ${cluster}` : "Brokers";
  return [
    h("h1", { tabindex: "-1" }, title),
    h("form", { "data-view": "brokers", role: "search", class: "search" },
      field("containing", "Show only", containing, { placeholder: "cluster, broker, address or state" }),
      checkbox("unhealthy", "only unhealthy", unhealthy === "1")),
    range(found, found.brokers.length, "broker"),
    found.brokers.length > 0 && brokerTable(overview, title, found.brokers, sort, !cluster),
    pager(found, "brokers", parameters),
  ].filter(Boolean);
}
