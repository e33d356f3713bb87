// Renews the content of the page every few seconds, unless somebody reads with focus or a selection in it.
// The search fields are outside of what is renewed. Without this script, a reload does the same.
"use strict";
const PAUSE_MILLIS = 5000;
const DEADLINE_MILLIS = 8000;
const main = document.querySelector("main");
const connection = document.querySelector("#connection");
let answered = new Date();

function isRead() {
  const selection = getSelection();
  const focused = document.activeElement;
  return (focused !== main && main.contains(focused)) || (!selection.isCollapsed && main.contains(selection.anchorNode));
}

function tell(text, lost) {
  if (connection.textContent !== text) connection.textContent = text;
  document.body.classList.toggle("lost", lost);
}

async function renew() {
  try {
    const answer = await fetch(location.href, { signal: AbortSignal.timeout(DEADLINE_MILLIS) });
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const fresh = page.querySelector("main");
    if (fresh === null) throw new Error(`status ${answer.status}`);
    answered = new Date();
    if (isRead()) {
      tell("Paused while you select or use something here", false);
      return;
    }
    main.replaceChildren(...fresh.childNodes);
    document.title = page.title;
    tell("", false);
  } catch {
    tell(`The console does not answer. This is from ${answered.toLocaleString()}.`, true);
  }
}

async function run() {
  if (!document.hidden) await renew();
  setTimeout(run, PAUSE_MILLIS);
}

document.addEventListener("visibilitychange", () => { if (!document.hidden) renew(); });
setTimeout(run, PAUSE_MILLIS);
