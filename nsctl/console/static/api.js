// What the page asks of the console.

import { logIn } from "./login.js";

const SENT = { "Content-Type": "application/json", "X-Namesrv-Console": "1" }; // no form or link can send these

export async function ask(path, parameters = {}) {
  const given = Object.entries(parameters).filter(([, value]) => value !== "" && value != null);
  const response = await fetch(`/api/${path}?${new URLSearchParams(given)}`, { headers: { Accept: "application/json" } });
  if (response.status === 401) logIn();
  return content(response);
}

export async function send(path, body, method = "POST") {
  return content(await fetch(`/api/${path}`, { method, headers: SENT, body: JSON.stringify(body) }));
}

async function content(response) {
  const answer = await response.json();
  if (!response.ok) throw Object.assign(new Error(answer.problem.message), { status: response.status });
  return answer;
}
