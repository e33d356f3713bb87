// One topic: its route drawn, and why it is so.

import { agoTime, count, h, note, pill, plural, svg, table } from "../dom.js";
import { brokerHref, href } from "../place.js";
import { entries } from "./entries.js";
import { kindPill, nameOf, PERMISSIONS, problems } from "./parts.js";

const DRAWN = 40; // groups in a picture; the table has all
const WRITE = 2;
const READ = 4;

export const load = ({ name = "" }, ask) => ask("route", { topic: name });

export function render({ topic, kind, answers, history, historyProblems }, { overview, width }) {
  return [
    h("h1", { tabindex: "-1", class: "mono" }, topic, kindPill(kind)),
    ...sayings(answers).map(({ servers, answer }) => saying(topic, answer, servers, overview, width)),
    reasons(answers, overview),
    h("section", { "aria-labelledby": "title-history", "data-key": "history" },
      h("h2", { id: "title-history" }, "Journal ", h("small", null, h("a", { href: href("journal", { topic }) }, "all of it"))),
      problems(overview, historyProblems, "show its journal"),
      history.length ? entries(overview, history) : note("info", "There is nothing in it.")),
  ].filter(Boolean);
}

// Name servers that say the same, together.
function sayings(answers) {
  const found = new Map();
  answers.forEach((answer, index) => {
    const key = JSON.stringify([answer.groups, answer.order, answer.problem?.reason]);
    if (!found.has(key)) found.set(key, { answer, servers: [] });
    found.get(key).servers.push(index);
  });
  return [...found.values()];
}

function saying(topic, answer, servers, overview, width) {
  const names = servers.map((index) => nameOf(overview, index)).join(", ");
  const title = h("h2", { id: `route-${servers[0]}` }, `Route at ${names}`);
  const frame = (...content) =>
    h("section", { "data-key": `route-${servers[0]}`, "aria-labelledby": `route-${servers[0]}` }, title, content);
  if (answer.problem) {
    const { reason, message, unreachable } = answer.problem;
    return frame(note(unreachable ? "bad" : "info", message || reason));
  }
  return frame(
    h("p", { class: "quiet" }, plural(answer.groups.length, "broker group"),
      `, ${plural(total(answer, "read_queue_nums", READ), "queue")} to read from, ${count(total(answer, "write_queue_nums", WRITE))} to write to`,
      answer.order && `, ordered: ${answer.order}`),
    width < 560 ? drawTall(topic, answer.groups, width) : drawWide(topic, answer.groups, Math.min(width, 780)),
    answer.groups.length > DRAWN && note("info", `The picture has the first ${DRAWN}.`),
    answer.groups.length > 0 && asTable(answer, names));
}

const total = (answer, queues, bit) =>
  answer.groups.reduce((sum, group) => sum + (group.perm & bit ? group[queues] ?? 0 : 0), 0);

function usable(group) {
  if (group.perm & WRITE && group.write_queue_nums > 0) return "writable";
  return group.perm & READ && group.read_queue_nums > 0 ? "readable" : "unusable";
}

const WORDS = { writable: "read and write", readable: "read only", unusable: "neither" };

function lines(group) {
  const drained = group.reported_perm !== undefined ? `, broker reports ${PERMISSIONS[group.reported_perm & 7]}` : "";
  return [
    `${plural(group.read_queue_nums ?? 0, "read queue")}, ${count(group.write_queue_nums ?? 0)} write, ${group.permission}${drained}`,
    ...group.broker_addrs.slice(0, 4).map(({ broker_id: id, broker_addr: addr }) =>
      `${id === 0 ? "master" : `slave ${id}`}  ${addr}${group.unconfirmed_broker_ids.includes(id) ? "  unconfirmed" : ""}`),
    group.broker_addrs.length > 4 && `and ${group.broker_addrs.length - 4} more`,
    group.broker_addrs.length === 0 && "no live broker",
  ].filter(Boolean);
}

function cut(text, width, perCharacter) {
  const most = Math.max(4, Math.floor(width / perCharacter));
  return text.length > most ? `${text.slice(0, most - 1)}…` : text;
}

const heightOf = (group) => 40 + 18 * lines(group).length;

function box(group, x, y, width) {
  const title = `${group.broker_name} of ${group.cluster_name}${group.zone_name ? `, zone ${group.zone_name}` : ""}`;
  return svg("g", { class: `group ${usable(group)}` },
    svg("title", null, `${title}: ${WORDS[usable(group)]}`),
    svg("rect", { x, y, width, height: heightOf(group), rx: 8 }),
    svg("text", { x: x + 14, y: y + 24, class: "name" }, cut(title, width - 28, 9.2)),
    lines(group).map((line, index) =>
      svg("text", { x: x + 14, y: y + 44 + index * 18 }, cut(line, width - 28, 7.6))));
}

function picture(topic, groups, width, height, content) {
  const label = `${topic} is on ${groups.map((group) => `${group.broker_name}: ${WORDS[usable(group)]}`).join("; ") || "nothing"}`;
  return h("div", { class: "picture" },
    svg("svg", { role: "img", "aria-label": label, viewBox: `0 0 ${width} ${height}`, width, height }, content));
}

function topicBox(topic, x, y, width) {
  return svg("g", { class: "topic" }, svg("title", null, topic),
    svg("rect", { x, y, width, height: 48, rx: 24 }),
    svg("text", { x: x + width / 2, y: y + 29, "text-anchor": "middle", class: "name" }, cut(topic, width - 36, 9.2)));
}

// The topic on the left, its groups on the right.
function drawWide(topic, groups, width) {
  const drawn = groups.slice(0, DRAWN);
  const left = Math.min(250, width * 0.32);
  const boxes = width - left - 120;
  const height = Math.max(72, drawn.reduce((sum, group) => sum + heightOf(group) + 14, 10));
  let y = drawn.length ? 12 : 0;
  const content = drawn.map((group) => {
    const middle = y + heightOf(group) / 2;
    const [from, to] = [2 + left, left + 118];
    const parts = [
      svg("path", { class: `edge ${usable(group)}`, d: `M${from} ${height / 2} C${from + 60} ${height / 2} ${to - 60} ${middle} ${to} ${middle}` }),
      box(group, to, y, boxes),
    ];
    y += heightOf(group) + 14;
    return parts;
  });
  return picture(topic, groups, width, height, [content, topicBox(topic, 2, height / 2 - 24, left)]);
}

// The topic on top, its groups below, for a narrow screen.
function drawTall(topic, groups, width) {
  const drawn = groups.slice(0, DRAWN);
  let y = 66;
  let end = 40; // of the line that all groups hang on
  const content = drawn.map((group) => {
    const middle = y + heightOf(group) / 2;
    const parts = [
      svg("path", { class: `edge ${usable(group)}`, d: `M16 ${middle} H36` }),
      box(group, 36, y, width - 38),
    ];
    end = middle;
    y += heightOf(group) + 12;
    return parts;
  });
  const spine = svg("path", { class: "edge spine", d: `M16 40 V${end}` });
  return picture(topic, groups, width, y + 2, [spine, content, topicBox(topic, 2, 2, width - 4)]);
}

function asTable(answer, names) {
  const columns = ["Broker", "Cluster", "Permission", "Read queues", "Write queues", "Addresses"];
  return table(`Queues at ${names}`, columns, answer.groups.map((group) => ({
    key: `${group.cluster_name} ${group.broker_name}`,
    cells: [
      h("a", { href: brokerHref(group.cluster_name, group.broker_name) }, group.broker_name), group.cluster_name,
      `${group.permission}, ${WORDS[usable(group)]}`, count(group.read_queue_nums ?? 0), count(group.write_queue_nums ?? 0),
      h("span", { class: "mono" }, group.broker_addrs.map((broker) => `${broker.broker_id}: ${broker.broker_addr}`).join(", ")),
    ],
  })));
}

/** A state of the contract as words: GROUP_LEFT is "group left". */
function stateWords(state) {
  return state.toLowerCase().replaceAll("_", " ");
}

function reasons(answers, overview) {
  const found = new Map(); // what several name servers say, once
  answers.forEach((answer, index) => (answer.explanations ?? []).forEach((why) => {
    const key = JSON.stringify([why.cluster_name, why.broker_name, why.state, why.explanation]);
    const said = found.get(key);
    if (!said) found.set(key, { ...why, key, names: [nameOf(overview, index)] });
    else said.names.push(nameOf(overview, index));
  }));
  const rows = [...found.values()].map((why) => ({
    key: why.key,
    cells: [
      why.broker_name ? h("a", { href: brokerHref(why.cluster_name, why.broker_name) }, why.broker_name) : "(none)",
      why.names.join(", "), pill(why.state === "IN_ROUTE" ? "good" : "idle", stateWords(why.state)),
      why.explanation, why.since === undefined ? "" : agoTime(Date.parse(why.since)),
    ],
  }));
  if (!rows.length) return null;
  return h("section", { "data-key": "why", "aria-labelledby": "title-why" }, h("h2", { id: "title-why" }, "Why"),
    table("Why broker groups are or are not in the route", ["Broker", "Name server", "State", "Why", "Since"], rows));
}
