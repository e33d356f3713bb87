// Brokers as a table that can be sorted.

import { agoTime, count, h, table } from "../dom.js";
import { brokerHref } from "../place.js";
import { brokerState, intentOf } from "./parts.js";

const COLUMNS = [
  ["Broker", "broker"], ["Role", "role"], ["Address", "addr"], ["State", "state"], ["Heard of", "heard"], ["Topics version", "version"],
];

export function brokerTable(overview, caption, brokers, sorted, withCluster = false) {
  const [first, ...others] = COLUMNS;
  const columns = withCluster ? [first, "Cluster", ...others] : COLUMNS;
  return table(caption, columns, brokers.map((broker) => row(overview, broker, withCluster)), sorted);
}

export const role = (broker) => (broker.id === 0 ? "master" : `slave\u00a0${broker.id}`);

function row(overview, broker, withCluster) {
  const gone = broker.state === "left";
  const cells = [
    [h("a", { class: "name", href: brokerHref(broker.cluster, broker.broker) }, broker.broker), " ",
      intentOf(overview, broker.cluster, broker.broker)?.mark],
    withCluster && broker.cluster,
    role(broker),
    h("span", { class: "mono" }, broker.addr),
    [brokerState(overview, broker), !gone && !broker.channel && broker.state !== "unconfirmed"
      && h("span", { class: "quiet" }, " no channel")],
    agoTime(broker.heardAt),
    count(broker.topicsVersion),
  ];
  const key = JSON.stringify([broker.cluster, broker.broker, broker.id, broker.addr]);
  return { key, kind: gone ? "gone" : broker.state, cells: cells.filter((cell) => cell !== false) };
}
