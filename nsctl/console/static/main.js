// Which view is shown, and keeping it up to date.

import { showAccount } from "./account.js";
import { openAction } from "./actions.js";
import { ask } from "./api.js";
import { clock, h, morph, plural, setClock, tick } from "./dom.js";
import { change, place } from "./place.js";
import * as broker from "./views/broker.js";
import * as brokers from "./views/brokers.js";
import * as journal from "./views/journal.js";
import * as overview from "./views/overview.js";
import * as servers from "./views/servers.js";
import * as topic from "./views/topic.js";
import * as topics from "./views/topics.js";

const VIEWS = { overview, brokers, broker, topics, topic, servers, journal };
const PART_OF = { broker: "overview", brokers: "overview", topic: "topics" }; // which link is current
const NEWS_SHOWN = 20;
const TYPING_MILLIS = 200;
const RETRY_MILLIS = 3_000;
const SILENCE_MILLIS = 25_000; // the console says something every 10 s

const main = document.getElementById("main");
const state = { overview: null, connected: false, heardAt: 0, shown: null, turn: 0, told: null };

function here() {
  const { name, parameters } = place();
  return { name: name in VIEWS ? name : "overview", parameters };
}

async function show({ moved = false } = {}) {
  const turn = ++state.turn;
  const { name, parameters } = here();
  const view = VIEWS[name];
  for (const link of document.querySelectorAll("nav a")) {
    const current = link.dataset.view === (PART_OF[name] ?? name);
    if (current) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  let nodes;
  try {
    const data = await view.load(parameters, ask);
    if (turn !== state.turn || !state.overview) return;
    nodes = view.render(data, { ...state, parameters, width: contentWidth() });
  } catch (error) {
    if (turn !== state.turn) return;
    if (!moved && !state.connected && state.shown === name) return; // the banner says it; what was there stays
    nodes = failure(error);
  }
  morph(main, nodes);
  state.shown = name;
  const title = main.querySelector("h1");
  document.title = `${title?.textContent ?? ""} · nsctl console`;
  if (moved) {
    title?.focus({ preventScroll: true });
    scrollTo(0, 0);
  }
}

const failure = (error) => [h("h1", { tabindex: "-1" }, "That did not work"), h("p", { class: "note bad" }, error.message)];

function contentWidth() {
  const { paddingLeft, paddingRight } = getComputedStyle(main);
  return main.clientWidth - parseFloat(paddingLeft) - parseFloat(paddingRight);
}

function tell(text) {
  const news = document.getElementById("news");
  news.append(h("p", null, text));
  while (news.childElementCount > NEWS_SHOWN) news.firstElementChild.remove();
}

// Brokers that came and left, read out: those that did since the page was opened, each once.
function tellNews({ news }) {
  const newest = news.at(-1)?.number ?? 0;
  const told = state.told ?? newest;
  for (const { number, text } of news) if (number > told) tell(text);
  state.told = newest;
}

function showConnection() {
  const seen = state.overview;
  const reachable = seen ? seen.servers.filter((server) => !["unreachable", "connecting"].includes(server.state)) : [];
  const answered = seen ? Math.max(0, ...seen.servers.map((server) => server.answeredAt ?? 0)) : 0;
  const since = answered ? ` What you see is from ${clock(answered)}.` : "";
  let text = "";
  if (!state.connected && state.heardAt) text = `The console does not answer.${since} This page tries again by itself.`;
  else if (seen?.stale) text = `No name server is reachable.${since} This page goes on by itself when one answers.`;
  document.body.classList.toggle("stale", text !== "");
  const banner = document.getElementById("banner");
  if (banner.textContent !== text) morph(banner, text ? [h("p", null, text)] : []);
  const connection = document.getElementById("connection");
  const status = !state.connected ? "not connected" : !seen ? "connecting"
    : !reachable.length ? "no name server answers" : `live, ${reachable.length} of ${plural(seen.servers.length, "name server")}`;
  const kind = !state.connected || !reachable.length ? "bad" : reachable.length < seen.servers.length ? "warn" : "good";
  connection.className = `connection ${kind}`;
  if (connection.textContent !== status) connection.textContent = status;
}

async function renew() {
  const before = state.overview;
  state.overview = await ask("overview");
  tellNews(state.overview);
  showAccount(state.overview);
  showConnection();
  if (!document.hidden) await show({ moved: before === null });
}

let renewing = false;
let wanted = false;

// One at a time; what comes meanwhile is one more.
async function renewSoon() {
  wanted = true;
  if (renewing) return;
  renewing = true;
  while (wanted) {
    wanted = false;
    try {
      await renew();
    } catch (error) {
      // The stream of events says whether the console answers, and comes with a reason to try again.
      if (!state.overview && error.status && error.status !== 401) morph(main, failure(error));
    }
  }
  renewing = false;
}

let events = null;

function stopListening() {
  events?.close();
  events = null;
}

// Only while the page is looked at: a browser opens few connections to one place, and hidden pages would take them all.
function listen() {
  stopListening();
  if (document.hidden) return;
  const mine = (events = new EventSource("/api/events"));
  const connected = (value) => {
    state.connected = value;
    showConnection();
  };
  state.heardAt &&= Date.now();
  mine.onmessage = ({ data }) => {
    const told = JSON.parse(data);
    setClock(told.now);
    state.heardAt = Date.now();
    connected(true);
    if (told.version !== state.overview?.version) renewSoon();
  };
  mine.onerror = () => {
    connected(false);
    if (mine.readyState === EventSource.CLOSED) {
      renewSoon(); // it does not say why it was refused; this does
      setTimeout(() => mine === events && listen(), RETRY_MILLIS);
    }
  };
}

let typing = 0;

// Forms of a view are its parameters: what is typed becomes part of the address.
function typed(event) {
  const form = event.target.closest("form[data-view]");
  if (!form) return;
  event.preventDefault();
  clearTimeout(typing);
  typing = setTimeout(() => {
    const { parameters } = here();
    for (const { name, type } of form.elements) if (type !== "submit" && name) delete parameters[name];
    change(form.dataset.view, { ...parameters, start: "", before: "", ...Object.fromEntries(new FormData(form)) });
    show();
  }, event.type === "submit" ? 0 : TYPING_MILLIS);
}

document.addEventListener("input", typed);
document.addEventListener("submit", typed);
document.addEventListener("click", (event) => {
  const button = event.target.closest("button[data-act]");
  if (button) openAction(button.dataset, state.overview, renewSoon);
  const setting = event.target.closest("button[data-set]");
  if (setting) {
    const { name, parameters } = here();
    change(name, { ...parameters, ...JSON.parse(setting.dataset.set) });
    show();
  }
  if (event.target.closest("a.skip")) {
    event.preventDefault();
    main.focus();
  }
});
document.addEventListener("visibilitychange", () => {
  listen();
  if (!document.hidden) show();
});
addEventListener("hashchange", () => show({ moved: true }));
addEventListener("resize", () => here().name === "topic" && show());
setInterval(() => {
  if (document.hidden) return;
  tick();
  if (state.connected && Date.now() - state.heardAt > SILENCE_MILLIS) {
    state.connected = false;
    showConnection();
  }
}, 1000);
listen();
