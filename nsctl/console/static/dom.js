// Elements, made and updated. Everything that comes from a name server becomes text, never markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value !== null && value !== undefined && value !== false) {
      element.setAttribute(name, value === true ? "" : String(value));
    }
  }
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined && child !== false) {
      element.append(child instanceof Node ? child : String(child));
    }
  }
  return element;
}

export function h(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

const keyOf = (node) => node?.getAttribute?.("data-key") ?? null;
const alike = (one, other) => one.nodeType === other.nodeType && one.nodeName === other.nodeName;

// Makes the children of an element like the fresh ones, and keeps what is the same: focus, scroll position, what is
// being typed, and where a screen reader is.
export function morph(parent, fresh) {
  const keyed = new Map();
  for (const child of parent.children) {
    if (keyOf(child) !== null) keyed.set(keyOf(child), child);
  }
  let at = parent.firstChild;
  for (const node of fresh) {
    const key = keyOf(node);
    const match = key === null ? (at && keyOf(at) === null ? at : null) : keyed.get(key);
    if (!match || !alike(match, node)) {
      parent.insertBefore(node, at);
      continue;
    }
    if (match === at) at = at.nextSibling;
    else parent.insertBefore(match, at);
    update(match, node);
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}

function update(old, fresh) {
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return;
  }
  for (const { name } of [...old.attributes]) {
    if (!fresh.hasAttribute(name)) old.removeAttribute(name);
  }
  for (const { name, value } of fresh.attributes) {
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  morph(old, [...fresh.childNodes]);
}

// Numbers and times for people.

export const count = (number) => number.toLocaleString("en");
export const plural = (number, one, many = `${one}s`) => `${count(number)} ${number === 1 ? one : many}`;

let clockOffset = 0; // how far the console's clock is ahead of the browser's, ms

export function setClock(nowAtConsole) {
  clockOffset = nowAtConsole - Date.now();
}

export const now = () => Date.now() + clockOffset;

export function ago(millis) {
  const seconds = Math.max(0, Math.round((now() - millis) / 1000));
  if (seconds < 2) return "just now";
  if (seconds < 120) return `${seconds} s ago`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min ago`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h ago`;
  return `${Math.round(seconds / 86400)} days ago`;
}

const pad = (number) => String(number).padStart(2, "0");

export function clock(millis) {
  const date = new Date(millis);
  const time = `${pad(date.getHours())}:${pad(date.getMinutes())}:${pad(date.getSeconds())}`;
  const sameDay = date.toDateString() === new Date(now()).toDateString();
  return sameDay ? time : `${date.getFullYear()}-${pad(date.getMonth() + 1)}-${pad(date.getDate())} ${time}`;
}

// A time that goes on ticking; see tick().
export function agoTime(millis) {
  return h("time", { datetime: new Date(millis).toISOString(), title: clock(millis), "data-ago": millis }, ago(millis));
}

export function clockTime(millis) {
  return h("time", { datetime: new Date(millis).toISOString(), title: new Date(millis).toISOString() }, clock(millis));
}

export function tick() {
  for (const element of document.querySelectorAll("time[data-ago]")) {
    const text = ago(Number(element.dataset.ago));
    if (element.textContent !== text) element.firstChild.data = text;
  }
}

// Parts that several views have.

export const pill = (kind, ...text) => h("span", { class: `pill ${kind}` }, h("i", { "aria-hidden": "true" }), text);

// A table that a narrow screen shows as cards: each cell names its column. A column is its title, or [title, order] if
// the rows can be sorted by it; sorted is the order in force, with "-" before it for the other way round.
export function table(caption, titles, rows, sorted = "") {
  const columns = titles.map((title) => (Array.isArray(title) ? title[0] : title));
  const head = titles.map((title) => (Array.isArray(title) ? sortable(...title, sorted) : title === "" ? h("td") : h("th", { scope: "col" }, title)));
  const body = rows.map(({ key, kind, cells }) =>
    h("tr", { "data-key": key, class: kind },
      cells.map((cell, index) => index === 0
        ? h("th", { scope: "row", "data-column": columns[index] }, h("div", null, cell))
        : h("td", { "data-column": columns[index] }, cell === "" ? "" : h("div", null, cell)))));
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    h("table", null, h("caption", { class: "unseen" }, caption), h("thead", null, h("tr", null, head)), h("tbody", null, body)));
}

function sortable(title, order, sorted) {
  const direction = sorted === order ? "ascending" : sorted === `-${order}` ? "descending" : null;
  const next = { ascending: `-${order}`, descending: "" }[direction] ?? order;
  return h("th", { scope: "col", "aria-sort": direction },
    h("button", { type: "button", class: "sort", "data-set": JSON.stringify({ sort: next, start: "" }) }, title));
}

export function field(name, label, value, more = {}) {
  return [
    h("label", { for: `field-${name}` }, label),
    h("input", { id: `field-${name}`, name, type: "search", value, maxlength: 255, autocomplete: "off",
      autocapitalize: "off", spellcheck: "false", ...more }),
  ];
}

export const checkbox = (name, label, checked) =>
  h("label", { class: "check" }, h("input", { type: "checkbox", name, value: "1", checked }), label);

export const note = (kind, ...text) => h("p", { class: `note ${kind}` }, text);
