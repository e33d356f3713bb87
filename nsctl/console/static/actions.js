// Drain, restore and confirm a loss: first what it would do, then doing it.

import { send } from "./api.js";
import { count, h, morph, note, pill, plural, table } from "./dom.js";

const SAMPLES = 5; // topics that are named
const dialog = document.getElementById("dialog");

const WORDS = {
  drain: ["Drain", "takes write permission from the group until it is restored: producers go elsewhere, consumers read on."],
  restore: ["Restore", "gives write permission back to the group."],
  confirm: ["Confirm the loss of", "takes unconfirmed brokers out of the routes: say so only if they are really gone."],
};
const EVERYTHING = "all that the guard holds";

export function openAction({ act, broker, cluster }, overview, done) {
  const [verb, meaning] = WORDS[act];
  const title = h("h2", { id: "dialog-title", tabindex: "-1" }, `${verb} ${broker ? `${broker} of ${cluster}` : EVERYTHING}`);
  const cancel = h("button", { type: "button", "data-key": "cancel" }, "Cancel");
  const go = h("button", { type: "submit", class: "strong", disabled: true, "data-key": "go" }, `${verb} ${broker ?? EVERYTHING}`);
  const why = h("input", { id: "why", name: "why", maxlength: 400, autocomplete: "off" });
  const force = h("input", { id: "force", type: "checkbox" });
  const forced = h("p", { hidden: true }, force, h("label", { for: "force" }, " Producers of these topics may fail. Continue all the same."));
  const outcome = h("div", { class: "outcome", role: "status" }, h("p", null, "Asking what it would do."));
  const form = h("form", { method: "dialog" }, title, h("p", null, `It ${meaning}`),
    h("label", { for: "why" }, "Why, for the journal"), why, outcome, forced, h("p", { class: "buttons" }, cancel, go));
  const act_ = async (preview) => (await send("actions", { action: act, broker, cluster, why: why.value, force: force.checked, preview })).results;
  const tell = (nodes) => morph(outcome, nodes);
  cancel.addEventListener("click", () => dialog.close());
  force.addEventListener("change", () => { go.disabled = !force.checked; });
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    go.disabled = true;
    try {
      tell(results(await act_(false), overview, false));
      go.hidden = forced.hidden = true;
      cancel.textContent = "Close";
      cancel.focus();
    } catch (error) {
      tell([note("bad", error.message)]);
      go.disabled = false;
    }
    done();
  });
  dialog.replaceChildren(form);
  dialog.showModal();
  title.focus();
  act_(true).then((answers) => {
    tell(results(answers, overview, true));
    forced.hidden = !answers.some((answer) => answer.in_use?.topic_count);
    go.disabled = !forced.hidden || answers.every((answer) => answer.problem);
  }, (error) => tell([note("bad", error.message)]));
}

function results(answers, overview, preview) {
  const rows = answers.map((answer, index) => ({
    key: String(index),
    cells: answer.problem
      ? [overview.servers[index].name, pill("bad", answer.problem.message || answer.problem.reason), "", ""]
      : [overview.servers[index].name, pill(preview ? "idle" : "good", preview ? "would be done" : "done"),
        answer.awaits_registration ? pill("warn", "not registered: from its first registration") : count(answer.topics_changed),
        answer.topics_losing_last_writable_queue ? pill("warn", count(answer.topics_losing_last_writable_queue)) : "0"],
  }));
  const columns = ["Name server", "Result", "Routes that change", "Topics that nobody can write to"];
  const names = [...new Set(answers.flatMap((answer) => answer.sample_topics ?? []))];
  const more = names.length > SAMPLES ? ", …" : "";
  const used = [...new Set(answers.flatMap((answer) => answer.in_use?.topics ?? []))].sort();
  const usedCount = Math.max(0, ...answers.map((answer) => answer.in_use?.topic_count ?? 0));
  const failed = answers.filter((answer) => answer.problem).length;
  return [
    table(preview ? "What it would do" : "What was done", columns, rows),
    names.length > 0 && h("p", { class: "after" }, "Topics: ", names.slice(0, SAMPLES).join(", "), more),
    preview && used.length > 0 && note("bad", `Producers lose the last group that takes messages of ${plural(Math.max(usedCount, used.length), "topic")}: `
      + used.slice(0, SAMPLES).join(", ") + (usedCount > SAMPLES ? ", …" : "")),
    failed > 0 && note("warn", `${plural(failed, "name server")} ${failed === 1 ? "does" : "do"} not take part: `
      + "the name servers will not agree until it is done there, too."),
  ].filter(Boolean);
}
