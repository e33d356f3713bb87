// Who looks at the page, what that person may do, and a way out.

import { send } from "./api.js";
import { h, morph } from "./dom.js";

const account = document.getElementById("account");

export function showAccount({ person, role, permitLogOut }) {
  morph(account, [
    h("span", { class: "person" }, person, h("span", { class: "quiet" }, ` ${role}`)),
    permitLogOut && h("button", { type: "button", id: "log-out" }, "Log out"),
  ].filter(Boolean));
}

document.addEventListener("click", async (event) => {
  if (event.target.id !== "log-out") return;
  await send("log-in", {}, "DELETE");
  location.reload();
});
