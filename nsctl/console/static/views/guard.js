// The mass-loss guard: which groups it holds, until when, and the button that says they are gone.

import { clockTime, h, note, plural } from "../dom.js";
import { brokerHref } from "../place.js";
import { nameOf } from "./parts.js";

export function guard(overview) {
  const { guard: held } = overview;
  if (!held) return null;
  const names = held.groups.map(({ cluster, broker }, index) =>
    [index > 0 && ", ", h("a", { href: brokerHref(cluster, broker) }, broker)]);
  return note("warn",
    h("strong", null, `The mass-loss guard holds ${plural(held.brokers, "broker")} of ${plural(held.groupCount, "group")}`),
    ` at ${held.servers.map((index) => nameOf(overview, index)).join(", ")}`,
    held.endsAt !== null && [" until ", clockTime(held.endsAt)], ": ", names,
    held.groupCount > held.groups.length && ` and ${plural(held.groupCount - held.groups.length, "more group")}`, ". ",
    "They were lost together, so the network is the likely cause: they stay in the routes, unconfirmed, until they are back or the time is up. ",
    overview.permitConfirming
      ? h("button", { type: "button", "data-act": "confirm", disabled: overview.stale }, "They are really gone")
      : "If they are really gone: nsctl guard confirm-loss");
}
