// Asks for the token, or a name and password, where the console wants one.

import { h } from "./dom.js";

const dialog = document.getElementById("dialog");
const MEANING = {
  password: "This console shows itself to people whom it knows.",
  token: "This console shows itself to those who have its token.",
  proxy: "This console shows itself to those whom the proxy in front of it names, and it named nobody.",
};

export async function logIn() {
  if (dialog.open) return;
  const ways = await (await fetch("/api/log-in")).json();
  if (dialog.open) return;
  const title = h("h2", { id: "dialog-title", tabindex: "-1" }, "Log in");
  const name = h("input", { id: "name", type: "text", autocomplete: "username", maxlength: 64, required: !ways.token });
  const token = h("input", { id: "token", type: "password", autocomplete: "current-password", required: true });
  const go = h("button", { type: "submit", class: "strong" }, "Log in");
  const outcome = h("div", { class: "outcome", role: "status" });
  const form = h("form", { method: "dialog" }, title, h("p", null, MEANING[ways.password ? "password" : ways.token ? "token" : "proxy"]),
    ways.password && [h("label", { for: "name" }, "Name"), name],
    h("label", { for: "token" }, !ways.password ? "Token" : ways.token ? "Password, or the token without a name" : "Password"), token, outcome, h("p", { class: "buttons" }, go));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    go.disabled = true;
    const asked = ways.password && (name.value || !ways.token) ? { name: name.value, password: token.value } : { token: token.value };
    const problem = await send(asked);
    if (problem === null) location.reload();
    else outcome.replaceChildren(h("p", { class: "note bad" }, problem));
    go.disabled = false;
  });
  dialog.addEventListener("cancel", (event) => event.preventDefault());
  dialog.replaceChildren(form);
  dialog.showModal();
  (ways.password ? name : token).focus();
}

// What is wrong; null if nothing is.
async function send(asked) {
  try {
    const response = await fetch("/api/log-in", {
      method: "POST",
      headers: { "Content-Type": "application/json", "X-Namesrv-Console": "1" },
      body: JSON.stringify(asked),
    });
    return response.ok ? null : (await response.json()).problem.message;
  } catch {
    return "The console does not answer.";
  }
}
