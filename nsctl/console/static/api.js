// What the page asks of the console.

import { logIn } from "./login.js";

const SENT = { "Content-Type": "application/json", "X-Namesrv-Console": "1" }; // no form or link can send these

// The fleet is in the part of the address before "#", so that another one is another page.
const fleet = new URLSearchParams(location.search).get("fleet");

export function address(path, parameters = {}) {
  const given = Object.entries({ ...parameters, fleet }).filter(([, value]) => value !== "" && value != null);
  return `/api/${path}?${new URLSearchParams(given)}`;
}

export async function ask(path, parameters = {}) {
  const response = await fetch(address(path, parameters), { headers: { Accept: "application/json" } });
  if (response.status === 401) logIn();
  return content(response);
}

export async function send(path, body, method = "POST") {
  return content(await fetch(address(path), { method, headers: SENT, body: JSON.stringify(body) }));
}

async function content(response) {
  const answer = await response.json();
  if (!response.ok) throw Object.assign(new Error(answer.problem.message), { status: response.status });
  return answer;
}
