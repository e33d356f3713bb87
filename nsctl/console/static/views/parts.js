// Words and parts that several views have.

import { agoTime, clockTime, count, h, note, pill, plural } from "../dom.js";
import { href } from "../place.js";

export const PERMISSIONS = ["---", "--I", "-W-", "-WI", "R--", "R-I", "RW-", "RWI"];

export const STATES = {
  ready: ["good", "ready"],
  warming: ["warn", "warming up"],
  unreachable: ["bad", "unreachable"],
  connecting: ["idle", "connecting"],
};

export const nameOf = (overview, index) => overview.servers[index].name;

export function brokerState(overview, broker) {
  const missing = broker.missingAt.map((index) => nameOf(overview, index)).join(", ");
  switch (broker.state) {
    case "left": return pill("bad", "left ", agoTime(broker.leftAt));
    case "unconfirmed": return pill("warn", "unconfirmed");
    case "doubted": return pill("warn", "doubted until ", clockTime(broker.doubtEndsAt));
    case "late": return pill("warn", "late");
    case "partly": return pill("warn", `not at ${missing}`);
    default: return pill(overview.stale ? "idle" : "good", overview.stale ? "was live" : "live");
  }
}

const INTENTS = { WIPE_WRITE_PERM: ["warn", "drained"], ADD_WRITE_PERM: ["idle", "write permission given"] };

// The intent about a group, if any, and whether all name servers that answer know of it.
export function intentOf(overview, cluster, broker) {
  const found = overview.intents.find((intent) => intent.broker_name === broker
    && [undefined, cluster].includes(intent.cluster_name));
  if (!found) return null;
  const answering = overview.servers
    .filter((server) => overview.stale || ["ready", "warming"].includes(server.state)).length;
  const everywhere = found.servers.length >= answering;
  const drained = found.kind === "WIPE_WRITE_PERM";
  const where = everywhere ? "" : ` at ${found.servers.map((index) => nameOf(overview, index)).join(", ")}`;
  return { ...found, drained, everywhere, mark: pill(...INTENTS[found.kind] ?? ["idle", found.kind], where) };
}

export const kindPill = (kind) => kind !== "normal" && [" ", pill("idle", kind.replace("-", " "))];

export const problems = (overview, list, what) => list.map((problem, index) => problem
  && note("warn", `${nameOf(overview, index)} does not ${what}: ${problem.message || problem.reason}`)).filter(Boolean);

// "101 to 200 of 5,000 topics", and the way to the pages before and after.
export function range(found, shown, one) {
  return h("p", { role: "status" }, found.matched
    ? `${count(found.start + 1)} to ${count(found.start + shown)} of ${plural(found.matched, one)}`
    : `No ${one} is like that.`);
}

export function pager(found, view, parameters) {
  const before = Math.max(0, found.start - found.pageSize);
  const after = found.start + found.pageSize;
  if (found.start === 0 && after >= found.matched) return null;
  return h("nav", { class: "pager", "aria-label": "Pages", "data-key": "pager" },
    found.start > 0 && h("a", { href: href(view, { ...parameters, start: before || "" }), "data-key": "before" }, "Page before"),
    after < found.matched && h("a", { href: href(view, { ...parameters, start: after }), "data-key": "after" }, "Next page"));
}
