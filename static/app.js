// Conveniences only: every page works without this file.
"use strict";

const byId = (id) => document.getElementById(id);
const inputs = byId("inputs");
const live = byId("live");

// The verdict of what is typed: asked a moment after the last change; a newer question cancels the one that runs.
let due, running, wait = 1;

function ask(seconds) {
  clearTimeout(due);
  due = setTimeout(preview, seconds * 1000);
}

function again(words, seconds) {
  live.textContent = words.replace("{s}", seconds);
  ask(seconds);
}

async function preview() {
  running?.abort();
  const mine = running = new AbortController();
  try {
    const answer = await fetch("/preview", { method: "POST", body: new URLSearchParams(new FormData(inputs)), signal: mine.signal });
    if (!answer.ok) return again(live.dataset.busy, Number(answer.headers.get("retry-after")) || 5);
    const found = await answer.json();
    live.innerHTML = found.line;
    for (const old of inputs.querySelectorAll("p.error, p.tip")) old.remove();
    for (const control of inputs.querySelectorAll("[aria-describedby]")) show(control, found.errors[control.name], found.notes[control.name]);
    wait = 1;
  } catch (error) {
    if (mine.signal.aborted) return;
    again(live.dataset.lost, wait);
    wait = Math.min(2 * wait, 30);
  }
}

function show(control, errors, notes) {
  const box = control.parentElement;
  for (const [texts, name, prefix] of [[notes, "tip", "n-"], [errors, "error", "e-"]]) {
    if (!texts) continue;
    const line = Object.assign(document.createElement("p"), { className: name, id: prefix + control.name, textContent: texts.join(" ") });
    control.after(line);
  }
  box.classList.toggle("wrong", Boolean(errors));
  control.setAttribute("aria-invalid", Boolean(errors));
  control.setAttribute("aria-describedby", [...box.querySelectorAll("p[id]")].map((line) => line.id).join(" "));
}

// A config.json that was chosen or dropped is read into its field, where it can be seen and is kept.
async function take(file) {
  if (!file) return;
  byId("f-config").value = await file.text();
  byId("f-config_file").value = "";
  byId("f-config").closest("details").open = true;
  ask(0);
}

if (inputs) {
  // Empty fields stay out of the address.
  inputs.addEventListener("formdata", (event) => {
    for (const [name, value] of [...event.formData]) if (value === "" || value instanceof File) event.formData.delete(name);
  });
  inputs.addEventListener("submit", () => { inputs.method = byId("f-config").value.trim() ? "post" : "get"; });
  inputs.addEventListener("input", (event) => { if (event.target.type !== "file") ask(0.3); });
  addEventListener("online", () => { if (wait > 1) ask(0); });
  byId("f-config_file").addEventListener("change", (event) => take(event.target.files[0]));
  inputs.addEventListener("dragover", (event) => event.preventDefault());
  inputs.addEventListener("drop", (event) => {
    if (!event.dataTransfer.files.length) return;
    event.preventDefault();
    take(event.dataTransfer.files[0]);
  });
}

if (navigator.clipboard) {
  const told = async (element, text, done) => {
    await navigator.clipboard.writeText(text);
    const word = element.textContent;
    element.textContent = done;
    setTimeout(() => { element.textContent = word; }, 2000);
  };
  for (const button of document.querySelectorAll("button[data-copy]")) {
    button.hidden = false;
    button.addEventListener("click", () => told(button, byId(button.dataset.copy).textContent, document.body.dataset.copied));
  }
  document.querySelector("a[data-copied]")?.addEventListener("click", (event) => {
    event.preventDefault();
    told(event.target, event.target.href, event.target.dataset.copied);
  });
}

// Files are highlighted without touching their text, where the browser can.
const TOKEN = /(?<comment>(?<=^|\s)(?:#|\/\/).*$)|(?<string>"(?:[^"\\\n]|\\.)*"|'[^'\n]*')|(?<number>\b\d[\w.]*)|(?<word>\b(?:true|false|null|True|False|None|import|from|def|class|return|if|else|elif|for|in|with|as|raise|export|exec)\b)/gm;
if (window.CSS?.highlights) {
  const found = { comment: new Highlight(), string: new Highlight(), number: new Highlight(), word: new Highlight() };
  for (const code of document.querySelectorAll(".file pre code")) {
    for (const match of code.textContent.matchAll(TOKEN)) {
      const [kind] = Object.keys(found).filter((name) => match.groups[name]);
      const range = new Range();
      range.setStart(code.firstChild, match.index);
      range.setEnd(code.firstChild, match.index + match[0].length);
      found[kind].add(range);
    }
  }
  for (const [kind, ranges] of Object.entries(found)) CSS.highlights.set(kind, ranges);
}

// A link from a note opens the fold its field is in.
addEventListener("hashchange", () => {
  const field = byId(location.hash.slice(1));
  if (!field || !inputs || !inputs.contains(field)) return;
  for (let fold = field.closest("details"); fold; fold = fold.parentElement.closest("details")) fold.open = true;
  field.focus();
});

// On paper every fold is open.
let opened = [];
addEventListener("beforeprint", () => {
  opened = [...document.querySelectorAll(".answer details:not([open], .save)")];
  for (const fold of opened) fold.open = true;
});
addEventListener("afterprint", () => {
  for (const fold of opened) fold.open = false;
});
