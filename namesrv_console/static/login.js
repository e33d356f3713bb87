// Asks for the token, where the console wants one.

import { h } from "./dom.js";

const dialog = document.getElementById("dialog");

export function logIn() {
  if (dialog.open) return;
  const title = h("h2", { id: "dialog-title", tabindex: "-1" }, "Log in");
  const token = h("input", { id: "token", type: "password", autocomplete: "current-password", required: true });
  const go = h("button", { type: "submit", class: "strong" }, "Log in");
  const outcome = h("div", { class: "outcome", role: "status" });
  const form = h("form", { method: "dialog" }, title, h("p", null, "This console shows itself to those who have its token."),
    h("label", { for: "token" }, "Token"), token, outcome, h("p", { class: "buttons" }, go));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    go.disabled = true;
    const problem = await send(token.value);
    if (problem === null) location.reload();
    else outcome.replaceChildren(h("p", { class: "note bad" }, problem));
    go.disabled = false;
  });
  dialog.addEventListener("cancel", (event) => event.preventDefault());
  dialog.replaceChildren(form);
  dialog.showModal();
  token.focus();
}

// What is wrong; null if nothing is.
async function send(token) {
  try {
    const response = await fetch("/api/log-in", {
      method: "POST",
      headers: { "Content-Type": "application/json", "X-Namesrv-Console": "1" },
      body: JSON.stringify({ token }),
    });
    return response.ok ? null : (await response.json()).problem.message;
  } catch {
    return "The console does not answer.";
  }
}
