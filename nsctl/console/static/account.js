// Who looks at the page, what that person may do, and a way out; and which of several fleets it is about.

import { send } from "./api.js";
import { h, morph } from "./dom.js";

const account = document.getElementById("account");

export function showAccount({ person, role, permitLogOut, fleet, fleets }) {
  morph(account, [
    fleets.length > 1 && h("label", { for: "fleet" }, "Fleet"),
    fleets.length > 1 && h("select", { id: "fleet" }, fleets.map((name) => h("option", { value: name, selected: name === fleet }, name))),
    h("span", { class: "person" }, person, h("span", { class: "quiet" }, ` ${role}`)),
    permitLogOut && h("button", { type: "button", id: "log-out" }, "Log out"),
  ].filter(Boolean));
}

document.addEventListener("change", (event) => {
  if (event.target.id === "fleet") location.assign(`/?${new URLSearchParams({ fleet: event.target.value })}#/overview`);
});

document.addEventListener("click", async (event) => {
  if (event.target.id !== "log-out") return;
  await send("log-in", {}, "DELETE");
  location.reload();
});
