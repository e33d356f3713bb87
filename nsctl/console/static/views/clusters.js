// The clusters of the overview: each can be folded, and the big ones are at first.

import { checkbox, count, field, h, note, pill, plural } from "../dom.js";
import { href } from "../place.js";
import { brokerTable } from "./broker_table.js";

const WORDS = { left: ["bad", "left"], unconfirmed: ["warn", "unconfirmed"], doubted: ["warn", "doubted"], late: ["warn", "late"], partly: ["warn", "not everywhere"] };

export function clusters(found, overview, parameters) {
  const { containing = "", unhealthy } = parameters;
  const filtered = containing || unhealthy;
  const title = h("h2", { id: "title-clusters" }, "Clusters ",
    found.unhealthy > 0 && h("small", null, `${plural(found.unhealthy, "broker")} unhealthy`));
  const asked = overview.servers.some((server) => server.state === "connecting");
  return h("section", { "aria-labelledby": "title-clusters", "data-key": "clusters" }, title,
    (found.total > 0 || filtered) && h("form", { "data-view": "overview", "data-key": "filter", role: "search", class: "search" },
      field("containing", "Show only", containing, { placeholder: "cluster, broker, address or state" }),
      checkbox("unhealthy", "only unhealthy", unhealthy === "1")),
    !found.clusters.length && note(found.total ? "good" : "info",
      containing ? "No broker matches." : unhealthy && found.total ? "All brokers are live." : asked ? "Asking the name servers." : "There are no brokers."),
    found.clusters.map((cluster, index) => section(cluster, index, overview, parameters)),
    found.more > 0 && note("info", `${plural(found.more, "more cluster")}; filter to see them.`));
}

function section(cluster, index, overview, parameters) {
  const { containing = "", unhealthy, sort } = parameters;
  const id = `cluster-${index}`;
  const states = Object.entries(cluster.states).map(([state, number]) =>
    [" ", pill(WORDS[state][0], `${count(number)} ${WORDS[state][1]}`)]);
  const heading = h("h3", { id }, h("button", {
    type: "button", class: "fold", "aria-expanded": String(cluster.open), "aria-controls": `${id}-brokers`,
    "data-set": JSON.stringify(folding(cluster, parameters)),
  }, h("span", { "aria-hidden": "true" }, cluster.open ? "▾" : "▸"), ` ${cluster.name}`), " ",
  h("small", null, plural(cluster.groups, "group"), ", ", plural(cluster.brokers, "broker")), states);
  const more = cluster.open ? cluster.matched - cluster.rows.length : 0;
  return h("section", { "data-key": `cluster-${cluster.name}`, "aria-labelledby": id }, heading,
    h("div", { id: `${id}-brokers`, hidden: !cluster.open },
      cluster.open && brokerTable(overview, `Brokers of cluster ${cluster.name}`, cluster.rows, sort),
      more > 0 && h("p", { class: "after" }, h("a", { href: href("brokers", { cluster: cluster.name, containing, unhealthy, sort }) },
        `All ${plural(cluster.matched, "broker")} of ${cluster.name}`))));
}

// The parameters that fold a cluster, or open it: lists of names with commas, of which there is none in a name.
function folding({ name, open }, parameters) {
  const lists = { open: new Set(split(parameters.open)), shut: new Set(split(parameters.shut)) };
  const [from, to] = open ? ["open", "shut"] : ["shut", "open"];
  lists[from].delete(name);
  lists[to].add(name);
  return { open: [...lists.open].join(","), shut: [...lists.shut].join(",") };
}

const split = (names) => (names ? names.split(",") : []);
